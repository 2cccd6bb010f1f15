/* From a data row to prompt tokens: chat template (when asked) and tokenizer.
 *
 *     struct promptenc p;
 *     promptenc_open(&p, wfile, opts, &e);
 *     promptenc_encode(&p, row->prompt, row->tools, &ids, &n, &e);      free ids with mem_free
 *     promptenc_close(&p);
 *
 * Once open, any number of threads may encode and decode. */
#ifndef RL_PROMPTENC_H
#define RL_PROMPTENC_H

#include <jansson.h>
#include <stdint.h>

struct chat_template;
struct err;
struct tokenizer;
struct wfile;

struct promptenc {
    struct tokenizer *tok;
    char *tmpl;                   /* NULL: the model has none */
    char *bos, *eos;              /* token texts or NULL */
    json_t *special;              /* every special token's text, by name */
    struct chat_template *chat;   /* tmpl, compiled; NULL until `apply` */
    struct chat_template *tooled; /* the model's template for chats with tools, or NULL */
    int apply;                    /* render messages with the template */
    const json_t *kwargs;         /* borrowed, or NULL */
    /* Ids at which engines stop by themselves: generation_config.json's, else config.json's. */
    int32_t stops[64];
    int nstops;
};

/* template_path NULL takes the model's own template, and for rows with tools the one that the model
 * names tool_use if it has that. A template that does not compile is refused here. */
int promptenc_open(struct promptenc *p, const struct wfile *f, const char *template_path, int apply,
                   const json_t *kwargs, struct err *e);
void promptenc_close(struct promptenc *p);

/* prompt: text, or messages (which need `apply`). At least one token, else STATUS_INPUT. */
int promptenc_encode(const struct promptenc *p, const json_t *prompt, const json_t *tools,
                     int32_t **ids, int *n, struct err *e);
/* Response text; skip_special leaves end tokens out. Free with mem_free. */
int promptenc_decode(const struct promptenc *p, const int32_t *ids, int n, int skip_special,
                     char **text, struct err *e);

#endif
