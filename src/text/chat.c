/* Owns the variables a chat template sees: the same names, with the same values when absent, that
 * Hugging Face's apply_chat_template passes. */
#include "text/chat.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/jinja.h"

/* Sets vars[key] to an own or borrowed value; json_t has no const in jansson's setters. */
static int chat_put(json_t *vars, const char *key, json_t *owned, struct err *e)
{
    if (json_object_set_new(vars, key, owned)) {
        return ERR(e, STATUS_INPUT, "the template variable %s is not valid UTF-8 text", key);
    }
    return 0;
}

static int chat_put_kwargs(json_t *vars, const json_t *kwargs, struct err *e)
{
    void *it;

    for (it = json_object_iter((json_t *)kwargs); it;
         it = json_object_iter_next((json_t *)kwargs, it)) {
        const char *key = json_object_iter_key(it);
        if (strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0 ||
            strcmp(key, "add_generation_prompt") == 0) {
            return ERR(e, STATUS_INPUT, "template variable %s is given twice", key);
        }
        if (json_object_set(vars, key, json_object_iter_value(it))) {
            return ERR(e, STATUS_NOMEM, "no memory for the template's variables");
        }
    }
    return 0;
}

int chat_render(const char *tmpl, const json_t *messages, const json_t *tools, const json_t *kwargs,
                int add_generation_prompt, const char *bos, const char *eos, char **text,
                size_t *len, struct err *e)
{
    struct jinja *j = NULL;
    json_t *vars = NULL;
    struct buf out;
    int rc;

    buf_init(&out, JINJA_MAX_OUTPUT);
    if (!tmpl || !json_is_array(messages) ||
        (tools && !json_is_array(tools) && !json_is_null(tools)) ||
        (kwargs && !json_is_object(kwargs) && !json_is_null(kwargs))) {
        rc = ERR(e, STATUS_INPUT,
                 "a chat needs a template, an array of messages, tools as an array and keyword "
                 "arguments as an object");
        goto out;
    }
    rc = jinja_compile(tmpl, &j, e);
    if (rc) {
        goto out;
    }
    vars = json_object();
    if (!vars) {
        rc = ERR(e, STATUS_NOMEM, "no memory for the template's variables");
        goto out;
    }
    if ((rc = chat_put(vars, "messages", json_incref((json_t *)messages), e)) ||
        (rc = chat_put(vars, "tools", tools ? json_incref((json_t *)tools) : json_null(), e)) ||
        (rc = chat_put(vars, "documents", json_null(), e)) ||
        (rc = chat_put(vars, "add_generation_prompt", json_boolean(add_generation_prompt), e)) ||
        (rc = chat_put(vars, "bos_token", json_string(bos ? bos : ""), e)) ||
        (rc = chat_put(vars, "eos_token", json_string(eos ? eos : ""), e)) ||
        (rc = json_is_object(kwargs) ? chat_put_kwargs(vars, kwargs, e) : 0)) {
        goto out;
    }
    rc = jinja_render(j, vars, &out, e);
    if (rc == 0) {
        *text = buf_take(&out, len);
    }
out:
    json_decref(vars);
    jinja_free(j);
    buf_fini(&out);
    return rc;
}
