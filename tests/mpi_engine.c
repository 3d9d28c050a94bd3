/* mpi_engine.c - the same bits for any number of ranks, chunking, batching and threads.
 *
 * Every rank computes the reference answers alone (a communicator of its own); then all ranks work
 * as stages of one pipeline under several settings, and rank 0 compares. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "core/budget.h"
#include "pipeline/batch.h"
#include "tests/tiny_model.h"

enum { LAYERS = 7, PROMPTS = 6, MAX_PROMPT = 300, MAX_NEW = 9, T = 5, FORKS = 3 };
enum { N_VARIANTS = FORKS + 1 + LAYERS * 3 + 1, KEPT = 60 };
static const int lengths[PROMPTS] = {1, 40, 200, 299, 64, 129};

typedef struct answers {
    uint64_t hash[PROMPTS];
    int32_t  token[PROMPTS][MAX_NEW];
    int64_t  n_new[PROMPTS], kv_bytes[PROMPTS];
    int32_t  stored[PROMPTS][LAYERS];
    rk_measured variant[N_VARIANTS], reference;
    int32_t     fork_stored[FORKS][LAYERS];
    int64_t     fork_bytes[FORKS];
    uint64_t    ref_hash, fork_hash;
} answers;

typedef struct setting {
    const char *backend, *isa, *partition;
    int         threads, chunk, sequences, row_cap;
    bool        compress, late;
} setting;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                             \
            rk_err_print(rk_err_last());                                                           \
            rk_comm_abort(RK_E_NO);                                                                \
        }                                                                                          \
    } while (0)

static void make_tokens(int32_t out[PROMPTS][MAX_PROMPT]) {
    uint32_t x = 12345;
    for (int p = 0; p < PROMPTS; p++)
        for (int i = 0; i < MAX_PROMPT; i++) {
            x = x * 1664525u + 1013904223u;
            out[p][i] = (int32_t)(x >> 24);
        }
}

static rk_select_params policy(void) {
    return (rk_select_params){.policy = RK_POLICY_SNAPKV, .window = 16, .sinks = 4, .pool = RK_POOL_MAX,
                              .kernel = 5};
}

/* The layer in which the fork that has one compressed layer has it. */
enum { ONE_LAYER = 4 };

/* Forks of the prompt in sequence 0: a copy; one layer compressed; all layers. */
static void make_forks(rk_engine *e, int64_t n, answers *a) {
    rk_select_params p = policy();
    for (int k = 0; k < FORKS; k++) {
        int32_t budget[LAYERS];
        for (int l = 0; l < LAYERS; l++)
            budget[l] = k == 2 ? KEPT - l : k == 1 && l == ONE_LAYER ? KEPT : (int32_t)n;
        CHECK(rk_engine_fork(e, 0, 1 + k, &p, k ? budget : NULL, MAX_NEW, a->fork_stored[k],
                             &a->fork_bytes[k]) == RK_OK);
        for (int l = 0; l < LAYERS; l++) CHECK(a->fork_stored[k][l] == budget[l]);
    }
}

/* Variants of every kind, and what must hold between them. */
static void measure(rk_engine *e, const int32_t *tokens, int n_prompt, answers *a) {
    rk_variant v[N_VARIANTS];
    int        n = 0, noise, single = -1;
    CHECK(rk_engine_prefill(e, 0, tokens, n_prompt, 0, NULL, NULL, NULL) == RK_OK);
    make_forks(e, n_prompt, a);
    for (int k = 0; k < FORKS; k++) v[n++] = (rk_variant){.kind = RK_VARIANT_SEQUENCE, .seq = 1 + k};
    noise = n;
    /* One more in the first layer: later layers' pages then lie where others have been. */
    v[n++] = (rk_variant){.layer = 0, .epsilon = 0.2f, .sample = 1};
    for (int l = 0; l < LAYERS; l++) {
        for (int d = 0; d < 2; d++)
            v[n++] = (rk_variant){.layer = l, .epsilon = 0.3f, .sample = 2, .draw = d};
        if (l == ONE_LAYER) single = n;
        v[n++] = (rk_variant){.kind = RK_VARIANT_COMPRESS, .layer = l, .budget = KEPT};
    }
    v[n++] = (rk_variant){.layer = LAYERS - 1, .epsilon = 0, .sample = 2};
    CHECK(rk_engine_measure(e, 0, tokens + n_prompt, T, 7, v, n, a->variant, &a->reference,
                            &a->ref_hash) == RK_OK);
    const rk_measured *m = a->variant, *none = &m[N_VARIANTS - 1], *copy = &m[0];
    CHECK(none->kl == 0 && none->agreement == 1 && none->local == 0 && none->nll == a->reference.nll);
    CHECK(copy->kl == 0 && copy->agreement == 1 && copy->nll == a->reference.nll);
    CHECK(a->reference.nll > 0 && a->reference.kl == 0 && a->reference.agreement == 1);
    for (int i = 1; i < N_VARIANTS - 1; i++) {
        CHECK(m[i].kl > 0 && isfinite(m[i].kl) && m[i].nll > 0);
        CHECK(v[i].kind == RK_VARIANT_NOISE ? m[i].local > 0.01 && m[i].local < 0.3 : m[i].local == 0);
    }
    CHECK(noise == FORKS && m[1].kl == m[single].kl && m[1].nll == m[single].nll);
    for (int k = 0; k <= FORKS; k++) CHECK(rk_engine_free(e, k) == RK_OK);
}

