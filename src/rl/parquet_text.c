/* Owns how a value of a Parquet column reads in JSON: as Python would show it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/jtext.h"
#include "rl/parquet_int.h"

#define MAX_DECIMAL 32 /* bytes: 76 digits */
#define DAY         INT64_C(86400)

static uint64_t get_le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

/* Year, month and day of a number of days since 1970; 0 when no calendar has it. */
static int calendar(int64_t days, int *y, int *m, int *d)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    int64_t n, rest;
    int leap;

    if (days < -719162 || days > 2932896) { /* years 1 to 9999 */
        return 0;
    }
    n = days + 719162; /* since the first of January of year 1 */
    *y = 1 + (int)(n / 146097) * 400;
    rest = n % 146097;
    for (int step = 0;; step++) { /* centuries, then fours, then years */
        static const int size[] = {36524, 1461, 365}, years[] = {100, 4, 1}, most[] = {3, 24, 3};
        int64_t k;
        if (step == 3) {
            break;
        }
        k = rest / size[step] < most[step] ? rest / size[step] : most[step];
        *y += (int)k * years[step];
        rest -= k * size[step];
    }
    leap = (*y % 4 == 0 && *y % 100 != 0) || *y % 400 == 0;
    for (*m = 1; *m < 12; ++*m) {
        if (rest < before[*m] + (leap && *m > 1)) {
            break;
        }
    }
    *d = 1 + (int)rest - before[*m - 1] - (leap && *m > 2);
    return 1;
}

static int write_date(struct buf *b, int64_t days)
{
    int y, m, d;
    if (!calendar(days, &y, &m, &d)) {
        return 0;
    }
    buf_printf(b, "%04d-%02d-%02d", y, m, d);
    return 1;
}

/* Seconds of a day and a fraction of `unit` digits: six are shown when there is one, nine when
 * they are needed. */
static void write_clock(struct buf *b, int64_t seconds, int64_t fraction, int unit)
{
    int64_t nanos = fraction * (unit == 3 ? 1000000 : unit == 6 ? 1000 : 1);

    buf_printf(b, "%02d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60 % 60),
               (int)(seconds % 60));
    if (nanos % 1000) {
        buf_printf(b, ".%09lld", (long long)nanos);
    } else if (nanos) {
        buf_printf(b, ".%06lld", (long long)(nanos / 1000));
    }
}

static int64_t per_second(int unit)
{
    return unit == 3 ? 1000 : unit == 6 ? 1000000 : 1000000000;
}

static int write_time(const struct parquet_node *node, int64_t v, struct buf *b, struct err *e)
{
    int64_t per = per_second(node->unit);

    if (v < 0 || v / per >= DAY) {
        return ERR(e, STATUS_INPUT, "%lld is no time of a day", (long long)v);
    }
    buf_char(b, '"');
    write_clock(b, v / per, v % per, node->unit);
    buf_char(b, '"');
    return 0;
}

static int write_timestamp(int unit, int utc, int64_t v, struct buf *b, struct err *e)
{
    int64_t per = per_second(unit), seconds = v / per, fraction = v % per, days;

    if (fraction < 0) {
        fraction += per;
        seconds--;
    }
    days = seconds / DAY;
    seconds %= DAY;
    if (seconds < 0) {
        seconds += DAY;
        days--;
    }
    buf_char(b, '"');
    if (!write_date(b, days)) {
        return ERR(e, STATUS_INPUT, "the time %lld lies outside the calendar", (long long)v);
    }
    buf_char(b, 'T');
    write_clock(b, seconds, fraction, unit);
    buf_str(b, utc ? "+00:00\"" : "\"");
    return 0;
}

/* A big-endian number in two's complement, with `scale` digits behind the point. */
static int write_decimal(const struct parquet_node *node, const uint8_t *p, size_t n, struct buf *b,
                         struct err *e)
{
    uint8_t mag[MAX_DECIMAL];
    char digits[MAX_DECIMAL * 3];
    int negative = n && p[0] & 0x80, nd = 0, carry = negative, any;

    if (n < 1 || n > MAX_DECIMAL || node->scale < 0 || node->scale > 76) {
        return ERR(e, STATUS_UNSUPPORTED, "a decimal of %zu bytes and scale %d", n, node->scale);
    }
    for (size_t i = n; i-- > 0;) {
        int v = negative ? (uint8_t)~p[i] + carry : p[i];
        mag[i] = (uint8_t)v;
        carry = negative && v >> 8;
    }
    do { /* digits from the last, by dividing by ten */
        int rest = 0;
        any = 0;
        for (size_t i = 0; i < n; i++) {
            int v = rest << 8 | mag[i];
            mag[i] = (uint8_t)(v / 10);
            rest = v % 10;
            any |= mag[i];
        }
        digits[nd++] = (char)('0' + rest);
    } while (any);
    while (nd <= node->scale) {
        digits[nd++] = '0';
    }
    buf_str(b, negative ? "\"-" : "\"");
    while (nd > 0) {
        if (nd == node->scale) {
            buf_char(b, '.');
        }
        buf_char(b, digits[--nd]);
    }
    buf_char(b, '"');
    return 0;
}

