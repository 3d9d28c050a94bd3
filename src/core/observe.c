/* observe.c - see observe.h. */
#include "core/observe.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

enum { BLOCK = 64, FUTURE = 512 };

struct rk_observe {
    rk_backend     *be;
    rk_observe_spec spec;
    float          *mass;      /* dev [H][max_prompt] of a window or block */
    float          *mass_host; /* [H][max_prompt] */
    float          *rows;      /* host [BLOCK][H d] */
    int32_t         index[BLOCK];
};

struct rk_observer {
    rk_observe *s;
    int64_t     n;       /* of the prompt */
    float      *window;  /* dev [window][H d] */
    float      *block;   /* dev [BLOCK][H d] queries of an unfinished block */
    float      *columns; /* [H][max_prompt] */
    double     *sum;     /* [H][d] of unrotated queries */
    double     *square;  /* [H][d][d] lower triangles of their products */
};

static int64_t width_of(const rk_observe_spec *s) {
    return (int64_t)s->shape.n_heads * s->shape.head_dim;
}

int64_t rk_observe_bytes(const rk_observe_spec *s) {
    int64_t f = (int64_t)sizeof(float), sum = 0;
    if (s->see & (RK_SEE_WINDOW | RK_SEE_COLUMNS)) sum += 2 * s->shape.n_heads * s->max_prompt * f;
    return sum + (s->see & RK_SEE_MOMENTS ? BLOCK * width_of(s) * f : 0);
}

int64_t rk_observer_bytes(const rk_observe_spec *s) {
    int64_t f = (int64_t)sizeof(float), w = width_of(s), H = s->shape.n_heads,
            d = s->shape.head_dim, sum = 0;
    if (s->see & RK_SEE_WINDOW) sum += s->window * w * f;
    if (s->see & RK_SEE_COLUMNS) sum += BLOCK * w * f + H * s->max_prompt * f;
    if (s->see & RK_SEE_MOMENTS) sum += H * d * (d + 1) * (int64_t)sizeof(double);
    return sum;
}

static rk_status dev(rk_backend *be, int64_t count, const char *what, float **out) {
    void *p;
    RK_TRY(be->ops->alloc(be, count * (int64_t)sizeof(float), what, &p));
    *out = p;
    return RK_OK;
}

rk_status rk_observe_open(rk_backend *be, const rk_observe_spec *spec, rk_observe **out) {
    int64_t     all = spec->shape.n_heads * spec->max_prompt;
    rk_observe *s;
    rk_status   st = RK_OK;
    *out = NULL;
    RK_TRY(rk_mem_alloc_to(1, sizeof *s, "observation", &s));
    s->be = be;
    s->spec = *spec;
    if (spec->see & (RK_SEE_WINDOW | RK_SEE_COLUMNS)) {
        RK_TRY_OUT(st, dev(be, all, "window mass", &s->mass));
        RK_TRY_OUT(st, rk_mem_alloc_to(all, sizeof(float), "window mass", &s->mass_host));
    }
    if (spec->see & RK_SEE_MOMENTS)
        RK_TRY_OUT(st, rk_mem_alloc_to(BLOCK * width_of(spec), sizeof(float), "queries", &s->rows));
    *out = s;
    return RK_OK;
out:
    rk_observe_close(s);
    return st;
}

void rk_observe_close(rk_observe *s) {
    if (!s) return;
    s->be->ops->release(s->be, s->mass);
    rk_mem_free(s->mass_host);
    rk_mem_free(s->rows);
    rk_mem_free(s);
}

