/* Owns loss masks of conversations. Spans of text become spans of tokens by laying the tokens' own
 * bytes along the text, so that no tokenizer needs to keep offsets. */
#include "text/chatmask.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/chat.h"
#include "text/jinja.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

/* What one call works with. */
struct masker {
    const struct chat_template *t;
    const struct tokenizer *tok;
    const json_t *messages;
    struct chat_opts o;
    struct err *e;
};

struct ids {
    int32_t *v;
    size_t n;
};

void chatmask_fini(struct chatmask *m)
{
    mem_free(m->ids);
    mem_free(m->mask);
    memset(m, 0, sizeof *m);
}

/* ---- renders ---- */

static int mask_encode(const struct masker *k, const char *text, size_t len, struct ids *out)
{
    return tokenizer_encode(k->tok, text, len, 0, &out->v, &out->n, k->e);
}

/* Renders messages[from, to), then one more where `last` is given. */
static int mask_render(const struct masker *k, size_t from, size_t to, const json_t *first,
                       const json_t *last, int with_tools, int generate, struct chat_text *out)
{
    struct chat_opts o = k->o;
    json_t *list = json_array();
    int rc = 0;

    if (first) {
        rc |= json_array_append(list, (json_t *)first);
    }
    for (size_t i = from; i < to; i++) {
        rc |= json_array_append(list, json_array_get(k->messages, i));
    }
    if (last) {
        rc |= json_array_append(list, (json_t *)last);
    }
    o.tools = with_tools ? o.tools : NULL;
    o.add_generation_prompt = generate;
    rc = rc ? ERR(k->e, STATUS_NOMEM, "no memory for the messages of a chat")
            : chat_apply(k->t, list, &o, out, k->e);
    json_decref(list);
    return rc;
}

static int mask_render_ids(const struct masker *k, size_t from, size_t to, const json_t *first,
                           const json_t *last, int with_tools, int generate, struct ids *out)
{
    struct chat_text x = {0};
    int rc = mask_render(k, from, to, first, last, with_tools, generate, &x);

    if (rc == 0) {
        rc = mask_encode(k, x.text, x.len, out);
    }
    chat_text_fini(&x);
    return rc;
}

static int mask_is_assistant(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role && strcmp(role, "assistant") == 0;
}

static int mask_trains(const json_t *m)
{
    const json_t *v = json_object_get(m, "step_loss_mask");
    return !v || json_is_true(v) || (json_is_number(v) && json_number_value(v) == 1.0);
}

/* ---- tokens along the text ---- */

/* Whether a token's bytes stand at text[at]: the position behind them, else SIZE_MAX. A token may
 * bring a blank of its own: the word prefix of sentencepiece. */
static size_t align_here(const char *p, size_t n, const char *text, size_t len, size_t at)
{
    if (n <= len - at && memcmp(text + at, p, n) == 0) {
        return at + n;
    }
    if (n > 1 && p[0] == ' ' && n - 1 <= len - at && memcmp(text + at, p + 1, n - 1) == 0) {
        return at + n - 1;
    }
    return SIZE_MAX;
}

/* The same at text[*begin] or behind white space there, which an added token may have taken: then
 * *begin moves behind it. */
static size_t align_one(const char *p, size_t n, const char *text, size_t len, size_t *begin)
{
    size_t at = *begin, end = align_here(p, n, text, len, at);

    if (end == SIZE_MAX && n == 1 && p[0] == ' ') {
        return at; /* a word prefix alone, before a character that has its own token */
    }
    while (end == SIZE_MAX && at < len) {
        uint32_t cp;
        size_t w = unicode_next(text + at, &cp);
        if (!unicode_is_space(cp)) {
            break;
        }
        at += w;
        end = align_here(p, n, text, len, at);
    }
    *begin = at;
    return end;
}

