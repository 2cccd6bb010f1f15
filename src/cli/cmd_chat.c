/* `miles chat`: a conversation in the terminal. Answers appear as they are sampled; every turn goes
 * on from the tokens of the turns before, whose rows the engine's prefix cache has. What the model
 * said is never tokenised again: the template's text is used from where the last answer ended. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/genmodel.h"
#include "model/weights.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/tokstream.h"

#define CHAT_MAX_TEXT (64u << 20) /* bytes of an answer */

struct chat_flags {
    struct genmodel_opts model;
    char *system;
    int64_t max_tokens, seed, top_k, context;
    double temperature, top_p, min_p, repetition;
    int timing;
};

#define O(f) offsetof(struct chat_flags, f)
static const struct conf_opt chat_table[] = {
    {"system", CONF_STR, NULL, NULL, "system message that the conversation begins with", O(system),
     "conversation", NULL},
    {"context-length", CONF_INT, "0", "[0,16777216]", "tokens of the conversation; 0: the model's",
     O(context), "conversation", NULL},
    {"max-tokens", CONF_INT, "2048", "[1,16777216]", "tokens of an answer at most", O(max_tokens),
     "sampling", NULL},
    {"temperature", CONF_FLOAT, "0.7", "[0,100]", "0 is greedy", O(temperature), "sampling", NULL},
    {"top-p", CONF_FLOAT, "0.95", "(0,1]", "nucleus", O(top_p), "sampling", NULL},
    {"top-k", CONF_INT, "-1", "[-1,1000000000]", "candidates; -1 takes all", O(top_k), "sampling",
     NULL},
    {"min-p", CONF_FLOAT, "0", "[0,1]", "least share of the likeliest candidate's probability",
     O(min_p), "sampling", NULL},
    {"repetition-penalty", CONF_FLOAT, "1", "(0,100]",
     "divides positive logits of tokens said before, multiplies negative ones", O(repetition),
     "sampling", NULL},
    {"seed", CONF_INT, "42", "[0,9223372036854775807]", "of the sampling", O(seed), "sampling",
     NULL},
    {"timing", CONF_SWITCH, NULL, NULL, "print tokens and seconds of each answer to stderr",
     O(timing), "output", NULL},
    {0}};

struct chat {
    const struct chat_flags *o;
    struct genmodel m;
    int context, tty, turn;
    json_t *messages;
    char *text;   /* what the template made of the messages before the last answer */
    char *answer; /* its text */
    char *end;    /* text of its end token, "" when it has none */
    int32_t *ids; /* tokens of both; NULL at the start */
    int n;
};

static volatile sig_atomic_t chat_interrupted;

static int chat_heard = -1; /* eventfd: any thread may get the signal, the waiting one hears it */

static void chat_on_interrupt(int sig)
{
    const uint64_t one = 1;
    int saved = errno;
    ssize_t told;

    (void)sig;
    chat_interrupted = 1;
    told = write(chat_heard, &one, sizeof one);
    (void)told; /* it cannot be full: each wait empties it */
    errno = saved;
}

static double chat_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The conversation as it begins. */
static int chat_reset(struct chat *c, struct err *e)
{
    json_decref(c->messages);
    c->messages = json_array();
    mem_free(c->text);
    mem_free(c->answer);
    mem_free(c->end);
    mem_free(c->ids);
    c->text = c->answer = c->end = NULL;
    c->ids = NULL;
    c->n = 0;
    if (c->o->system) {
        json_t *m = json_pack("{s:s,s:s}", "role", "system", "content", c->o->system);
        if (!m || json_array_append_new(c->messages, m)) {
            return ERR(e, STATUS_INPUT, "--system is not UTF-8");
        }
    }
    return STATUS_OK;
}

/* What of `text` comes after the tokens of the turns before; NULL when the template tells the past
 * otherwise now, so that all is to be tokenised again. */
static const char *chat_rest(const struct chat *c, const char *text)
{
    const char *const parts[] = {c->text, c->answer};

    if (!c->ids) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(parts[i]);
        if (strncmp(text, parts[i], n) != 0) {
            return NULL;
        }
        text += n;
    }
    return strncmp(text, c->end, strlen(c->end)) == 0 ? text + strlen(c->end) : text;
}