rk_status rk_observer_open(rk_observe *s, rk_observer **out) {
    const rk_observe_spec *spec = &s->spec;
    int64_t                w = width_of(spec), H = spec->shape.n_heads, d = spec->shape.head_dim;
    rk_observer           *o;
    rk_status              st = RK_OK;
    *out = NULL;
    RK_TRY(rk_mem_alloc_to(1, sizeof *o, "observer", &o));
    o->s = s;
    if (spec->see & RK_SEE_WINDOW)
        RK_TRY_OUT(st, dev(s->be, spec->window * w, "window queries", &o->window));
    if (spec->see & RK_SEE_COLUMNS) {
        RK_TRY_OUT(st, dev(s->be, BLOCK * w, "block of queries", &o->block));
        RK_TRY_OUT(
            st, rk_mem_alloc_to(H * spec->max_prompt, sizeof(float), "column sums", &o->columns));
    }
    if (spec->see & RK_SEE_MOMENTS) {
        RK_TRY_OUT(st, rk_mem_alloc_to(H * d, sizeof(double), "query means", &o->sum));
        RK_TRY_OUT(st, rk_mem_alloc_to(H * d * d, sizeof(double), "query covariances", &o->square));
    }
    *out = o;
    return RK_OK;
out:
    rk_observer_close(o);
    return st;
}

void rk_observer_close(rk_observer *o) {
    if (!o) return;
    o->s->be->ops->release(o->s->be, o->window);
    o->s->be->ops->release(o->s->be, o->block);
    rk_mem_free(o->columns);
    rk_mem_free(o->sum);
    rk_mem_free(o->square);
    rk_mem_free(o);
}

void rk_observer_begin(rk_observer *o, int64_t n_prompt) {
    int64_t H = o->s->spec.shape.n_heads, d = o->s->spec.shape.head_dim;
    o->n = n_prompt;
    if (o->columns) memset(o->columns, 0, (size_t)(H * o->s->spec.max_prompt) * sizeof(float));
    if (o->sum) memset(o->sum, 0, (size_t)(H * d) * sizeof(double));
    if (o->square) memset(o->square, 0, (size_t)(H * d * d) * sizeof(double));
}

/* Queries that are kept of the prompt's end. */
static int64_t kept_window(const rk_observer *o) {
    return o->s->spec.window < o->n ? o->s->spec.window : o->n;
}

bool rk_observer_wants(const rk_observer *o, int64_t pos0, int m) {
    if (o->s->spec.see & (RK_SEE_COLUMNS | RK_SEE_MOMENTS)) return true;
    return (o->s->spec.see & RK_SEE_WINDOW) && pos0 + m > o->n - kept_window(o);
}

/* Copy rows [row0, row0 + n) of q to row `to` of dst. */
static rk_status copy_rows(rk_observer *o, const float *q, int64_t row0, int64_t n, float *dst,
                           int64_t to) {
    int width = (int)width_of(&o->s->spec);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int k = (int)(n - at < BLOCK ? n - at : BLOCK);
        for (int i = 0; i < k; i++) o->s->index[i] = (int32_t)(row0 + at + i);
        RK_TRY(
            o->s->be->ops->take_rows(o->s->be, q, o->s->index, k, width, dst + (to + at) * width));
    }
    return RK_OK;
}

static rk_status see_window(rk_observer *o, const float *q, int64_t pos0, int m) {
    int64_t begin = o->n - kept_window(o), from = pos0 > begin ? pos0 : begin;
    return from < pos0 + m ? copy_rows(o, q, from - pos0, pos0 + m - from, o->window, from - begin)
                           : RK_OK;
}

/* The masses of w queries whose last is at position end - 1, into mass_host [H][end]. */
static rk_status mass_of(rk_observer *o, const float *q, int w, int64_t end, const rk_span *spans) {
    int     G = o->s->spec.shape.n_kv_heads;
    int64_t H = o->s->spec.shape.n_heads;
    rk_span cut[1024];
    RK_ASSERT(G <= 1024);
    for (int g = 0; g < G; g++) {
        cut[g] = spans[g];
        RK_ASSERT(spans[g].n >= end);
        cut[g].n = (int32_t)end;
    }
    RK_TRY(o->s->be->ops->window_mass(o->s->be, &o->s->spec.shape, q, w, cut, 1, (int32_t)end,
                                      o->s->mass));
    return o->s->be->ops->download(o->s->be, o->s->mass_host, o->s->mass,
                                   H * end * (int64_t)sizeof(float));
}

