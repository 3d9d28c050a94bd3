/* plan.c - partition, chunk and memory arithmetic. */
#include "core/plan.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { PAGE_SLOTS = 64, PACK = 32, F32_BYTES = 4 };

static rk_status check_stages(int n_layers, int n_stages) {
    if (n_stages < 1 || n_stages > n_layers)
        return RK_FAIL(RK_E_USAGE, "%d stages for %d layers: every stage needs at least one layer",
                       n_stages, n_layers);
    return RK_OK;
}

/* Best largest cost of stages p .. P - 1 holding layers l .. L - 1, from that of the later ones.
 * Stage costs are summed in layer order from the stage's first layer, so that equal runs of layers
 * cost the same to the bit. */
static double best_from(int n_layers, const double *cost, double first_cost, double last_cost,
                        int n_stages, int p, int l, const double *next) {
    double best = INFINITY, sum = 0, extra = p == 0 ? first_cost : 0;
    for (int e = l + 1; e <= n_layers; e++) {
        sum += cost[e - 1];
        double mine = sum + extra;
        if (p == n_stages - 1) {
            if (e == n_layers) best = mine + last_cost;
        } else {
            best = fmin(best, fmax(mine, next[e]));
        }
    }
    return best;
}

rk_status rk_plan_partition(int n_layers, const double *layer_cost, double first_cost,
                            double last_cost, int n_stages, int *begin) {
    RK_TRY(check_stages(n_layers, n_stages));
    for (int l = 0; l < n_layers; l++)
        if (!isfinite(layer_cost[l]) || layer_cost[l] < 0)
            return RK_FAIL(RK_E_BUG, "cost %g of layer %d", layer_cost[l], l);
    void  *mem = NULL;
    size_t width = (size_t)n_layers + 1;
    RK_TRY(rk_mem_alloc((int64_t)width * n_stages, sizeof(double), "partition table", &mem));
    double *best = mem; /* [P][L + 1] */
    for (int p = n_stages - 1; p >= 0; p--) {
        double *row = best + (size_t)p * width;
        for (int l = 0; l <= n_layers; l++)
            row[l] = p == 0 && l > 0 ? INFINITY
                                     : best_from(n_layers, layer_cost, first_cost, last_cost,
                                                 n_stages, p, l, row + width);
    }
    /* Forward: each stage as small as the optimum allows. */
    begin[0] = 0;
    for (int p = 0; p + 1 < n_stages; p++) {
        const double *next = best + (size_t)(p + 1) * width;
        double        sum = 0, extra = p == 0 ? first_cost : 0;
        for (int e = begin[p] + 1; e <= n_layers; e++) {
            sum += layer_cost[e - 1];
            begin[p + 1] = e;
            if (next[e] <= best[0] && sum + extra <= best[0]) break;
        }
    }
    begin[n_stages] = n_layers;
    rk_mem_free(mem);
    return RK_OK;
}

static void split_evenly(int n_layers, int n_stages, int *begin) {
    /* The remainder goes to the first stages: the last one also has the head. */
    for (int p = 0; p <= n_stages; p++) {
        int extra = n_layers % n_stages;
        begin[p] = p * (n_layers / n_stages) + (p < extra ? p : extra);
    }
}

/* One entry of the list, a number from 1 to n_layers; *text is moved behind it. -1: malformed. */
static int take_entry(const char **text, int n_layers) {
    const char *p = *text;
    int         v = 0;
    while (*p == ' ') p++;
    if (*p < '0' || *p > '9') return -1;
    for (; *p >= '0' && *p <= '9'; p++)
        if (v <= n_layers) v = v * 10 + (*p - '0');
    while (*p == ' ') p++;
    *text = p;
    return v;
}

/* check: only look; else write begin. */
static rk_status read_list(const char *text, int n_layers, int n_stages, int *begin, bool check) {
    const char *p = text;
    int64_t     sum = 0;
    int         n = 0;
    for (;; p++) {
        int v = take_entry(&p, n_layers);
        if (v < 0 || (*p != 0 && *p != ','))
            return RK_FAIL(RK_E_USAGE,
                           "--partition %s: write auto, uniform or layers per stage like 10,10,10",
                           text);
        if (v == 0)
            return RK_FAIL(RK_E_USAGE, "--partition %s: stage %d has no layer", text, n);
        sum += v;
        n++;
        if (!check) begin[n] = (int)sum;
        if (*p == 0) break;
    }
    if (n != n_stages)
        return RK_FAIL(RK_E_USAGE, "--partition %s: %d entries for %d stages", text, n, n_stages);
    if (sum != n_layers)
        return RK_FAIL(RK_E_USAGE, "--partition %s: the entries must sum to the model's %d layers",
                       text, n_layers);
    return RK_OK;
}