static int align_all(const struct tokenizer *tok, const int32_t *ids, size_t n, const char *text,
                     size_t len, size_t *ends)
{
    size_t at = 0, prefixes = 0; /* word prefixes alone, right before this token */
    uint32_t cp;

    for (size_t i = 0; i < n; i++) {
        size_t size = 0, begin = at;
        const char *p = tokenizer_token_bytes(tok, ids[i], &size);
        size_t end = p ? align_one(p, size, text, len, &begin) : SIZE_MAX;
        if (end == SIZE_MAX) {
            return 0;
        }
        for (size_t k = 0; begin > at && k <= prefixes && k < i; k++) {
            ends[i - 1 - k] = begin; /* white space belongs to the token before it */
        }
        prefixes = end == at ? prefixes + 1 : 0;
        ends[i] = at = end;
    }
    while (at < len) {
        at += unicode_next(text + at, &cp);
        if (!unicode_is_space(cp)) {
            return 0;
        }
    }
    if (n) {
        ends[n - 1] = len;
    }
    return 1;
}

int chatmask_align(const struct tokenizer *tok, const int32_t *ids, size_t n, const char *text,
                   size_t len, size_t **ends, char **composed, struct err *e)
{
    size_t *v = mem_alloc((n + 1) * sizeof *v);
    struct buf b;
    int rc = STATUS_OK;

    *composed = NULL;
    if (!align_all(tok, ids, n, text, len, v)) {
        buf_init(&b, 2 * len + 64);
        rc = unicode_normalize(UNICODE_NFC, text, len, &b);
        if (rc == STATUS_OK && !align_all(tok, ids, n, b.data, b.len, v)) {
            rc = STATUS_UNSUPPORTED;
        }
        if (rc == STATUS_OK) {
            *composed = buf_take(&b, NULL);
        } else {
            rc = ERR(e, rc, "the tokens cannot be laid along the text: this tokenizer changes it");
        }
        buf_fini(&b);
    }
    if (rc != STATUS_OK) {
        mem_free(v);
        return rc;
    }
    *ends = v;
    return rc;
}

/* Text, its tokens, and where they end. */
struct aligned {
    const char *text; /* what was rendered */
    size_t len;
    const char *base; /* what `ends` counts in: text, or the composed form */
    char *composed;
    size_t *ends;
    struct ids ids;
};

/* A byte position of the text, in what `ends` counts in. */
static int aligned_at(const struct aligned *a, size_t pos, size_t *out, struct err *e)
{
    struct buf b;
    int rc;

    if (!a->composed) {
        *out = pos;
        return STATUS_OK;
    }
    buf_init(&b, 2 * pos + 64);
    rc = unicode_normalize(UNICODE_NFC, a->text, pos, &b);
    *out = b.len;
    buf_fini(&b);
    return rc ? ERR(e, rc, "no memory to compose %zu bytes", pos) : rc;
}

/* The first token that holds the character at `at`: whose text reaches beyond it, or a word prefix
 * standing alone before it, which has no text of its own. */
static size_t aligned_token(const struct aligned *a, size_t at)
{
    size_t lo = 0, hi = a->ids.n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (a->ends[mid] > at) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    while (lo > 0 && a->ends[lo - 1] == at && (lo > 1 ? a->ends[lo - 2] : 0) == at) {
        lo--;
    }
    return lo;
}

/* Marks the tokens of bytes [start, end). `as_hf`: the last token is the first that holds the last
 * character, as transformers has it; else all that hold a part of it. */
static int aligned_mark(const struct aligned *a, size_t start, size_t end, int as_hf, uint8_t *mask,
                        struct err *e)
{
    size_t from, to, i, b, c, last;
    int rc;

    if (start >= end || start >= a->len) {
        return STATUS_OK;
    }
    if ((rc = aligned_at(a, start, &b, e)) || (rc = aligned_at(a, end, &c, e))) {
        return rc;
    }
    last = c - 1;
    while (as_hf && last > b && ((unsigned char)a->base[last] & 0xc0) == 0x80) {
        last--;
    }
    from = aligned_token(a, b);
    to = aligned_token(a, last);
    for (i = from; i <= to && i < a->ids.n; i++) {
        mask[i] = 1;
    }
    return STATUS_OK;
}

