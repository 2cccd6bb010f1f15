/* Owns cutting text into words. A run starts with the whole text as one piece; each stage replaces
 * every piece by its cuts. Pieces point into the text, nothing is copied unless a stage changes
 * characters. Byte-level pieces stay plain bytes; the byte alphabet is only spelled out when a
 * stage follows that must see it. */
#include "text/pretok.h"

#include <string.h>

#include "base/status.h"
#include "text/unicode.h"

#define STAGES_MAX 64
#define DEPTH_MAX  8

/* Pattern of the ByteLevel pre-tokenizer with use_regex, the one of GPT-2. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum behavior { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum stage_kind {
    STAGE_SPLIT,
    STAGE_CHARS, /* every character of a class is a match */
    STAGE_WORDS, /* runs of word characters, runs of what is neither word nor space */
    STAGE_FIXED,
    STAGE_BYTES,
    STAGE_METASPACE
};
enum prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct stage {
    enum stage_kind kind;
    enum behavior behavior;
    int invert;
    int (*is)(uint32_t cp); /* CHARS */
    size_t length;          /* FIXED: characters of a piece */
    struct rx *rx;          /* SPLIT by expression; BYTES with use_regex */
    char *literal;          /* SPLIT by string; METASPACE: the replacement */
    size_t nliteral;
    int prefix_space; /* BYTES */
    int spell;        /* BYTES: a stage follows that must see the byte alphabet */
    enum prepend prepend;
    int split; /* METASPACE */
};
struct pretok {
    struct stage stage[STAGES_MAX];
    int n;
    int byte_level;
    int spelled;
    int shadows; /* some stage looks at shadows */
};

/* ---- reading the description ---- */

static int read_behavior(const json_t *spec, enum behavior *b, struct err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *s = json_string_value(json_object_get(spec, "behavior"));
    int i;

    for (i = 0; s && i < 5; i++) {
        if (strcmp(s, names[i]) == 0) {
            *b = (enum behavior)i;
            return 0;
        }
    }
    return ERR(e, STATUS_FORMAT, "pre-tokenizer: unknown split behavior '%.100s'", s ? s : "");
}

static int read_split(struct stage *st, const json_t *spec, struct err *e)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *rx = json_object_get(pattern, "Regex");
    const json_t *lit = json_object_get(pattern, "String");
    int rc = read_behavior(spec, &st->behavior, e);

    st->kind = STAGE_SPLIT;
    st->invert = json_is_true(json_object_get(spec, "invert"));
    if (rc) {
        return rc;
    }
    if (json_is_string(rx)) {
        return rx_open(json_string_value(rx), json_string_length(rx), &st->rx, e);
    }
    if (!json_is_string(lit) || json_string_length(lit) == 0) {
        return ERR(e, STATUS_FORMAT, "pre-tokenizer: Split without a pattern");
    }
    st->nliteral = json_string_length(lit);
    st->literal = mem_strndup(json_string_value(lit), st->nliteral);
    return 0;
}

/* A switch that is on unless the file says false. */
static int flag_on(const json_t *spec, const char *key)
{
    return !json_is_false(json_object_get(spec, key));
}

static int read_metaspace(struct stage *st, const json_t *spec, struct err *e)
{
    const json_t *rep = json_object_get(spec, "replacement");
    const char *scheme = json_string_value(json_object_get(spec, "prepend_scheme"));
    uint32_t cp;

    st->kind = STAGE_METASPACE;
    if (!json_is_string(rep) || json_string_length(rep) == 0 ||
        unicode_next(json_string_value(rep), &cp) != json_string_length(rep)) {
        return ERR(e, STATUS_FORMAT, "pre-tokenizer: Metaspace replacement is not one character");
    }
    st->nliteral = json_string_length(rep);
    st->literal = mem_strndup(json_string_value(rep), st->nliteral);
    st->split = flag_on(spec, "split");
    if (scheme && strcmp(scheme, "first") == 0) {
        st->prepend = PREPEND_FIRST;
    } else if (scheme && strcmp(scheme, "never") == 0) {
        st->prepend = PREPEND_NEVER;
    } else if (scheme && strcmp(scheme, "always") != 0) {
        return ERR(e, STATUS_FORMAT, "pre-tokenizer: unknown prepend_scheme '%.100s'", scheme);
    } else {
        st->prepend = scheme || flag_on(spec, "add_prefix_space") ? PREPEND_ALWAYS : PREPEND_NEVER;
    }
    return 0;
}

