/* Owns how option tables are shown: --help and the tables of docs/flags.md. */
#include <string.h>

#include "base/buf.h"
#include "base/conf_int.h"
#include "base/mem.h"

static const char *type_word(const struct conf_opt *o)
{
    switch (o->type) {
    case CONF_INT: return "INT";
    case CONF_FLOAT: return "FLOAT";
    case CONF_STR: return "TEXT";
    case CONF_PATH: return "PATH";
    case CONF_CHOICE: return "CHOICE";
    case CONF_MODE: return "[CHOICE]";
    case CONF_STRS: return "TEXT...";
    case CONF_INTS: return "INT...";
    case CONF_JSON: return "JSON";
    case CONF_PASS: return "...";
    default: return "";
    }
}

/* Calls fn for each option, group by group in the order of first appearance. */
static void each_by_group(const struct conf *c, FILE *out, void (*head)(FILE *, const char *),
                          void (*fn)(FILE *, const struct conf_opt *))
{
    char *done = mem_alloc((size_t)c->n + 1);
    for (int i = 0; i < c->n; i++) {
        const char *group = c->ents[i].o->group;
        if (done[i]) {
            continue;
        }
        head(out, group ? group : "options");
        for (int j = i; j < c->n; j++) {
            const char *g = c->ents[j].o->group;
            if (!done[j] && (g == group || (g && group && strcmp(g, group) == 0))) {
                done[j] = 1;
                fn(out, c->ents[j].o);
            }
        }
    }
    mem_free(done);
}

static void help_head(FILE *out, const char *group)
{
    fprintf(out, "\n%s:\n", group);
}

/* Words of text from a column on, wrapped at 100. */
static void wrap(FILE *out, const char *text, int indent)
{
    int col = indent, first = 1;
    for (;; first = 0) {
        int n;
        text += strspn(text, " ");
        n = (int)strcspn(text, " ");
        if (n == 0) {
            break;
        }
        if (!first && col + 1 + n > 99) {
            fprintf(out, "\n%*s", indent, "");
            col = indent;
            first = 1;
        }
        col += fprintf(out, "%s%.*s", first ? "" : " ", n, text);
        text += n;
    }
    fputc('\n', out);
}

static void help_opt(FILE *out, const struct conf_opt *o)
{
    struct buf b;
    int n = fprintf(out, "  --%s%s %s", o->name, o->type == CONF_BOOL ? ", --no-..." : "",
                    type_word(o));
    buf_init(&b, CONF_MAX_TEXT);
    buf_str(&b, o->doc ? o->doc : "");
    if (conf_has_choices(o->type)) {
        buf_printf(&b, " {%s}", o->range);
    }
    if (o->def || (o->range && !conf_has_choices(o->type))) {
        buf_printf(&b, " (%s%s%s%s%s)", o->def ? "default " : "", o->def ? o->def : "",
                   o->def && o->range && !conf_has_choices(o->type) ? ", " : "",
                   o->range && !conf_has_choices(o->type) ? "in " : "",
                   o->range && !conf_has_choices(o->type) ? o->range : "");
    }
    if (n > 40) {
        fputc('\n', out);
        n = 0;
    }
    fprintf(out, "%*s", 42 - n, "");
    wrap(out, b.data, 42);
    buf_fini(&b);
}

void conf_help(const struct conf *c, FILE *out)
{
    each_by_group(c, out, help_head, help_opt);
}

static void md_head(FILE *out, const char *group)
{
    fprintf(out, "\n## %s\n\n| flag | type | default | meaning |\n|---|---|---|---|\n", group);
}

/* A table cell: '|' would end it. */
static void md_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|') {
            fputc('\\', out);
        }
        fputc(*text, out);
    }
}

static void md_opt(FILE *out, const struct conf_opt *o)
{
    static const char *const types[] = {"",       "switch",
                                        "switch", "switch, has a --no- twin",
                                        "int",    "float",
                                        "text",   "path template",
                                        "",       "",
                                        "list",   "list of ints",
                                        "json",   "flags and their values"};
    fprintf(out, "| `--%s` | ", o->name);
    md_cell(out, conf_has_choices(o->type) ? o->range : types[o->type]);
    fputs(o->type == CONF_MODE ? ", or nothing" : "", out);
    if (o->range && !conf_has_choices(o->type)) {
        fprintf(out, " in %s", o->range);
    }
    fputs(" | ", out);
    if (o->def) {
        fprintf(out, "`%s`", o->def);
    } else {
        fputs(o->type == CONF_SWITCH || o->type == CONF_OFF ? "off" : "–", out);
    }
    fputs(" | ", out);
    md_cell(out, o->doc ? o->doc : "");
    fputs(" |\n", out);
}

int conf_wants_markdown(const struct conf *c)
{
    return c->markdown;
}

void conf_markdown(const struct conf *c, FILE *out)
{
    each_by_group(c, out, md_head, md_opt);
}
