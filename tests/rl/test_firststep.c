/* The checks of a run's first step: each with its cause planted, and none without one. */
#include "fakeport.h"

#include <math.h>

#include "base/conf.h"
#include "rl/firststep.h"
#include "rl/sample.h"
#include "rl/train_opts.h"
#include "text/chat.h"

#define N   8
#define LEN 4

static struct err e;

/* A healthy step: four prompts of two samples, one of which is right. */
struct step {
    struct conf *conf;
    struct train_opts o;
    struct promptenc enc;
    struct sample *s[N];
    struct train_sample t[N];
    float old[N][LEN], ref[N][LEN];
    struct trainer_report r;
    struct firststep f;
    struct firststep_in in;
    char text[1024];
};

static const char chatml[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static void step_open(struct step *x)
{
    static const char *const argv[] = {"--hf-checkpoint",
                                       "x",
                                       "--prompt-data",
                                       "x",
                                       "--label-key",
                                       "answer",
                                       "--rollout-batch-size",
                                       "4",
                                       "--n-samples-per-prompt",
                                       "2",
                                       "--num-rollout",
                                       "1",
                                       "--rollout-max-response-len",
                                       "8",
                                       "--rm-type",
                                       "f1"};
    const int32_t ids[2 + LEN] = {1, 2, 3, 4, 5, 6};
    memset(x, 0, sizeof *x);
    x->conf = conf_new();
    conf_add(x->conf, train_opts_table, &x->o);
    assert_ok(
        conf_parse(x->conf, (int)(sizeof argv / sizeof *argv), (char *const *)(uintptr_t)argv, &e),
        &e);
    assert_ok(train_opts_validate(&x->o, &e), &e);
    for (int i = 0; i < N; i++) {
        x->s[i] = sample_new();
        for (int j = 0; j < LEN; j++) {
            x->old[i][j] = x->ref[i][j] = -0.5f * (float)(j + 1);
        }
        sample_set(x->s[i], ids, 2, ids + 2, x->old[i], LEN, 0, 1);
        x->s[i]->index = i;
        x->s[i]->group_index = i / 2;
        x->s[i]->reward = i % 2;
        x->s[i]->status = SAMPLE_COMPLETED;
        x->s[i]->label = json_string("7");
        x->s[i]->prompt = json_string("what is seven?");
        x->s[i]->response = mem_strdup("seven");
        x->t[i] = (struct train_sample){.response = LEN,
                                        .tokens = x->s[i]->tokens,
                                        .prompt = 2,
                                        .old = x->old[i],
                                        .ref = x->ref[i]};
    }
    x->r.grad_norm = 0.5;
    x->r.exact_tokens = N * LEN;
    x->f = (struct firststep){.o = &x->o, .fresh = 1};
    x->in = (struct firststep_in){x->s, x->t, N, &x->r};
}

static void step_close(struct step *x)
{
    for (int i = 0; i < N; i++) {
        sample_free(x->s[i]);
    }
    if (x->enc.tok) {
        promptenc_close(&x->enc);
    }
    conf_free(x->conf);
}

/* The check says this, and thinks so of it. */
static void says(struct step *x, enum firststep_check which, int verdict, const char *part)
{
    int got = firststep_words(&x->f, &x->in, which, x->text, sizeof x->text);
    if (got != verdict || !strstr(x->text, part) || (verdict == 0 && x->text[0])) {
        fail_msg("verdict %d, not %d: '%s' should have '%s'", got, verdict, x->text, part);
    }
}

static void reference(void **state)
{
    static const struct {
        float shift; /* of every reference log-prob */
        int verdict;
        const char *part;
    } g[] = {{0.0f, 1, "bit for bit on 32 tokens (kl 0)"},
             {0.01f, 1, "jitter"},
             {0.2f, -1, "is --ref-load the model"},
             {-1.4f, -1, "about 0.8 a token"}, /* k3 of -1.4 is 0.65 */
             {1.5f, -1, "not the same model"},
             {-20.0f, -1, "not the same model"},
             {NAN, -1, "not the same model"}};
    struct step x;
    (void)state;
    step_open(&x);
    for (size_t k = 0; k < sizeof g / sizeof *g; k++) {
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < LEN; j++) {
                x.ref[i][j] = x.old[i][j] + g[k].shift;
            }
        }
        says(&x, FIRSTSTEP_REFERENCE, g[k].verdict, g[k].part);
    }
    x.f.fresh = 0; /* a run that goes on has moved away */
    says(&x, FIRSTSTEP_REFERENCE, 0, "");
    x.f.fresh = 1;
    for (int i = 0; i < N; i++) {
        x.t[i].ref = NULL;
    }
    says(&x, FIRSTSTEP_REFERENCE, 0, "");
    step_close(&x);
}

static void gradient(void **state)
{
    struct step x;
    (void)state;
    step_open(&x);
    says(&x, FIRSTSTEP_GRADIENT, 1, "0.5, in range");
    says(&x, FIRSTSTEP_EXACT, 1, "forward_logp_max_diff 0 over 32 tokens");
    x.r.grad_norm = 0;
    says(&x, FIRSTSTEP_GRADIENT, -1, "gradient is 0");
    x.r.grad_norm = 1234;
    says(&x, FIRSTSTEP_GRADIENT, -1, "1.23e+03, which is large");
    x.r.grad_norm = NAN;
    says(&x, FIRSTSTEP_GRADIENT, -1, "not finite");
    x.r.exact_tokens = 0;
    says(&x, FIRSTSTEP_EXACT, 0, "");
    step_close(&x);
}

