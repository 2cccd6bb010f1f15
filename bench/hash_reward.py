"""A reward of 0 or 1 by the answer's bytes: every group of samples has a gradient, so a timed step
does all of its work."""
import zlib


def bit(args, sample):
    return float(zlib.crc32(sample.response.encode()) & 1)