/* A fork that is decoded says what compression in place would have. */
static void decode_fork(rk_engine *e, const int32_t *tokens, int n_prompt, answers *a) {
    rk_select_params p = policy();
    uint64_t         hash[2];
    int32_t          budget[LAYERS];
    for (int l = 0; l < LAYERS; l++) budget[l] = KEPT - l;
    for (int in_place = 0; in_place < 2; in_place++) {
        rk_draw   d = {.seq = 0, .n_usable = RK_TINY_VOCAB};
        rk_drawn  out;
        rk_ticket t;
        CHECK(rk_engine_prefill(e, 0, tokens, n_prompt, MAX_NEW, in_place ? budget : NULL, &d, &t) == RK_OK);
        CHECK(rk_engine_result(e, t, &out) == RK_OK);
        if (in_place)
            CHECK(rk_engine_compress(e, 0, NULL, NULL) == RK_OK);
        else
            CHECK(rk_engine_fork(e, 0, 1, &p, budget, MAX_NEW, NULL, NULL) == RK_OK);
        d.seq = in_place ? 0 : 1;
        for (int i = 0; i < 4; i++) {
            d.token = out.token;
            CHECK(rk_engine_decode(e, &d, 1, &t) == RK_OK);
            CHECK(rk_engine_result(e, t, &out) == RK_OK);
        }
        hash[in_place] = out.logits_hash;
        CHECK(rk_engine_free(e, 0) == RK_OK);
        if (!in_place) CHECK(rk_engine_free(e, 1) == RK_OK);
    }
    CHECK(hash[0] == hash[1]);
    a->fork_hash = hash[0];
}

static void lead(rk_engine *e, const setting *s, answers *a) {
    static int32_t   tokens[PROMPTS][MAX_PROMPT];
    static int32_t   budget[PROMPTS][LAYERS];
    rk_request       req[PROMPTS];
    rk_completion    out[PROMPTS];
    rk_batch_options o = {.n_usable = RK_TINY_VOCAB, .first_compressed = s->late};
    double           sens[LAYERS] = {3, 1, 4, 1, 5, 9, 2};
    make_tokens(tokens);
    for (int p = 0; p < PROMPTS; p++) {
        rk_budget_spec b = {.n_layers = LAYERS, .n_prompt = lengths[p] - (s->late && lengths[p] > 1),
                            .ratio = 0.3, .allocator = RK_ALLOC_RIPPLE, .sensitivity = sens, .r = 4,
                            .gamma = 4, .beta = 20, .window = 16, .sinks = 4};
        rk_budget_result br;
        CHECK(rk_budget_split(&b, budget[p], &br) == RK_OK);
        req[p] = (rk_request){.tokens = tokens[p], .n_tokens = lengths[p], .max_new = MAX_NEW - p % 3,
                              .budget = s->compress ? budget[p] : NULL,
                              .sampler = {.temperature = p % 2 ? 0.9 : 0, .top_p = 0.95, .seed = 5}};
    }
    CHECK(rk_batch_run(e, &o, req, PROMPTS, out) == RK_OK);
    for (int p = 0; p < PROMPTS; p++) {
        a->hash[p] = out[p].logits_hash;
        a->n_new[p] = out[p].n_new;
        a->kv_bytes[p] = out[p].kv_bytes;
        memcpy(a->token[p], out[p].tokens, (size_t)out[p].n_new * sizeof(int32_t));
        memcpy(a->stored[p], out[p].kv_tokens, sizeof a->stored[p]);
        for (int l = 0; l < LAYERS; l++)
            CHECK(!s->compress || s->late || out[p].kv_tokens[l] == budget[p][l]);
        rk_completion_free(&out[p]);
    }
    measure(e, tokens[3], 211, a);
    decode_fork(e, tokens[3], 211, a);
    CHECK(rk_engine_stop(e) == RK_OK);
}

