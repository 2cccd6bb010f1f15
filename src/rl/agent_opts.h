/* Rules of the options of agents and their sessions, behind train_opts_validate. */
#ifndef RL_AGENT_OPTS_H
#define RL_AGENT_OPTS_H

struct err;
struct tokenizer;
struct train_opts;

/* Families of --tito-model. What stands between turns comes from the chat template for all of
 * them; those that are here take answers apart as well. */
#define AGENT_OPTS_FAMILIES                                                                        \
    "default|qwen3|qwen35|qwennext|glm47|nemotron3|kimi25|kimi26|minimax_m25|minimax_m27|"         \
    "deepseekv32|deepseekv4|inkling"

/* How a family's answers are read. */
struct agent_opts_family {
    const char *end;      /* token that its turns end with; NULL: any */
    int reasoning, tools; /* 1: <think> and <tool_call> are taken apart */
};

/* Refuses, and takes Miles' names of built-in functions out of the paths that gave them. */
int agent_opts_check(struct train_opts *o, struct err *e);
/* 1: the run has a session server. */
int agent_opts_sessions(const struct train_opts *o);

/* The family of that index among AGENT_OPTS_FAMILIES, which must be one that is here. */
int agent_opts_family(int index, struct agent_opts_family *out, struct err *e);
/* Refuses a family that the model is not of. */
int agent_opts_fits(const struct agent_opts_family *f, const struct tokenizer *tok, struct err *e);

#endif
