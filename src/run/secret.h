/* Takes secrets out of what is written down, sent on or shown: passwords and tokens of URLs, API
 * keys by the name they stand under (`--wandb-key`, `api_key`, `HF_TOKEN`, `Authorization`) or by
 * their own shape (sk-..., hf_...). `...` stands in their place.
 *
 *     secret_hide(options);                    JSON, in place, at every depth
 *     secret_text(line, strlen(line), &out);   appends
 *
 * Names such as label_key or max_tokens_per_gpu are none. It is a net, not a proof: what looks like
 * an ordinary word passes. */
#ifndef RUN_SECRET_H
#define RUN_SECRET_H

#include <jansson.h>
#include <stddef.h>

struct buf;

void secret_hide(json_t *j);
/* Only what stands under a name that says so: for the user's own functions, which may need the rest
 * as it is. */
void secret_hide_named(json_t *j);
void secret_text(const char *text, size_t n, struct buf *out);
/* 1: the value of an option, field or variable of this name is a secret. */
int secret_name(const char *name, size_t n);

#endif
