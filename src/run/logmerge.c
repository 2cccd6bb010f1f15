/* Owns the merging of logs. Forms of time that are known: ours (2026-01-31T23:59:59.123Z), ours of
 * a run folder and of an engine's start (2026-01-31 23:59:59, local), SGLang's ([2026-01-31
 * 23:59:59). */
#include "run/logmerge.h"

#include <ctype.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/world.h"

#define LOGMERGE_SOURCES 256

struct logmerge_source {
    char name[64];
    char *path;
    FILE *in;
    double when; /* of the last line that had a time */
    int level;
    char *line; /* the next one, or NULL */
    size_t cap;
    const char *text;
};

struct logmerge {
    const struct logmerge_opts *o;
    struct logmerge_source s[LOGMERGE_SOURCES];
    int n;
    regex_t rx;
    int has_rx;
    char *dir; /* of engines */
};

/* ---- lines ---- */

static int logmerge_digits(const char **p, int n, int *out)
{
    *out = 0;
    for (int i = 0; i < n; i++) {
        if (!isdigit((unsigned char)(*p)[i])) {
            return 0;
        }
        *out = *out * 10 + ((*p)[i] - '0');
    }
    *p += n;
    return 1;
}

static int logmerge_level(const char *text)
{
    static const struct {
        const char *word;
        enum log_level level;
    } known[] = {{"debug", LOG_DEBUG}, {"info", LOG_INFO},       {"warning", LOG_WARN},
                 {"warn", LOG_WARN},   {"error", LOG_ERROR},     {"critical", LOG_ERROR},
                 {"fatal", LOG_ERROR}, {"exception", LOG_ERROR}, {"traceback", LOG_ERROR}};

    for (int word = 0; word < 4; word++) {
        size_t n = strcspn(text, " :]\t");
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            if (n == strlen(known[k].word) && strncasecmp(text, known[k].word, n) == 0) {
                return (int)known[k].level;
            }
        }
        text += n;
        text += strspn(text, " :]\t");
    }
    return -1;
}

/* The text without the level that our own lines begin with: it has a column of its own. */
static const char *logmerge_bare(const char *text, int level)
{
    const char *p = text + (strncmp(text, "miles: ", 7) == 0 ? 7 : 0);
    const char *name = level >= 0 ? log_level_name((enum log_level)level) : "";
    size_t n = strlen(name);

    return n && strncmp(p, name, n) == 0 && p[n] == ' ' ? p + n + 1 : text;
}

double logmerge_parse(const char *line, const char **text, int *level)
{
    const char *p = line;
    struct tm t = {.tm_isdst = -1};
    double ms = 0.0, when;
    int ok;

    p += strncmp(p, "=== ", 4) == 0 ? 4 : *p == '[';
    ok = logmerge_digits(&p, 4, &t.tm_year) && *p++ == '-' && logmerge_digits(&p, 2, &t.tm_mon) &&
         *p++ == '-' && logmerge_digits(&p, 2, &t.tm_mday) && (*p == ' ' || *p == 'T') && p++ &&
         logmerge_digits(&p, 2, &t.tm_hour) && *p++ == ':' && logmerge_digits(&p, 2, &t.tm_min) &&
         *p++ == ':' && logmerge_digits(&p, 2, &t.tm_sec);
    if (!ok) {
        *level = logmerge_level(line);
        *text = logmerge_bare(line, *level);
        return NAN;
    }
    if (*p == '.' || *p == ',') {
        double place = 0.1;
        for (p++; isdigit((unsigned char)*p); p++, place /= 10) {
            ms += place * (*p - '0');
        }
    }
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    when = (double)(*p == 'Z' ? timegm(&t) : mktime(&t)) + ms;
    p += *p == 'Z';
    p += strspn(p, " ]");
    *level = logmerge_level(p);
    *text = logmerge_bare(p, *level);
    return when;
}

/* Reads the next whole line of a source; 0: there is none yet. */
static int logmerge_fill(struct logmerge_source *s)
{
    const char *text;
    double when;
    int level;
    long at;
    ssize_t n;

    if (s->text) {
        return 1;
    }
    at = ftell(s->in);
    n = getline(&s->line, &s->cap, s->in);
    if (n <= 0 || s->line[n - 1] != '\n') { /* half a line is read again */
        clearerr(s->in);
        fseek(s->in, at, SEEK_SET);
        return 0;
    }
    s->line[n - 1] = 0;
    when = logmerge_parse(s->line, &text, &level);
    if (!isnan(when)) {
        s->when = when;
        s->level = level >= 0 ? level : LOG_INFO;
    } else if (level >= 0) {
        s->level = level;
    }
    s->text = text;
    return 1;
}