static void rewards(void **state)
{
    struct step x;
    (void)state;
    step_open(&x);
    says(&x, FIRSTSTEP_REWARD, 1, "from 0 to 1; 4 of 4 groups");
    for (int i = 0; i < N; i++) {
        x.s[i]->reward = i / 2 % 2; /* by prompt, not by answer */
    }
    says(&x, FIRSTSTEP_REWARD, -1, "equal within every one of 4 groups");
    for (int i = 0; i < N; i++) {
        x.s[i]->reward = 0.25;
    }
    says(&x, FIRSTSTEP_REWARD, -1, "all 8 rewards are 0.25");
    for (int i = 0; i < N; i++) {
        x.s[i]->reward = 0;
    }
    says(&x, FIRSTSTEP_REWARD, -1, "is --label-key the key of the answer");
    for (int i = 0; i < N; i++) {
        json_decref(x.s[i]->label);
        x.s[i]->label = NULL;
    }
    says(&x, FIRSTSTEP_REWARD, -1, "no sample has a label");
    step_close(&x);
}

static void labels(void **state)
{
    struct step x;
    char *key;
    (void)state;
    step_open(&x);
    says(&x, FIRSTSTEP_LABEL, 1, "all 8 samples have a label under --label-key answer");
    json_decref(x.s[3]->label);
    x.s[3]->label = json_null();
    says(&x, FIRSTSTEP_LABEL, -1, "1 of 8 samples have no label under --label-key answer");
    key = x.o.label_key;
    x.o.label_key = NULL;
    says(&x, FIRSTSTEP_LABEL, 0, "");
    x.o.label_key = key;
    step_close(&x);
}

static void responses(void **state)
{
    struct step x;
    (void)state;
    step_open(&x);
    says(&x, FIRSTSTEP_TRUNCATED, 1, "0 of 8 responses were cut");
    says(&x, FIRSTSTEP_EMPTY, 1, "0 of 8 responses are empty");
    x.s[0]->status = SAMPLE_TRUNCATED;
    says(&x, FIRSTSTEP_TRUNCATED, 1, "1 of 8");
    x.s[1]->status = SAMPLE_TRUNCATED;
    says(&x, FIRSTSTEP_TRUNCATED, -1, "2 of 8 responses were cut (25%)");
    for (int i = 0; i < N; i++) {
        x.s[i]->status = SAMPLE_TRUNCATED;
    }
    says(&x, FIRSTSTEP_TRUNCATED, -1, "all 8 responses were cut at --rollout-max-response-len 8");
    strcpy(x.s[0]->response, " \n");
    says(&x, FIRSTSTEP_EMPTY, -1, "1 of 8 responses are empty");
    step_close(&x);
}

static void templates(void **state)
{
    struct step x;
    struct fakeport p;
    (void)state;
    step_open(&x);
    says(&x, FIRSTSTEP_TEMPLATE, 0, ""); /* nobody knows the prompts */
    fakeport_open(&p, 1);
    x.f.enc = &p.enc;
    says(&x, FIRSTSTEP_TEMPLATE, 0, ""); /* a model without a template */
    p.enc.tmpl = mem_strdup(chatml);
    says(&x, FIRSTSTEP_TEMPLATE, -1, "wants --apply-chat-template");
    json_decref(x.s[0]->prompt);
    x.s[0]->prompt = json_string("<|im_start|>user\nwhat?<|im_end|>\n");
    says(&x, FIRSTSTEP_TEMPLATE, 0, ""); /* somebody has applied it */
    /* the answer's end is no token that stops generation */
    p.enc.apply = 1;
    assert_ok(chat_template_new(chatml, &p.enc.chat, &e), &e);
    p.enc.stops[0] = 123456;
    p.enc.nstops = 1;
    says(&x, FIRSTSTEP_TEMPLATE, -1, "not fit for training");
    fakeport_close(&p);
    step_close(&x);
}

static char lines[16][700];
static int nlines, nwarn;

static void on_line(void *arg, enum log_level level, const char *comp, const char *text)
{
    (void)arg;
    assert_string_equal(comp, "check");
    assert_true(nlines < 16);
    nwarn += level == LOG_WARN;
    snprintf(lines[nlines++], sizeof lines[0], "%s", text);
}

static void once_in_a_run(void **state)
{
    struct step x;
    (void)state;
    step_open(&x);
    x.s[0]->response[0] = 0;
    log_set_level(LOG_INFO);
    log_add_sink(on_line, NULL);
    firststep_run(&x.f, &x.in);
    firststep_run(&x.f, &x.in);
    log_remove_sink(on_line, NULL);
    log_set_level(LOG_ERROR);
    assert_int_equal(nlines, 8);
    assert_int_equal(nwarn, 1);
    assert_string_equal(lines[7], "first step: 7 checks, 1 with something to look at");
    step_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference),     cmocka_unit_test(gradient),  cmocka_unit_test(rewards),
        cmocka_unit_test(labels),        cmocka_unit_test(responses), cmocka_unit_test(templates),
        cmocka_unit_test(once_in_a_run),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
