/* A conversation of an agent with the policy, kept as the tokens that were sampled: what was sent
 * and what came back is never tokenised again, only messages that are new are.
 *
 *     struct session *s = session_new(&env);
 *     struct session_ask q;
 *     http = session_ask(s, messages, tools, kwargs, &q, &e);     the prompt is q.ids (q.n)
 *     ... an engine answers ...
 *     http = session_commit(s, &q, &answer, &e);                  the turn is recorded
 *     session_ask_fini(&q);
 *     session_samples(s, 0, &list, &n, &e);                       what is trained
 *
 * Turns form a tree: a request whose messages begin with those of a turn goes on from it. Without
 * `tree` there is one line of turns: a request may go on from the last turn, or from the one before
 * it, which takes the last back; any other history is a conflict.
 *
 * Behind an answer stands what the chat template writes there: its end of turn (as far as it was
 * not sampled), the new messages and the opening of the next turn. Where a template has no end of
 * turn, and answers end with the opening of the message that is to come, one that was sampled for
 * another sort of message than came is taken out again. All that is found by rendering the new
 * messages behind an answer that is a marker, so a template that rewrites older turns (by dropping
 * their reasoning) is no obstacle: older turns are not rendered at all.
 *
 * Functions return 200, or the HTTP status that says what is wrong, with the cause in e. A session
 * is used by one thread at a time; what goes in and out is copied. */
#ifndef SERVE_SESSION_H
#define SERVE_SESSION_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;
struct err;
struct session;
struct tokenizer;

enum { SESSION_MAX_TURNS = 1024 };

enum session_match {
    SESSION_STRICT,          /* messages are equal, but for fields that are null */
    SESSION_LOOSE_TOOL_CALL, /* ids and layout of tool calls are not compared */
    SESSION_ROLE_CONTENT     /* role and content are */
};
#define SESSION_MATCHERS "strict|loose_tool_call|role_content_only" /* in the enum's order */

/* Borrowed, and constant while there are sessions. */
struct session_env {
    const struct tokenizer *tok;
    const struct chat_template *chat;
    const struct chat_template *tooled; /* for chats with tools; NULL: the same */
    const json_t *special, *kwargs;     /* as in struct chat_opts */
    enum session_match match;
    int tree;         /* 1: branches are kept (v2) */
    int max_tokens;   /* of prompt and answers of a conversation */
    int max_response; /* of all behind its first prompt; 0: no bound of its own */
    size_t max_bytes; /* of all messages of a session, as JSON */
};

enum session_finish { SESSION_STOP, SESSION_LENGTH, SESSION_ABORT };

/* A request on its way: from session_ask to session_ask_fini. */
struct session_ask {
    int32_t *ids; /* (n) the whole prompt */
    int n;
    int from;               /* tokens of it that earlier turns have */
    int room;               /* tokens that an answer may have; at least 1 */
    int parent;             /* turn that it goes on from; -1: none */
    int drop;               /* turn that it takes back; -1: none */
    int trim;               /* sampled tokens at the end of the parent that are left out */
    json_t *added;          /* messages behind that turn's answer */
    json_t *tools, *kwargs; /* or NULL */
};

/* What an engine sampled. Copied. */
struct session_answer {
    const int32_t *ids;
    const float *logps;
    int n;
    enum session_finish finish;
    int64_t version; /* of the weights; -1: not a number */
    int exact;       /* 1: log-probs are the trainer's own bits (contract C2) */
    int cached;      /* prompt tokens that the engine had */
    const char *id;  /* of the answer, as the agent knows it */
    json_t *message; /* the assistant's; borrowed */
};

/* A line of turns as it is trained. */
struct session_sample {
    int32_t *ids; /* (prompt + response) */
    int prompt, response;
    uint8_t *mask; /* (response) 1: sampled, and trained in this sample */
    float *logps;  /* (response) 0 where nothing was sampled */
    json_t *meta;  /* status, segments, messages, mismatch, ... */
};

struct session *session_new(const struct session_env *env);
void session_free(struct session *s); /* NULL is fine */
int session_turns(const struct session *s);
int session_tokens(const struct session *s); /* of its longest line */

/* 400: the messages are no continuation that can be asked for; 409: not of this history; 422: the
 * template does not take them. */
int session_ask(const struct session *s, const json_t *messages, const json_t *tools,
                const json_t *kwargs, struct session_ask *q, struct err *e);
void session_ask_fini(struct session_ask *q); /* a zeroed one is fine */
/* The messages of q become the session's. 409: the history has changed since it was asked. */
int session_commit(struct session *s, struct session_ask *q, const struct session_answer *a,
                   struct err *e);

/* One sample for each line of turns; what several lines share is trained in the first of them. A
 * turn that was asked for again with the same messages, and not gone on from, is left out unless
 * `all`. */
int session_samples(const struct session *s, int all, struct session_sample **out, int *n,
                    struct err *e);
void session_samples_free(struct session_sample *list, int n);
/* {"turns": [...], "messages": [...]} of the newest line. The caller's. */
json_t *session_show(const struct session *s);

/* Whether two messages are the same to a matcher. */
int session_same(enum session_match how, const json_t *a, const json_t *b);

#endif
