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

static char *promptenc_special(const json_t *special, const char *key)
{
    return mem_strdup(json_string_value(json_object_get(special, key)));
}

/* The tokens that the template sees by name. */
static int promptenc_tokens(struct promptenc *p, const char *config, struct err *e)
{
    json_error_t je;
    /* transformers writes a model_max_length of 31 digits, more than an integer holds */
    json_t *cfg = config ? json_loads(config, JSON_DECODE_INT_AS_REAL, &je) : NULL;

    if (config && !cfg) {
        return ERR(e, STATUS_FORMAT, "tokenizer_config.json: line %d: %s", je.line, je.text);
    }
    p->special = chat_special_tokens(cfg);
    p->bos = promptenc_special(p->special, "bos_token");
    p->eos = promptenc_special(p->special, "eos_token");
    json_decref(cfg);
    return STATUS_OK;
}

static void promptenc_stop(struct promptenc *p, const json_t *v)
{
    if (json_is_number(v) && p->nstops < (int)(sizeof p->stops / sizeof *p->stops)) {
        p->stops[p->nstops++] = (int32_t)json_number_value(v);
    }
}

static void promptenc_stops(struct promptenc *p, const struct wfile *f)
{
    const char *texts[2] = {wfile_generation_config_json(f), wfile_config_json(f)};

    for (int i = 0; i < 2 && p->nstops == 0; i++) {
        json_t *j = texts[i] ? json_loads(texts[i], JSON_DECODE_INT_AS_REAL, NULL) : NULL;
        json_t *v = json_object_get(j, "eos_token_id"), *one;
        size_t k;
        promptenc_stop(p, v);
        json_array_foreach(v, k, one)
        {
            promptenc_stop(p, one);
        }
        json_decref(j);
    }
}

static int promptenc_compile(const char *text, const char *what, struct chat_template **out,
                             struct err *e)
{
    int rc = text ? chat_template_new(text, out, e) : STATUS_OK;

    if (rc != STATUS_OK && e) {
        err_prefix(e, "%s", what);
    }
    return rc;
}

int promptenc_open(struct promptenc *p, const struct wfile *f, const char *template_path, int apply,
                   const json_t *kwargs, struct err *e)
{
    const char *tj = wfile_tokenizer_json(f);
    const char *own = template_path ? NULL : wfile_tool_template(f);
    size_t len;
    int rc;

    memset(p, 0, sizeof *p);
    p->apply = apply;
    p->kwargs = kwargs;
    promptenc_stops(p, f);
    rc = tj ? promptenc_tokens(p, wfile_tokenizer_config_json(f), e)
            : ERR(e, STATUS_NOTFOUND, "the model has no tokenizer.json");
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
    if (rc == STATUS_OK && apply &&
        (rc =
             promptenc_compile(p->tmpl, template_path ? template_path : "the model's chat template",
                               &p->chat, e)) == STATUS_OK) {
        rc = promptenc_compile(own, "the model's chat template tool_use", &p->tooled, e);
    }
    if (rc != STATUS_OK) {
        promptenc_close(p);
    }
    return rc;
}

void promptenc_close(struct promptenc *p)
{
    tokenizer_close(p->tok);
    chat_template_free(p->chat);
    chat_template_free(p->tooled);
    json_decref(p->special);
    mem_free(p->tmpl);
    mem_free(p->bos);
    mem_free(p->eos);
    memset(p, 0, sizeof *p);
}

static int promptenc_render(const struct promptenc *p, const json_t *prompt, const json_t *tools,
                            struct chat_text *out, struct err *e)
{
    int has_tools = tools && !json_is_null(tools);
    struct chat_opts o = {
        .tools = tools, .kwargs = p->kwargs, .special = p->special, .add_generation_prompt = 1};
    json_t *wrapped = NULL;
    int rc;

    if (json_is_string(prompt)) {
        wrapped = json_pack("[{s:s,s:O}]", "role", "user", "content", prompt);
        prompt = wrapped;
    }
    rc = chat_apply(has_tools && p->tooled ? p->tooled : p->chat, prompt, &o, out, e);
    json_decref(wrapped);
    return rc;
}

int promptenc_encode(const struct promptenc *p, const json_t *prompt, const json_t *tools,
                     int32_t **ids, int *n, struct err *e)
{
    struct chat_text x = {0};
    const char *text = NULL;
    int32_t *out = NULL;
    size_t len = 0, count = 0;
    int rc = STATUS_OK;

    if (p->apply) {
        rc = promptenc_render(p, prompt, tools, &x, e);
        text = x.text;
        len = x.len;
    } else if (json_is_string(prompt)) {
        text = json_string_value(prompt);
        len = json_string_length(prompt);
    } else {
        rc = ERR(e, STATUS_INPUT, "the prompt is a list of messages: give --apply-chat-template");
    }
    if (rc == STATUS_OK) {
        rc = tokenizer_encode(p->tok, text, len, 0, &out, &count, e);
    }
    chat_text_fini(&x);
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