/* Add the block that ends at `end`, w queries, to the column sums. */
static rk_status add_block(rk_observer *o, int w, int64_t end, const rk_span *spans) {
    RK_TRY(mass_of(o, o->block, w, end, spans));
    for (int64_t h = 0; h < o->s->spec.shape.n_heads; h++) {
        float       *sum = o->columns + h * o->s->spec.max_prompt;
        const float *one = o->s->mass_host + h * end;
        for (int64_t j = 0; j < end; j++) sum[j] += one[j];
    }
    return RK_OK;
}

static rk_status see_columns(rk_observer *o, const float *q, int64_t pos0, int m,
                             const rk_span *spans) {
    for (int64_t at = pos0; at < pos0 + m;) {
        int64_t end = (at / BLOCK + 1) * BLOCK, stop = end < pos0 + m ? end : pos0 + m;
        RK_TRY(copy_rows(o, q, at - pos0, stop - at, o->block, at % BLOCK));
        if (stop == end || stop == o->n)
            RK_TRY(add_block(o, (int)(stop - (stop - 1) / BLOCK * BLOCK), stop, spans));
        at = stop;
    }
    return RK_OK;
}

/* Turn a query head back by its position's angles. */
static void unrotate(const float *x, int d, const double *cs, double *out) {
    int half = d / 2;
    for (int i = 0; i < half; i++) {
        double c = cs[i], s = cs[half + i], a = (double)x[i], b = (double)x[half + i];
        out[i] = a * c + b * s;
        out[half + i] = b * c - a * s;
    }
}

static void angles(const rk_observer *o, double pos, double *cs) {
    int half = o->s->spec.shape.head_dim / 2;
    for (int i = 0; i < half; i++) {
        cs[i] = cos(pos * o->s->spec.rope_speed[i]);
        cs[half + i] = sin(pos * o->s->spec.rope_speed[i]);
    }
}

enum { MOST_DIM = 512 };

static void add_moments(rk_observer *o, const float *row, int64_t pos) {
    int    d = o->s->spec.shape.head_dim;
    double cs[MOST_DIM], q[MOST_DIM];
    angles(o, (double)pos, cs);
    for (int h = 0; h < o->s->spec.shape.n_heads; h++) {
        double *sum = o->sum + (int64_t)h * d, *square = o->square + (int64_t)h * d * d;
        unrotate(row + (int64_t)h * d, d, cs, q);
        for (int i = 0; i < d; i++) {
            sum[i] += q[i];
            for (int j = 0; j <= i; j++) square[i * d + j] += q[i] * q[j];
        }
    }
}

static rk_status see_moments(rk_observer *o, const float *q, int64_t pos0, int m) {
    int64_t width = width_of(&o->s->spec);
    RK_ASSERT(o->s->spec.shape.head_dim <= MOST_DIM);
    for (int64_t at = 0; at < m; at += BLOCK) {
        int64_t k = m - at < BLOCK ? m - at : BLOCK;
        RK_TRY(o->s->be->ops->download(o->s->be, o->s->rows, q + at * width,
                                       k * width * (int64_t)sizeof(float)));
        for (int64_t i = 0; i < k; i++)
            if (pos0 + at + i >= o->s->spec.sinks)
                add_moments(o, o->s->rows + i * width, pos0 + at + i);
    }
    return RK_OK;
}

rk_status rk_observer_rows(rk_observer *o, const float *q, int64_t pos0, int m,
                           const rk_span *spans) {
    if (o->s->spec.see & RK_SEE_WINDOW) RK_TRY(see_window(o, q, pos0, m));
    if (o->s->spec.see & RK_SEE_COLUMNS) RK_TRY(see_columns(o, q, pos0, m, spans));
    if (o->s->spec.see & RK_SEE_MOMENTS) RK_TRY(see_moments(o, q, pos0, m));
    return RK_OK;
}

/* ---- scores ---- */