static int aligned_open(const struct masker *k, const struct chat_text *x, struct aligned *a)
{
    int rc = mask_encode(k, x->text, x->len, &a->ids);

    a->text = x->text;
    a->len = x->len;
    if (rc == STATUS_OK) {
        rc = chatmask_align(k->tok, a->ids.v, a->ids.n, x->text, x->len, &a->ends, &a->composed,
                            k->e);
    }
    a->base = a->composed ? a->composed : a->text;
    return rc;
}

static void aligned_close(struct aligned *a)
{
    mem_free(a->ids.v);
    mem_free(a->ends);
    mem_free(a->composed);
}

/* Its tokens are the mask's now. */
static void aligned_give(struct aligned *a, struct chatmask *m)
{
    m->ids = a->ids.v;
    m->n = a->ids.n;
    a->ids.v = NULL;
    aligned_close(a);
}

/* ---- marks ---- */

/* The byte at which code point `cp` of the text begins; len when it has fewer. */
static size_t byte_of(const char *text, size_t len, size_t cp)
{
    size_t at = 0;

    for (; cp > 0 && at < len; cp--) {
        at += unicode_width((unsigned char)text[at]);
    }
    return at < len ? at : len;
}

static int mask_marks(const struct masker *k, struct chatmask *m)
{
    struct chat_text x = {0};
    struct aligned a = {0};
    int rc;

    if (!chat_template_has_marks(k->t)) {
        return ERR(k->e, STATUS_INPUT, "the chat template has no {%% generation %%} marks");
    }
    rc = mask_render(k, 0, json_array_size(k->messages), NULL, NULL, 1, 0, &x);
    if (rc == STATUS_OK) {
        rc = aligned_open(k, &x, &a);
    }
    m->mask = mem_alloc(a.ids.n + 1);
    for (size_t i = 0; i < x.nspans && rc == STATUS_OK; i++) {
        rc = aligned_mark(&a, byte_of(x.text, x.len, x.spans[i].start),
                          byte_of(x.text, x.len, x.spans[i].end), 1, m->mask, k->e);
    }
    aligned_give(&a, m);
    chat_text_fini(&x);
    return rc;
}

/* ---- prefix ---- */