static int read_bytes(struct pretok *p, struct stage *st, const json_t *spec, struct err *e)
{
    if (p->byte_level) {
        return ERR(e, STATUS_UNSUPPORTED, "pre-tokenizer with ByteLevel twice");
    }
    p->byte_level = 1;
    st->kind = STAGE_BYTES;
    st->prefix_space = flag_on(spec, "add_prefix_space");
    return flag_on(spec, "use_regex") ? rx_open(gpt2_pattern, sizeof gpt2_pattern - 1, &st->rx, e)
                                      : 0;
}

static void set_chars(struct stage *st, int (*is)(uint32_t cp), enum behavior b)
{
    st->kind = STAGE_CHARS;
    st->is = is;
    st->behavior = b;
}

/* Kinds of one stage and at most one setting. */
static int read_simple(struct stage *st, const char *type, const json_t *spec, struct err *e)
{
    if (strcmp(type, "Digits") == 0) {
        set_chars(st, unicode_is_numeric,
                  json_is_true(json_object_get(spec, "individual_digits")) ? ISOLATED : CONTIGUOUS);
        return 0;
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        set_chars(st, unicode_is_space, REMOVED);
        return 0;
    }
    if (strcmp(type, "Whitespace") == 0) {
        st->kind = STAGE_WORDS;
        return 0;
    }
    if (strcmp(type, "Punctuation") == 0) {
        set_chars(st, unicode_is_punct, ISOLATED);
        return json_object_get(spec, "behavior") ? read_behavior(spec, &st->behavior, e) : 0;
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const json_t *c = json_object_get(spec, "delimiter");
        st->kind = STAGE_SPLIT;
        st->behavior = REMOVED;
        st->nliteral = json_string_length(c);
        if (!json_is_string(c) || st->nliteral == 0) {
            return ERR(e, STATUS_FORMAT, "pre-tokenizer: CharDelimiterSplit without a delimiter");
        }
        st->literal = mem_strndup(json_string_value(c), st->nliteral);
        return 0;
    }
    if (strcmp(type, "FixedLength") == 0) {
        const json_t *n = json_object_get(spec, "length");
        st->kind = STAGE_FIXED;
        st->length =
            json_is_integer(n) && json_integer_value(n) > 0 ? (size_t)json_integer_value(n) : 0;
        return st->length ? 0
                          : ERR(e, STATUS_FORMAT, "pre-tokenizer: FixedLength without a length");
    }
    return ERR(e, STATUS_UNSUPPORTED, "pre-tokenizer '%.100s' is not supported", type);
}

static int read_stage(struct pretok *p, const json_t *spec, int depth, struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    struct stage *st;

    if (!type) {
        return ERR(e, STATUS_FORMAT, "pre-tokenizer without a type");
    }
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "pretokenizers");
        size_t k;
        int rc = 0;
        if (!json_is_array(list) || depth >= DEPTH_MAX) {
            return ERR(e, STATUS_FORMAT,
                       "pre-tokenizer: Sequence without a list, or nested too deep");
        }
        for (k = 0; k < json_array_size(list) && rc == 0; k++) {
            rc = read_stage(p, json_array_get(list, k), depth + 1, e);
        }
        return rc;
    }
    if (p->n == STAGES_MAX) {
        return ERR(e, STATUS_UNSUPPORTED, "pre-tokenizer with more than %d stages", STAGES_MAX);
    }
    st = &p->stage[p->n++];
    if (strcmp(type, "Split") == 0) {
        return read_split(st, spec, e);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return read_bytes(p, st, spec, e);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return read_metaspace(st, spec, e);
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        if (p->n == STAGES_MAX) {
            return ERR(e, STATUS_UNSUPPORTED, "pre-tokenizer with more than %d stages", STAGES_MAX);
        }
        set_chars(st, unicode_is_space, REMOVED);
        set_chars(&p->stage[p->n++], unicode_is_punct, ISOLATED);
        return 0;
    }
    return read_simple(st, type, spec, e);
}

