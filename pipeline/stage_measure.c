/* stage_measure.c - measurement slots: a reference and its forked variants in one pass.
 *
 * Rows of a slot at layer l: T reference rows, then T rows for each variant that exists there, in the
 * record's order. A variant begins at its fork layer as a copy of the reference. All see the prompt's
 * shared cache, read-only, and own pages of their T response slots, which live for one layer only.
 * In its fork layer a variant sees perturbed values. */
#include <string.h>

#include "pipeline/stage_internal.h"

static rk_status grow(rk_stage *s, int64_t bytes, const char *what, void *slot, int64_t *have) {
    if (bytes <= *have) return RK_OK;
    void *old;
    memcpy(&old, slot, sizeof old);
    s->be->ops->release(s->be, old);
    old = NULL;
    memcpy(slot, &old, sizeof old);
    *have = 0;
    RK_TRY(rk_stage_dev(s, bytes, what, slot));
    *have = bytes;
    return RK_OK;
}

/* Number of the record's forks that exist in a layer (fork layer <= layer). */
static int forks_in(const rk_record *r, int layer) {
    int n = 0;
    while (n < r->head.n_forks && r->forks[n].layer <= layer) n++;
    return n;
}

/* Spans of the prompt's cache with V perturbed as the fork wants. */
static rk_status perturb(rk_stage *s, const rk_record *r, const rk_record_fork *f, const rk_span *prompt,
                         char *pages, rk_span *out) {
    int64_t at = 0;
    for (int g = 0; g < s->cfg.n_kv_heads; g++) {
        int64_t n_pages = rk_round_up(prompt[g].n, RK_PAGE_KEYS) / RK_PAGE_KEYS;
        out[g] = prompt[g];
        out[g].v = pages + at;
        out[g].v_dtype = s->be->exact_dtype;
        at += n_pages * rk_page_bytes(s->cfg.head_dim, s->be->exact_dtype);
        RK_TRY(s->be->ops->kv_perturb(s->be, s->cfg.head_dim, &prompt[g], f->epsilon, r->head.seed,
                                      (uint32_t)f->layer, (uint32_t)g, (uint32_t)f->sample,
                                      (uint32_t)f->draw, &out[g]));
    }
    return RK_OK;
}

/* Build the sets of one layer: chain = prompt (perturbed for those that fork here), own tail. */
static rk_status build_sets(rk_stage *s, const rk_record *r, int layer, int n_sets) {
    int     G = s->cfg.n_kv_heads, d = s->cfg.head_dim, T = r->head.n_rows, seq = r->sets[0].seq;
    int     before = forks_in(r, layer - 1), here = n_sets - 1 - before;
    rk_span prompt[256];
    RK_ASSERT(G <= 256);
    int n_spans = rk_kv_chain(s->kv, layer, seq, prompt);
    RK_ASSERT(n_spans == 1);
    int64_t noisy = 0, tail_pages = 0, page = rk_page_bytes(d, s->be->exact_dtype);
    for (int g = 0; g < G; g++) {
        noisy += rk_round_up(prompt[g].n, RK_PAGE_KEYS) / RK_PAGE_KEYS * page;
        int64_t p = rk_round_up(prompt[g].n % RK_PAGE_KEYS + T, RK_PAGE_KEYS) / RK_PAGE_KEYS;
        if (p > tail_pages) tail_pages = p;
    }
    RK_TRY(grow(s, here * noisy, "perturbed values", &s->noisy, &s->noisy_bytes));
    int64_t tail = n_sets * (int64_t)G * 2 * tail_pages * page;
    RK_TRY(grow(s, tail, "response cache", &s->tail, &s->tail_bytes));
    RK_TRY(s->be->ops->zero(s->be, s->tail, tail));
    for (int k = 0; k < n_sets; k++) {
        rk_span *sp = s->spans + (int64_t)k * 2 * G;
        int      fork = k - 1; /* index in the record; -1 the reference */
        if (fork >= before)
            RK_TRY(perturb(s, r, &r->forks[fork], prompt, (char *)s->noisy + (fork - before) * noisy, sp));
        else
            memcpy(sp, prompt, (size_t)G * sizeof *sp);
        for (int g = 0; g < G; g++) {
            char *own = (char *)s->tail + ((int64_t)k * G + g) * 2 * tail_pages * page;
            sp[G + g] = (rk_span){.k = own,
                                  .v = own + tail_pages * page,
                                  .k_dtype = s->be->exact_dtype,
                                  .v_dtype = s->be->exact_dtype,
                                  .first = prompt[g].n % RK_PAGE_KEYS,
                                  .n = T};
        }
        s->sets[k] = (rk_seq_rows){.row0 = k * T, .n_rows = T, .n_spans = 2, .spans = sp};
    }
    return RK_OK;
}