static size_t common(const char *a, size_t na, const char *b, size_t nb)
{
    size_t i = 0;

    while (i < na && i < nb && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* Marks assistant turn i of the whole text. */
static int prefix_turn(const struct masker *k, size_t i, const struct aligned *a, uint8_t *mask)
{
    struct chat_text before = {0}, after = {0};
    size_t same;
    int rc;

    if (i == 0) {
        return ERR(k->e, STATUS_INPUT,
                   "message 0 is the assistant's: there is nothing before it to "
                   "render; use the mask qwen");
    }
    if ((rc = mask_render(k, 0, i, NULL, NULL, 1, 1, &before)) ||
        (rc = mask_render(k, 0, i + 1, NULL, NULL, 1, 0, &after))) {
        goto out;
    }
    same = common(before.text, before.len, a->text, a->len);
    if (same < before.len) {
        rc = ERR(k->e, STATUS_INPUT,
                 "message %zu: the prompt before it is not how the whole conversation begins "
                 "(byte %zu): the template changes earlier turns",
                 i, same);
        goto out;
    }
    same = common(after.text, after.len, a->text, a->len);
    if (same < after.len) {
        rc =
            ERR(k->e, STATUS_INPUT,
                "message %zu is rendered otherwise once a later one follows (byte %zu); a template "
                "with generation marks, or the mask qwen3, can still be used",
                i, same);
        goto out;
    }
    rc = aligned_mark(a, before.len, after.len, 0, mask, k->e);
out:
    chat_text_fini(&before);
    chat_text_fini(&after);
    return rc;
}

static int mask_prefix(const struct masker *k, struct chatmask *m)
{
    struct chat_text x = {0};
    struct aligned a = {0};
    const json_t *msg;
    size_t i;
    int rc = mask_render(k, 0, json_array_size(k->messages), NULL, NULL, 1, 0, &x);

    if (rc == STATUS_OK) {
        rc = aligned_open(k, &x, &a);
    }
    m->mask = mem_alloc(a.ids.n + 1);
    json_array_foreach(k->messages, i, msg)
    {
        if (rc == STATUS_OK && mask_is_assistant(msg) && mask_trains(msg)) {
            rc = prefix_turn(k, i, &a, m->mask);
        }
    }
    aligned_give(&a, m);
    chat_text_fini(&x);
    return rc;
}

/* ---- Miles' kinds ---- */

/* Two equal messages show what a template puts before the first (BOS, a system prompt of its own)
 * and how long the header of an answer is. */
static int qwen_lengths(const struct masker *k, long *system, size_t *header)
{
    static const char probe[] = "FOR TESTING ONLY";
    json_t *m = json_pack("{s:s, s:s}", "role", "user", "content", probe);
    struct ids raw = {0}, two = {0}, gen = {0};
    size_t at[2] = {0, 0}, found = 0;
    int rc;

    if ((rc = mask_encode(k, probe, sizeof probe - 1, &raw)) ||
        (rc = mask_render_ids(k, 0, 0, m, m, 0, 0, &two)) ||
        (rc = mask_render_ids(k, 0, 0, m, m, 0, 1, &gen))) {
        goto out;
    }
    for (size_t i = 0; raw.n && i + raw.n <= two.n; i++) {
        if (memcmp(two.v + i, raw.v, raw.n * sizeof *raw.v) == 0) {
            at[found < 2 ? found : 1] = i;
            found++;
        }
    }
    if (found != 2 || gen.n < two.n) {
        rc = ERR(k->e, STATUS_INPUT,
                 "the mask cannot be made: two equal messages do not show twice "
                 "in this template's tokens");
        goto out;
    }
    *system = (long)at[0] - ((long)(at[1] - at[0]) - (long)(two.n - raw.n - at[1]) - (long)raw.n);
    *header = gen.n - two.n;
    if (*system < 0) {
        rc = ERR(k->e, STATUS_INPUT,
                 "the mask cannot be made: the template ends its messages "
                 "otherwise than it begins them");
    }
out:
    json_decref(m);
    mem_free(raw.v);
    mem_free(two.v);
    mem_free(gen.v);
    return rc;
}

/* The tokens of message i alone. qwen3: beside a user message, whose own tokens are cut off again.
 */
static int qwen_message(const struct masker *k, size_t i, const json_t *beside, size_t nbeside,
                        struct ids *out, size_t *from)
{
    int rc = mask_render_ids(k, i, i + 1, i ? beside : NULL, i ? NULL : beside, i == 0, 0, out);

    *from = 0;
    if (rc == STATUS_OK && beside) {
        size_t cut = out->n < nbeside ? out->n : nbeside;
        *from = i ? cut : 0;
        out->n -= i ? 0 : cut;
    }
    return rc;
}

/* Appends tokens; those from `first` on are trained. */
static void mask_append(struct chatmask *m, const int32_t *ids, size_t n, size_t first)
{
    m->ids = mem_realloc(m->ids, m->n * sizeof *m->ids, (m->n + n + 1) * sizeof *m->ids);
    m->mask = mem_realloc(m->mask, m->n, m->n + n + 1);
    if (n) {
        memcpy(m->ids + m->n, ids, n * sizeof *m->ids);
    }
    memset(m->mask + m->n, 0, n);
    memset(m->mask + m->n + first, 1, n - first);
    m->n += n;
}

static int mask_qwen(const struct masker *k, int beside_user, struct chatmask *m)
{
    json_t *beside = beside_user ? json_pack("{s:s, s:s}", "role", "user", "content",
                                             "FOR CALCULATING LOSS MASK ONLY")
                                 : NULL;
    struct ids alone = {0};
    const json_t *msg;
    size_t i, header = 0;
    long system = 0;
    int rc = qwen_lengths(k, &system, &header);

    if (rc == STATUS_OK && beside) {
        rc = mask_render_ids(k, 0, 0, beside, NULL, 0, 0, &alone);
    }
    json_array_foreach(k->messages, i, msg)
    {
        const char *role = json_string_value(json_object_get(msg, "role"));
        struct ids x = {0};
        size_t from = 0, count;
        if (rc == STATUS_OK) {
            rc = qwen_message(k, i, beside, alone.n, &x, &from);
        }
        if (rc == STATUS_OK && i > 0 && !(role && strcmp(role, "system") == 0)) {
            from += (size_t)system;
        }
        count = from < x.n ? x.n - from : 0;
        if (rc == STATUS_OK && mask_is_assistant(msg) && count < header) {
            rc = ERR(k->e, STATUS_INPUT, "message %zu is shorter than the header of an answer", i);
        }
        if (rc == STATUS_OK) {
            mask_append(m, x.v + (count ? from : 0), count,
                        mask_is_assistant(msg) && mask_trains(msg) ? header : count);
        }
        mem_free(x.v);
    }
    json_decref(beside);
    mem_free(alone.v);
    return rc;
}

/* The first message is the prompt, the last one's text the response. */
static int mask_distill(const struct masker *k, struct chatmask *m)
{
    size_t n = json_array_size(k->messages);
    const json_t *last = json_array_get(k->messages, n - 1);
    const json_t *text = json_object_get(last, "content");
    struct ids prompt = {0}, answer = {0};
    int rc;

    if (!json_is_string(text)) {
        return ERR(k->e, STATUS_INPUT, "message %zu has no text to train on", n - 1);
    }
    if ((rc = mask_render_ids(k, 0, 1, NULL, NULL, 1, 1, &prompt)) ||
        (rc = mask_encode(k, json_string_value(text), json_string_length(text), &answer))) {
        goto out;
    }
    mask_append(m, prompt.v, prompt.n, prompt.n);
    mask_append(m, answer.v, answer.n, mask_trains(last) ? 0 : answer.n);
out:
    mem_free(prompt.v);
    mem_free(answer.v);
    return rc;
}

/* ---- the whole ---- */

static int mask_compare(const struct masker *k, struct chatmask *m)
{
    struct ids whole = {0};
    size_t i = 0;
    int rc = mask_render_ids(k, 0, json_array_size(k->messages), NULL, NULL, 1, 0, &whole);

    if (rc == STATUS_OK) {
        while (i < whole.n && i < m->n && whole.v[i] == m->ids[i]) {
            i++;
        }
        m->differs = i < whole.n || i < m->n ? (long)i : -1;
    }
    mem_free(whole.v);
    return rc;
}

int chatmask_make(const struct chat_template *t, const struct tokenizer *tok,
                  enum chatmask_kind kind, const json_t *messages, const struct chat_opts *o,
                  struct chatmask *out, struct err *e)
{
    struct masker k = {.t = t, .tok = tok, .messages = messages, .e = e};
    struct chatmask m = {.differs = -1};
    size_t i;
    int rc;

    if (o) {
        k.o = *o;
    }
    k.o.continue_field = NULL;
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return ERR(e, STATUS_INPUT, "a chat needs at least one message");
    }
    if (kind == CHATMASK_AUTO) {
        kind = chat_template_has_marks(t) ? CHATMASK_MARKS : CHATMASK_PREFIX;
    }
    if (kind == CHATMASK_QWEN && tokenizer_id(tok, "<\uff5cAssistant\uff5c>") >= 0) {
        kind = CHATMASK_DISTILL_QWEN;
    }
    switch (kind) {
    case CHATMASK_MARKS: rc = mask_marks(&k, &m); break;
    case CHATMASK_PREFIX: rc = mask_prefix(&k, &m); break;
    case CHATMASK_DISTILL_QWEN: rc = mask_distill(&k, &m); break;
    default: rc = mask_qwen(&k, kind == CHATMASK_QWEN3, &m); break;
    }
    if (rc == STATUS_OK && kind != CHATMASK_MARKS && kind != CHATMASK_PREFIX) {
        rc = mask_compare(&k, &m);
    }
    if (rc != STATUS_OK) {
        chatmask_fini(&m);
        return rc;
    }
    for (i = 0; i < m.n && !m.mask[i]; i++) {
    }
    m.response = m.n - i;
    *out = m;
    return STATUS_OK;
}
