/* Owns the multiple-choice reward. Its patterns are matched by hand: they are three, fixed, and
 * their odd corners (a letter may be the beginning of any word) are part of the rules. */
#include "reward/gpqa.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/status.h"

enum { MAX_LETTERS = 26, MAX_TARGETS = 8 };

/* ---- characters ---- */

/* Length of the blank at s, as Python's \s has them; 0 when there is none. */
static size_t blank_at(const char *s, const char *end)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = s < end ? utf8proc_iterate((const uint8_t *)s, end - s, &c) : 0;

    if (n <= 0) {
        return 0;
    }
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
                   (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
                   c == 0x205f || c == 0x3000
               ? (size_t)n
               : 0;
}

static const char *skip_blanks(const char *s, const char *end)
{
    size_t n;

    while ((n = blank_at(s, end)) > 0) {
        s += n;
    }
    return s;
}

/* The letter as a capital; 0 when it is none. */
static char capital(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c >= 'A' && c <= 'Z' ? c : 0;
}

static int is_letter(const char *s, const char *end)
{
    return s < end && ((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z'));
}

static int begins(const char *s, const char *end, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(end - s) >= n && strncasecmp(s, word, n) == 0;
}

/* The end of the word at s that is one of `words`; NULL when none is. */
static const char *any_word(const char *s, const char *end, const char *const *words)
{
    for (; *words; words++) {
        if (begins(s, end, *words)) {
            return s + strlen(*words);
        }
    }
    return NULL;
}

/* ---- the letter ---- */

/* What follows "answer" and the like: blanks, "is" or ":" or neither, blanks, a letter. */
static char letter_after(const char *s, const char *end)
{
    const char *from = skip_blanks(s, end), *in = NULL;

    if (begins(from, end, "is")) {
        in = skip_blanks(from + 2, end);
    } else if (from < end && *from == ':') {
        in = skip_blanks(from + 1, end);
    }
    if (in && is_letter(in, end)) {
        return capital(*in);
    }
    return is_letter(from, end) ? capital(*from) : 0;
}

static char find_stated(const char *s, const char *end)
{
    static const char *const words[] = {"answer", "option", "choice", NULL};

    for (; s < end; s++) {
        const char *after = any_word(s, end, words);
        char c = after ? letter_after(after, end) : 0;
        if (c) {
            return c;
        }
    }
    return 0;
}

/* A letter, then "is correct" or "is the correct". */
static char find_correct(const char *s, const char *end)
{
    for (; s < end; s++) {
        const char *p;
        if (!is_letter(s, end)) {
            continue;
        }
        p = skip_blanks(s + 1, end);
        if (!begins(p, end, "is")) {
            continue;
        }
        p = skip_blanks(p + 2, end);
        p = begins(p, end, "the") ? skip_blanks(p + 3, end) : p;
        if (begins(p, end, "correct")) {
            return capital(*s);
        }
    }
    return 0;
}

static char find_final(const char *s, const char *end)
{
    static const char *const words[] = {"answer", "option", NULL};

    for (; s < end; s++) {
        const char *after =
            begins(s, end, "final") ? any_word(skip_blanks(s + 5, end), end, words) : NULL;
        char c = after ? letter_after(after, end) : 0;
        if (c) {
            return c;
        }
    }
    return 0;
}

/* 1 when a word goes on at s (forward) or ends before it. */
static int is_word(const char *s, size_t n)
{
    utf8proc_int32_t c;
    utf8proc_category_t k;

    if (utf8proc_iterate((const uint8_t *)s, (utf8proc_ssize_t)n, &c) <= 0) {
        return 0;
    }
    k = utf8proc_category(c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

/* The last capital that stands alone and is valid. */
static char find_alone(const char *s, const char *end, const char *valid)
{
    for (const char *p = end - 1; p >= s; p--) {
        const char *before = p;
        if (*p < 'A' || *p > 'Z' || !strchr(valid, *p)) {
            continue;
        }
        while (before > s && before > p - 4) {
            before--;
            if (((unsigned char)*before & 0xc0) != 0x80) {
                break;
            }
        }
        if ((before == p || !is_word(before, (size_t)(p - before))) &&
            (p + 1 == end || !is_word(p + 1, (size_t)(end - p - 1)))) {
            return *p;
        }
    }
    return 0;
}

/* The response after its last </think>. */
static const char *without_thoughts(const char *s, const char *end)
{
    static const char mark[] = "</think>";
    const char *hit, *from = s;

    while ((hit = memmem(from, (size_t)(end - from), mark, sizeof mark - 1)) != NULL) {
        from = hit + sizeof mark - 1;
    }
    return from;
}

char gpqa_letter(const char *response, size_t n, const char *valid)
{
    const char *end = response + n, *s = without_thoughts(response, end);
    char found[3];

    if (s == end) {
        return 0;
    }
    found[0] = find_stated(s, end);
    found[1] = find_correct(s, end);
    found[2] = find_final(s, end);
    for (int i = 0; i < 3; i++) {
        if (found[i] && strchr(valid, found[i])) {
            return found[i];
        }
    }
    return find_alone(s, end, valid);
}

/* ---- what is right ---- */

struct sheet {
    char valid[MAX_LETTERS + 1];
    const json_t *choice[MAX_LETTERS];
    size_t nchoices;
    char letter;       /* the right one, 0 when unknown */
    const char *label; /* text of a label that is text, trimmed; NULL */
    char *label_memory;
};

static void read_choices(struct sheet *q, const json_t *choices)
{
    const char *key;
    json_t *v;
    size_t i;

    if (json_is_object(choices)) {
        json_object_foreach((json_t *)choices, key, v)
        {
            if (q->nchoices < MAX_LETTERS) {
                q->choice[q->nchoices++] = v;
            }
        }
    }
    json_array_foreach((json_t *)choices, i, v)
    {
        if (q->nchoices < MAX_LETTERS) {
            q->choice[q->nchoices++] = v;
        }
    }
}

/* Letters are text of one character, or one text of them all. */
static void read_valid(struct sheet *q, const json_t *letters)
{
    size_t n = 0, i;
    json_t *v;

    if (json_is_string(letters)) {
        const char *s = json_string_value(letters);
        for (; *s && n < MAX_LETTERS; s++) {
            q->valid[n] = capital(*s);
            n += q->valid[n] != 0;
        }
    }
    json_array_foreach((json_t *)letters, i, v)
    {
        const char *s = json_string_value(v);
        if (s && s[0] && !s[1] && n < MAX_LETTERS) {
            q->valid[n] = capital(s[0]);
            n += q->valid[n] != 0;
        }
    }
    if (n == 0) {
        n = q->nchoices ? q->nchoices : 8;
        for (i = 0; i < n; i++) {
            q->valid[i] = (char)('A' + (int)i);
        }
    }
    q->valid[n] = 0;
}

/* Lower-case words of ASCII letters and digits, one blank between them; free with mem_free. */
static char *plain_words(const char *s, size_t n)
{
    char *out = mem_alloc(n + 2);
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        int c = tolower((unsigned char)s[i]);
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
            out[k++] = (char)c;
        } else if (k && out[k - 1] != ' ') {
            out[k++] = ' ';
        }
    }
    k -= k && out[k - 1] == ' ';
    out[k] = 0;
    return out;
}

/* The text of a value as Python's str() has it, as far as choices are text or numbers. */
static char *value_words(const json_t *v)
{
    char *text, *words;

    if (json_is_string(v)) {
        return plain_words(json_string_value(v), json_string_length(v));
    }
    text = json_dumps(v, JSON_ENCODE_ANY);
    words = plain_words(text ? text : "", text ? strlen(text) : 0);
    free(text);
    return words;
}

static void letter_by_text(struct sheet *q)
{
    char *want = plain_words(q->label, strlen(q->label));

    for (size_t i = 0; i < q->nchoices && i < strlen(q->valid) && !q->letter; i++) {
        char *have = value_words(q->choice[i]);
        if (strcmp(have, want) == 0) {
            q->letter = q->valid[i];
        }
        mem_free(have);
    }
    mem_free(want);
}

static void read_label(struct sheet *q, const json_t *label)
{
    double index = -1;

    if (json_is_string(label)) {
        const char *s = json_string_value(label), *end = s + strlen(s);
        s = skip_blanks(s, end);
        while (end > s && (isspace((unsigned char)end[-1]) || (end[-1] >= 28 && end[-1] <= 31))) {
            end--;
        }
        q->label = q->label_memory = mem_strndup(s, (size_t)(end - s));
        if (end - s == 1 && !q->letter && capital(*s) && strchr(q->valid, capital(*s))) {
            q->letter = capital(*s);
        }
    } else if (json_is_number(label) || json_is_boolean(label)) {
        index = json_is_boolean(label) ? json_is_true(label) : json_number_value(label);
    }
    if (index > -1 && index < (double)strlen(q->valid)) {
        q->letter = q->valid[(int)index]; /* towards zero, as int() */
    }
    if (!q->letter && q->label && *q->label) {
        letter_by_text(q);
    }
}

static void read_sheet(struct sheet *q, const json_t *label, const json_t *metadata)
{
    const char *letter = json_string_value(json_object_get(metadata, "correct_letter"));

    memset(q, 0, sizeof *q);
    read_choices(q, json_object_get(metadata, "choices"));
    read_valid(q, json_object_get(metadata, "valid_letters"));
    if (letter) {
        letter = skip_blanks(letter, letter + strlen(letter));
        q->letter = capital(*letter);
        if (q->letter && *skip_blanks(letter + 1, letter + strlen(letter))) {
            q->letter = 0; /* more than a letter */
        }
    }
    read_label(q, label);
}

/* ---- the verdict ---- */

/* Texts that count as the right answer, in words; their number. */
static int targets(const struct sheet *q, const json_t *metadata, char **out)
{
    static const char *const keys[] = {"correct_answer", "answer_text"};
    const char *at = q->letter ? strchr(q->valid, q->letter) : NULL;
    int n = 0;

    if (at && (size_t)(at - q->valid) < q->nchoices) {
        out[n++] = value_words(q->choice[at - q->valid]);
    }
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(metadata, keys[i]);
        if (json_is_string(v)) {
            out[n++] = value_words(v);
        }
    }
    if (q->label && *q->label) {
        out[n++] = plain_words(q->label, strlen(q->label));
    }
    return n;
}

static void by_text(const struct sheet *q, const char *s, size_t n, char letter,
                    const json_t *metadata, struct gpqa_verdict *v)
{
    char *target[MAX_TARGETS], *words = plain_words(s, n);
    int count = targets(q, metadata, target);

    v->answered = letter != 0;
    for (int i = 0; i < count; i++) {
        if (*target[i] && !v->right && strstr(words, target[i])) {
            v->right = v->answered = 1;
            snprintf(v->reason, sizeof v->reason, "the response has the text \"%.80s\"", target[i]);
        }
        mem_free(target[i]);
    }
    mem_free(words);
    if (!v->right && letter && q->label && strlen(q->label) == 1 && capital(*q->label) == letter) {
        v->right = 1;
        snprintf(v->reason, sizeof v->reason, "%c is the label", letter);
    }
    if (!v->right && letter) {
        snprintf(v->reason, sizeof v->reason,
                 "%c is chosen, and the right text is not in the response", letter);
    } else if (!v->right) {
        snprintf(v->reason, sizeof v->reason,
                 "neither a letter nor the right text is in the response");
    }
}

int gpqa_grade(const char *response, size_t n, const json_t *label, const json_t *metadata,
               struct gpqa_verdict *out, struct err *e)
{
    struct sheet q;
    const char *end = response + n;
    char letter, *target[MAX_TARGETS];
    int count;

    memset(out, 0, sizeof *out);
    read_sheet(&q, label, metadata);
    count = targets(&q, metadata, target);
    for (int i = 0; i < count; i++) {
        mem_free(target[i]);
    }
    if (!q.letter && count == 0) {
        mem_free(q.label_memory);
        return ERR(e, STATUS_INPUT,
                   "neither the label nor correct_letter, correct_answer or answer_text in the "
                   "metadata tell the right answer");
    }
    letter = gpqa_letter(response, n, q.valid);
    if (letter && q.letter) {
        out->right = letter == q.letter;
        out->answered = 1;
        snprintf(out->reason, sizeof out->reason, "%c %s %c", letter, out->right ? "is" : "is not",
                 q.letter);
    } else {
        const char *s = without_thoughts(response, end);
        by_text(&q, s, (size_t)(end - s), letter, metadata, out);
    }
    mem_free(q.label_memory);
    return 0;
}
