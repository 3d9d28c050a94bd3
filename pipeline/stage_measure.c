/* stage_measure.c - measurement slots: a reference and its forked variants in one pass.
 *
 * Rows of a slot at layer l: T reference rows, then T rows for each variant that exists there, in
 * the record's order. A variant begins at its fork layer as a copy of the reference. All see the
 * prompt's shared cache, read-only, and own pages of their T response slots, which live for one
 * layer only. In its fork layer a variant sees disturbed values or a compressed cache instead; one
 * that follows a forked sequence sees that one's cache in every layer. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "pipeline/stage_internal.h"

/* Number of the record's forks that exist in a layer (fork layer <= layer). */
static int forks_in(const rk_record *r, int layer) {
    int n = 0;
    while (n < r->head.n_forks && r->forks[n].layer <= layer) n++;
    return n;
}

static int64_t pages_of(int64_t slots) {
    return rk_round_up(slots, RK_PAGE_KEYS) / RK_PAGE_KEYS;
}

/* Bytes of pages that a variant needs of its own in its fork layer. */
static int64_t own_bytes(const rk_stage *s, const rk_record_fork *f, const rk_span *prompt) {
    int     G = s->cfg.n_kv_heads, d = s->cfg.head_dim;
    int64_t pages = 0;
    if (f->kind == RK_VARIANT_NOISE) {
        for (int g = 0; g < G; g++) pages += pages_of(prompt[g].n);
        return pages * rk_page_bytes(d, s->be->exact_dtype);
    }
    if (f->kind != RK_VARIANT_COMPRESS) return 0;
    pages =
        (int64_t)G * f->budget / RK_PAGE_KEYS + G; /* heads may share the layer's total unevenly */
    return 2 * pages * rk_page_bytes(d, s->be->weight_dtype);
}

/* Lanes behind the last slot of a span's pages hold zeros: variants' pages are used again and
 * again, and attention joins the last page with the first one of the response. */
static rk_status end_in_zeros(rk_stage *s, void *pages, rk_dtype t, int64_t n_slots) {
    int64_t page = rk_page_bytes(s->cfg.head_dim, t);
    if (n_slots % RK_PAGE_KEYS == 0) return RK_OK;
    return s->be->ops->zero(s->be, (char *)pages + n_slots / RK_PAGE_KEYS * page, page);
}

/* Spans of the prompt's cache with V disturbed as the fork wants. */
static rk_status perturb(rk_stage *s, const rk_record *r, const rk_record_fork *f,
                         const rk_span *prompt, char *pages, rk_span *out) {
    for (int g = 0; g < s->cfg.n_kv_heads; g++) {
        out[g] = prompt[g];
        out[g].v = pages;
        out[g].v_dtype = s->be->exact_dtype;
        pages += pages_of(prompt[g].n) * rk_page_bytes(s->cfg.head_dim, s->be->exact_dtype);
        RK_TRY(end_in_zeros(s, out[g].v, out[g].v_dtype, prompt[g].n));
        RK_TRY(s->be->ops->kv_perturb(s->be, s->cfg.head_dim, &prompt[g], f->epsilon, r->head.seed,
                                      (uint32_t)f->layer, (uint32_t)g, (uint32_t)f->sample,
                                      (uint32_t)f->draw, &out[g]));
    }
    return RK_OK;
}

