/* Owns the variables a chat template sees: the same names, with the same values when absent, that
 * Hugging Face's apply_chat_template passes; and what is done around the render there, such as a
 * last message left open. */
#include "text/chat.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/jinja.h"
#include "text/jinja_int.h" /* Python's white space */

struct chat_template {
    struct jinja *j;
    char *text;
    int marks;
};

/* Put behind the text that stays open, and found again in the render. transformers uses these
 * words; a template that changes case or cuts text treats them alike on both sides. */
#define CHAT_TAG "CONTINUE_FINAL_MESSAGE_TAG"

static const char *const chat_reasoning[] = {"reasoning_content", "thinking", "reasoning"};

int chat_template_new(const char *text, struct chat_template **out, struct err *e)
{
    struct chat_template *t = mem_alloc(sizeof *t);
    int rc = jinja_compile(text, &t->j, e);

    if (rc) {
        mem_free(t);
        return rc;
    }
    t->text = mem_strdup(text);
    t->marks = jinja_has_marks(t->j);
    *out = t;
    return 0;
}

void chat_template_free(struct chat_template *t)
{
    if (t) {
        jinja_free(t->j);
        mem_free(t->text);
        mem_free(t);
    }
}

int chat_template_has_marks(const struct chat_template *t)
{
    return t->marks;
}

const char *chat_template_text(const struct chat_template *t)
{
    return t->text;
}

void chat_text_fini(struct chat_text *x)
{
    mem_free(x->text);
    mem_free(x->spans);
    memset(x, 0, sizeof *x);
}

/* ---- what is given ---- */

static int chat_objects(const json_t *list, const char *what, struct err *e)
{
    const json_t *v;
    size_t i;

    if (!list || json_is_null(list)) {
        return 0;
    }
    if (!json_is_array(list)) {
        return ERR(e, STATUS_INPUT, "the %s of a chat are not an array", what);
    }
    json_array_foreach(list, i, v)
    {
        if (!json_is_object(v)) {
            return ERR(e, STATUS_INPUT, "%s[%zu] of a chat is not an object", what, i);
        }
    }
    return 0;
}

/* Sets vars[key] to an own reference. */
static int chat_put(json_t *vars, const char *key, json_t *owned, struct err *e)
{
    if (json_object_set_new(vars, key, owned)) {
        return ERR(e, STATUS_INPUT, "the template variable %s is not valid UTF-8 text", key);
    }
    return 0;
}

static json_t *chat_share(const json_t *v)
{
    return v ? json_incref((json_t *)v) : json_null(); /* jansson counts in const objects too */
}

static int chat_is_one_of(const char *key, const char *const *names)
{
    for (; *names; names++) {
        if (strcmp(key, *names) == 0) {
            return 1;
        }
    }
    return 0;
}

/* One keyword argument: a variable, or an option by that name into *o. */
static int chat_kwarg(json_t *vars, const char *key, const json_t *v, struct chat_opts *o,
                      struct err *e)
{
    static const char *const twice[] = {
        "messages",      "tools", "add_generation_prompt", "conversation", "tokenize",
        "conversations", NULL};
    static const char *const others[] = {"sanitize_control_tokens",
                                         "padding",
                                         "truncation",
                                         "max_length",
                                         "return_tensors",
                                         "return_dict",
                                         "return_assistant_tokens_mask",
                                         "tokenizer_kwargs",
                                         NULL};

    if (chat_is_one_of(key, twice)) {
        return ERR(e, STATUS_INPUT, "template variable %s is given twice", key);
    }
    if (strcmp(key, "chat_template") == 0) {
        return ERR(e, STATUS_INPUT,
                   "chat_template is no template variable: give the template as "
                   "a file with --chat-template-path");
    }
    if (chat_is_one_of(key, others)) {
        return ERR(e, STATUS_INPUT,
                   "%s is an argument of apply_chat_template, which a template "
                   "never sees; leave it out",
                   key);
    }
    if (strcmp(key, "documents") == 0) {
        o->documents = v;
        return 0;
    }
    if (strcmp(key, "continue_final_message") == 0) {
        o->continue_field = json_is_string(v) && json_string_length(v) ? json_string_value(v)
                            : json_is_true(v)                          ? "content"
                                                                       : NULL;
        return 0;
    }
    return chat_put(vars, key, chat_share(v), e);
}

