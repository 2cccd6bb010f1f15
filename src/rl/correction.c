/* Owns the choice of the correction and the rules between its options. Miles names a correction by
 * the path of a Python function; the paths of those that it ships stand for the built-in ones of
 * the same formulas (base/plugin.c), any other is the user's own. */
#include "rl/correction.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/plugin.h"
#include "base/status.h"
#include "rl/train_opts.h"

/* ---- names ---- */

/* What the path names; *custom is 1 for a function of the user's, which rl/extend calls. */
static int correction_find(const char *path, enum loss_tis *out, int *custom, struct err *e)
{
    struct plugin_ref r;
    int rc = plugin_resolve(plugin_hook("custom-tis-function-path"), path, &r, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    *custom = r.kind != PLUGIN_BUILTIN;
    *out = *custom                            ? LOSS_TIS_OFF
           : strcmp(r.builtin, "icepop") == 0 ? LOSS_TIS_ICEPOP
           : strcmp(r.builtin, "mis") == 0    ? LOSS_TIS_MIS
                                              : LOSS_TIS_TRUNCATE;
    plugin_ref_fini(&r);
    return STATUS_OK;
}

/* ---- rules ---- */

/* The first option of "mis" that was given, or NULL. */
static const char *correction_mis_option(const struct train_opts *o)
{
    return o->tis_level != -1             ? "--tis-level"
           : o->tis_mode != -1            ? "--tis-mode"
           : !isnan(o->tis_upper_bound)   ? "--tis-upper-bound"
           : !isnan(o->tis_lower_bound)   ? "--tis-lower-bound"
           : o->tis_batch_normalize       ? "--tis-batch-normalize"
           : o->use_rs                    ? "--use-rs"
           : o->rs_level != -1            ? "--rs-level"
           : !isnan(o->rs_lower_bound)    ? "--rs-lower-bound"
           : !isnan(o->rs_upper_bound)    ? "--rs-upper-bound"
           : !isnan(o->rs_veto_threshold) ? "--rs-veto-threshold"
                                          : NULL;
}

static int correction_bounds(const char *what, double lo, double hi, struct err *e)
{
    if (!(lo < hi)) {
        return ERR(e, STATUS_INPUT, "--%s-lower-bound %g is not below --%s-upper-bound %g", what,
                   lo, what, hi);
    }
    return STATUS_OK;
}

static int correction_mis(struct train_opts *o, struct err *e)
{
    int rc = STATUS_OK;

    if (!o->use_rs && (o->rs_level != -1 || !isnan(o->rs_lower_bound) ||
                       !isnan(o->rs_upper_bound) || !isnan(o->rs_veto_threshold))) {
        log_warn(opts, "the --rs-* options have no effect without --use-rs");
    }
    o->tis_level = o->tis_level == -1 ? MIS_TOKEN : o->tis_level;
    o->tis_mode = o->tis_mode == -1 ? MIS_TRUNCATE : o->tis_mode;
    o->rs_level = o->rs_level == -1 ? MIS_TOKEN : o->rs_level;
    o->tis_upper_bound = isnan(o->tis_upper_bound) ? 2.0 : o->tis_upper_bound;
    o->tis_lower_bound = isnan(o->tis_lower_bound) ? 1.0 / o->tis_upper_bound : o->tis_lower_bound;
    o->rs_upper_bound = isnan(o->rs_upper_bound) ? o->tis_upper_bound : o->rs_upper_bound;
    o->rs_lower_bound = isnan(o->rs_lower_bound) ? o->tis_lower_bound : o->rs_lower_bound;
    if (o->tis_mode != MIS_TRUNCATE) {
        rc = correction_bounds("tis", o->tis_lower_bound, o->tis_upper_bound, e);
    }
    if (rc == STATUS_OK && o->use_rs) {
        rc = correction_bounds("rs", o->rs_lower_bound, o->rs_upper_bound, e);
    }
    if (rc == STATUS_OK && o->tis_batch_normalize && o->tis_level == MIS_GEOMETRIC) {
        rc = ERR(e, STATUS_INPUT,
                 "--tis-batch-normalize and --tis-level geometric exclude each "
                 "other");
    }
    if (rc == STATUS_OK && o->tis_batch_normalize && o->skip_actor_forward_only) {
        rc = ERR(e, STATUS_INPUT,
                 "--tis-batch-normalize needs the pass that --skip-actor-forward-only leaves out");
    }
    return rc;
}

int correction_check(struct train_opts *o, struct err *e)
{
    const char *option = correction_mis_option(o);
    enum loss_tis what = LOSS_TIS_TRUNCATE;
    int custom = 0, rc;

    o->tis_function = LOSS_TIS_OFF;
    if (o->get_mismatch_metrics && !o->custom_tis_function_path) {
        return ERR(e, STATUS_INPUT,
                   "--get-mismatch-metrics needs --custom-tis-function-path (for instance mis)");
    }
    if (o->custom_tis_function_path) {
        rc = correction_find(o->custom_tis_function_path, &what, &custom, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        if (!o->use_tis && !o->get_mismatch_metrics) {
            return ERR(e, STATUS_INPUT,
                       "--custom-tis-function-path has no effect without --use-tis or "
                       "--get-mismatch-metrics");
        }
    }
    if (option && (what != LOSS_TIS_MIS || !o->custom_tis_function_path)) {
        return ERR(e, STATUS_INPUT, "%s has no effect without --custom-tis-function-path mis",
                   option);
    }
    if (o->use_tis || o->get_mismatch_metrics) {
        o->tis_function = what;
    }
    return o->tis_function == LOSS_TIS_MIS ? correction_mis(o, e) : STATUS_OK;
}

void correction_loss(const struct train_opts *o, struct loss_opts *out)
{
    out->tis = (enum loss_tis)o->tis_function;
    out->tis_observe = !o->use_tis;
    out->tis_clip = (float)o->tis_clip;
    out->tis_clip_low = (float)o->tis_clip_low;
    if (out->tis == LOSS_TIS_MIS) {
        out->mis = (struct mis_opts){
            .level = (enum mis_level)o->tis_level,
            .mode = (enum mis_mode)o->tis_mode,
            .lo = (float)o->tis_lower_bound,
            .hi = (float)o->tis_upper_bound,
            .rs = o->use_rs,
            .rs_level = (enum mis_level)o->rs_level,
            .rs_lo = (float)o->rs_lower_bound,
            .rs_hi = (float)o->rs_upper_bound,
            .veto = isnan(o->rs_veto_threshold) ? 0.0f : (float)o->rs_veto_threshold,
            .normalize = o->tis_batch_normalize,
            .observe = !o->use_tis};
    }
}
