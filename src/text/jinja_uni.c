/* Owns what Python knows about single code points: white space, case, classes. Categories and
 * simple case maps come from utf8proc; the full maps that give several code points are in a table,
 * because utf8proc has none. */
#include <string.h>

#include <utf8proc.h>

#include "text/jinja_int.h"

/* Code points whose upper case is longer than one, with their title case (SpecialCasing.txt,
 * unconditional entries). */
static const struct {
    uint32_t cp, upper[3], title[3];
} uni_special[] = {
    {0x00df, {0x0053, 0x0053}, {0x0053, 0x0073}},
    {0x0149, {0x02bc, 0x004e}, {0x02bc, 0x004e}},
    {0x01f0, {0x004a, 0x030c}, {0x004a, 0x030c}},
    {0x0390, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x03b0, {0x03a5, 0x0308, 0x0301}, {0x03a5, 0x0308, 0x0301}},
    {0x0587, {0x0535, 0x0552}, {0x0535, 0x0582}},
    {0x1e96, {0x0048, 0x0331}, {0x0048, 0x0331}},
    {0x1e97, {0x0054, 0x0308}, {0x0054, 0x0308}},
    {0x1e98, {0x0057, 0x030a}, {0x0057, 0x030a}},
    {0x1e99, {0x0059, 0x030a}, {0x0059, 0x030a}},
    {0x1e9a, {0x0041, 0x02be}, {0x0041, 0x02be}},
    {0x1f50, {0x03a5, 0x0313}, {0x03a5, 0x0313}},
    {0x1f52, {0x03a5, 0x0313, 0x0300}, {0x03a5, 0x0313, 0x0300}},
    {0x1f54, {0x03a5, 0x0313, 0x0301}, {0x03a5, 0x0313, 0x0301}},
    {0x1f56, {0x03a5, 0x0313, 0x0342}, {0x03a5, 0x0313, 0x0342}},
    {0x1f80, {0x1f08, 0x0399}, {0x1f88}},
    {0x1f81, {0x1f09, 0x0399}, {0x1f89}},
    {0x1f82, {0x1f0a, 0x0399}, {0x1f8a}},
    {0x1f83, {0x1f0b, 0x0399}, {0x1f8b}},
    {0x1f84, {0x1f0c, 0x0399}, {0x1f8c}},
    {0x1f85, {0x1f0d, 0x0399}, {0x1f8d}},
    {0x1f86, {0x1f0e, 0x0399}, {0x1f8e}},
    {0x1f87, {0x1f0f, 0x0399}, {0x1f8f}},
    {0x1f88, {0x1f08, 0x0399}, {0x1f88}},
    {0x1f89, {0x1f09, 0x0399}, {0x1f89}},
    {0x1f8a, {0x1f0a, 0x0399}, {0x1f8a}},
    {0x1f8b, {0x1f0b, 0x0399}, {0x1f8b}},
    {0x1f8c, {0x1f0c, 0x0399}, {0x1f8c}},
    {0x1f8d, {0x1f0d, 0x0399}, {0x1f8d}},
    {0x1f8e, {0x1f0e, 0x0399}, {0x1f8e}},
    {0x1f8f, {0x1f0f, 0x0399}, {0x1f8f}},
    {0x1f90, {0x1f28, 0x0399}, {0x1f98}},
    {0x1f91, {0x1f29, 0x0399}, {0x1f99}},
    {0x1f92, {0x1f2a, 0x0399}, {0x1f9a}},
    {0x1f93, {0x1f2b, 0x0399}, {0x1f9b}},
    {0x1f94, {0x1f2c, 0x0399}, {0x1f9c}},
    {0x1f95, {0x1f2d, 0x0399}, {0x1f9d}},
    {0x1f96, {0x1f2e, 0x0399}, {0x1f9e}},
    {0x1f97, {0x1f2f, 0x0399}, {0x1f9f}},
    {0x1f98, {0x1f28, 0x0399}, {0x1f98}},
    {0x1f99, {0x1f29, 0x0399}, {0x1f99}},
    {0x1f9a, {0x1f2a, 0x0399}, {0x1f9a}},
    {0x1f9b, {0x1f2b, 0x0399}, {0x1f9b}},
    {0x1f9c, {0x1f2c, 0x0399}, {0x1f9c}},
    {0x1f9d, {0x1f2d, 0x0399}, {0x1f9d}},
    {0x1f9e, {0x1f2e, 0x0399}, {0x1f9e}},
    {0x1f9f, {0x1f2f, 0x0399}, {0x1f9f}},
    {0x1fa0, {0x1f68, 0x0399}, {0x1fa8}},
    {0x1fa1, {0x1f69, 0x0399}, {0x1fa9}},
    {0x1fa2, {0x1f6a, 0x0399}, {0x1faa}},
    {0x1fa3, {0x1f6b, 0x0399}, {0x1fab}},
    {0x1fa4, {0x1f6c, 0x0399}, {0x1fac}},
    {0x1fa5, {0x1f6d, 0x0399}, {0x1fad}},
    {0x1fa6, {0x1f6e, 0x0399}, {0x1fae}},
    {0x1fa7, {0x1f6f, 0x0399}, {0x1faf}},
    {0x1fa8, {0x1f68, 0x0399}, {0x1fa8}},
    {0x1fa9, {0x1f69, 0x0399}, {0x1fa9}},
    {0x1faa, {0x1f6a, 0x0399}, {0x1faa}},
    {0x1fab, {0x1f6b, 0x0399}, {0x1fab}},
    {0x1fac, {0x1f6c, 0x0399}, {0x1fac}},
    {0x1fad, {0x1f6d, 0x0399}, {0x1fad}},
    {0x1fae, {0x1f6e, 0x0399}, {0x1fae}},
    {0x1faf, {0x1f6f, 0x0399}, {0x1faf}},
    {0x1fb2, {0x1fba, 0x0399}, {0x1fba, 0x0345}},
    {0x1fb3, {0x0391, 0x0399}, {0x1fbc}},
    {0x1fb4, {0x0386, 0x0399}, {0x0386, 0x0345}},
    {0x1fb6, {0x0391, 0x0342}, {0x0391, 0x0342}},
    {0x1fb7, {0x0391, 0x0342, 0x0399}, {0x0391, 0x0342, 0x0345}},
    {0x1fbc, {0x0391, 0x0399}, {0x1fbc}},
    {0x1fc2, {0x1fca, 0x0399}, {0x1fca, 0x0345}},
    {0x1fc3, {0x0397, 0x0399}, {0x1fcc}},
    {0x1fc4, {0x0389, 0x0399}, {0x0389, 0x0345}},
    {0x1fc6, {0x0397, 0x0342}, {0x0397, 0x0342}},
    {0x1fc7, {0x0397, 0x0342, 0x0399}, {0x0397, 0x0342, 0x0345}},
    {0x1fcc, {0x0397, 0x0399}, {0x1fcc}},
    {0x1fd2, {0x0399, 0x0308, 0x0300}, {0x0399, 0x0308, 0x0300}},
    {0x1fd3, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x1fd6, {0x0399, 0x0342}, {0x0399, 0x0342}},
    {0x1fd7, {0x0399, 0x0308, 0x0342}, {0x0399, 0x0308, 0x0342}},
    {0x1fe2, {0x03a5, 0x0308, 0x0300}, {0x03a5, 0x0308, 0x0300}},
    {0x1fe3, {0x03a5, 0x0308, 0x0301}, {0x03a5, 0x0308, 0x0301}},
    {0x1fe4, {0x03a1, 0x0313}, {0x03a1, 0x0313}},
    {0x1fe6, {0x03a5, 0x0342}, {0x03a5, 0x0342}},
    {0x1fe7, {0x03a5, 0x0308, 0x0342}, {0x03a5, 0x0308, 0x0342}},
    {0x1ff2, {0x1ffa, 0x0399}, {0x1ffa, 0x0345}},
    {0x1ff3, {0x03a9, 0x0399}, {0x1ffc}},
    {0x1ff4, {0x038f, 0x0399}, {0x038f, 0x0345}},
    {0x1ff6, {0x03a9, 0x0342}, {0x03a9, 0x0342}},
    {0x1ff7, {0x03a9, 0x0342, 0x0399}, {0x03a9, 0x0342, 0x0345}},
    {0x1ffc, {0x03a9, 0x0399}, {0x1ffc}},
    {0xfb00, {0x0046, 0x0046}, {0x0046, 0x0066}},
    {0xfb01, {0x0046, 0x0049}, {0x0046, 0x0069}},
    {0xfb02, {0x0046, 0x004c}, {0x0046, 0x006c}},
    {0xfb03, {0x0046, 0x0046, 0x0049}, {0x0046, 0x0066, 0x0069}},
    {0xfb04, {0x0046, 0x0046, 0x004c}, {0x0046, 0x0066, 0x006c}},
    {0xfb05, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xfb06, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xfb13, {0x0544, 0x0546}, {0x0544, 0x0576}},
    {0xfb14, {0x0544, 0x0535}, {0x0544, 0x0565}},
    {0xfb15, {0x0544, 0x053b}, {0x0544, 0x056b}},
    {0xfb16, {0x054e, 0x0546}, {0x054e, 0x0576}},
    {0xfb17, {0x0544, 0x053d}, {0x0544, 0x056d}},
};

