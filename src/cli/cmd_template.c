/* Owns `miles template render` and `miles template check`: a model's chat template by itself,
 * without its weights. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "model/wfile.h"
#include "rl/promptenc.h"
#include "text/chat.h"
#include "text/chatcheck.h"
#include "text/chatmask.h"
#include "text/tokenizer.h"

/* Exit codes of `check`, besides those of every command (docs/compat.md). */
enum { TEMPLATE_UNFIT = 3, TEMPLATE_SINGLE_ONLY = 4 };

struct template_opts {
    char *hf_checkpoint, *chat_template_path, *messages, *tools, *documents, *continue_field;
    json_t *kwargs;
    int no_generation_prompt, mask, ids, json, loss_mask_type;
};

#define O(f) offsetof(struct template_opts, f)
static const struct conf_opt template_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL,
     "model: a Hugging Face folder (its tokenizer files are enough) or a GGUF file",
     O(hf_checkpoint), "model", NULL},
    {"chat-template-path", CONF_STR, NULL, NULL, "template file instead of the model's",
     O(chat_template_path), "model", NULL},
    {"kwargs", CONF_JSON, "{}", NULL, "variables for the template, as JSON", O(kwargs), "chat",
     NULL},
    {"json", CONF_SWITCH, NULL, NULL, "the result as one JSON object", O(json), "output", NULL},
    {0}};
static const struct conf_opt template_render_table[] = {
    {"messages", CONF_STR, NULL, NULL,
     "JSON file (- is stdin): a list of messages, or an object with messages, tools and documents",
     O(messages), "chat", NULL},
    {"tools", CONF_STR, NULL, NULL, "tools: JSON, or a file of it", O(tools), "chat", NULL},
    {"documents", CONF_STR, NULL, NULL, "documents: JSON, or a file of it", O(documents), "chat",
     NULL},
    {"no-generation-prompt", CONF_SWITCH, NULL, NULL, "do not open the assistant's turn",
     O(no_generation_prompt), "chat", NULL},
    {"continue-field", CONF_STR, NULL, NULL,
     "leave the last message open behind this field, e.g. content, for the model to continue",
     O(continue_field), "chat", NULL},
    {"ids", CONF_SWITCH, NULL, NULL, "tokens instead of text: a line with id and text for each",
     O(ids), "output", NULL},
    {"mask", CONF_SWITCH, NULL, NULL,
     "tokens of the conversation and which of them would be trained: a line with mask, id and text "
     "for each",
     O(mask), "output", NULL},
    {"loss-mask-type", CONF_CHOICE, "auto", CHATMASK_KINDS, "how --mask finds them",
     O(loss_mask_type), "output", NULL},
    {0}};

/* A model's texts, opened. */
struct template_model {
    struct wfile *file;
    struct promptenc enc;
};

static int template_open(struct template_model *m, const struct template_opts *o, struct err *e)
{
    int rc;

    if (!o->hf_checkpoint) {
        return ERR(e, STATUS_INPUT, "--hf-checkpoint is needed");
    }
    if (o->kwargs && !json_is_object(o->kwargs)) {
        return ERR(e, STATUS_INPUT, "--kwargs is not a JSON object");
    }
    rc = wfile_open_texts(o->hf_checkpoint, &m->file, e);
    if (rc == STATUS_OK && !o->chat_template_path && !wfile_chat_template(m->file)) {
        rc = ERR(e, STATUS_INPUT, "%s has no chat template; give --chat-template-path",
                 o->hf_checkpoint);
    }
    return rc == STATUS_OK
               ? promptenc_open(&m->enc, m->file, o->chat_template_path, 1, o->kwargs, e)
               : rc;
}

static void template_close(struct template_model *m)
{
    promptenc_close(&m->enc);
    wfile_close(m->file);
}

/* ---- render ---- */

static int template_parse(const char *text, size_t len, const char *what, json_t **out,
                          struct err *e)
{
    json_error_t je;

    *out = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    return *out ? STATUS_OK
                : ERR(e, STATUS_INPUT, "%s:%d:%d: %s", what, je.line, je.column, je.text);
}

static int template_file(const char *path, json_t **out, struct err *e)
{
    char *text = NULL;
    size_t len = 0;
    int rc = fsio_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, 64 << 20, &text, &len, e);

    if (rc == STATUS_OK) {
        rc = template_parse(text, len, path, out, e);
    } else {
        rc = rc == STATUS_NOTFOUND ? STATUS_INPUT : rc;
    }
    mem_free(text);
    return rc;
}

