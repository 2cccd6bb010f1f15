/* Owns the rules by which the messages, tools and template variables of a chat request become what
 * templates take. */
#include "serve/chatmsg.h"

#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "serve/jfield.h"

/* A message's content as templates read it: parts of text become one text. */
static int chatmsg_content(json_t *m, const char *role, size_t at, struct err *e)
{
    json_t *c = json_object_get(m, "content"), *part;
    struct buf b;
    size_t i;
    int rc = STATUS_OK;

    if ((!c || json_is_null(c)) && strcmp(role, "user") != 0) { /* one that only calls tools */
        json_object_set_new(m, "content", json_string(""));
        return STATUS_OK;
    }
    if (!json_is_array(c)) {
        return json_is_string(c)
                   ? STATUS_OK
                   : ERR(e, STATUS_INPUT, "messages[%zu].content is neither text nor parts", at);
    }
    buf_init(&b, 1u << 28);
    json_array_foreach(c, i, part)
    {
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0 ||
            !json_is_string(text)) {
            rc = ERR(e, STATUS_INPUT, "messages[%zu].content[%zu] is not a part of type text", at,
                     i);
            break;
        }
        if (b.len) {
            buf_char(&b, ' ');
        }
        buf_add(&b, json_string_value(text), json_string_length(text));
    }
    if (rc == STATUS_OK) {
        json_object_set_new(m, "content", json_stringn(b.data, b.len));
    }
    buf_fini(&b);
    return rc;
}

/* Arguments of calls that the model made come as text; templates want the object. */
static int chatmsg_past_calls(json_t *m, size_t at, struct err *e)
{
    json_t *calls = json_object_get(m, "tool_calls"), *c;
    size_t i;

    if (!calls || json_is_null(calls)) {
        json_object_del(m, "tool_calls");
        return STATUS_OK;
    }
    if (!json_is_array(calls)) {
        return ERR(e, STATUS_INPUT, "messages[%zu].tool_calls is not a list", at);
    }
    json_array_foreach(calls, i, c)
    {
        json_t *f = json_object_get(c, "function"), *a = json_object_get(f, "arguments");
        if (!json_is_object(f)) {
            return ERR(e, STATUS_INPUT, "messages[%zu].tool_calls[%zu] has no function", at, i);
        }
        if (json_is_string(a)) {
            json_t *o =
                json_loadb(json_string_value(a), json_string_length(a), JSON_DECODE_ANY, NULL);
            if (!o) {
                return ERR(e, STATUS_INPUT,
                           "messages[%zu].tool_calls[%zu]: the arguments are not JSON", at, i);
            }
            json_object_set_new(f, "arguments", o);
        }
    }
    return STATUS_OK;
}

static int chatmsg_is_role(const char *role)
{
    static const char *const roles[] = {"system",   "developer",       "user", "assistant", "tool",
                                        "function", "latest_reminder", "root"};
    int known = 0;

    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        known |= strcmp(role, roles[i]) == 0;
    }
    return known;
}

int chatmsg_messages(const json_t *body, json_t **out, struct err *e)
{
    const json_t *v = jfield_get(body, "messages");
    json_t *list, *m;
    size_t i;
    int rc = STATUS_OK;

    if (!json_is_array(v) || json_array_size(v) == 0) {
        return ERR(e, STATUS_INPUT, "messages is not a list with at least one message");
    }
    list = json_deep_copy(v);
    json_array_foreach(list, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role) {
            rc = ERR(e, STATUS_INPUT, "messages[%zu] is not an object with a role", i);
        } else if (!chatmsg_is_role(role)) {
            rc =
                ERR(e, STATUS_INPUT, "messages[%zu] has the role %.40s, which is unknown", i, role);
        }
        rc = rc ? rc : chatmsg_content(m, role, i, e);
        rc = rc ? rc : chatmsg_past_calls(m, i, e);
        if (rc != STATUS_OK) {
            json_decref(list);
            return rc;
        }
    }
    *out = list;
    return STATUS_OK;
}

int chatmsg_tools(const json_t *body, const json_t **out, struct err *e)
{
    const json_t *tools = jfield_get(body, "tools"), *choice = jfield_get(body, "tool_choice");
    const json_t *t;
    size_t i;

    *out = NULL;
    if (choice && !(json_is_string(choice) && (strcmp(json_string_value(choice), "auto") == 0 ||
                                               strcmp(json_string_value(choice), "none") == 0))) {
        return ERR(e, STATUS_INPUT, "tool_choice: only \"auto\" and \"none\" are supported");
    }
    if (!tools || (json_is_array(tools) && json_array_size(tools) == 0)) {
        return STATUS_OK;
    }
    if (!json_is_array(tools)) {
        return ERR(e, STATUS_INPUT, "tools is not a list");
    }
    json_array_foreach(tools, i, t)
    {
        const json_t *f = json_object_get(t, "function");
        if (!json_is_object(f) || !json_is_string(json_object_get(f, "name"))) {
            return ERR(e, STATUS_INPUT, "tools[%zu] is not a function with a name", i);
        }
    }
    if (choice && strcmp(json_string_value(choice), "none") == 0) {
        return STATUS_OK;
    }
    *out = tools;
    return STATUS_OK;
}

int chatmsg_kwargs(const json_t *body, json_t **out, struct err *e)
{
    static const char *const tiers[] = {"none", "minimal", "low",   "medium",
                                        "high", "xhigh",   "ultra", "max"};
    const json_t *kwargs = jfield_get(body, "chat_template_kwargs");
    const json_t *effort = jfield_get(body, "reasoning_effort");
    const char *tier = json_string_value(effort);
    int known = json_is_number(effort) && json_number_value(effort) >= 0.0 &&
                json_number_value(effort) <= 0.99;

    if (kwargs && !json_is_object(kwargs)) {
        return ERR(e, STATUS_INPUT, "chat_template_kwargs is not an object");
    }
    for (size_t i = 0; tier && i < sizeof tiers / sizeof tiers[0]; i++) {
        known |= strcmp(tier, tiers[i]) == 0;
    }
    if (effort && !known) {
        return ERR(e, STATUS_INPUT,
                   "reasoning_effort is none of none, minimal, low, medium, high, "
                   "xhigh, ultra, max, nor a number in [0, 0.99]");
    }
    *out = kwargs ? json_deep_copy(kwargs) : json_object();
    if (effort) {
        int think = !tier || strcmp(tier, "none") != 0;
        json_t *more = json_pack("{s:b,s:b,s:O}", "thinking", think, "enable_thinking", think,
                                 "reasoning_effort", effort);
        json_object_update_missing(*out, more);
        json_decref(more);
    }
    return STATUS_OK;
}