int pretok_open(const json_t *spec, struct pretok **out, struct err *e)
{
    struct pretok *p = mem_alloc(sizeof *p);
    int rc = 0;
    int i;

    if (spec && !json_is_null(spec)) {
        rc = read_stage(p, spec, 0, e);
    }
    if (rc) {
        pretok_close(p);
        return rc;
    }
    for (i = 0; i < p->n; i++) {
        p->shadows |= p->stage[i].rx && !rx_words(p->stage[i].rx);
    }
    for (i = 0; i + 1 < p->n; i++) {
        if (p->stage[i].kind == STAGE_BYTES) {
            p->stage[i].spell = 1;
            p->spelled = 1;
        }
    }
    *out = p;
    return 0;
}

void pretok_close(struct pretok *p)
{
    int i;

    if (!p) {
        return;
    }
    for (i = 0; i < p->n; i++) {
        rx_close(p->stage[i].rx);
        mem_free(p->stage[i].literal);
    }
    mem_free(p);
}

void pretok_keep_spelled(struct pretok *p)
{
    int i;

    for (i = 0; i < p->n; i++) {
        p->stage[i].spell |= p->stage[i].kind == STAGE_BYTES;
    }
    p->byte_level = p->spelled = 0;
}

const struct words *pretok_words(const struct pretok *p)
{
    const struct stage *a = &p->stage[0];
    const struct stage *b = &p->stage[1];

    if (!p->byte_level) {
        return NULL;
    }
    if (p->n == 1 && a->kind == STAGE_BYTES && !a->prefix_space) {
        return rx_words(a->rx);
    }
    if (p->n == 2 && a->kind == STAGE_SPLIT && a->behavior == ISOLATED && b->kind == STAGE_BYTES &&
        !b->prefix_space && !b->rx) {
        return rx_words(a->rx);
    }
    return NULL;
}

int pretok_is_byte_level(const struct pretok *p)
{
    return p->byte_level;
}

/* ---- running ---- */

void pretok_work_init(struct pretok_work *w)
{
    memset(w, 0, sizeof *w);
    rx_scratch_init(&w->rx);
    arena_init(&w->arena, 1u << 16);
}

void pretok_work_fini(struct pretok_work *w)
{
    mem_free(w->piece);
    mem_free(w->next);
    mem_free(w->cut);
    rx_scratch_fini(&w->rx);
    arena_fini(&w->arena);
}

/* Room for one more item; 0 when there is none. */
static int room(void **v, size_t n, size_t *cap, size_t size)
{
    size_t want = *cap ? *cap * 2 : 256;
    void *p;

    if (n < *cap) {
        return 1;
    }
    p = mem_try(want * size);
    if (!p) {
        return 0;
    }
    if (n) {
        memcpy(p, *v, n * size);
    }
    mem_free(*v);
    *v = p;
    *cap = want;
    return 1;
}

/* Gives the cut [a, b) of a piece to the next stage; empty cuts vanish. */
static void give(struct pretok_work *w, const struct pretok_piece *p, size_t a, size_t b)
{
    struct pretok_piece *q;

    if (a >= b) {
        return;
    }
    if (!room((void **)&w->next, w->nnext, &w->capnext, sizeof *w->next)) {
        w->failed = 1;
        return;
    }
    q = &w->next[w->nnext++];
    q->s = p->s + a;
    q->shadow = p->shadow + a;
    q->n = b - a;
    q->first = p->first && a == 0;
}

