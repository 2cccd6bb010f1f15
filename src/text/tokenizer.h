/* Text to tokens and back, from a Hugging Face tokenizer.json; equal to the `tokenizers` package.
 *
 *     struct tokenizer *t;
 *     int rc = tokenizer_open(json, &t, e);
 *     int32_t *ids; size_t n;
 *     rc = tokenizer_encode(t, "Hello", 5, 1, &ids, &n, e);
 *     char *text; size_t len;
 *     rc = tokenizer_decode(t, ids, n, 1, &text, &len, e);
 *     mem_free(ids); mem_free(text); tokenizer_close(t);
 *
 * Models of type BPE, Unigram, WordPiece and WordLevel. A part of the file that is not understood
 * is refused when opening (STATUS_UNSUPPORTED, by name), never ignored; truncation and padding
 * settings are not part of tokenizing here and are left out.
 *
 * Once open, a tokenizer may be used by any number of threads at a time. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct tokenizer;

/* json: text of tokenizer.json (NUL-terminated), not needed after the call. */
int tokenizer_open(const char *json, struct tokenizer **out, struct err *e);
/* text: a vocabulary in tiktoken's format (base64, a blank, a rank in each line). pattern: the
 * regex that cuts text into words; words_named (words.h) has those of known vocabularies. added: a
 * list as added_tokens of tokenizer.json, or NULL. All borrowed. */
int tokenizer_open_tiktoken(const char *text, size_t len, const char *pattern, const json_t *added,
                            struct tokenizer **out, struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

/* Highest id + 1, added tokens included. A model's embedding may have more rows. */
int tokenizer_vocab_size(const struct tokenizer *t);

/* Encodes len bytes of UTF-8; what is not UTF-8 counts as U+FFFD. Special and other added tokens in
 * the text are recognised. add_special: put what the post-processor's template adds (BOS, EOS).
 * *ids is never NULL on success; free it with mem_free. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, int add_special,
                     int32_t **ids, size_t *n, struct err *e);

/* Decodes ids to UTF-8; bytes that are no UTF-8 become U+FFFD. skip_special leaves special tokens
 * out. Ids that name no token are left out, as the package does: models have more rows than tokens.
 * *text is NUL-terminated; free it with mem_free. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                     char **text, size_t *len, struct err *e);

/* The bytes one token stands for, for streaming: they may end inside a character. NULL if the id
 * names no token. Valid as long as the tokenizer, not NUL-terminated. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len);

/* Id of a token by its exact text as in the file ("<|im_end|>", "Ġthe"); -1 if there is none. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);

/* 1 if the token is marked special in the file. */
int tokenizer_is_special(const struct tokenizer *t, int32_t id);

#endif