rk_status rk_plan_parse_partition(const char *text, int n_layers, int n_stages, int *begin,
                                  bool *explicit_list) {
    RK_TRY(check_stages(n_layers, n_stages));
    if (strcmp(text, "auto") == 0) {
        *explicit_list = false;
        return RK_OK;
    }
    if (strcmp(text, "uniform") == 0) {
        split_evenly(n_layers, n_stages, begin);
    } else {
        RK_TRY(read_list(text, n_layers, n_stages, NULL, true));
        begin[0] = 0;
        RK_TRY(read_list(text, n_layers, n_stages, begin, false));
    }
    *explicit_list = true;
    return RK_OK;
}

double rk_plan_layer_cost(const rk_config *c, double n_prompt, double n_rows, double n_kept) {
    double D = c->d_model, Hd = (double)c->n_heads * c->head_dim;
    double Gd = (double)c->n_kv_heads * c->head_dim, F = c->d_ffn;
    double matrices = D * (Hd + 2 * Gd) + Hd * D + 3 * D * F;
    /* prefill row i sees i + 1 keys; a key costs one product with K and one with V per head */
    double pairs = n_prompt * (n_prompt + 1) / 2 + n_rows * n_kept;
    return (n_prompt + n_rows) * matrices + pairs * 2 * Hd;
}

double rk_plan_head_cost(const rk_config *c, double n_rows) {
    return n_rows * (double)c->n_vocab * c->d_model;
}

int64_t rk_plan_n_chunks(int64_t n_prompt, int64_t chunk) {
    RK_ASSERT(n_prompt >= 0 && chunk > 0);
    return n_prompt / chunk + (n_prompt % chunk != 0);
}

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/* Bytes of a packed matrix. */
static int64_t packed(int64_t rows, int64_t cols, int weight_bytes) {
    return round_up(rows, PACK) * round_up(cols, PACK) * weight_bytes;
}

static int64_t weight_sum(const rk_plan_memory_spec *s) {
    const rk_config *c = s->config;
    int64_t          d = c->head_dim, D = c->d_model, F = c->d_ffn;
    int64_t          Hd = c->n_heads * d, qkv = Hd + 2 * c->n_kv_heads * d;
    int              wb = s->weight_bytes;
    int64_t          f32 = 2 * D + (c->qkv_bias ? qkv : 0) + (c->qk_norm ? 2 * d : 0);
    int64_t          layers = s->layer_end - s->layer_begin, table = packed(c->n_vocab, D, wb);
    int64_t          layer = packed(qkv, D, wb) + packed(D, Hd, wb) + packed(D, F, wb);
    layer += packed(2 * round_up(F, PACK / 2), D, wb);
    int64_t matrices = layers * layer;
    if (s->has_embed) matrices += table;
    if (s->has_head && !(c->tied && s->has_embed)) matrices += table;
    if (s->matrix_bytes > 0) matrices = s->matrix_bytes;
    return matrices + layers * f32 * F32_BYTES + (s->has_head ? D * F32_BYTES : 0);
}

/* Bytes of K and V of one layer and sequence: whole pages per stored head. */
static int64_t kv_layer(const rk_plan_memory_spec *s, int64_t slots) {
    return 2 * s->config->n_kv_heads * round_up(slots, PAGE_SLOTS) * s->config->head_dim *
           s->kv_bytes;
}

static int64_t buffer_sum(const rk_plan_memory_spec *s) {
    const rk_config *c = s->config;
    int64_t          d = c->head_dim, D = c->d_model, F = c->d_ffn, Hd = c->n_heads * d;
    int64_t          qkv = Hd + 2 * c->n_kv_heads * d;
    int64_t          input = D > Hd ? D : Hd; /* of a matrix product: normed rows, heads, ffn */
    if (F > input) input = F;
    int64_t row = D + qkv + input + d; /* d: RoPE cos and sin */
    int64_t sum = s->max_rows * row;
    if (s->has_head) sum += s->max_logit_rows * c->n_vocab;
    return sum * F32_BYTES + s->observe_bytes;
}

void rk_plan_memory_of(const rk_plan_memory_spec *s, rk_plan_memory *out) {
    int64_t full = 0, kept = 0; /* of one sequence, before and after compression */
    for (int l = s->layer_begin; l < s->layer_end; l++) {
        int64_t after = s->n_prompt;
        if (s->budget != NULL && s->budget[l] < after) after = s->budget[l];
        full += kv_layer(s, s->n_prompt + s->n_new);
        kept += kv_layer(s, after + s->n_new);
    }
    *out = (rk_plan_memory){.weights = weight_sum(s), .buffers = buffer_sum(s)};
    if (s->n_sequences > 0) {
        out->kv_peak = full + (s->n_sequences - 1) * kept;
        out->kv_after = s->n_sequences * kept;
    }
    out->total = out->weights + out->kv_peak + out->buffers;
}
