"""Writes src/text/unicode_int.h: where the Unicode of the `tokenizers` package differs from ours.

Run it with a Python that has the package and Unicode 14 in `unicodedata` (3.11):
    MILES_TEST_DATA=... python tests/text/gen_unicode_tables.py > src/text/unicode_int.h
It asks the package itself, character by character, so that the tables follow what it does.
"""
import os
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

if unicodedata.unidata_version != "14.0.0":
    sys.exit("this needs a Python with Unicode 14.0.0, not " + unicodedata.unidata_version)

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, CPS))
GC = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def members(pattern):
    """The code points that the package's regex engine matches."""
    kept = set()
    for _, (a, b) in pre_tokenizers.Split(Regex(pattern + "+"), "removed").pre_tokenize_str(ALL):
        kept.update(range(a, b))
    return {c for i, c in enumerate(CPS) if i not in kept}


def ranges(items):
    """[(first, last, value)] of a dict, joining neighbours of equal value."""
    out = []
    for c in sorted(items):
        if out and out[-1][1] == c - 1 and out[-1][2] == items[c]:
            out[-1][1] = c
        else:
            out.append([c, c, items[c]])
    return out


def young():
    """Characters whose category the package knows and Unicode 14 does not -> an older stand-in."""
    gc = {}
    for name in GC:
        for c in members(r"\p{%s}" % name):
            gc[c] = name
    word, han = members(r"\w"), members(r"\p{Han}")
    out = {}
    for c in CPS:
        mine = unicodedata.category(chr(c))
        theirs = gc.get(c, "Cn")
        if mine == theirs:
            continue
        size = len(chr(c).encode())
        want = (theirs, c in word, c in han)
        for d in range(1, 0x30000):
            hit = [s for s in (c - d, c + d) if 0 < s < 0x110000 and not 0xD800 <= s < 0xE000
                   and unicodedata.category(chr(s)) == theirs == gc.get(s)
                   and (theirs, s in word, s in han) == want and len(chr(s).encode()) == size]
            if hit:
                out[c] = hit[0]
                break
        else:
            sys.exit("no stand-in for %x" % c)
    # One stand-in per run keeps the table short.
    runs = ranges({c: (gc[c], c in word, c in han) for c in out})
    return [(a, b, out[a]) for a, b, _ in runs]


def numeric():
    """What the Digits pre-tokenizer takes for a digit."""
    out = {}
    text = "aa" + "aa".join(map(chr, CPS)) + "aa"  # so that only a digit is a piece of one
    for piece, (a, b) in pre_tokenizers.Digits(True).pre_tokenize_str(text):
        if b - a == 1:
            out[ord(piece)] = 0
    return ranges(out)


# Blocks that received characters with a decomposition or a combining class after Unicode 15, and
# the parts of a composition of Unicode 13.
LATER = [(0x897, 0x897), (0x1ACF, 0x1AFF), (0xA7F1, 0xA7F1), (0x105C0, 0x105FF),
         (0x10D40, 0x10D8F), (0x10EC5, 0x10EFC), (0x11380, 0x113FF), (0x11930, 0x11938),
         (0x11B60, 0x11B7F), (0x11DB0, 0x11DEF), (0x11F5A, 0x11F5A), (0x16100, 0x1613F),
         (0x16D40, 0x16D7F), (0x1CCD6, 0x1CCF9), (0x1E5D0, 0x1E5FF), (0x1E6C0, 0x1E6FF)]