/* A flag's value: JSON itself when it begins like it, else the name of a file. */
static int template_value(const char *flag, const char *value, json_t **out, struct err *e)
{
    char what[64];

    if (!value) {
        return STATUS_OK;
    }
    if (value[0] != '[' && value[0] != '{') {
        return template_file(value, out, e);
    }
    snprintf(what, sizeof what, "--%s", flag);
    return template_parse(value, strlen(value), what, out, e);
}

struct template_chat {
    json_t *messages, *tools, *documents;
};

static int template_chat_read(const struct template_opts *o, struct template_chat *c, struct err *e)
{
    json_t *root = NULL;
    int rc;

    if (!o->messages) {
        return ERR(e, STATUS_INPUT, "--messages is needed");
    }
    rc = template_file(o->messages, &root, e);
    if (rc == STATUS_OK && json_is_object(root)) {
        c->messages = json_incref(json_object_get(root, "messages"));
        c->tools = json_incref(json_object_get(root, "tools"));
        c->documents = json_incref(json_object_get(root, "documents"));
    } else if (rc == STATUS_OK) {
        c->messages = json_incref(root);
    }
    json_decref(root);
    if (rc == STATUS_OK && !json_is_array(c->messages)) {
        rc = ERR(e, STATUS_INPUT, "%s is neither a list of messages nor an object that has one",
                 o->messages);
    }
    if (rc == STATUS_OK && o->tools) {
        json_decref(c->tools);
        c->tools = NULL;
        rc = template_value("tools", o->tools, &c->tools, e);
    }
    if (rc == STATUS_OK && o->documents) {
        json_decref(c->documents);
        c->documents = NULL;
        rc = template_value("documents", o->documents, &c->documents, e);
    }
    return rc;
}

static json_t *template_ids(const int32_t *ids, size_t n)
{
    json_t *out = json_array();

    for (size_t i = 0; i < n; i++) {
        json_array_append_new(out, json_integer(ids[i]));
    }
    return out;
}

/* One line a token; mask NULL: without that column. */
static void template_print_tokens(const struct tokenizer *tok, const int32_t *ids,
                                  const uint8_t *mask, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *text = NULL, *quoted = NULL;
        size_t len;
        json_t *s = NULL;
        if (tokenizer_decode(tok, ids + i, 1, 0, &text, &len, NULL) == STATUS_OK) {
            s = json_stringn(text, len);
            quoted = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
        }
        if (mask) {
            printf("%d\t", mask[i]);
        }
        printf("%d\t%s\n", ids[i], quoted ? quoted : "\"\"");
        free(quoted); /* jansson's */
        json_decref(s);
        mem_free(text);
    }
}

static void template_print_json(json_t *owned)
{
    json_dumpf(owned, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(owned);
}

static int template_mask(const struct template_model *m, const struct template_opts *o,
                         const struct chat_template *t, const struct template_chat *c,
                         const struct chat_opts *co, struct err *e)
{
    struct chatmask k;
    int rc =
        chatmask_make(t, m->enc.tok, (enum chatmask_kind)o->loss_mask_type, c->messages, co, &k, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    if (o->json) {
        json_t *mask = json_array();
        for (size_t i = 0; i < k.n; i++) {
            json_array_append_new(mask, json_integer(k.mask[i]));
        }
        template_print_json(json_pack("{s:o, s:o, s:I, s:I}", "ids", template_ids(k.ids, k.n),
                                      "mask", mask, "response_length", (json_int_t)k.response,
                                      "differs_at", (json_int_t)k.differs));
    } else {
        template_print_tokens(m->enc.tok, k.ids, k.mask, k.n);
    }
    if (k.differs >= 0) {
        fprintf(stderr,
                "miles: token %ld is not that of the conversation rendered at once: this mask is "
                "made message by message\n",
                k.differs);
    }
    chatmask_fini(&k);
    return STATUS_OK;
}

static int template_render(const struct template_model *m, const struct template_opts *o,
                           const struct template_chat *c, struct err *e)
{
    const struct chat_template *t =
        c->tools && !json_is_null(c->tools) && m->enc.tooled ? m->enc.tooled : m->enc.chat;
    struct chat_opts co = {.tools = c->tools,
                           .documents = c->documents,
                           .kwargs = o->kwargs,
                           .special = m->enc.special,
                           .add_generation_prompt = !o->no_generation_prompt && !o->continue_field,
                           .continue_field = o->continue_field};
    struct chat_text x = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int rc;

    if (o->mask) {
        return template_mask(m, o, t, c, &co, e);
    }
    rc = chat_apply(t, c->messages, &co, &x, e);
    if (rc == STATUS_OK && (o->ids || o->json)) {
        rc = tokenizer_encode(m->enc.tok, x.text, x.len, 0, &ids, &n, e);
    }
    if (rc == STATUS_OK && o->json) {
        template_print_json(json_pack("{s:o, s:o}", "text", json_stringn(x.text, x.len), "ids",
                                      template_ids(ids, n)));
    } else if (rc == STATUS_OK && o->ids) {
        template_print_tokens(m->enc.tok, ids, NULL, n);
    } else if (rc == STATUS_OK) {
        fwrite(x.text, 1, x.len, stdout);
    }
    mem_free(ids);
    chat_text_fini(&x);
    return rc;
}

static int template_render_main(int argc, char **argv)
{
    struct template_opts o = {0};
    struct template_model m = {0};
    struct template_chat c = {0};
    struct conf *conf = conf_new();
    struct err e = {0};
    int rc;

    conf_add(conf, template_table, &o);
    conf_add(conf, template_render_table, &o);
    rc = conf_parse(conf, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles template render --hf-checkpoint DIR --messages FILE [--flag value ...]",
                 conf);
        conf_free(conf);
        return CMD_OK;
    }
    if (rc == STATUS_OK && (rc = template_open(&m, &o, &e)) == STATUS_OK &&
        (rc = template_chat_read(&o, &c, &e)) == STATUS_OK) {
        rc = template_render(&m, &o, &c, &e);
    }
    json_decref(c.messages);
    json_decref(c.tools);
    json_decref(c.documents);
    template_close(&m);
    conf_free(conf);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}

/* ---- check ---- */

static void template_print_report(const json_t *report)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(report, "checks"), i, item)
    {
        printf("%-8s %-34s %s\n", json_string_value(json_object_get(item, "result")),
               json_string_value(json_object_get(item, "check")),
               json_string_value(json_object_get(item, "detail")));
    }
    printf("single_turn=%s multi_turn=%s\n",
           json_is_true(json_object_get(report, "single_turn")) ? "fit" : "unfit",
           json_is_true(json_object_get(report, "multi_turn")) ? "fit" : "unfit");
}