size_t jinja_uni_next(const char *p, const char *end, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t have = (size_t)(end - p), n, i;
    uint32_t v;

    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    n = s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc2 ? 2 : 0;
    if (!n || n > have || s[0] >= 0xf5) {
        *cp = 0xfffd;
        return 1;
    }
    v = s[0] & (0xffu >> (n + 1));
    for (i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            *cp = 0xfffd;
            return 1;
        }
        v = v << 6 | (s[i] & 0x3f);
    }
    *cp = v;
    return n;
}

size_t jinja_uni_prev(const char *begin, const char *p, uint32_t *cp)
{
    const char *q = p - 1;

    while (q > begin && p - q < 4 && ((unsigned char)*q & 0xc0) == 0x80) {
        q--;
    }
    if (jinja_uni_next(q, p, cp) != (size_t)(p - q)) {
        *cp = 0xfffd;
        return 1;
    }
    return (size_t)(p - q);
}

size_t jinja_uni_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t jinja_uni_count(const char *p, size_t n)
{
    const char *end = p + n;
    size_t k = 0;
    uint32_t cp;

    while (p < end) {
        p += (unsigned char)*p < 0x80 ? 1 : jinja_uni_next(p, end, &cp);
        k++;
    }
    return k;
}

int jinja_uni_valid(const char *p, size_t n)
{
    const char *end = p + n;

    while (p < end) {
        uint32_t cp;
        size_t k = jinja_uni_next(p, end, &cp);
        if (k == 1 && (unsigned char)*p >= 0x80) {
            return 0;
        }
        if (k == 3 && (cp < 0x800 || (cp >= 0xd800 && cp <= 0xdfff))) {
            return 0;
        }
        if (k == 4 && (cp < 0x10000 || cp > 0x10ffff)) {
            return 0;
        }
        p += k;
    }
    return 1;
}

