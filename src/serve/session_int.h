/* What the files of a session share. */
#ifndef SERVE_SESSION_INT_H
#define SERVE_SESSION_INT_H

#include "serve/session.h"

struct chat_text;

/* Messages, and the answer to them. */
struct session_turn {
    int parent; /* -1: it begins a conversation */
    int depth;  /* messages from the start to its answer */
    int tokens; /* from the start to its end */
    int trim;   /* tokens of the parent's answer that are not in this line */
    json_t *added, *answer, *tools, *kwargs;
    int ninserted, nsampled;
    int32_t *ids; /* (ninserted + nsampled) behind the parent's */
    float *logps; /* (nsampled) */
    enum session_finish finish;
    int64_t version;
    int exact, cached;
    char id[64];
};

struct session {
    const struct session_env *env;
    struct session_turn *turns;
    int n;
    size_t cap;
    size_t bytes; /* of messages that came, those that were taken back included */
};

int session_render(const struct session_env *env, const json_t *messages, const json_t *tools,
                   const json_t *kwargs, int generate, struct chat_text *out, struct err *e);
/* A copy of all messages up to the answer of turn i. */
json_t *session_line_messages(const struct session *s, int i);
const char *session_finish_name(enum session_finish f);

#endif