static void cut_add(struct pretok_work *w, size_t a, size_t b, int match)
{
    struct pretok_cut c = {a, b, match};

    if (!room((void **)&w->cut, w->ncut, &w->capcut, sizeof *w->cut)) {
        w->failed = 1;
        return;
    }
    w->cut[w->ncut++] = c;
}

/* Matches and the gaps between them, in order. */
static int cuts_rx(const struct rx *rx, const struct pretok_piece *p, struct pretok_work *w,
                   struct err *e)
{
    struct rx_iter it;
    size_t prev = 0;
    size_t a, b;
    int rc;

    rx_iter_init(&it, rx, p->shadow, p->n);
    while ((rc = rx_next(&it, &w->rx, &a, &b, e)) == STATUS_OK) {
        if (prev != a) {
            cut_add(w, prev, a, 0);
        }
        cut_add(w, a, b, 1);
        prev = b;
    }
    if (rc != STATUS_END) {
        return rc;
    }
    if (prev != p->n) {
        cut_add(w, prev, p->n, 0);
    }
    return 0;
}

static void cuts_literal(const struct stage *st, const struct pretok_piece *p,
                         struct pretok_work *w)
{
    size_t prev = 0;
    const char *hit;

    while (prev < p->n && (hit = memmem(p->s + prev, p->n - prev, st->literal, st->nliteral))) {
        size_t a = (size_t)(hit - p->s);
        if (prev != a) {
            cut_add(w, prev, a, 0);
        }
        cut_add(w, a, a + st->nliteral, 1);
        prev = a + st->nliteral;
    }
    if (prev != p->n) {
        cut_add(w, prev, p->n, 0);
    }
}

/* Each character of the class is a match; what lies between is one gap. */
static void cuts_chars(const struct stage *st, const struct pretok_piece *p, struct pretok_work *w)
{
    size_t prev = 0;
    size_t i = 0;

    while (i < p->n) {
        uint32_t cp;
        size_t k = unicode_next(p->s + i, &cp);
        if (st->is(cp)) {
            if (prev != i) {
                cut_add(w, prev, i, 0);
            }
            cut_add(w, i, i + k, 1);
            prev = i + k;
        }
        i += k;
    }
    if (prev != p->n) {
        cut_add(w, prev, p->n, 0);
    }
}

/* Joins neighbouring cuts as the behavior asks and gives the result to the next stage. */
static void give_cuts(const struct stage *st, const struct pretok_piece *p, struct pretok_work *w)
{
    struct pretok_cut *c = w->cut;
    size_t i;
    size_t n = 0;
    int prev = 0;

    for (i = 0; i < w->ncut; i++) {
        c[i].match ^= st->invert;
    }
    switch (st->behavior) {
    case ISOLATED:
        for (i = 0; i < w->ncut; i++) {
            give(w, p, c[i].a, c[i].b);
        }
        return;
    case REMOVED:
        for (i = 0; i < w->ncut; i++) {
            if (!c[i].match) {
                give(w, p, c[i].a, c[i].b);
            }
        }
        return;
    case MERGED_WITH_NEXT:
        /* From the right: a match joins the piece that follows it. */
        n = w->ncut;
        for (i = w->ncut; i-- > 0;) {
            int match = c[i].match;
            if (match && !prev && n < w->ncut) {
                c[n].a = c[i].a;
            } else {
                c[--n] = c[i];
            }
            prev = match;
        }
        for (i = n; i < w->ncut; i++) {
            give(w, p, c[i].a, c[i].b);
        }
        return;
    default: break;
    }
    for (i = 0; i < w->ncut; i++) {
        int match = c[i].match;
        int join = st->behavior == CONTIGUOUS ? match == prev : match && !prev;
        if (join && n > 0) {
            c[n - 1].b = c[i].b;
        } else {
            c[n++] = c[i];
        }
        prev = match;
    }
    for (i = 0; i < n; i++) {
        give(w, p, c[i].a, c[i].b);
    }
}

/* Matching of everyday patterns leaves no gaps and no joins: straight to the next stage. */
static int isolate_rx(const struct rx *rx, const struct pretok_piece *p, struct pretok_work *w,
                      struct err *e)
{
    struct rx_iter it;
    size_t prev = 0;
    size_t a, b;
    int rc;

