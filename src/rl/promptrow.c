/* Owns what a row of data must look like. */
#include "rl/promptrow.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "rl/prompts.h"

void promptrow_keys(struct promptrow_keys *k, const char *input, const char *label,
                    const char *metadata, const char *tools)
{
    k->input = input ? input : "input";
    k->label = label;
    k->metadata = metadata ? metadata : "metadata";
    k->tools = tools ? tools : "tools";
    rowscan_keys(&k->scan, k->input, k->label, k->metadata, k->tools);
}

static int fault(struct promptrow_fault *f, const char *fmt, const char *arg)
{
    f->line = f->column = 0;
    snprintf(f->why, sizeof f->why, fmt, arg);
    return STATUS_INPUT;
}

static int check_prompt(const struct promptrow_keys *k, const json_t *p, struct promptrow_fault *f)
{
    size_t i;
    json_t *m;

    if (json_is_string(p)) {
        return 0;
    }
    if (!json_is_array(p) || json_array_size(p) == 0) {
        return fault(f, "\"%.100s\" is neither text nor a list of messages", k->input);
    }
    json_array_foreach(p, i, m)
    {
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role"))) {
            return fault(f, "\"%.100s\" has a message without a role", k->input);
        }
    }
    return 0;
}

/* Tools may be a list, or that list written as JSON text. */
static int take_tools(const struct promptrow_keys *k, json_t *v, json_t **out,
                      struct promptrow_fault *f)
{
    json_t *list;

    if (!v || json_is_null(v)) {
        return 0;
    }
    list = json_is_string(v) ? json_loads(json_string_value(v), 0, NULL) : json_incref(v);
    if (!list) {
        return fault(f, "\"%.100s\" is text that is not JSON", k->tools);
    }
    if (!json_is_array(list)) {
        json_decref(list);
        return fault(f, "\"%.100s\" is not a list of tools", k->tools);
    }
    *out = list;
    return 0;
}

static int take_metadata(const struct promptrow_keys *k, json_t *v, json_t **out,
                         struct promptrow_fault *f)
{
    if (!v || json_is_null(v)) {
        *out = json_object();
    } else if (json_is_object(v)) {
        *out = json_incref(v);
    } else {
        return fault(f, "\"%.100s\" is not an object", k->metadata);
    }
    return 0;
}

void promptrow_fini(struct prompts_row *r)
{
    json_decref(r->prompt);
    json_decref(r->label);
    json_decref(r->metadata);
    json_decref(r->tools);
    memset(r, 0, sizeof *r);
}

static int fill_row(const struct promptrow_keys *k, json_t *obj, struct prompts_row *r,
                    struct promptrow_fault *f)
{
    json_t *prompt = json_object_get(obj, k->input);
    json_t *label = k->label ? json_object_get(obj, k->label) : NULL;
    int rc;

    if (!prompt) {
        return fault(f, "no key \"%.100s\" (--input-key)", k->input);
    }
    if (k->label && !label) {
        return fault(f, "no key \"%.100s\" (--label-key)", k->label);
    }
    rc = check_prompt(k, prompt, f);
    rc = rc ? rc : take_metadata(k, json_object_get(obj, k->metadata), &r->metadata, f);
    rc = rc ? rc : take_tools(k, json_object_get(obj, k->tools), &r->tools, f);
    if (rc == 0) {
        r->prompt = json_incref(prompt);
        r->label = json_incref(label);
    }
    return rc;
}

int promptrow_parse(const struct promptrow_keys *k, const char *text, size_t n,
                    struct prompts_row *r, struct promptrow_fault *f)
{
    json_error_t je;
    json_t *obj;
    int rc;

    memset(r, 0, sizeof *r);
    if (n > PROMPTROW_MAX) {
        return fault(f, "the row is longer than %s", "64 MiB");
    }
    obj = json_loadb(text, n, JSON_DECODE_ANY, &je);
    if (!obj) {
        fault(f, "%.200s", je.text);
        f->line = je.line > 0 ? je.line : 1;
        f->column = je.column > 0 ? je.column : 1;
        return STATUS_INPUT;
    }
    rc = json_is_object(obj) ? fill_row(k, obj, r, f) : fault(f, "the row is not %s", "an object");
    json_decref(obj);
    if (rc) {
        promptrow_fini(r);
    }
    return rc;
}

int promptrow_good(const struct promptrow_keys *k, const char *text, size_t n)
{
    struct promptrow_fault f;
    struct prompts_row r;

    if (n <= PROMPTROW_MAX && rowscan_sure(&k->scan, text, n)) {
        return 1;
    }
    if (promptrow_parse(k, text, n, &r, &f)) {
        return 0;
    }
    promptrow_fini(&r);
    return 1;
}