static void run(rk_comm *c, const char *model, const setting *s, answers *a) {
    rk_weights      *w;
    rk_engine       *e;
    rk_engine_config cfg = {.backend = s->backend, .isa = s->isa, .n_threads = s->threads,
                            .partition = s->partition, .chunk = s->chunk,
                            .max_sequences = s->sequences + FORKS, .max_prompt = MAX_PROMPT,
                            .max_new = MAX_NEW, .row_cap = s->row_cap, .max_response = T,
                            .select = policy(),
                            .quiet = true};
    memset(a, 0, sizeof *a);
    CHECK(rk_weights_open(model, &w) == RK_OK);
    CHECK(rk_engine_open(c, w, &cfg, &e) == RK_OK);
    if (rk_comm_rank(c) == 0)
        lead(e, s, a);
    else
        CHECK(rk_engine_serve(e) == RK_OK);
    rk_engine_close(e);
    rk_weights_close(w);
}

/* The setting alone on this rank, and under all ranks: equal to the last bit. */
static void compare(rk_comm *world, rk_comm *self, const char *model, const setting *alone,
                    const setting *together) {
    answers a, b;
    run(self, model, alone, &a);
    run(world, model, together, &b);
    if (rk_comm_rank(world) == 0) CHECK(memcmp(&a, &b, sizeof a) == 0);
}

int main(int argc, char **argv) {
    rk_comm *world, *self;
    char     model[] = "/tmp/rk-mpi-engine-XXXXXX";
    if (rk_comm_start(&argc, &argv, &world) != RK_OK) return 1;
    int64_t blocks = rk_mem_blocks();
    int me = rk_comm_rank(world);
    CHECK(rk_comm_split(world, me, &self) == RK_OK);
    if (me == 0) {
        rk_tiny_spec spec = rk_tiny_default();
        spec.n_layers = LAYERS;
        CHECK(mkstemp(model) >= 0);
        CHECK(rk_tiny_model_write_gguf(model, &spec) == RK_OK);
    }
    CHECK(rk_comm_bcast(world, model, sizeof model, 0) == RK_OK);
    const setting base = {.backend = "cpu", .threads = 1, .chunk = 512, .sequences = 1, .row_cap = 500,
                          .compress = true};
    setting s = base;
    compare(world, self, model, &base, &s);
    s = base, s.chunk = 37, s.sequences = 4, s.threads = 2, s.row_cap = 3 * T;
    compare(world, self, model, &base, &s);
    s = base, s.chunk = 7, s.sequences = PROMPTS, s.isa = "scalar", s.partition = "uniform";
    compare(world, self, model, &base, &s);
    setting full = base, f2 = base, late = base, l2 = base, ref = base, r2 = base;
    full.compress = false, f2 = full, f2.sequences = 3, f2.chunk = 64;
    compare(world, self, model, &full, &f2);
    late.late = true, l2 = late, l2.sequences = 5, l2.chunk = 33;
    compare(world, self, model, &late, &l2);
    ref.backend = "ref", r2 = ref, r2.chunk = 50, r2.sequences = 2;
    compare(world, self, model, &ref, &r2);
    if (me == 0) unlink(model);
    rk_comm_close(self);
    CHECK(rk_mem_blocks() == blocks);
    int64_t ok = 1;
    CHECK(rk_comm_sum_i64(world, &ok, 1) == RK_OK);
    if (me == 0) printf("%lld ranks: same bits\n", (long long)ok);
    rk_comm_finish(world);
    return 0;
}