static int chat_kwargs(json_t *vars, const json_t *kwargs, struct chat_opts *o, struct err *e)
{
    const char *key;
    json_t *v;
    int rc = 0;

    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs)) {
        return ERR(e, STATUS_INPUT, "the keyword arguments of a chat are not an object");
    }
    json_object_foreach((json_t *)kwargs, key, v)
    {
        rc = rc ? rc : chat_kwarg(vars, key, v, o, e);
    }
    return rc;
}

/* ---- messages ---- */

static const json_t *chat_value(const json_t *message, const char *key)
{
    const json_t *v = json_object_get(message, key);
    return json_is_null(v) ? NULL : v;
}

/* A message with its reasoning under the names that templates read: a new reference. */
static json_t *chat_alias(const json_t *message)
{
    const json_t *reasoning = NULL;
    json_t *m;
    size_t i;

    for (i = 0; !reasoning && i < sizeof chat_reasoning / sizeof *chat_reasoning; i++) {
        reasoning = chat_value(message, chat_reasoning[i]);
    }
    if (!reasoning) {
        return json_incref((json_t *)message);
    }
    m = json_object();
    if (!m || json_object_set(m, "thinking", (json_t *)reasoning) ||
        json_object_update(m, (json_t *)message) ||
        json_object_set(m, "reasoning_content", (json_t *)reasoning)) {
        json_decref(m);
        return NULL;
    }
    return m;
}

static int chat_messages(const json_t *messages, json_t **out, struct err *e)
{
    const json_t *m;
    json_t *list;
    size_t i;
    int rc;

    if (!json_is_array(messages)) {
        return ERR(e, STATUS_INPUT, "the messages of a chat are not an array");
    }
    if (json_array_size(messages) == 0) {
        return ERR(e, STATUS_INPUT, "a chat needs at least one message");
    }
    if ((rc = chat_objects(messages, "messages", e))) {
        return rc;
    }
    list = json_array();
    json_array_foreach(messages, i, m)
    {
        if (json_array_append_new(list, chat_alias(m))) {
            json_decref(list);
            return ERR(e, STATUS_NOMEM, "no memory for the messages of a chat");
        }
    }
    *out = list;
    return 0;
}

/* ---- a last message left open ---- */

/* [*p, *p + *n) without white space at its ends (bit 1 left, bit 2 right). */
static void chat_strip(const char **p, size_t *n, int sides)
{
    const char *a = *p, *b = *p + *n;
    uint32_t cp;
    size_t k;

    while ((sides & 1) && a < b && (k = jinja_uni_next(a, b, &cp)) && jinja_uni_space(cp)) {
        a += k;
    }
    while ((sides & 2) && b > a && (k = jinja_uni_prev(a, b, &cp)) && jinja_uni_space(cp)) {
        b -= k;
    }
    *p = a;
    *n = (size_t)(b - a);
}

static json_t *chat_tagged(const json_t *text)
{
    struct buf b;
    json_t *out;

    buf_init(&b, JINJA_MAX_OUTPUT);
    buf_add(&b, json_string_value(text), json_string_length(text));
    buf_str(&b, CHAT_TAG " ");
    out = buf_status(&b) ? NULL : json_stringn(b.data, b.len);
    buf_fini(&b);
    return out;
}