/* Spans of what the policy keeps of the prompt's cache. */
static rk_status compressed(rk_stage *s, const rk_record *r, const rk_record_fork *f,
                            const rk_span *prompt, char *pages, rk_span *out) {
    const int32_t *slot[RK_STAGE_HEADS];
    int32_t        count[RK_STAGE_HEADS];
    int64_t        page = rk_page_bytes(s->cfg.head_dim, s->be->weight_dtype);
    RK_TRY(rk_stage_select(s, &r->head.select, f->layer, r->sets[0].seq, f->budget, slot, count));
    for (int g = 0; g < s->cfg.n_kv_heads; g++) {
        int64_t n = pages_of(count[g]);
        out[g] = (rk_span){.k = pages,
                           .v = pages + n * page,
                           .k_dtype = prompt[g].k_dtype,
                           .v_dtype = prompt[g].v_dtype,
                           .n = count[g]};
        pages += 2 * n * page;
        RK_TRY(end_in_zeros(s, out[g].k, out[g].k_dtype, count[g]));
        RK_TRY(end_in_zeros(s, out[g].v, out[g].v_dtype, count[g]));
        RK_TRY(s->be->ops->kv_gather(s->be, s->cfg.head_dim, &prompt[g], 1, slot[g], count[g],
                                     &out[g]));
    }
    return RK_OK;
}

/* What variant f sees of the prompt in a layer; own pages where it forks here. */
static rk_status prompt_of(rk_stage *s, const rk_record *r, int layer, const rk_record_fork *f,
                           const rk_span *prompt, char *own, rk_span *out) {
    if (f->kind == RK_VARIANT_SEQUENCE) {
        int n_spans = rk_kv_chain(s->kv, layer, f->seq, out);
        RK_ASSERT(n_spans == 1);
        return RK_OK;
    }
    if (f->layer == layer && f->kind == RK_VARIANT_NOISE) return perturb(s, r, f, prompt, own, out);
    if (f->layer == layer && f->budget < prompt[0].n) return compressed(s, r, f, prompt, own, out);
    memcpy(out, prompt, (size_t)s->cfg.n_kv_heads * sizeof *out);
    return RK_OK;
}

/* The tail of set k behind its prompt's spans sp [G]: fresh pages for T slots at sp [G .. 2G - 1].
 */
static void add_tail(rk_stage *s, int k, int T, int64_t tail_pages, rk_span *sp) {
    int     G = s->cfg.n_kv_heads;
    int64_t page = rk_page_bytes(s->cfg.head_dim, s->be->exact_dtype);
    for (int g = 0; g < G; g++) {
        char *own = (char *)s->tail + ((int64_t)k * G + g) * 2 * tail_pages * page;
        sp[G + g] = (rk_span){.k = own,
                              .v = own + tail_pages * page,
                              .k_dtype = s->be->exact_dtype,
                              .v_dtype = s->be->exact_dtype,
                              .first = sp[g].n % RK_PAGE_KEYS,
                              .n = T};
    }
}

/* Build the sets of one layer: chain = the prompt as the set sees it, own tail. */
static rk_status build_sets(rk_stage *s, const rk_record *r, int layer, int n_sets) {
    int     G = s->cfg.n_kv_heads, T = r->head.n_rows, seq = r->sets[0].seq;
    int     before = forks_in(r, layer - 1);
    rk_span prompt[RK_STAGE_HEADS];
    RK_ASSERT(G <= RK_STAGE_HEADS);
    int n_spans = rk_kv_chain(s->kv, layer, seq, prompt);
    RK_ASSERT(n_spans == 1);
    int64_t own = 0, tail_pages = pages_of(RK_PAGE_KEYS - 1 + T);
    int64_t tail =
        n_sets * (int64_t)G * 2 * tail_pages * rk_page_bytes(s->cfg.head_dim, s->be->exact_dtype);
    for (int k = before; k < n_sets - 1; k++) own += own_bytes(s, &r->forks[k], prompt);
    RK_TRY(rk_stage_grow(s, own, "variants' pages", &s->own, &s->own_bytes));
    RK_TRY(rk_stage_grow(s, tail, "response cache", &s->tail, &s->tail_bytes));
    RK_TRY(s->be->ops->zero(s->be, s->tail, tail));
    char *at = s->own;
    for (int k = 0; k < n_sets; k++) {
        rk_span              *sp = s->spans + (int64_t)k * 2 * G;
        const rk_record_fork *f = k ? &r->forks[k - 1] : NULL;
        if (f)
            RK_TRY(prompt_of(s, r, layer, f, prompt, at, sp));
        else
            memcpy(sp, prompt, (size_t)G * sizeof *sp);
        if (f && k - 1 >= before) at += own_bytes(s, f, prompt);
        add_tail(s, k, T, tail_pages, sp);
        s->sets[k] = (rk_seq_rows){.row0 = k * T, .n_rows = T, .n_spans = 2, .spans = sp};
    }
    return RK_OK;
}

