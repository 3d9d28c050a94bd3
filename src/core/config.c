/* config.c - ranges, rotation speeds and the shape hash of config.h.
 *
 * The llama3 rule (Llama 3.1): frequencies whose wave is shorter than original / high turn as they
 * are, those longer than original / low are slowed by factor, between them the speed is blended
 * linearly in original / wave. */
#include "core/config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "core/weights_internal.h"

static const double TWO_PI = 6.283185307179586476925286766559;

enum { MAX_LAYERS = 4096, MAX_DIM = 1 << 20, MAX_HEAD_DIM = 1024, KERNEL_BLOCK = 32 };

/* What is asked of an integer field. */
typedef struct rule {
    const char *name;
    int64_t     value, lo, hi;
    int         multiple;
} rule;

static rk_status check_rule(const rule *r, const char *origin) {
    if (r->value < r->lo || r->value > r->hi)
        return RK_FAIL(RK_E_INPUT, "%s: %s is %lld, expected %lld to %lld", origin, r->name,
                       (long long)r->value, (long long)r->lo, (long long)r->hi);
    if (r->value % r->multiple != 0)
        return RK_FAIL(RK_E_INPUT,
                       "%s: %s is %lld, not a multiple of %d: the kernels work in blocks of %d",
                       origin, r->name, (long long)r->value, r->multiple, r->multiple);
    return RK_OK;
}

/* NaN is refused too. */
static rk_status check_above(const char *name, double v, double lo, const char *origin) {
    if (!(v > lo) || !isfinite(v))
        return RK_FAIL(RK_E_INPUT, "%s: %s is %g, expected a number above %g", origin, name, v, lo);
    return RK_OK;
}

static rk_status check_rope(const rk_config *c, const char *origin) {
    RK_TRY(check_above("rope_theta", c->rope_theta, 1.0, origin));
    if (c->rope_scaling == RK_ROPE_PLAIN) return RK_OK;
    RK_TRY(check_above("rope scaling factor", c->rope_factor, 0.0, origin));
    if (c->rope_scaling == RK_ROPE_LINEAR) return RK_OK;
    RK_TRY(check_above("low_freq_factor", c->rope_low_freq, 0.0, origin));
    RK_TRY(check_above("high_freq_factor", c->rope_high_freq, 0.0, origin));
    if (c->rope_high_freq <= c->rope_low_freq)
        return RK_FAIL(RK_E_INPUT, "%s: high_freq_factor %g is not above low_freq_factor %g",
                       origin, c->rope_high_freq, c->rope_low_freq);
    rule r = {"original_max_position_embeddings", c->rope_original_positions, 1, INT32_MAX, 1};
    return check_rule(&r, origin);
}