/* The last part of `parts` that has a text: tagged, and the text as it was in *final. */
static int chat_tag_parts(json_t *parts, json_t **final, struct err *e)
{
    size_t i = json_array_size(parts);

    while (i-- > 0) {
        json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        if (json_is_string(text)) {
            *final = json_incref(text);
            return chat_put(part, "text", chat_tagged(text), e);
        }
        if (text || (!json_is_object(part) && !json_is_array(part) && !json_is_string(part)) ||
            (json_is_string(part) && strstr(json_string_value(part), "text"))) {
            return ERR(e, STATUS_INPUT, "part %zu of the message to continue has no text", i);
        }
    }
    return ERR(e, STATUS_INPUT, "the message to continue has no text");
}

/* Puts the tag into the last message of *list, which is replaced by a copy; *final is the text that
 * it stands behind. */
static int chat_open_last(const struct chat_template *t, const char *field, json_t *list,
                          json_t **final, struct err *e)
{
    size_t last = json_array_size(list) - 1, i, nfields = 0;
    json_t *m = json_deep_copy(json_array_get(list, last)), *v;
    const char *fields[3];
    int reasoning = 0, known = 0, rc = 0;

    if (!m || json_array_set_new(list, last, m)) {
        return ERR(e, STATUS_NOMEM, "no memory for the messages of a chat");
    }
    v = json_object_get(m, field);
    if (!v || json_is_null(v)) {
        return ERR(e, STATUS_INPUT, "the last message has no %s to continue", field);
    }
    for (i = 0; i < 3; i++) {
        reasoning |= strcmp(field, chat_reasoning[i]) == 0;
    }
    for (i = 0; i < 3; i++) { /* reasoning: under every name it was copied to */
        const char *name = reasoning ? chat_reasoning[i] : field;
        if (json_equal(json_object_get(m, name), v) && (reasoning || i == 0)) {
            fields[nfields++] = name;
        }
    }
    for (i = 0; i < nfields; i++) {
        known |= strstr(t->text, fields[i]) != NULL;
    }
    if (!known) {
        return ERR(e, STATUS_INPUT, "the chat template does not know the field %s to continue",
                   field);
    }
    if (json_is_array(v)) {
        return chat_tag_parts(v, final, e);
    }
    if (!json_is_string(v)) {
        return ERR(e, STATUS_INPUT, "the %s to continue is not a text", field);
    }
    *final = json_incref(v);
    for (i = 0; i < nfields && rc == 0; i++) {
        rc = chat_put(m, fields[i], chat_tagged(*final), e);
    }
    return rc;
}

/* Cuts the render behind the text that stays open. */
static int chat_cut(struct buf *out, const json_t *final, struct err *e)
{
    const char *want = json_string_value(final), *p = out->data, *tag = NULL, *next;
    size_t n = json_string_length(final), len;

    chat_strip(&want, &n, 3);
    while ((next = memmem(p, out->len - (size_t)(p - out->data), CHAT_TAG, sizeof CHAT_TAG - 1))) {
        tag = next;
        p = next + 1;
    }
    if (!tag || (n && !memmem(out->data, out->len, want, n))) {
        return ERR(e, STATUS_INPUT,
                   "the message to continue is not in the rendered chat: its "
                   "template drops or changes it");
    }
    len = (size_t)(tag - out->data);
    if (tag[sizeof CHAT_TAG - 1] != ' ') { /* the template trims: then the text ends trimmed */
        p = out->data;
        chat_strip(&p, &len, 2);
    }
    out->data[len] = 0;
    out->len = len;
    return 0;
}

/* ---- rendering ---- */

/* The template's variables but for the messages: a new object. `o` takes the options among kwargs.
 */