/* ---- the layer-local response ---- */

static bool any_noise(const rk_record *r, int from, int to) {
    for (int k = from; k < to; k++)
        if (r->forks[k].kind == RK_VARIANT_NOISE) return true;
    return false;
}

/* Keep the reference's rows as they are before attention adds to them. */
static rk_status keep_reference(rk_stage *s, const rk_record *r, const float *x) {
    int     T = r->head.n_rows;
    int64_t bytes = T * (int64_t)s->cfg.d_model * (int64_t)sizeof(float);
    RK_TRY(rk_stage_grow(s, bytes, "reference rows", &s->before, &s->before_bytes));
    if (3 * bytes > s->local_bytes) {
        rk_mem_free(s->local_host);
        s->local_host = NULL;
        s->local_bytes = 0;
        RK_TRY(rk_mem_alloc_to(3 * bytes, 1, "attention outputs", &s->local_host));
        s->local_bytes = 3 * bytes;
    }
    for (int i = 0; i < T; i++) s->index[i] = i;
    return s->be->ops->take_rows(s->be, x, s->index, T, s->cfg.d_model, s->before);
}

/* After attention: || x_variant - x_reference || / || x_reference - x_before ||, since both added
 * their attention's output to the same rows. Sums in f64, ascending. */
static rk_status local_response(rk_stage *s, const rk_record *r, int from, int to, const float *x,
                                rk_measured *out) {
    int64_t n = r->head.n_rows * (int64_t)s->cfg.d_model, bytes = n * (int64_t)sizeof(float);
    float  *before = s->local_host, *ref = before + n, *var = ref + n;
    double  whole = 0;
    RK_TRY(s->be->ops->download(s->be, before, s->before, bytes));
    RK_TRY(s->be->ops->download(s->be, ref, x, bytes));
    for (int64_t i = 0; i < n; i++) {
        double a = (double)ref[i] - (double)before[i];
        whole += a * a;
    }
    for (int k = from; k < to; k++) {
        double change = 0;
        if (r->forks[k].kind != RK_VARIANT_NOISE) continue;
        RK_TRY(s->be->ops->download(s->be, var, x + (k + 1) * n, bytes));
        for (int64_t i = 0; i < n; i++) {
            double a = (double)var[i] - (double)ref[i];
            change += a * a;
        }
        out[k].local = whole > 0 ? sqrt(change / whole) : 0;
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

/* Means of a variant's T row scores. */
static rk_measured mean_of(const rk_row_score *score, int T, double local) {
    rk_measured m = {.local = local};
    for (int t = 0; t < T; t++) {
        m.kl += score[t].kl;
        m.agreement += score[t].same;
        m.nll += score[t].nll;
    }
    m.kl /= T;
    m.agreement /= T;
    m.nll = T > 1 ? m.nll / (T - 1) : 0;
    return m;
}

/* Head and scores, in row blocks. */
static rk_status reduce(rk_stage *s, const rk_record *r, const float *x, rk_stage_measured *out) {
    enum { MOST = 4096 };
    const rk_backend_ops *op = s->be->ops;
    int64_t               V = s->cfg.n_vocab, f = (int64_t)sizeof(float);
    int                   T = r->head.n_rows, per_block = (int)(s->logit_rows / T);
    rk_row_score          score[MOST];
    int32_t               next[MOST];
    RK_ASSERT(per_block >= 1 && s->logit_rows <= MOST);
    RK_TRY(rk_stage_grow(s, T * V * f, "reference logits", &s->ref_logits, &s->ref_bytes));
    RK_TRY(rk_stage_grow(s, s->logit_rows * (int64_t)sizeof *score, "scores", &s->score_rows,
                         &s->score_bytes));
    for (int i = 0; i < T; i++) s->index[i] = i, next[i] = i + 1 < T ? r->tokens[i + 1] : -1;
    RK_TRY(rk_stage_logits(s, x, s->index, T, RK_ROWS_EXACT, s->ref_logits));
    RK_TRY(op->download(s->be, s->logits_host, s->ref_logits, T * V * f));
    out->ref_hash = rk_hash(s->logits_host, (size_t)(T * V * f));
    RK_TRY(op->score_rows(s->be, s->ref_logits, T, s->ref_logits, T, (int)V, next, s->score_rows));
    RK_TRY(op->download(s->be, score, s->score_rows, T * (int64_t)sizeof *score));
    out->reference = mean_of(score, T, 0);
    for (int k = 0; k < r->head.n_forks; k += per_block) {
        int n = r->head.n_forks - k < per_block ? r->head.n_forks - k : per_block;
        for (int i = 0; i < n * T; i++) s->index[i] = (k + 1) * T + i;
        RK_TRY(rk_stage_logits(s, x, s->index, n * T, RK_ROWS_EXACT, s->logits));
        RK_TRY(
            op->score_rows(s->be, s->ref_logits, T, s->logits, n * T, (int)V, next, s->score_rows));
        RK_TRY(op->download(s->be, score, s->score_rows, n * T * (int64_t)sizeof *score));
        for (int i = 0; i < n; i++)
            out->variant[k + i] = mean_of(score + i * T, T, out->variant[k + i].local);
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    return RK_OK;
}

static rk_status measure_layer(rk_stage *s, const rk_record *r, int layer, float *x,
                               rk_stage_measured *out) {
    int  T = r->head.n_rows, before = forks_in(r, layer - 1), forks = forks_in(r, layer);
    int  n_sets = 1 + forks, n = n_sets * T;
    bool local = any_noise(r, before, forks);
    for (int i = 0; i < n; i++) s->pos[i] = (int32_t)(r->sets[0].pos0 + i % T);
    RK_TRY(fork_rows(s, r, layer, x));
    RK_TRY(build_sets(s, r, layer, n_sets));
    RK_TRY(rk_model_qkv(s->model, layer, x, n, RK_ROWS_EXACT, s->pos, s->sets, n_sets));
    if (local) RK_TRY(keep_reference(s, r, x));
    RK_TRY(rk_model_attend(s->model, layer, x, n, RK_ROWS_EXACT, s->sets, n_sets));
    if (local) RK_TRY(local_response(s, r, before, forks, x, out->variant));
    return rk_model_mlp(s->model, layer, x, n, RK_ROWS_EXACT);
}

rk_status rk_stage_measure(rk_stage *s, const rk_record *r, float *x, rk_stage_measured *out) {
    int T = r->head.n_rows;
    if (T < 1 || (int64_t)T * (1 + r->head.n_forks) > s->spec.max_rows || T > s->spec.max_response)
        return RK_FAIL(RK_E_BUG, "measurement of %d rows and %d variants does not fit", T,
                       r->head.n_forks);
    memset(out, 0, (size_t)rk_stage_measured_bytes(r->head.n_forks));
    if (s->spec.first) RK_TRY(rk_model_embed(s->model, r->tokens, T, x));
    for (int l = s->spec.layer_begin; l < s->spec.layer_end; l++) {
        RK_TRY(measure_layer(s, r, l, x, out));
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    if (s->spec.last) RK_TRY(reduce(s, r, x, out));
    return s->be->ops->sync(s->be);
}