def inert():
    """Characters with a decomposition or combining class that the package does not know."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    low, high = "\u0334", "\u0345"  # combining classes 1 and 240
    found = set()
    path = os.path.join(os.environ["MILES_TEST_DATA"], "text/unicode/UnicodeData.txt")
    for line in open(path, encoding="utf-8"):
        f = line.split(";")
        c, ccc, decomp = int(f[0], 16), int(f[3]), f[5]
        if (ccc or decomp) and not 0xD800 <= c < 0xE000:
            s = chr(c)
            plain = nfkd.normalize_str(s) == s
            fixed = all(nfd.normalize_str(x) == x for x in (s + low, high + s))
            if plain and (fixed or not ccc):
                found.add(c)
    for a, b in LATER:
        for c in range(a, b + 1):
            s = chr(c)
            if nfkd.normalize_str(s) != s or nfd.normalize_str(high + s) != high + s:
                sys.exit("the package knows %x" % c)
            found.add(c)
    return ranges({c: 0 for c in found})


def asked(make):
    """The code points for which make(character) is true."""
    return [r[:2] for r in ranges({c: 0 for c in CPS if make(chr(c))})]


def between(norm):
    """The characters that a normalizer takes out of a text."""
    return asked(lambda c: norm.normalize_str("a" + c + "b") == "ab")


def bert(**on):
    switches = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
                    lowercase=False)
    switches.update(on)
    return normalizers.BertNormalizer(**switches)


def lower():
    """Runs [first, last, step, what is added] of small letters of one character."""
    norm = normalizers.Lowercase()
    out = []
    for c in CPS:
        low = norm.normalize_str(chr(c))
        if len(low) != 1 or ord(low) == c:
            continue
        add = ord(low) - c
        if out and out[-1][3] == add and c - out[-1][1] in (1, 2) and \
                (out[-1][2] in (0, c - out[-1][1])):
            out[-1][1:3] = [c, c - out[-1][1]]
        else:
            out.append([c, c, 0, add])
    return [[a, b, max(step, 1), add] for a, b, step, add in out]


def table(rows, fmt):
    text = ", ".join(fmt % tuple(r) for r in rows)
    line = "   "
    for cell in text.split(", {"):
        cell = cell if cell.startswith("{") else "{" + cell
        if len(line) + len(cell) + 2 > 99:
            print(line)
            line = "   "
        line += " " + cell + ","
    print(line)


print("""/* Where the Unicode of the `tokenizers` package differs from that of our libraries.
 * Written by tests/text/gen_unicode_tables.py; included by unicode.c only. */
#ifndef TEXT_UNICODE_INT_H
#define TEXT_UNICODE_INT_H

#include <stdint.h>

struct unicode_range {
    uint32_t first, last;
};
struct unicode_standin {
    uint32_t first, last, standin;
};
struct unicode_lowers {
    uint32_t first, last, step;
    int32_t add;
};

/* clang-format off */
/* Characters of Unicode 15 and 16, each run with an older character of the same category,
 * word-ness, script class and UTF-8 length. */
static const struct unicode_standin unicode_young[] = {""")
table(young(), "{0x%X, 0x%X, 0x%X}")
print("""};

/* Nd, Nl and No of Unicode 17: what the Digits pre-tokenizer calls a digit. */
static const struct unicode_range unicode_numeric[] = {""")
table([r[:2] for r in numeric()], "{0x%X, 0x%X}")
print("""};

/* Characters whose decomposition or combining class is younger than the package's normalizer
 * (Unicode 9): it leaves them alone. */
static const struct unicode_range unicode_inert[] = {""")
table([r[:2] for r in inert()], "{0x%X, 0x%X}")
print("""};

/* What clean_text of the BertNormalizer takes out. */
static const struct unicode_range unicode_dropped[] = {""")
table(between(bert(clean_text=True)), "{0x%X, 0x%X}")
print("""};

/* Mn for the BertNormalizer (strip_accents). */
static const struct unicode_range unicode_nonspacing[] = {""")
table(between(bert(strip_accents=True)), "{0x%X, 0x%X}")
print("""};

/* M for the StripAccents normalizer. */
static const struct unicode_range unicode_marks[] = {""")
table(between(normalizers.StripAccents()), "{0x%X, 0x%X}")
print("""};

/* What the Punctuation and Bert pre-tokenizers cut at. */
static const struct unicode_range unicode_puncts[] = {""")
table(asked(lambda c: len(pre_tokenizers.Punctuation().pre_tokenize_str("a" + c + "b")) == 3),
      "{0x%X, 0x%X}")
print("""};

/* Capital letters: every step-th from first to last has its small letter `add` further. */
static const struct unicode_lowers unicode_lowers[] = {""")
table(lower(), "{0x%X, 0x%X, %d, %d}")
print("""};
/* clang-format on */

#endif""")