/* Tokens of the conversation up to where the answer begins: c->text, c->ids, c->n. */
static int chat_prompt(struct chat *c, struct err *e)
{
    char *text = NULL;
    const char *rest;
    int32_t *more = NULL, *ids;
    size_t len, n;
    int rc = chat_render(c->m.enc.tmpl, c->messages, NULL, NULL, 1, c->m.enc.bos, c->m.enc.eos,
                         &text, &len, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    rest = chat_rest(c, text);
    c->n = rest ? c->n : 0;
    rest = rest ? rest : text;
    rc = tokenizer_encode(c->m.enc.tok, rest, len - (size_t)(rest - text), 0, &more, &n, e);
    if (rc == STATUS_OK && (size_t)c->n + n >= (size_t)c->context) {
        rc =
            ERR(e, STATUS_INPUT,
                "the conversation has %zu tokens, the context is one of %d: it can only begin anew",
                (size_t)c->n + n, c->context);
    }
    if (rc == STATUS_OK) {
        ids = mem_alloc(sizeof *ids * ((size_t)c->n + n + 1));
        if (c->n) {
            memcpy(ids, c->ids, sizeof *ids * (size_t)c->n);
        }
        memcpy(ids + c->n, more, sizeof *ids * n);
        mem_free(c->ids);
        mem_free(c->text);
        c->ids = ids;
        c->text = text;
        c->n += (int)n;
        text = NULL;
    }
    mem_free(more);
    mem_free(text);
    return rc;
}

static int chat_show(struct tokstream *s, const struct engine_result *r, struct buf *out,
                     struct err *e)
{
    size_t before = out->len;
    int rc = r->finish == ENGINE_RUNNING ? tokstream_push(s, r->tokens, (size_t)r->ntokens, out, e)
                                         : tokstream_end(s, r->tokens, (size_t)r->ntokens, out, e);
    fwrite(out->data + before, 1, out->len - before, stdout);
    fflush(stdout);
    return rc;
}

/* The answer becomes part of the conversation. */
static int chat_keep(struct chat *c, const struct engine_result *r, struct buf *said, struct err *e)
{
    size_t n = (size_t)r->ntokens, len;
    json_t *m;
    int rc = STATUS_OK;

    mem_free(c->answer);
    mem_free(c->end);
    c->end = NULL;
    c->answer = buf_take(said, &len);
    m = json_pack("{s:s,s:s}", "role", "assistant", "content", c->answer);
    if (!m || json_array_append_new(c->messages, m)) {
        return ERR(e, STATUS_NOMEM, "no memory for the conversation");
    }
    if (r->finish == ENGINE_STOP) {
        rc = tokenizer_decode(c->m.enc.tok, r->tokens + n - 1, 1, 0, &c->end, &len, e);
    } else {
        c->end = mem_strdup("");
    }
    c->ids = mem_realloc(c->ids, sizeof *c->ids * (size_t)c->n, sizeof *c->ids * (c->n + n + 1));
    if (n) {
        memcpy(c->ids + c->n, r->tokens, sizeof *c->ids * n);
    }
    c->n += r->ntokens;
    return rc;
}

/* Samples an answer and shows it while it grows. */
static int chat_answer(struct chat *c, struct err *e)
{
    const struct chat_flags *o = c->o;
    struct engine_group q = {.id = c->turn,
                             .tokens = c->ids,
                             .ntokens = c->n,
                             .n = 1,
                             .key = {.seed = (uint64_t)o->seed, .sample = (uint64_t)c->turn}};
    struct engine_result r;
    struct tokstream stream;
    struct buf said;
    double start = chat_now(), first = 0.0;
    int done = 0, rc;

    q.sampling.temperature = (float)o->temperature;
    q.sampling.top_p = (float)o->top_p;
    q.sampling.top_k = (int)o->top_k;
    q.sampling.min_p = (float)o->min_p;
    q.sampling.repetition_penalty = (float)o->repetition;
    q.max_new = (int)(o->max_tokens < c->context - c->n ? o->max_tokens : c->context - c->n);
    buf_init(&said, CHAT_MAX_TEXT);
    tokstream_init(&stream, c->m.enc.tok, 1);
    rc = engine_submit(c->m.engine, &q, e);
    while (rc == STATUS_OK && !done) {
        rc = engine_step(c->m.engine, e);
        for (int at = 0; rc == STATUS_OK && engine_peek(c->m.engine, &at, &r);) {
            first = first > 0.0 ? first : chat_now();
            rc = chat_show(&stream, &r, &said, e);
        }
        if (chat_interrupted) {
            engine_abort(c->m.engine, c->turn);
        }
        while (rc == STATUS_OK && engine_take(c->m.engine, &r)) {
            done = 1;
            first = first > 0.0 ? first : chat_now();
            rc = chat_show(&stream, &r, &said, e);
            if (rc == STATUS_OK) {
                rc = chat_keep(c, &r, &said, e);
            }
            printf("\n");
            if (o->timing) {
                double decode = chat_now() - first;
                fprintf(stderr,
                        "prompt_tokens=%d cached_tokens=%d tokens=%d first_token_s=%.3f "
                        "tokens_per_s=%.1f\n",
                        r.prompt_tokens, r.cached_tokens, r.ntokens, first - start,
                        decode > 0.0 && r.ntokens > 1 ? (r.ntokens - 1) / decode : 0.0);
            }
        }
    }
    buf_fini(&said);
    c->turn++;
    return rc;
}

/* One thing that the user said. */
static int chat_turn(struct chat *c, const char *line, size_t n, struct err *e)
{
    json_t *m = json_pack("{s:s,s:s%}", "role", "user", "content", line, n);
    int rc;

    if (!m || json_array_append_new(c->messages, m)) {
        return ERR(e, STATUS_INPUT, "what you said is not UTF-8");
    }
    rc = chat_prompt(c, e);
    if (rc == STATUS_OK) {
        rc = chat_answer(c, e);
    } else {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    return rc;
}

/* Shows the prompt and waits for the user. 1: interrupted, also between the two. */
static int chat_wait(void)
{
    struct pollfd in[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                          {.fd = chat_heard, .events = POLLIN}};
    uint64_t before;
    ssize_t n = read(chat_heard, &before, sizeof before);

    (void)n; /* what came before ended an answer */
    chat_interrupted = 0;
    printf("> ");
    fflush(stdout);
    while (poll(in, 2, -1) < 0 && errno == EINTR) {
    }
    return in[1].revents != 0;
}

/* A line without its end; -1 at the end of the input, -2 when the user interrupted it. */
static ssize_t chat_line(const struct chat *c, char **line, size_t *cap)
{
    ssize_t n;

    if (c->tty && chat_wait()) {
        return -2;
    }
    n = getline(line, cap, stdin);
    if (n < 0 && chat_interrupted && !feof(stdin)) {
        clearerr(stdin);
        return -2;
    }
    while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r')) {
        n--;
    }
    return n;
}

static int chat_loop(struct chat *c, struct err *e)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = chat_reset(c, e);

    while (rc == STATUS_OK && (n = chat_line(c, &line, &cap)) != -1) {
        if (n == -2) {
            printf("\n");
        } else if (c->tty && n == 6 && memcmp(line, "/reset", 6) == 0) {
            rc = chat_reset(c, e);
        } else if (c->tty && n == 5 && memcmp(line, "/exit", 5) == 0) {
            break;
        } else if (n > 0) {
            rc = chat_turn(c, line, (size_t)n, e);
            if (rc == STATUS_INPUT && c->tty) { /* said wrongly: say it again */
                fprintf(stderr, "miles: %s\n", e->msg);
                rc = STATUS_OK;
            }
        }
    }
    if (c->tty && rc == STATUS_OK) {
        printf("\n");
    }
    free(line);
    return rc;
}

