/* A sample: one answer to a prompt, with what is known of every token. Field names and meaning are
 * Miles' (its Sample); the JSON form is what debug dumps and reward functions see.
 *
 * Tokens come in segments: runs of tokens with one origin (sampled, or inserted by a tool) and one
 * weight version. A single-turn answer is one segment. */
#ifndef RL_SAMPLE_H
#define RL_SAMPLE_H

#include <jansson.h>
#include <stdint.h>

struct err;

enum sample_status {
    SAMPLE_PENDING,
    SAMPLE_COMPLETED,
    SAMPLE_TRUNCATED,
    SAMPLE_ABORTED,
    SAMPLE_FAILED
};
enum sample_origin { SAMPLE_SAMPLED, SAMPLE_INSERTED };

struct sample_segment {
    int start, len; /* response tokens [start, start + len) */
    int64_t version;
    enum sample_origin origin;
    int exact; /* 1: log-probs are the policy's own, bit for bit (contract C2) */
};

struct sample {
    int64_t index, group_index, rollout_id;
    int branch;
    json_t *prompt, *label, *metadata; /* shared, counted */
    int32_t *tokens;                   /* (prompt_len + response_len) */
    int prompt_len, response_len;
    uint8_t *mask; /* (response_len) loss mask, NULL is all ones */
    float *logps;  /* (response_len) rollout log-probs, NULL when unknown */
    int nsegments;
    struct sample_segment *segments;
    char *response;     /* text */
    double reward;      /* NaN until scored */
    json_t *raw_reward; /* what the reward function returned, when it was no number */
    char *reason;       /* why it has that reward, or none; NULL until scored */
    enum sample_status status;
    int remove; /* kept in the batch, not trained */
    /* Further samples of the same rollout, owned: branches of an agent's session. They are trained
     * beside it, and count with it as one. */
    struct sample **siblings;
    int nsiblings;
};

struct sample *sample_new(void);
void sample_free(struct sample *s);
/* Sets tokens and log-probs: a prompt and one sampled segment. Copies. */
void sample_set(struct sample *s, const int32_t *prompt, int prompt_len, const int32_t *response,
                const float *logps, int response_len, int64_t version, int exact);
/* Adds a sampled segment behind the response. A mask that is there goes on with ones. */
void sample_append(struct sample *s, const int32_t *response, const float *logps, int n,
                   int64_t version, int exact);
/* Leaves the first n tokens of the response, and no reward. The text is the caller's to make again.
 */
void sample_cut(struct sample *s, int n);
/* Everything of the response as another sample has it: tokens, log-probs, mask, segments, text,
 * metadata, and its reward where it has one. */
void sample_take(struct sample *s, const struct sample *from);
const char *sample_status_name(enum sample_status st);

/* The caller owns the object. Siblings are not in it: they are samples of their own, which
 * sample_from_json takes as the key "siblings". */
json_t *sample_to_json(const struct sample *s);
/* The same without tokens, loss_mask and rollout_log_probs, for readers of its text. */
json_t *sample_brief_json(const struct sample *s);
/* Its segments, which sample_to_json tells when there are several: [{start, len, version, origin,
 * exact}]. sample_from_json takes them as the key "segments". */
json_t *sample_segments_json(const struct sample *s);
int sample_from_json(const json_t *j, struct sample **out, struct err *e);

#endif
