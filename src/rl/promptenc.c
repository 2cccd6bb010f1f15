/* Owns the path from messages to token ids. Prompts are rendered as text first and tokenised whole,
 * without special tokens added, as Miles does. */
#include "rl/promptenc.h"

#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/wfile.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* A special token of tokenizer_config.json: a string, or an object with content. */
static char *promptenc_special(const json_t *cfg, const char *key)
{
    const json_t *v = json_object_get(cfg, key);
    if (json_is_object(v)) {
        v = json_object_get(v, "content");
    }
    return mem_strdup(json_string_value(v));
}

int promptenc_open(struct promptenc *p, const struct wfile *f, const char *template_path, int apply,
                   const json_t *kwargs, struct err *e)
{
    const char *tj = wfile_tokenizer_json(f), *tc = wfile_tokenizer_config_json(f);
    json_t *cfg = tc ? json_loads(tc, 0, NULL) : NULL;
    size_t len;
    int rc = STATUS_OK;

    memset(p, 0, sizeof *p);
    p->apply = apply;
    p->kwargs = kwargs;
    p->bos = promptenc_special(cfg, "bos_token");
    p->eos = promptenc_special(cfg, "eos_token");
    json_decref(cfg);
    if (!tj) {
        rc = ERR(e, STATUS_NOTFOUND, "the model has no tokenizer.json");
    }
    if (rc == STATUS_OK) {
        rc = tokenizer_open(tj, &p->tok, e);
    }
    if (rc == STATUS_OK && template_path) {
        rc = fsio_read(template_path, 4 << 20, &p->tmpl, &len, e);
    } else if (rc == STATUS_OK) {
        p->tmpl = mem_strdup(wfile_chat_template(f));
    }
    if (rc == STATUS_OK && apply && !p->tmpl) {
        rc =
            ERR(e, STATUS_INPUT,
                "--apply-chat-template: the model has no chat template; give --chat-template-path");
    }
    if (rc != STATUS_OK) {
        promptenc_close(p);
    }
    return rc;
}

void promptenc_close(struct promptenc *p)
{
    tokenizer_close(p->tok);
    mem_free(p->tmpl);
    mem_free(p->bos);
    mem_free(p->eos);
    memset(p, 0, sizeof *p);
}

int promptenc_encode(const struct promptenc *p, const json_t *prompt, const json_t *tools,
                     int32_t **ids, int *n, struct err *e)
{
    char *text = NULL;
    int32_t *out = NULL;
    size_t len = 0, count = 0;
    json_t *wrapped = NULL;
    int rc = STATUS_OK;

    if (p->apply) {
        const json_t *messages = prompt;
        if (json_is_string(prompt)) {
            wrapped = json_pack("[{s:s,s:O}]", "role", "user", "content", prompt);
            messages = wrapped;
        }
        rc = chat_render(p->tmpl, messages, tools, p->kwargs, 1, p->bos, p->eos, &text, &len, e);
        json_decref(wrapped);
    } else if (json_is_string(prompt)) {
        len = json_string_length(prompt);
        text = mem_strndup(json_string_value(prompt), len);
    } else {
        rc = ERR(e, STATUS_INPUT, "the prompt is a list of messages: give --apply-chat-template");
    }
    if (rc == STATUS_OK) {
        rc = tokenizer_encode(p->tok, text, len, 0, &out, &count, e);
    }
    mem_free(text);
    if (rc == STATUS_OK && (count < 1 || count > (1u << 24))) {
        mem_free(out);
        rc = ERR(e, STATUS_INPUT, "the prompt has %zu tokens", count);
    }
    if (rc == STATUS_OK) {
        *ids = out;
        *n = (int)count;
    }
    return rc;
}

int promptenc_decode(const struct promptenc *p, const int32_t *ids, int n, int skip_special,
                     char **text, struct err *e)
{
    size_t len;
    return tokenizer_decode(p->tok, ids, (size_t)n, skip_special, text, &len, e);
}