static int write_real(double v, struct buf *b, struct err *e)
{
    if (!isfinite(v)) {
        return ERR(e, STATUS_INPUT, "%s, which JSON has no form for",
                   isnan(v) ? "NaN" : "an infinite number");
    }
    jtext_real(b, v);
    return 0;
}

static double half(uint16_t h)
{
    int exponent = h >> 10 & 31;
    double f = h & 1023, v;

    if (exponent == 31) {
        v = f != 0 ? NAN : INFINITY;
    } else {
        v = exponent ? ldexp(1024 + f, exponent - 25) : ldexp(f, -24);
    }
    return h >> 15 ? -v : v;
}

static int write_int(const struct parquet_node *node, const uint8_t *p, struct buf *b,
                     struct err *e)
{
    int size = node->type == PARQUET_INT32 ? 4 : 8;
    uint64_t u = get_le(p, size);
    int64_t v = size == 4 ? (int32_t)(uint32_t)u : (int64_t)u;
    uint8_t be[8];

    switch (node->logical) {
    case PARQUET_DATE:
        buf_char(b, '"');
        if (!write_date(b, v)) {
            return ERR(e, STATUS_INPUT, "day %lld lies outside the calendar", (long long)v);
        }
        buf_char(b, '"');
        return 0;
    case PARQUET_TIME: return write_time(node, v, b, e);
    case PARQUET_TIMESTAMP: return write_timestamp(node->unit, node->utc, v, b, e);
    case PARQUET_DECIMAL:
        for (int i = 0; i < size; i++) {
            be[i] = p[size - 1 - i];
        }
        return write_decimal(node, be, (size_t)size, b, e);
    case PARQUET_UNSIGNED:
        if (node->bits > 0 && node->bits < 8 * size) {
            u &= (UINT64_C(1) << node->bits) - 1;
        }
        buf_printf(b, "%llu", (unsigned long long)u);
        return 0;
    default: buf_printf(b, "%lld", (long long)v); return 0;
    }
}

/* Nanoseconds of the day, then the Julian day. */
static int write_int96(const uint8_t *p, struct buf *b, struct err *e)
{
    int64_t nanos = (int64_t)get_le(p, 8), days = (int64_t)get_le(p + 8, 4) - 2440588;

    if (nanos < 0 || nanos >= DAY * 1000000000 || days < -719162 || days > 2932896) {
        return ERR(e, STATUS_INPUT, "a time outside the calendar");
    }
    buf_char(b, '"');
    write_date(b, days);
    buf_char(b, 'T');
    write_clock(b, nanos / 1000000000, nanos % 1000000000, 9);
    buf_char(b, '"');
    return 0;
}

static int write_bytes(const struct parquet_node *node, const uint8_t *p, size_t n, struct buf *b,
                       struct err *e)
{
    switch (node->logical) {
    case PARQUET_DECIMAL: return write_decimal(node, p, n, b, e);
    case PARQUET_UUID:
        if (n != 16) {
            break;
        }
        buf_char(b, '"');
        for (int i = 0; i < 16; i++) {
            buf_printf(b, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", p[i]);
        }
        buf_char(b, '"');
        return 0;
    case PARQUET_FLOAT16:
        if (n != 2) {
            break;
        }
        return write_real(half((uint16_t)get_le(p, 2)), b, e);
    case PARQUET_PLAIN:
    case PARQUET_STRING:
        return jtext_string(b, (const char *)p, n) == 0
                   ? 0
                   : ERR(e, STATUS_INPUT, "bytes that are not UTF-8 text");
    default: break;
    }
    return ERR(e, STATUS_UNSUPPORTED, "a kind of value that is not understood");
}

int parquet_text_value(const struct parquet_node *node, const uint8_t *p, size_t n, struct buf *b,
                       struct err *e)
{
    uint64_t u;
    uint32_t u4;
    double d;
    float f;

    switch (node->type) {
    case PARQUET_BOOLEAN: buf_str(b, p[0] & 1 ? "true" : "false"); return 0;
    case PARQUET_INT32:
    case PARQUET_INT64: return write_int(node, p, b, e);
    case PARQUET_INT96: return write_int96(p, b, e);
    case PARQUET_FLOAT:
        u4 = (uint32_t)get_le(p, 4);
        memcpy(&f, &u4, 4);
        return write_real((double)f, b, e);
    case PARQUET_DOUBLE:
        u = get_le(p, 8);
        memcpy(&d, &u, 8);
        return write_real(d, b, e);
    default: return write_bytes(node, p, n, b, e);
    }
}