rk_status rk_config_check(const rk_config *c, const char *origin) {
    const rule rules[] = {
        {"number of layers", c->n_layers, 1, MAX_LAYERS, 1},
        {"hidden size", c->d_model, 1, MAX_DIM, KERNEL_BLOCK},
        {"number of attention heads", c->n_heads, 1, MAX_DIM, 1},
        {"number of key-value heads", c->n_kv_heads, 1, c->n_heads, 1},
        {"head_dim", c->head_dim, 1, MAX_HEAD_DIM, KERNEL_BLOCK},
        {"heads x head_dim", (int64_t)c->n_heads * c->head_dim, 1, MAX_DIM, KERNEL_BLOCK},
        {"feed-forward size", c->d_ffn, 1, MAX_DIM, KERNEL_BLOCK},
        {"vocabulary size", c->n_vocab, 1, MAX_DIM, 1},
        {"number of positions", c->max_positions, 1, INT32_MAX, 1},
        {"bos token id", c->bos, -1, (int64_t)c->n_vocab - 1, 1},
        {"number of stop tokens", c->n_stop, 0, RK_MAX_STOP, 1},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        RK_TRY(check_rule(&rules[i], origin));
    if (c->n_heads % c->n_kv_heads != 0)
        return RK_FAIL(RK_E_INPUT, "%s: %d attention heads are no multiple of %d key-value heads",
                       origin, c->n_heads, c->n_kv_heads);
    for (int i = 0; i < c->n_stop; i++) {
        rule r = {"stop token id", c->stop[i], 0, (int64_t)c->n_vocab - 1, 1};
        RK_TRY(check_rule(&r, origin));
    }
    RK_TRY(check_above("RMS norm epsilon", c->rms_eps, 0.0, origin));
    if (c->rms_eps >= 1.0)
        return RK_FAIL(RK_E_INPUT, "%s: RMS norm epsilon is %g, expected less than 1", origin,
                       c->rms_eps);
    return check_rope(c, origin);
}

rk_status rk_config_add_stop(rk_config *c, int64_t id, const char *origin) {
    if (id < 0 || id > INT32_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: %lld is no token id", origin, (long long)id);
    for (int i = 0; i < c->n_stop; i++)
        if (c->stop[i] == id) return RK_OK;
    if (c->n_stop == RK_MAX_STOP)
        return RK_FAIL(RK_E_INPUT, "%s: more than %d tokens end a generation", origin, RK_MAX_STOP);
    c->stop[c->n_stop++] = (int32_t)id;
    return RK_OK;
}

/* ---- roles ----------------------------------------------------------------------------------- */

bool rk_role_per_layer(rk_role role) {
    return role >= RK_W_ATTN_NORM;
}

const char *rk_role_name(rk_role role) {
    static const char *const names[RK_W_ROLES] = {
        "embed", "out_norm", "head", "attn_norm", "q",      "k",      "v",      "o",     "ffn_norm",
        "gate",  "up",       "down", "q_bias",    "k_bias", "v_bias", "q_norm", "k_norm"};
    return names[role];
}

bool rk_role_wanted(const rk_config *c, rk_role role) {
    if (role == RK_W_HEAD) return !c->tied;
    if (role >= RK_W_Q_NORM) return c->qk_norm;
    if (role >= RK_W_Q_BIAS) return c->qkv_bias;
    return true;
}

bool rk_role_is_matrix(rk_role role) {
    return role == RK_W_EMBED || role == RK_W_HEAD || (role >= RK_W_Q && role <= RK_W_O) ||
           (role >= RK_W_GATE && role <= RK_W_DOWN);
}

void rk_role_shape(const rk_config *c, rk_role role, int *rows, int *cols) {
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    *rows = 1;
    *cols = c->d_model;
    switch (role) {
    case RK_W_EMBED:
    case RK_W_HEAD:
        *rows = c->n_vocab;
        break;
    case RK_W_OUT_NORM:
    case RK_W_ATTN_NORM:
    case RK_W_FFN_NORM:
        break;
    case RK_W_Q:
        *rows = q;
        break;
    case RK_W_K:
    case RK_W_V:
        *rows = kv;
        break;
    case RK_W_O:
        *rows = c->d_model;
        *cols = q;
        break;
    case RK_W_GATE:
    case RK_W_UP:
        *rows = c->d_ffn;
        break;
    case RK_W_DOWN:
        *rows = c->d_model;
        *cols = c->d_ffn;
        break;
    case RK_W_Q_BIAS:
        *cols = q;
        break;
    case RK_W_K_BIAS:
    case RK_W_V_BIAS:
        *cols = kv;
        break;
    case RK_W_Q_NORM:
    case RK_W_K_NORM:
        *cols = c->head_dim;
        break;
    case RK_W_ROLES:
        RK_ASSERT(role != RK_W_ROLES);
        break;
    }
}

/* ---- rotation -------------------------------------------------------------------------------- */

static double plain_speed(const rk_config *c, int i) {
    return 1.0 / pow(c->rope_theta, 2.0 * i / c->head_dim);
}

double rk_config_rope_factor(const rk_config *c, int i) {
    if (c->rope_scaling == RK_ROPE_PLAIN) return 1.0;
    if (c->rope_scaling == RK_ROPE_LINEAR) return c->rope_factor;
    double old = (double)c->rope_original_positions, wave = TWO_PI / plain_speed(c, i);
    if (wave < old / c->rope_high_freq) return 1.0;
    if (wave > old / c->rope_low_freq) return c->rope_factor;
    double blend = (old / wave - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return 1.0 / ((1.0 - blend) / c->rope_factor + blend);
}

void rk_config_rope_speeds(const rk_config *c, double *speed) {
    for (int i = 0; i < c->head_dim / 2; i++) speed[i] = plain_speed(c, i) / rk_config_rope_factor(c, i);
}

void rk_config_rope_table(const rk_config *c, int64_t first, int64_t n, float *out) {
    int d = c->head_dim;
    for (int i = 0; i < d / 2; i++) {
        double speed = plain_speed(c, i) / rk_config_rope_factor(c, i);
        for (int64_t p = 0; p < n; p++) {
            double angle = (double)(first + p) * speed;
            out[p * d + i] = (float)cos(angle);
            out[p * d + d / 2 + i] = (float)sin(angle);
        }
    }
}

/* A table made in f32 arithmetic is off by a few units in the last place. */
static bool fits(const rk_config *c, const float *factor) {
    const double tolerance = 1e-5;
    for (int i = 0; i < c->head_dim / 2; i++) {
        double want = rk_config_rope_factor(c, i);
        if (!(fabs((double)factor[i] - want) <= tolerance * want)) return false;
    }
    return true;
}

/* The thresholds of the rule matter only through original / low and high / low: low is set to a
 * small integer that makes original one, where there is such, else to what a fixed original asks.
 */
static bool try_llama3(rk_config *c, const float *factor, double old_by_low, double high_by_low) {
    enum { MAX_LOW = 8, HIGH_STEPS = 16, SOME_ORIGINAL = 8192 };
    const double near = 1e-3;
    for (int low = 1; low <= MAX_LOW; low++) {
        double old = old_by_low * low, high = high_by_low * low;
        double old_near = round(old), high_near = round(high * HIGH_STEPS) / HIGH_STEPS;
        if (fabs(old - old_near) > near * old || fabs(high - high_near) > near * high) continue;
        if (old_near < 1 || old_near > INT32_MAX) continue;
        c->rope_original_positions = (int64_t)old_near;
        c->rope_low_freq = low;
        c->rope_high_freq = high_near;
        if (fits(c, factor)) return true;
    }
    c->rope_original_positions = SOME_ORIGINAL;
    c->rope_low_freq = SOME_ORIGINAL / old_by_low;
    c->rope_high_freq = c->rope_low_freq * high_by_low;
    return fits(c, factor);
}

/* Find thresholds from the blended frequencies, of which lo and hi are the first and the last and
 * which begin after the first lo that keep their speed. Two or more fix them, fewer leave a choice.
 */
static bool fit_thresholds(rk_config *c, const float *factor, int lo, int hi, int n_blended) {
    static const double ratios[] = {4, 2, 8, 1.5, 16, 1.2, 32, 64};
    const double        k = c->rope_factor;
    if (n_blended == 0) { /* thresholds just within the last plain and the first slowed wave */
        double shorter = lo > 0 ? TWO_PI / plain_speed(c, lo - 1) : 1.0;
        double longer = TWO_PI / plain_speed(c, lo), inset = sqrt(sqrt(longer / shorter));
        return try_llama3(c, factor, longer / inset, longer / shorter / (inset * inset));
    }
    double x0 = plain_speed(c, lo) / TWO_PI, x1 = plain_speed(c, hi) / TWO_PI;
    double b0 = (1.0 / (double)factor[lo] - 1.0 / k) / (1.0 - 1.0 / k);
    double b1 = (1.0 / (double)factor[hi] - 1.0 / k) / (1.0 - 1.0 / k);
    if (n_blended > 1) {
        /* blend = slope / wave - start; slope, start = original, low, each / (high - low) */
        double slope = (b0 - b1) / (x0 - x1), start = slope * x0 - b0;
        if (!(start > 0) || !(slope > 0) || !isfinite(slope)) return false;
        return try_llama3(c, factor, slope / start, 1.0 + 1.0 / start);
    }
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++)
        if (try_llama3(c, factor, (b0 * (ratios[i] - 1.0) + 1.0) / x0, ratios[i])) return true;
    return false;
}

rk_status rk_config_fit_rope(rk_config *c, const float *factor, const char *origin) {
    const double edge = 1e-5;
    int          n = c->head_dim / 2, lo = 0, hi = 0, n_blended = 0;
    double       k = (double)factor[n - 1];
    bool         ok = k > 0 && isfinite(k);
    c->rope_scaling = RK_ROPE_LLAMA3;
    c->rope_factor = fabs(k - round(k)) < edge * k ? round(k) : k;
    while (ok && lo < n && fabs((double)factor[lo] - 1.0) <= edge) lo++;
    for (int i = lo; i < n; i++) {
        if (fabs((double)factor[i] - k) <= edge * k) continue;
        hi = i;
        n_blended++;
    }
    if (lo == n) {
        c->rope_scaling = RK_ROPE_PLAIN;
        c->rope_factor = 0;
    } else if (lo == 0 && n_blended == 0) {
        c->rope_scaling = RK_ROPE_LINEAR;
        ok = ok && fits(c, factor);
    } else {
        ok = ok && fit_thresholds(c, factor, lo, hi, n_blended);
    }
    if (!ok)
        return RK_FAIL(RK_E_INPUT,
                       "%s: the factors in rope_freqs.weight are not those of a llama3 scaling; "
                       "other kinds are not computed: use the model's Hugging Face folder",
                       origin);
    return RK_OK;
}

/* ---- shape hash ------------------------------------------------------------------------------ */

static void add_text(rk_hash_state *h, const char *text) {
    rk_hash_add(h, text, strlen(text));
}

/* A GGUF file holds reals as f32, so that is what two forms of a model agree on. Rotation enters as
 * the factors themselves: files name the same scaling differently. */
uint64_t rk_config_shape_hash(const rk_config *c) {
    rk_hash_state h;
    char          line[256];
    rk_hash_init(&h);
    snprintf(line, sizeof line, "shape 1\n%d %d %d %d %d %d %d\n%d %d %d\n%.9g %.9g\n", c->n_layers,
             c->d_model, c->n_heads, c->n_kv_heads, c->head_dim, c->d_ffn, c->n_vocab, c->tied,
             c->qkv_bias, c->qk_norm, (double)(float)c->rms_eps, (double)(float)c->rope_theta);
    add_text(&h, line);
    for (int i = 0; i < c->head_dim / 2; i++) {
        snprintf(line, sizeof line, "%.9g\n", (double)(float)rk_config_rope_factor(c, i));
        add_text(&h, line);
    }
    for (rk_role r = 0; r < RK_W_ROLES; r++) {
        int rows, cols;
        if (!rk_role_wanted(c, r)) continue;
        rk_role_shape(c, r, &rows, &cols);
        snprintf(line, sizeof line, "%s %d %d\n", rk_role_name(r), rows, cols);
        add_text(&h, line);
    }
    return rk_hash_digest(&h);
}