    rx_iter_init(&it, rx, p->shadow, p->n);
    while ((rc = rx_next(&it, &w->rx, &a, &b, e)) == STATUS_OK) {
        give(w, p, prev, a);
        give(w, p, a, b);
        prev = b;
    }
    give(w, p, prev, p->n);
    return rc == STATUS_END ? 0 : rc;
}

/* A copy of the piece's text and shadow with `pre` before it. */
static int prepend(struct pretok_piece *p, const char *pre, size_t n, struct pretok_work *w)
{
    char *s;
    char *shadow;

    if (p->n > ((size_t)1 << 40)) {
        return 0;
    }
    s = shadow = arena_alloc(&w->arena, n + p->n);
    memcpy(s, pre, n);
    memcpy(s + n, p->s, p->n);
    if (p->shadow != p->s) {
        shadow = arena_alloc(&w->arena, n + p->n);
        memcpy(shadow, pre, n);
        memcpy(shadow + n, p->shadow, p->n);
    }
    p->s = s;
    p->shadow = shadow;
    p->n += n;
    return 1;
}

/* The pieces given since `from`, spelled in the byte alphabet. */
static void spell_out(struct pretok_work *w, size_t from)
{
    size_t i, k;

    for (i = from; i < w->nnext; i++) {
        struct pretok_piece *q = &w->next[i];
        char *t = arena_alloc(&w->arena, 2 * q->n);
        size_t o = 0;
        for (k = 0; k < q->n; k++) {
            o += unicode_put(unicode_byte_char((uint8_t)q->s[k]), t + o);
        }
        q->s = q->shadow = t;
        q->n = o;
    }
}

static int run_bytes(const struct stage *st, struct pretok_piece p, struct pretok_work *w,
                     struct err *e)
{
    size_t from = w->nnext;
    int rc = 0;

    if (st->prefix_space && p.s[0] != ' ' && !prepend(&p, " ", 1, w)) {
        return ERR(e, STATUS_NOMEM, "no memory to tokenize %zu bytes", p.n);
    }
    if (st->rx) {
        rc = isolate_rx(st->rx, &p, w, e);
    } else {
        give(w, &p, 0, p.n);
    }
    if (rc == 0 && st->spell) {
        spell_out(w, from);
    }
    return rc;
}

static int run_metaspace(const struct stage *st, struct pretok_piece p, struct pretok_work *w,
                         struct err *e)
{
    size_t i;
    size_t o = 0;
    char *t;

    if (p.n > ((size_t)1 << 40)) {
        return ERR(e, STATUS_NOMEM, "no memory to tokenize %zu bytes", p.n);
    }
    t = arena_alloc(&w->arena, st->nliteral * p.n);
    for (i = 0; i < p.n; i++) {
        if (p.s[i] == ' ') {
            memcpy(t + o, st->literal, st->nliteral);
            o += st->nliteral;
        } else {
            t[o++] = p.s[i];
        }
    }
    p.s = p.shadow = t;
    p.n = o;
    if ((st->prepend == PREPEND_ALWAYS || (st->prepend == PREPEND_FIRST && p.first)) &&
        !(p.n >= st->nliteral && memcmp(p.s, st->literal, st->nliteral) == 0) &&
        !prepend(&p, st->literal, st->nliteral, w)) {
        return ERR(e, STATUS_NOMEM, "no memory to tokenize %zu bytes", p.n);
    }
    if (st->split) {
        struct stage by = {.kind = STAGE_SPLIT, .behavior = MERGED_WITH_NEXT};
        by.literal = st->literal;
        by.nliteral = st->nliteral;
        w->ncut = 0;
        cuts_literal(&by, &p, w);
        give_cuts(&by, &p, w);
    } else {
        give(w, &p, 0, p.n);
    }
    return 0;
}

