/* eval_gen.c - see eval_gen.h. */
#include "cli/eval_gen.h"

#include "base/mem.h"
#include "pipeline/batch.h"

enum { MOST_FORKS = 16 }; /* at once: bounds the memory, not the result */

void rk_eval_add_stops(const rk_eval *v, const rk_chat *chat, rk_eval_prompt *p) {
    const rk_config *m = rk_weights_config(v->w);
    for (int i = 0; i < m->n_stop; i++) p->stop[p->n_stop++] = m->stop[i];
    if (chat && rk_chat_stop(chat) >= 0) p->stop[p->n_stop++] = rk_chat_stop(chat);
}

rk_status rk_eval_take_prompts(rk_eval *v, const rk_eval_prompt *p, int n, const char *what) {
    const rk_config *m = rk_weights_config(v->w);
    v->n_items = n;
    v->max_forks = v->sweep.n < MOST_FORKS ? v->sweep.n : MOST_FORKS;
    RK_TRY(rk_mem_alloc_to(n, sizeof(int64_t), "prompt lengths", &v->item_tokens));
    for (int i = 0; i < n; i++) {
        if (p[i].n + p[i].max_new > m->max_positions)
            return RK_FAIL(
                RK_E_INPUT,
                "%s %d: %lld tokens and %lld new ones do not fit in the model's context of "
                "%lld",
                what, i, (long long)p[i].n, (long long)p[i].max_new, (long long)m->max_positions);
        for (int64_t k = 0; k < p[i].n; k++)
            if (p[i].tokens[k] >= m->n_vocab)
                return RK_FAIL(RK_E_INPUT, "%s: its tokenizer gives id %d, the model has %d rows",
                               v->c->o->model, p[i].tokens[k], m->n_vocab);
        v->item_tokens[i] = p[i].n;
        if (p[i].n > v->max_prompt) v->max_prompt = p[i].n;
        if (p[i].max_new > v->max_new) v->max_new = p[i].max_new;
        rk_hash_add(&v->job_hash, p[i].tokens, (size_t)p[i].n * sizeof(int32_t));
        rk_hash_add(&v->job_hash, &p[i].max_new, sizeof p[i].max_new);
    }
    return RK_OK;
}

static rk_status add_prediction(const rk_eval *v, const rk_completion *c, rk_json *list) {
    char   *text;
    size_t  n;
    int64_t n_new = c->stopped ? c->n_new - 1 : c->n_new; /* without the token that ended it */
    RK_TRY(rk_tokenizer_decode(v->tokenizer, c->tokens, n_new, true, &text, &n));
    rk_json *holder = rk_json_object();
    rk_json_set_strn(holder, "text", text, n);
    rk_json_add(list, holder);
    rk_mem_free(text);
    return RK_OK;
}

static rk_status keep(const rk_eval *v, const rk_completion *done, rk_json *record) {
    rk_json *text = rk_json_array(), *fresh = rk_json_array(), *kept = rk_json_array(),
            *bytes = rk_json_array();
    rk_json_set(record, "predictions", text);
    rk_json_set(record, "new_tokens", fresh);
    rk_json_set(record, "kept", kept);
    rk_json_set(record, "bytes", bytes);
    for (int k = 0; k < v->sweep.n; k++) {
        int64_t sum = 0;
        for (int l = 0; l < rk_eval_layers(v); l++) sum += done[k].kv_tokens[l];
        RK_TRY(add_prediction(v, &done[k], text));
        rk_json_add_int(fresh, done[k].n_new);
        rk_json_add_int(kept, sum);
        rk_json_add_int(bytes, done[k].kv_bytes);
    }
    return RK_OK;
}

rk_status rk_eval_answer(rk_eval *v, int item, const rk_eval_prompt *p, rk_json *record) {
    int              size = rk_tokenizer_size(v->tokenizer), V = rk_weights_config(v->w)->n_vocab;
    rk_batch_options b = {.n_usable = size < V ? size : V};
    rk_request       q = {.tokens = p->tokens,
                          .n_tokens = p->n,
                          .max_new = p->max_new,
                          .stop = p->stop,
                          .n_stop = p->n_stop,
                          .sampler = {.top_p = 1, .seed = v->c->o->seed}};
    rk_cut          *cut = NULL;
    rk_completion   *done = NULL;
    rk_status        st;
    rk_json_set_int(record, "tokens", p->n);
    RK_TRY_OUT(st, rk_mem_alloc_to(v->sweep.n, sizeof *cut, "configurations", &cut));
    RK_TRY_OUT(st, rk_mem_alloc_to(v->sweep.n, sizeof *done, "answers", &done));
    for (int k = 0; k < v->sweep.n; k++)
        cut[k] = (rk_cut){.select = v->sweep.at[k].select, .budget = rk_eval_budget(v, item, k)};
    RK_TRY_OUT(st, rk_batch_sweep(v->e, &b, &q, (uint64_t)item, cut, v->sweep.n, done));
    st = keep(v, done, record);
out:
    for (int k = 0; done && k < v->sweep.n; k++) rk_completion_free(&done[k]);
    rk_mem_free(done);
    rk_mem_free(cut);
    return st;
}
