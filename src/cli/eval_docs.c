/* eval_docs.c - eval fidelity and perplexity: documents whose response is read under cut caches.
 *
 * A document's prompt is prefilled once; every configuration is a fork of it; the response's rows
 * run over the whole cache (the reference) and over each fork as one batch of measurement rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/eval.h"
#include "cli/eval_docs.h"

enum { MOST_FORKS = 16 }; /* at once: bounds the memory, not the result */

rk_status rk_eval_load_documents(rk_eval *v, rk_calibration *out) {
    const rk_options *o = v->c->o;
    const rk_config  *m = rk_weights_config(v->w);
    if (o->context + o->response > m->max_positions)
        return RK_FAIL(
            RK_E_USAGE,
            "--context %lld and --response %lld do not fit in the model's context of %lld "
            "tokens",
            (long long)o->context, (long long)o->response, (long long)m->max_positions);
    RK_TRY(
        rk_calibration_load(o->input, v->tokenizer, o->context, o->response, (int)o->samples, out));
    v->n_items = out->n_samples;
    v->max_response = o->response;
    RK_TRY(rk_mem_alloc_to(v->n_items, sizeof(int64_t), "prompt lengths", &v->item_tokens));
    for (int i = 0; i < out->n_samples; i++) {
        const rk_sample *s = &out->samples[i];
        v->item_tokens[i] = s->n_prompt;
        if (s->n_prompt > v->max_prompt) v->max_prompt = s->n_prompt;
        for (int64_t k = 0; k < s->n_prompt + s->n_response; k++)
            if (s->tokens[k] >= m->n_vocab)
                return RK_FAIL(RK_E_INPUT, "%s: its tokenizer gives id %d, the model has %d rows",
                               o->model, s->tokens[k], m->n_vocab);
    }
    rk_hash_add(&v->job_hash, &out->hash, sizeof out->hash);
    return RK_OK;
}

static rk_status load(rk_eval *v) {
    RK_TRY(rk_mem_alloc_to(1, sizeof(rk_calibration), "documents", &v->data));
    v->max_forks = v->sweep.n < MOST_FORKS ? v->sweep.n : MOST_FORKS;
    return rk_eval_load_documents(v, v->data);
}

void rk_eval_unload_documents(rk_eval *v) {
    if (v->data) rk_calibration_free(v->data);
    rk_mem_free(v->data);
}

/* Forks for configurations [at, at + n) of a prefilled item, measured and freed. */
static rk_status measure_wave(rk_eval *v, int item, int at, int n, rk_measured *out,
                              rk_measured *ref, int64_t *kept, int64_t *bytes) {
    const rk_sample *s = &((const rk_calibration *)v->data)->samples[item];
    rk_variant       var[MOST_FORKS];
    int32_t          stored[4096];
    RK_ASSERT(rk_eval_layers(v) <= 4096);
    for (int i = 0; i < n; i++) {
        RK_TRY(rk_engine_fork(v->e, 0, 1 + i, &v->sweep.at[at + i].select,
                              rk_eval_budget(v, item, at + i), 0, stored, &bytes[i]));
        kept[i] = 0;
        for (int l = 0; l < rk_eval_layers(v); l++) kept[i] += stored[l];
        var[i] = (rk_variant){.kind = RK_VARIANT_SEQUENCE, .seq = 1 + i};
    }
    RK_TRY(rk_engine_measure(v->e, 0, s->tokens + s->n_prompt, (int)s->n_response, v->c->o->seed,
                             var, n, out, ref, NULL));
    for (int i = 0; i < n; i++) RK_TRY(rk_engine_free(v->e, 1 + i));
    return RK_OK;
}

static rk_status run(rk_eval *v, int item, rk_json *record) {
    const rk_sample *s = &((const rk_calibration *)v->data)->samples[item];
    rk_measured      m[MOST_FORKS], ref = {0};
    int64_t          kept[MOST_FORKS], bytes[MOST_FORKS];
    rk_json         *list[5];
    for (int k = 0; k < 5; k++) list[k] = rk_json_array();
    rk_json_set_str(record, "id", s->id);
    rk_json_set_int(record, "tokens", s->n_prompt);
    static const char *const keys[] = {"kl", "agreement", "nll", "kept", "bytes"};
    for (int k = 0; k < 5; k++) rk_json_set(record, keys[k], list[k]);
    RK_TRY(rk_engine_prefill(v->e, 0, s->tokens, s->n_prompt, 0, NULL, NULL, NULL));
    for (int at = 0; at < v->sweep.n; at += v->max_forks) {
        int n = v->sweep.n - at < v->max_forks ? v->sweep.n - at : v->max_forks;
        RK_TRY(measure_wave(v, item, at, n, m, &ref, kept, bytes));
        for (int i = 0; i < n; i++) {
            rk_json_add_num(list[0], m[i].kl);
            rk_json_add_num(list[1], m[i].agreement);
            rk_json_add_num(list[2], m[i].nll);
            rk_json_add_int(list[3], kept[i]);
            rk_json_add_int(list[4], bytes[i]);
        }
    }
    rk_json_set_num(record, "reference_nll", ref.nll);
    return rk_engine_free(v->e, 0);
}

/* ---- reports ---- */

static double value(const rk_json *record, const char *key, int config) {
    return rk_json_num(rk_json_at(rk_json_get(record, key), (size_t)config), NAN);
}

/* Means of a configuration, and how it stands beside the first one, document by document. */
typedef struct summary {
    double kl, kl_stderr, agreement, nll, kept, bytes;
    double ratio; /* median over documents of kl / the first configuration's */
    int    won;   /* documents with a smaller kl than the first's */
    double p;     /* one-sided sign test of that */
} summary;