int jinja_uni_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

int jinja_uni_linebreak(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static utf8proc_category_t uni_category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

int jinja_uni_printable(uint32_t cp)
{
    if (cp < 0x7f) {
        return cp >= 0x20;
    }
    switch (uni_category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return 0;
    default: return 1;
    }
}

int jinja_uni_alpha(uint32_t cp)
{
    switch (uni_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return 1;
    default: return 0;
    }
}

int jinja_uni_decimal(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_ND;
}

int jinja_uni_digit(uint32_t cp)
{
    static const uint32_t ranges[][2] = {
        {0xb2, 0xb3},     {0xb9, 0xb9},     {0x2070, 0x2070}, {0x2074, 0x2079}, {0x2080, 0x2089},
        {0x2460, 0x2468}, {0x2474, 0x247c}, {0x2488, 0x2490}, {0x24ea, 0x24ea}, {0x24f5, 0x24fd},
        {0x24ff, 0x24ff}, {0x2776, 0x277e}, {0x2780, 0x2788}, {0x278a, 0x2792}};
    size_t i;

    for (i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (cp >= ranges[i][0] && cp <= ranges[i][1]) {
            return 1;
        }
    }
    return jinja_uni_decimal(cp);
}

int jinja_uni_numeric(uint32_t cp)
{
    utf8proc_category_t c = uni_category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

int jinja_uni_upper(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216f) ||
           (cp >= 0x24b6 && cp <= 0x24cf);
}

int jinja_uni_lower(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba ||
           (cp >= 0x2b0 && cp <= 0x2b8) || (cp >= 0x2170 && cp <= 0x217f) ||
           (cp >= 0x24d0 && cp <= 0x24e9);
}

int jinja_uni_title(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_LT;
}

int jinja_uni_cased(uint32_t cp)
{
    return jinja_uni_upper(cp) || jinja_uni_lower(cp) || jinja_uni_title(cp);
}

int jinja_uni_case_ignorable(uint32_t cp)
{
    switch (uni_category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return 1;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2018 || cp == 0x2019 ||
               cp == 0x2024 || cp == 0x2027;
    }
}

static int uni_copy(const uint32_t from[3], uint32_t out[3])
{
    memcpy(out, from, 3 * sizeof *out);
    return from[1] == 0 ? 1 : from[2] == 0 ? 2 : 3;
}

static int uni_find(uint32_t cp)
{
    int i;

    for (i = 0; i < (int)(sizeof uni_special / sizeof *uni_special); i++) {
        if (uni_special[i].cp == cp) {
            return i;
        }
    }
    return -1;
}

int jinja_uni_to_upper(uint32_t cp, uint32_t out[3])
{
    int i = cp < 0xdf ? -1 : uni_find(cp);

    if (i >= 0) {
        return uni_copy(uni_special[i].upper, out);
    }
    out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
    return 1;
}

int jinja_uni_to_lower(uint32_t cp, uint32_t out[3])
{
    if (cp == 0x130) {
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}

int jinja_uni_to_title(uint32_t cp, uint32_t out[3])
{
    int i = cp < 0xdf ? -1 : uni_find(cp);

    if (i >= 0) {
        return uni_copy(uni_special[i].title, out);
    }
    out[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
    return 1;
}