/* Mass of the prompt's last w queries. */
static rk_status window_mass(rk_observer *o, int w, const rk_span *spans) {
    int64_t have = kept_window(o), use = w < o->n ? w : o->n;
    if (use > have) return RK_FAIL(RK_E_BUG, "queries of a window of %d were not kept", w);
    return mass_of(o, o->window + (have - use) * width_of(&o->s->spec), (int)use, o->n, spans);
}

rk_status rk_observer_attention(rk_observer *o, const rk_span *spans, double *entropy,
                                double *variance) {
    int64_t w = kept_window(o), prefix = o->n - w, H = o->s->spec.shape.n_heads,
            width = width_of(&o->s->spec);
    double   *sum = NULL;
    rk_status st = RK_OK;
    *entropy = *variance = 0;
    if (!(o->s->spec.see & RK_SEE_WINDOW) || w < 1)
        return RK_FAIL(RK_E_BUG, "no window of queries was observed");
    if (prefix < 1) return RK_OK;
    RK_TRY(rk_mem_alloc_to(2 * H * prefix, sizeof *sum, "attention statistics", &sum));
    double *square = sum + H * prefix;
    for (int64_t i = 0; i < w; i++) {
        int64_t end = prefix + i + 1; /* what query i sees */
        RK_TRY_OUT(st, mass_of(o, o->window + i * width, 1, end, spans));
        for (int64_t h = 0; h < H; h++)
            for (int64_t j = 0; j < prefix; j++) {
                double a = (double)o->s->mass_host[h * end + j];
                *entropy -= a * log(a + 1e-10);
                sum[h * prefix + j] += a;
                square[h * prefix + j] += a * a;
            }
    }
    for (int64_t k = 0; w > 1 && k < H * prefix; k++) {
        double v = (square[k] - sum[k] * sum[k] / (double)w) / (double)(w - 1);
        *variance += v > 0 ? v : 0;
    }
out:
    rk_mem_free(sum);
    return st;
}

static rk_status snap_scores(rk_observer *o, const rk_select_params *p, const rk_span *spans,
                             float *score) {
    RK_TRY(window_mass(o, p->window, spans));
    return rk_select_snap_scores(p, o->s->spec.shape.n_heads, o->s->spec.shape.n_kv_heads, o->n,
                                 o->s->mass_host, score);
}

static rk_status tova_scores(rk_observer *o, const rk_span *spans, float *score) {
    int H = o->s->spec.shape.n_heads;
    RK_TRY(window_mass(o, 1, spans));
    for (int64_t j = 0; j < o->n; j++) {
        double sum = 0;
        for (int h = 0; h < H; h++) sum += (double)o->s->mass_host[h * o->n + j];
        for (int g = 0; g < o->s->spec.shape.n_kv_heads; g++)
            score[g * o->n + j] = (float)(sum / H);
    }
    return RK_OK;
}

static void h2o_scores(const rk_observer *o, const rk_select_params *p, float *score) {
    int R = o->s->spec.shape.n_heads / o->s->spec.shape.n_kv_heads;
    for (int g = 0; g < o->s->spec.shape.n_kv_heads; g++)
        for (int64_t j = 0; j < o->n; j++) {
            double sum = 0, best = 0;
            for (int r = 0; r < R; r++) {
                double v = (double)o->columns[(g * R + r) * o->s->spec.max_prompt + j];
                sum += v;
                best = v > best ? v : best;
            }
            double v = p->group_reduce == RK_REDUCE_MAX ? best : sum / R;
            if (p->per_visible) v /= (double)(o->n - j);
            score[g * o->n + j] = (float)v;
        }
}