static summary sum_up(const rk_eval *v, rk_json *const *records, int config, double *x,
                      double *ratio) {
    summary s = {0};
    int     n = v->n_items, ties = 0;
    for (int i = 0; i < n; i++) {
        double first = value(records[i], "kl", 0);
        x[i] = value(records[i], "kl", config);
        ratio[i] = first > 0 ? x[i] / first : NAN;
        s.won += x[i] < first;
        ties += x[i] == first;
        s.agreement += value(records[i], "agreement", config);
        s.nll += value(records[i], "nll", config);
        s.kept +=
            value(records[i], "kept", config) / ((double)v->item_tokens[i] * rk_eval_layers(v));
        s.bytes += value(records[i], "bytes", config);
    }
    s.agreement /= n, s.nll /= n, s.kept /= n, s.bytes /= n;
    s.kl = rk_eval_mean(x, n);
    s.kl_stderr = rk_eval_stderr(x, n);
    s.ratio = rk_eval_median(ratio, n);
    s.p = rk_eval_sign_test(s.won, n - ties);
    return s;
}

static rk_json *configuration_json(const rk_eval *v, const summary *s, const rk_select_params *p,
                                   int k) {
    rk_json *o = rk_json_object();
    rk_json_set_str(o, "name", v->sweep.at[k].name);
    rk_json_set_str(o, "policy", rk_policy_name(p->policy));
    rk_json_set_num(o, "kept_share", s->kept);
    rk_json_set_num(o, "kv_bytes", s->bytes);
    rk_json_set_num(o, "kl", s->kl);
    rk_json_set_num(o, "kl_stderr", s->kl_stderr);
    rk_json_set_num(o, "agreement", s->agreement);
    rk_json_set_num(o, "nll", s->nll);
    rk_json_set_num(o, "perplexity", exp(s->nll));
    rk_json_set_num(o, "median_ratio", s->ratio);
    rk_json_set_int(o, "won", s->won);
    rk_json_set_num(o, "sign_test_p", s->p);
    return o;
}

static void show_json(const rk_eval *v, rk_json *const *records, const summary *s, double reference,
                      rk_json *out) {
    rk_json *configs = rk_json_array(), *docs = rk_json_array();
    for (int k = 0; k < v->sweep.n; k++)
        rk_json_add(configs, configuration_json(v, &s[k], &v->sweep.at[k].select, k));
    for (int i = 0; i < v->n_items; i++) {
        rk_json *d = rk_json_object(), *kl = rk_json_array();
        rk_json_set_str(d, "id", rk_json_str(rk_json_get(records[i], "id"), ""));
        rk_json_set_num(d, "kl", value(records[i], "kl", 0));
        rk_json_set_num(d, "agreement", value(records[i], "agreement", 0));
        rk_json_set_num(d, "nll", value(records[i], "nll", 0));
        rk_json_set_num(d, "reference_nll",
                        rk_json_num(rk_json_get(records[i], "reference_nll"), NAN));
        for (int k = 0; k < v->sweep.n; k++) rk_json_add_num(kl, value(records[i], "kl", k));
        rk_json_set(d, "kl_of_each", kl);
        rk_json_add(docs, d);
    }
    rk_json_set_num(out, "kl", s[0].kl);
    rk_json_set_num(out, "agreement", s[0].agreement);
    rk_json_set_num(out, "perplexity", exp(s[0].nll));
    rk_json_set_num(out, "reference_perplexity", exp(reference));
    rk_json_set(out, "configurations", configs);
    rk_json_set(out, "per_document", docs);
}

static void show_table(const rk_eval *v, const summary *s, double reference) {
    printf(
        "%d documents, %lld + %lld tokens; KL to the full cache in nats per token; the last three "
        "columns beside the first configuration\n",
        v->n_items, (long long)v->c->o->context, (long long)v->c->o->response);
    printf("%-24s %6s %10s %10s %10s %11s %7s %6s %9s\n", "configuration", "kept", "KL", "+-",
           "agreement", "perplexity", "median", "won", "p");
    for (int k = 0; k < v->sweep.n; k++)
        printf("%-24s %5.1f%% %10.5f %10.5f %9.1f%% %11.4f %7.3f %3d/%-3d %8.2g\n",
               v->sweep.at[k].name, 100 * s[k].kept, s[k].kl, s[k].kl_stderr, 100 * s[k].agreement,
               exp(s[k].nll), s[k].ratio, s[k].won, v->n_items, s[k].p);
    printf("%-24s %5.1f%% %10.5f %10s %9.1f%% %11.4f\n", "full cache", 100.0, 0.0, "", 100.0,
           exp(reference));
}

static rk_status report(rk_eval *v, rk_json *const *records, rk_json *out) {
    summary  *s = NULL;
    double   *x = NULL, reference = 0;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to(v->sweep.n, sizeof *s, "summaries", &s));
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * (int64_t)v->n_items, sizeof *x, "values", &x));
    for (int k = 0; k < v->sweep.n; k++) s[k] = sum_up(v, records, k, x, x + v->n_items);
    for (int i = 0; i < v->n_items; i++)
        reference += rk_json_num(rk_json_get(records[i], "reference_nll"), NAN);
    reference /= v->n_items;
    if (v->c->o->json)
        show_json(v, records, s, reference, out);
    else
        show_table(v, s, reference);
out:
    rk_mem_free(s);
    rk_mem_free(x);
    return st;
}

const rk_eval_task rk_eval_fidelity = {"fidelity", load, run, report, rk_eval_unload_documents};
const rk_eval_task rk_eval_perplexity = {"perplexity", load, run, report, rk_eval_unload_documents};
