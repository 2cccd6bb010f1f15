/* Metrics of a batch of samples, under Miles' names (rollout/..., eval/...). */
#ifndef RL_ROLLMETRIC_H
#define RL_ROLLMETRIC_H

#include <jansson.h>

struct sample;

/* prefix "rollout" or "eval/NAME": response_len/{mean,median,max,min}, truncated_ratio. */
void rollmetric_lengths(json_t *row, const char *prefix, struct sample *const *s, int n);
/* rollout/zero_std/...: groups whose rewards are all equal. Samples in ascending index. */
void rollmetric_zero_std(json_t *row, struct sample *const *s, int n);
/* --log-reward-category: rollout/error_cat/VALUE, the share of samples whose reward function
 * returned an object with this value under the key. */
void rollmetric_category(json_t *row, const char *key, struct sample *const *s, int n);
/* --log-multi-turn: multi_turn/raw_response_length/..., wo_obs_response_length/... (without tokens
 * that were not sampled) and multi_turn_metric/round_number_...; `most`:
 * --rollout-max-response-len.
 */
void rollmetric_turns(json_t *row, struct sample *const *s, int n, int64_t most);
/* rollout/tito_session_mismatch_rate/VERSION[/CLASS]: the share of samples of sessions whose tokens
 * are not those of their conversation tokenised anew. Nothing where there are none. */
void rollmetric_sessions(json_t *row, const char *version, struct sample *const *s, int n);
/* rollout/raw_reward, rewards, response_lengths, total_lengths, truncated, rollout_log_probs,
 * weight_version/...; shaped (n) are the normalised rewards. */
void rollmetric_rollout(json_t *row, struct sample *const *s, int n, const float *shaped);
/* PREFIXpass@k for k = 1, 2, 4, ... up to the group's size: the chance that one of k answers is
 * right (reward 1), estimated from all of a group's, over the groups with `group` scored samples.
 */
void rollmetric_passrate(json_t *row, const char *prefix, struct sample *const *s, int n,
                         int group);
/* eval/NAME (mean reward), NAME-none_reward_ratio, NAME-truncated_ratio. Returns the mean. */
double rollmetric_eval(json_t *row, const char *name, struct sample *const *s, int n);

#endif