static int chat_vars(struct chat_opts *o, json_t **out, struct err *e)
{
    json_t *vars = json_object();
    int rc = 0;

    if (json_is_object(o->special) && json_object_update(vars, (json_t *)o->special)) {
        rc = ERR(e, STATUS_NOMEM, "no memory for the template's variables");
    }
    if (rc == 0) {
        rc = chat_kwargs(vars, o->kwargs, o, e);
    }
    if (rc == 0 && o->continue_field && o->add_generation_prompt) {
        rc =
            ERR(e, STATUS_INPUT, "a chat whose last message stays open takes no generation prompt");
    }
    if (rc == 0 && (rc = chat_objects(o->tools, "tools", e)) == 0 &&
        (rc = chat_objects(o->documents, "documents", e)) == 0 &&
        (rc = chat_put(vars, "tools", chat_share(o->tools), e)) == 0 &&
        (rc = chat_put(vars, "documents", chat_share(o->documents), e)) == 0) {
        rc = chat_put(vars, "add_generation_prompt", json_boolean(o->add_generation_prompt), e);
    }
    if (rc) {
        json_decref(vars);
        return rc;
    }
    *out = vars;
    return 0;
}

int chat_apply(const struct chat_template *t, const json_t *messages, const struct chat_opts *given,
               struct chat_text *x, struct err *e)
{
    static const struct chat_opts none;
    struct chat_opts o = given ? *given : none;
    struct jinja_span *spans = NULL;
    size_t nspans = 0;
    struct jinja_opts jo = {.now = o.now, .spans = &spans, .nspans = &nspans};
    json_t *vars = NULL, *list = NULL, *final = NULL;
    struct buf out;
    int rc;

    buf_init(&out, JINJA_MAX_OUTPUT);
    if ((rc = chat_messages(messages, &list, e)) || (rc = chat_vars(&o, &vars, e))) {
        goto out;
    }
    if (o.continue_field && (rc = chat_open_last(t, o.continue_field, list, &final, e))) {
        goto out;
    }
    if ((rc = chat_put(vars, "messages", json_incref(list), e)) ||
        (rc = jinja_render_opts(t->j, vars, &jo, &out, e)) ||
        (rc = final ? chat_cut(&out, final, e) : 0)) {
        goto out;
    }
    x->text = buf_take(&out, &x->len);
    x->spans = spans;
    x->nspans = nspans;
    spans = NULL;
out:
    mem_free(spans);
    json_decref(final);
    json_decref(list);
    json_decref(vars);
    buf_fini(&out);
    return rc;
}

json_t *chat_special_tokens(const json_t *cfg)
{
    json_t *out = json_object(), *v;
    const json_t *extra = json_object_get(cfg, "extra_special_tokens");
    const char *key;

    json_object_foreach((json_t *)cfg, key, v)
    {
        size_t n = strlen(key);
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (n > 6 && strcmp(key + n - 6, "_token") == 0 && json_is_string(v)) {
            json_object_set(out, key, v);
        }
    }
    json_object_foreach((json_t *)extra, key, v)
    {
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (json_is_string(v)) {
            json_object_set(out, key, v);
        }
    }
    return out;
}

int chat_render(const char *tmpl, const json_t *messages, const json_t *tools, const json_t *kwargs,
                int add_generation_prompt, const char *bos, const char *eos, char **text,
                size_t *len, struct err *e)
{
    struct chat_template *t = NULL;
    json_t *special = json_object();
    struct chat_opts o = {.tools = tools,
                          .kwargs = kwargs,
                          .special = special,
                          .add_generation_prompt = add_generation_prompt};
    struct chat_text x = {0};
    int rc;

    if (!tmpl) {
        rc = ERR(e, STATUS_INPUT, "a chat needs a template");
        goto out;
    }
    if ((bos && (rc = chat_put(special, "bos_token", json_string(bos), e))) ||
        (eos && (rc = chat_put(special, "eos_token", json_string(eos), e))) ||
        (rc = chat_template_new(tmpl, &t, e)) || (rc = chat_apply(t, messages, &o, &x, e))) {
        goto out;
    }
    *text = x.text;
    if (len) {
        *len = x.len;
    }
    x.text = NULL;
out:
    chat_text_fini(&x);
    chat_template_free(t);
    json_decref(special);
    return rc;
}