static int chat_open(struct chat *c, struct err *e)
{
    struct engine_opts eo = {.max_running = 1, .max_context = (int)c->o->context};
    int rc = genmodel_open(&c->m, &c->o->model, &eo, 1, e);

    if (rc == STATUS_OK && !c->m.enc.tmpl) {
        rc =
            ERR(e, STATUS_INPUT, "the model has no chat template; miles generate --raw needs none");
    }
    if (rc == STATUS_OK) {
        c->context = eo.max_context ? eo.max_context : c->m.w->positions;
    }
    if (rc == STATUS_OK && c->tty) {
        struct sigaction a;
        memset(&a, 0, sizeof a);
        chat_heard = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        a.sa_handler = chat_on_interrupt;
        sigaction(SIGINT, &a, NULL);
        fprintf(stderr, "Ctrl-C ends an answer, Ctrl-D the conversation; /reset begins it anew.\n");
    }
    return rc;
}

int cmd_chat(int argc, char **argv)
{
    struct chat_flags o;
    struct chat c;
    struct err e = {0};
    struct conf *conf = conf_new();
    int rc;

    memset(&c, 0, sizeof c);
    c.o = &o;
    c.tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    conf_add(conf, genmodel_table, &o.model);
    conf_add(conf, chat_table, &o);
    rc = conf_parse(conf, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles chat --hf-checkpoint DIR [--flag value ...]", conf);
        conf_free(conf);
        return CMD_OK;
    }
    if (rc == STATUS_OK && !o.model.hf_checkpoint) {
        rc = ERR(&e, STATUS_INPUT, "--hf-checkpoint is needed");
    }
    if (rc == STATUS_OK) {
        rc = chat_open(&c, &e);
    }
    if (rc == STATUS_OK) {
        rc = chat_loop(&c, &e);
    }
    json_decref(c.messages);
    mem_free(c.text);
    mem_free(c.answer);
    mem_free(c.end);
    mem_free(c.ids);
    genmodel_close(&c.m);
    conf_free(conf);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
