"""Arrays that both processes see: torch tensors and numpy arrays over the shared memory of a
call, without copies."""

import mmap

MEMORY_FD = 6
NAMES = {"f32": "float32", "i64": "int64", "i32": "int32", "u8": "uint8"}


class Memory:
    """The memory of one call; arrays are {name: [offset, count, dtype]}."""

    def __init__(self, layout):
        self.map = mmap.mmap(MEMORY_FD, layout["size"])
        self.arrays = layout["arrays"]

    def __contains__(self, name):
        return name in self.arrays

    def torch(self, name):
        import torch

        at, count, kind = self.arrays[name]
        dtype = getattr(torch, NAMES[kind])
        if count == 0:
            return torch.zeros(0, dtype=dtype)
        return torch.frombuffer(self.map, dtype=dtype, count=count, offset=at)

    def numpy(self, name):
        import numpy

        at, count, kind = self.arrays[name]
        return numpy.frombuffer(self.map, dtype=NAMES[kind], count=count, offset=at)