static double norm(const float *x, int d) {
    double sum = 0;
    for (int i = 0; i < d; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static rk_status knorm_scores(rk_observer *o, const rk_span *spans, float *score) {
    int    d = o->s->spec.shape.head_dim;
    float *k;
    RK_TRY(rk_mem_alloc_to(o->n * d, sizeof(float), "keys", &k));
    rk_status st = RK_OK;
    for (int g = 0; st == RK_OK && g < o->s->spec.shape.n_kv_heads; g++) {
        rk_span s = spans[g];
        s.n = (int32_t)o->n;
        st = o->s->be->ops->kv_read(o->s->be, d, &s, 1, k, NULL);
        for (int64_t j = 0; st == RK_OK && j < o->n; j++)
            score[g * o->n + j] = (float)-norm(k + j * d, d);
    }
    rk_mem_free(k);
    return st;
}

static void random_scores(const rk_observer *o, const rk_select_params *p, int layer,
                          float *score) {
    for (int g = 0; g < o->s->spec.shape.n_kv_heads; g++)
        for (int64_t j = 0; j < o->n; j++) {
            uint32_t c[4] = {(uint32_t)j, (uint32_t)g, (uint32_t)layer, 0x72616e64u /* "rand" */};
            rk_rng_philox(c, (uint32_t)p->seed, (uint32_t)(p->seed >> 32));
            score[g * o->n + j] = (float)(c[0] >> 8) * 0x1p-24f;
        }
}

/* ---- expected attention: methods of kvpress' ExpectedAttention ---- */

/* Mean rotation over positions n .. n + count - 1: averages of cosines, then of sines, [d/2] each.
 */
static void mean_rotation(const rk_observer *o, int count, double *cs) {
    double one[MOST_DIM];
    int    d = o->s->spec.shape.head_dim;
    memset(cs, 0, (size_t)d * sizeof *cs);
    for (int t = 0; t < count; t++) {
        angles(o, (double)(o->n + t), one);
        for (int i = 0; i < d; i++) cs[i] += one[i] / count;
    }
}

/* y = R x, with R = cos I + sin P and P the half-split quarter turn. */
static void rotate(const double *cs, int d, const double *x, double *y) {
    int half = d / 2;
    for (int i = 0; i < half; i++) {
        y[i] = cs[i] * x[i] - cs[half + i] * x[half + i];
        y[half + i] = cs[i] * x[half + i] + cs[half + i] * x[i];
    }
}

/* Mean [d] and covariance [d][d] (population) of a query head's future queries. */
static void future_query(const rk_observer *o, int h, const double *cs, double *mean, double *cov,
                         double *tmp) {
    int           d = o->s->spec.shape.head_dim;
    const double *sum = o->sum + (int64_t)h * d, *square = o->square + (int64_t)h * d * d;
    double        n = (double)(o->n - o->s->spec.sinks), mu[MOST_DIM];
    for (int i = 0; i < d; i++) mu[i] = sum[i] / n;
    for (int i = 0; i < d; i++)
        for (int j = 0; j <= i; j++)
            cov[i * d + j] = cov[j * d + i] = square[i * d + j] / n - mu[i] * mu[j];
    rotate(cs, d, mu, mean);
    for (int i = 0; i < d; i++)
        rotate(cs, d, cov + (int64_t)i * d, tmp + (int64_t)i * d); /* S R^T */
    for (int j = 0; j < d; j++) {                                  /* R (S R^T), column by column */
        double col[MOST_DIM], out[MOST_DIM];
        for (int i = 0; i < d; i++) col[i] = tmp[(int64_t)i * d + j];
        rotate(cs, d, col, out);
        for (int i = 0; i < d; i++) cov[(int64_t)i * d + j] = out[i];
    }
}

/* Softmax over the keys behind the sinks of one query head's expected logits, added to prob / R. */
static void add_expected(const rk_observer *o, const rk_select_params *p, const double *mean,
                         const double *cov, const float *k, double *logit, double *prob) {
    int d = o->s->spec.shape.head_dim, R = o->s->spec.shape.n_heads / o->s->spec.shape.n_kv_heads;
    double scale = (double)o->s->spec.shape.scale, top = -INFINITY, sum = 0;
    for (int64_t j = o->s->spec.sinks; j < o->n; j++) {
        const float *x = k + j * d;
        double       a = 0, b = 0;
        for (int i = 0; i < d; i++) {
            double row = 0;
            a += mean[i] * (double)x[i];
            if (p->no_covariance) continue;
            for (int e = 0; e < d; e++) row += cov[(int64_t)i * d + e] * (double)x[e];
            b += row * (double)x[i];
        }
        logit[j] = a * scale + b * scale * scale / 2;
        top = fmax(top, logit[j]);
    }
    for (int64_t j = o->s->spec.sinks; j < o->n; j++) sum += exp(logit[j] - top);
    for (int64_t j = o->s->spec.sinks; j < o->n; j++) prob[j] += exp(logit[j] - top) / sum / R;
}

/* Shapes: k, v [n][d]; work f64 [2 n + d (2 d + 1)] */
static rk_status expected_head(rk_observer *o, const rk_select_params *p, const rk_span *spans,
                               int g, const double *cs, float *k, float *v, double *work,
                               float *score) {
    int d = o->s->spec.shape.head_dim, R = o->s->spec.shape.n_heads / o->s->spec.shape.n_kv_heads;
    double *logit = work, *prob = logit + o->n, *mean = prob + o->n, *cov = mean + d,
           *tmp = cov + (int64_t)d * d;
    rk_span s = spans[g];
    s.n = (int32_t)o->n;
    RK_TRY(o->s->be->ops->kv_read(o->s->be, d, &s, 1, k, v));
    memset(prob, 0, (size_t)o->n * sizeof *prob);
    for (int r = 0; r < R; r++) {
        future_query(o, g * R + r, cs, mean, cov, tmp);
        add_expected(o, p, mean, cov, k, logit, prob);
    }
    for (int64_t j = 0; j < o->n; j++)
        score[j] = (float)((prob[j] + p->epsilon) * (p->no_value_norm ? 1 : norm(v + j * d, d)));
    return RK_OK;
}

static rk_status expected_scores(rk_observer *o, const rk_select_params *p, const rk_span *spans,
                                 float *score) {
    int       d = o->s->spec.shape.head_dim;
    double    cs[MOST_DIM], *work = NULL;
    float    *kv = NULL;
    rk_status st = RK_OK;
    if (p->sinks != o->s->spec.sinks)
        return RK_FAIL(RK_E_BUG, "moments were taken behind %d sinks, not %d", o->s->spec.sinks,
                       p->sinks);
    if (o->n <= o->s->spec.sinks) {
        memset(score, 0, (size_t)(o->s->spec.shape.n_kv_heads * o->n) * sizeof *score);
        return RK_OK;
    }
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * o->n * d, sizeof(float), "keys and values", &kv));
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * o->n + (int64_t)d * (2 * d + 1), sizeof(double),
                                   "expected attention", &work));
    mean_rotation(o, p->n_future ? p->n_future : FUTURE, cs);
    for (int g = 0; g < o->s->spec.shape.n_kv_heads; g++)
        RK_TRY_OUT(st,
                   expected_head(o, p, spans, g, cs, kv, kv + o->n * d, work, score + g * o->n));
out:
    rk_mem_free(kv);
    rk_mem_free(work);
    return st;
}

rk_status rk_observer_scores(rk_observer *o, const rk_select_params *p, const rk_span *spans,
                             int layer, float *score) {
    unsigned need = rk_select_sees(p);
    if ((need & o->s->spec.see) != need)
        return RK_FAIL(RK_E_BUG, "policy %s reads what was not observed",
                       rk_policy_name(p->policy));
    switch (p->policy) {
    case RK_POLICY_SNAPKV:
        return snap_scores(o, p, spans, score);
    case RK_POLICY_TOVA:
        return tova_scores(o, spans, score);
    case RK_POLICY_H2O:
        h2o_scores(o, p, score);
        return RK_OK;
    case RK_POLICY_KNORM:
        return knorm_scores(o, spans, score);
    case RK_POLICY_RANDOM:
        random_scores(o, p, layer, score);
        return RK_OK;
    case RK_POLICY_EXPECTED:
        return expected_scores(o, p, spans, score);
    default:
        return RK_FAIL(RK_E_BUG, "policy %s has no scores", rk_policy_name(p->policy));
    }
}
