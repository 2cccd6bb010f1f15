/* Owns the way from a row of conversations to a sample. What the mask leaves out in front is the
 * prompt: it is computed and not trained, like a prompt of a rollout. */
#include "rl/sftdata.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/promptenc.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "text/chat.h"
#include "text/chatmask.h"

#define SFTDATA_MOST (1u << 24) /* tokens of a conversation */

/* The conversation of a row, with the label as its last answer where that is not in it. */
static int sftdata_messages(const struct prompts_row *row, json_t **out, struct err *e)
{
    const json_t *last;
    const char *role;
    json_t *all;

    if (json_is_string(row->prompt)) {
        all = json_pack("[{s:s,s:O}]", "role", "user", "content", row->prompt);
    } else if (json_is_array(row->prompt) && json_array_size(row->prompt)) {
        all = json_copy(row->prompt);
    } else {
        return ERR(e, STATUS_INPUT, "sft_loss needs a list of messages, or a text and a label");
    }
    last = json_array_get(all, json_array_size(all) - 1);
    role = json_string_value(json_object_get(last, "role"));
    if (json_is_string(row->label) && role && strcmp(role, "assistant") != 0) {
        json_array_append_new(all,
                              json_pack("{s:s,s:O}", "role", "assistant", "content", row->label));
    } else if (json_is_string(row->prompt)) {
        json_decref(all);
        return ERR(e, STATUS_INPUT,
                   "the row is a text without an answer: give --label-key, or messages");
    }
    *out = all;
    return STATUS_OK;
}

static int sftdata_mask(const struct sftdata *d, const struct prompts_row *row, struct chatmask *m,
                        struct err *e)
{
    const struct promptenc *enc = d->enc;
    int tooled = row->tools && !json_is_null(row->tools) && enc->tooled;
    struct chat_opts o = {.tools = row->tools, .kwargs = enc->kwargs, .special = enc->special};
    json_t *messages = NULL;
    int rc = sftdata_messages(row, &messages, e);

    if (rc == STATUS_OK) {
        rc = chatmask_make(tooled ? enc->tooled : enc->chat, enc->tok, (enum chatmask_kind)d->kind,
                           messages, &o, m, e);
    }
    if (rc == STATUS_OK && (m->n < 1 || m->n > SFTDATA_MOST)) {
        rc = ERR(e, STATUS_INPUT, "the conversation has %zu tokens", m->n);
        chatmask_fini(m);
    }
    json_decref(messages);
    return rc;
}

int sftdata_tokens(const struct sftdata *d, const struct prompts_row *row, int *n, struct err *e)
{
    struct chatmask m = {0};
    int rc = sftdata_mask(d, row, &m, e);
    if (rc == STATUS_OK) {
        *n = (int)m.n;
        chatmask_fini(&m);
    }
    return rc;
}

int sftdata_sample(struct sftdata *d, const struct prompts_row *row, struct sample **out,
                   struct err *e)
{
    struct chatmask m = {0};
    int prompt, response, rc = sftdata_mask(d, row, &m, e);
    struct sample *s;

    if (rc != STATUS_OK) {
        return err_prefix(e, "line %lld", (long long)row->line);
    }
    if (m.differs >= 0 && !d->told) {
        d->told = 1;
        log_warn(DATA,
                 "line %lld: messages rendered one by one are not what the template makes of the "
                 "whole, from token %ld on: --loss-mask-type auto follows the template",
                 (long long)row->line, m.differs);
    }
    /* a first token has nothing in front that could predict it */
    response = m.response < m.n ? (int)m.response : (int)m.n - 1;
    prompt = (int)m.n - response;
    s = sample_new();
    sample_set(s, m.ids, prompt, m.ids + prompt, NULL, response, -1, 0);
    s->mask = mem_alloc((size_t)response + 1);
    memcpy(s->mask, m.mask + prompt, (size_t)response);
    s->prompt = json_incref(row->prompt);
    s->label = json_incref(row->label);
    s->metadata = json_incref(row->metadata);
    s->status = SAMPLE_COMPLETED;
    s->reward = 0;
    rc = promptenc_decode(d->enc, m.ids + prompt, response, 0, &s->response, e);
    chatmask_fini(&m);
    if (rc != STATUS_OK) {
        sample_free(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}