static void logmerge_print(const struct logmerge *m, const struct logmerge_source *s, FILE *out)
{
    time_t t = (time_t)floor(s->when);
    struct tm day;
    char when[32];

    if (s->level < (int)m->o->level || (m->has_rx && regexec(&m->rx, s->text, 0, NULL, 0) != 0)) {
        return;
    }
    gmtime_r(&t, &day);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &day);
    fprintf(out, "%s.%03dZ %-9s %-5s %s\n", when, (int)((s->when - (double)t) * 1000.0), s->name,
            log_level_name((enum log_level)s->level), s->text);
}

/* All lines that are there, in the order of their times. */
static int logmerge_pass(struct logmerge *m, FILE *out)
{
    int any = 0;

    for (;;) {
        struct logmerge_source *best = NULL;
        for (int i = 0; i < m->n; i++) {
            if (logmerge_fill(&m->s[i]) && (!best || m->s[i].when < best->when)) {
                best = &m->s[i];
            }
        }
        if (!best) {
            fflush(out);
            return any;
        }
        logmerge_print(m, best, out);
        best->text = NULL;
        any = 1;
    }
}

/* ---- sources ---- */

static void logmerge_add(struct logmerge *m, char *path, const char *name, size_t len)
{
    struct logmerge_source *s = &m->s[m->n < LOGMERGE_SOURCES ? m->n : 0];
    struct stat st;

    for (int i = 0; i < m->n; i++) {
        if (strcmp(m->s[i].path, path) == 0) {
            mem_free(path);
            return;
        }
    }
    if (m->n == LOGMERGE_SOURCES || !(s->in = fopen(path, "re"))) {
        mem_free(path);
        return;
    }
    snprintf(s->name, sizeof s->name, "%.*s", (int)(len < 60 ? len : 60), name);
    s->path = path;
    s->level = LOG_INFO;
    if (fstat(fileno(s->in), &st) == 0) {
        s->when = (double)st.st_mtim.tv_sec; /* until a line tells more */
    }
    m->n++;
}

static void logmerge_find(struct logmerge *m)
{
    struct dirent **list = NULL;
    int n;

    logmerge_add(m, fsio_join(m->o->run, "log.txt"), "run", 3);
    n = scandir(m->dir, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(list[i]->d_name);
        if (len > 4 && strcmp(list[i]->d_name + len - 4, ".log") == 0) {
            logmerge_add(m, fsio_join(m->dir, list[i]->d_name), list[i]->d_name, len - 4);
        }
        free(list[i]);
    }
    free(list);
}

/* Where the engines' logs are: what the run was told, else in its folder. */
static char *logmerge_dir(const char *run)
{
    char *config = fsio_join(run, "config.json");
    json_t *j = json_load_file(config, 0, NULL);
    const char *dir =
        json_string_value(json_object_get(json_object_get(j, "options"), "sglang_log_dir"));
    char *out = dir ? mem_strdup(dir) : fsio_join(run, "engines");

    json_decref(j);
    mem_free(config);
    return out;
}

static void logmerge_sleep(double s)
{
    struct timespec t = {(time_t)s, (long)((s - floor(s)) * 1e9)};
    nanosleep(&t, NULL);
}

int logmerge_run(const struct logmerge_opts *o, FILE *out, struct err *e)
{
    struct logmerge *m = mem_alloc(sizeof *m);
    int rc = STATUS_OK;

    m->o = o;
    m->dir = logmerge_dir(o->run);
    if (o->grep) {
        int bad = regcomp(&m->rx, o->grep, REG_EXTENDED | REG_NOSUB);
        if (bad) {
            char why[160];
            regerror(bad, &m->rx, why, sizeof why);
            rc = ERR(e, STATUS_INPUT, "--grep %s: %s", o->grep, why);
        }
        m->has_rx = !bad;
    }
    logmerge_find(m);
    if (rc == STATUS_OK && !m->n && !o->follow) {
        rc = ERR(e, STATUS_INPUT, "%s has no log.txt: is it the folder of a run?", o->run);
    }
    if (rc == STATUS_OK) {
        logmerge_pass(m, out);
    }
    while (rc == STATUS_OK && o->follow && !o->world->stopping(o->world->self) && !ferror(out)) {
        logmerge_find(m); /* engines that have started since */
        if (!logmerge_pass(m, out)) {
            logmerge_sleep(o->wait_s > 0 ? o->wait_s : 0.2);
        }
    }
    for (int i = 0; i < m->n; i++) {
        fclose(m->s[i].in);
        free(m->s[i].line);
        mem_free(m->s[i].path);
    }
    if (m->has_rx) {
        regfree(&m->rx);
    }
    mem_free(m->dir);
    mem_free(m);
    return rc;
}