static int template_check_main(int argc, char **argv)
{
    struct template_opts o = {0};
    struct template_model m = {0};
    struct conf *conf = conf_new();
    struct err e = {0};
    json_t *report = NULL;
    int rc, code = CMD_OK;

    conf_add(conf, template_table, &o);
    rc = conf_parse(conf, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles template check --hf-checkpoint DIR [--flag value ...]", conf);
        conf_free(conf);
        return CMD_OK;
    }
    if (rc == STATUS_OK && (rc = template_open(&m, &o, &e)) == STATUS_OK) {
        struct chatcheck_in in = {.chat = m.enc.chat,
                                  .tooled = m.enc.tooled,
                                  .tok = m.enc.tok,
                                  .special = m.enc.special,
                                  .kwargs = o.kwargs};
        in.stops = m.enc.stops;
        in.nstops = (size_t)m.enc.nstops;
        rc = chatcheck_run(&in, &report, &e);
    }
    if (rc == STATUS_OK) {
        code = !json_is_true(json_object_get(report, "single_turn"))  ? TEMPLATE_UNFIT
               : !json_is_true(json_object_get(report, "multi_turn")) ? TEMPLATE_SINGLE_ONLY
                                                                      : CMD_OK;
        if (o.json) {
            template_print_json(json_incref(report));
        } else {
            template_print_report(report);
        }
    }
    json_decref(report);
    template_close(&m);
    conf_free(conf);
    return rc == STATUS_OK ? code : cmd_fail(rc, &e);
}

/* ---- command ---- */

static void template_usage(FILE *out)
{
    fprintf(
        out,
        "usage: miles template render --hf-checkpoint DIR --messages FILE [--flag value ...]\n"
        "       miles template check --hf-checkpoint DIR [--flag value ...]\n"
        "\n"
        "  render     a conversation as the model's chat template writes it: text, tokens, mask\n"
        "  check      whether the template is fit for reinforcement learning\n"
        "\n"
        "`check` ends with 0 when it is, 3 when it is not, 4 when it is for single turns only.\n"
        "`miles template render --help` and `miles template check --help` list the flags.\n");
}

int cmd_template(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "render") == 0) {
        return template_render_main(argc - 1, argv + 1);
    }
    if (argc >= 2 && strcmp(argv[1], "check") == 0) {
        return template_check_main(argc - 1, argv + 1);
    }
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        template_usage(stdout);
        return CMD_OK;
    }
    if (argc >= 2) {
        fprintf(stderr, "miles: unknown command template %s\n\n", argv[1]);
    }
    template_usage(stderr);
    return CMD_USAGE;
}