/* Copy the reference's rows for each variant that begins in this layer. */
static rk_status fork_rows(rk_stage *s, const rk_record *r, int layer, float *x) {
    int T = r->head.n_rows;
    for (int i = 0; i < T; i++) s->index[i] = i;
    for (int k = forks_in(r, layer - 1); k < forks_in(r, layer); k++)
        RK_TRY(s->be->ops->take_rows(s->be, x, s->index, T, s->cfg.d_model,
                                     x + (int64_t)(k + 1) * T * s->cfg.d_model));
    return RK_OK;
}

/* Head and KL in row blocks; back: [n_forks] mean KL, then the hash of the reference's rows. */
static rk_status reduce(rk_stage *s, const rk_record *r, const float *x, void *back) {
    int64_t V = s->cfg.n_vocab, f = (int64_t)sizeof(float);
    int     T = r->head.n_rows, per_block = (int)(s->logit_rows / T);
    double  kl[4096];
    RK_ASSERT(per_block >= 1 && s->logit_rows <= 4096);
    RK_TRY(grow(s, T * V * f, "reference logits", &s->ref_logits, &s->ref_bytes));
    RK_TRY(grow(s, s->logit_rows * (int64_t)sizeof(double), "divergences", &s->kl, &s->kl_bytes));
    for (int i = 0; i < T; i++) s->index[i] = i;
    RK_TRY(rk_stage_logits(s, x, s->index, T, RK_ROWS_EXACT, s->ref_logits));
    RK_TRY(s->be->ops->download(s->be, s->logits_host, s->ref_logits, T * V * f));
    uint64_t hash = rk_hash(s->logits_host, (size_t)(T * V * f));
    for (int k = 0; k < r->head.n_forks; k += per_block) {
        int n = r->head.n_forks - k < per_block ? r->head.n_forks - k : per_block;
        for (int i = 0; i < n * T; i++) s->index[i] = (k + 1) * T + i;
        RK_TRY(rk_stage_logits(s, x, s->index, n * T, RK_ROWS_EXACT, s->logits));
        RK_TRY(s->be->ops->kl_rows(s->be, s->ref_logits, T, s->logits, n * T, (int)V, s->kl));
        RK_TRY(s->be->ops->download(s->be, kl, s->kl, n * T * (int64_t)sizeof(double)));
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int t = 0; t < T; t++) sum += kl[i * T + t];
            sum /= T;
            memcpy((char *)back + (k + i) * (int64_t)sizeof sum, &sum, sizeof sum);
        }
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    memcpy((char *)back + r->head.n_forks * (int64_t)sizeof(double), &hash, sizeof hash);
    return RK_OK;
}

rk_status rk_stage_measure(rk_stage *s, const rk_record *r, float *x, void *back) {
    const rk_record_set *set = &r->sets[0];
    int                  T = r->head.n_rows;
    if (T < 1 || (int64_t)T * (1 + r->head.n_forks) > s->spec.max_rows || T > s->spec.max_response)
        return RK_FAIL(RK_E_BUG, "measurement of %d rows and %d variants does not fit", T,
                       r->head.n_forks);
    if (s->spec.first) RK_TRY(rk_model_embed(s->model, r->tokens, T, x));
    for (int l = s->spec.layer_begin; l < s->spec.layer_end; l++) {
        int n_sets = 1 + forks_in(r, l), n = n_sets * T;
        for (int i = 0; i < n; i++) s->pos[i] = (int32_t)(set->pos0 + i % T);
        RK_TRY(fork_rows(s, r, l, x));
        RK_TRY(build_sets(s, r, l, n_sets));
        RK_TRY(rk_model_qkv(s->model, l, x, n, RK_ROWS_EXACT, s->pos, s->sets, n_sets));
        RK_TRY(rk_model_finish(s->model, l, x, n, RK_ROWS_EXACT, s->sets, n_sets));
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    if (s->spec.last) RK_TRY(reduce(s, r, x, back));
    return s->be->ops->sync(s->be);
}