/* \w+ and [^\w\s]+. */
static void give_words(const struct pretok_piece *p, struct pretok_work *w)
{
    size_t from = 0;
    size_t i = 0;
    int last = 0;

    while (i < p->n) {
        uint32_t cp;
        size_t k = unicode_next(p->s + i, &cp);
        int kind = unicode_is_space(cp) ? 0 : unicode_is_word(cp) ? 1 : 2;
        if (kind != last) {
            give(w, p, last ? from : i, i);
            from = i;
            last = kind;
        }
        i += k;
    }
    give(w, p, last ? from : p->n, p->n);
}

static void give_fixed(const struct stage *st, const struct pretok_piece *p, struct pretok_work *w)
{
    size_t from = 0;
    size_t i = 0;
    size_t count = 0;

    while (i < p->n) {
        i += unicode_width((unsigned char)p->s[i]);
        if (++count == st->length) {
            give(w, p, from, i);
            from = i;
            count = 0;
        }
    }
    give(w, p, from, p->n);
}

static int run_piece(const struct stage *st, const struct pretok_piece *p, struct pretok_work *w,
                     struct err *e)
{
    int rc = 0;

    switch (st->kind) {
    case STAGE_BYTES: return run_bytes(st, *p, w, e);
    case STAGE_METASPACE: return run_metaspace(st, *p, w, e);
    case STAGE_WORDS: give_words(p, w); return 0;
    case STAGE_FIXED: give_fixed(st, p, w); return 0;
    case STAGE_CHARS:
        w->ncut = 0;
        cuts_chars(st, p, w);
        break;
    default:
        if (st->rx && st->behavior == ISOLATED) {
            return isolate_rx(st->rx, p, w, e);
        }
        w->ncut = 0;
        if (st->rx) {
            rc = cuts_rx(st->rx, p, w, e);
        } else {
            cuts_literal(st, p, w);
        }
        break;
    }
    if (rc == 0) {
        give_cuts(st, p, w);
    }
    return rc;
}

/* Pieces that left in the byte alphabet return to bytes. */
static void unspell(struct pretok_work *w)
{
    size_t i;

    for (i = 0; i < w->n; i++) {
        struct pretok_piece *q = &w->piece[i];
        char *t = arena_alloc(&w->arena, q->n);
        size_t o = 0;
        size_t k = 0;
        while (k < q->n) {
            uint32_t cp;
            k += unicode_next(q->s + k, &cp);
            t[o++] = (char)unicode_char_byte(cp);
        }
        q->s = q->shadow = t;
        q->n = o;
    }
}

int pretok_run(const struct pretok *p, const char *s, size_t n, int first, struct pretok_work *w,
               struct err *e)
{
    struct pretok_piece whole = {s, s, n, first};
    char *shadow = NULL;
    size_t i;
    int rc = 0;
    int oom;
    int k;

    arena_reset(&w->arena);
    w->n = w->nnext = 0;
    w->failed = 0;
    if (n == 0) {
        return 0;
    }
    if (p->shadows) {
        shadow = unicode_shadow(s, n, &oom);
        if (oom) {
            return ERR(e, STATUS_NOMEM, "no memory to tokenize %zu bytes", n);
        }
    }
    whole.shadow = shadow ? shadow : s;
    give(w, &whole, 0, n);
    for (k = 0; k <= p->n && rc == 0 && !w->failed; k++) {
        /* What was given becomes the input of the next stage, or the result. */
        struct pretok_piece *v = w->piece;
        size_t cap = w->cap;
        w->piece = w->next;
        w->cap = w->capnext;
        w->n = w->nnext;
        w->next = v;
        w->capnext = cap;
        w->nnext = 0;
        for (i = 0; k < p->n && i < w->n && rc == 0 && !w->failed; i++) {
            rc = run_piece(&p->stage[k], &w->piece[i], w, e);
        }
    }
    if (rc == 0 && w->failed) {
        rc = ERR(e, STATUS_NOMEM, "no memory to tokenize %zu bytes", n);
    }
    if (rc == 0 && p->spelled) {
        unspell(w);
    }
    mem_free(shadow);
    return rc;
}
