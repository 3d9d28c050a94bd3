/* test_schedule.c - op lists of slots, and the checker that must see every fault in them. */
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "pipeline/schedule.h"
#include "tests/suites.h"

enum { MAX_P = 8, MAX_V = 4, MAX_L = 64, MAX_SLOTS = 256, MAX_FORKS = 2048, MAX_OPS = 20000 };

static uint64_t random_state;

/* Uniform in [lo, hi]. */
static int draw(int lo, int hi) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return lo + (int)((random_state >> 33) % (uint64_t)(hi - lo + 1));
}

/* ---- a job under construction ---- */

typedef struct job {
    rk_schedule s;
    int         begin[MAX_P * MAX_V + 1];
    rk_slot     slots[MAX_SLOTS];
    int32_t     forks[MAX_FORKS];
    int         n_slots, n_forks;
} job;

static job test_job; /* too large for a stack frame */

static void job_begin(job *j, int P, int v, int L) {
    memset(j, 0, sizeof *j);
    j->s = (rk_schedule){P, v, L, 64, j->begin, 4096};
    for (int g = 0; g <= P * v; g++) j->begin[g] = g * L / (P * v);
}

static int add_slot(job *j, rk_slot_kind kind, int rows, int64_t back, int64_t stat, int after) {
    j->slots[j->n_slots] = (rk_slot){.kind = kind, .n_rows = rows, .back_bytes = back,
                                     .stat_bytes = stat, .after = after};
    return j->n_slots++;
}

/* n variants that begin at random layers, ascending. */
static void add_forks(job *j, int slot, int n) {
    int32_t *at = j->forks + j->n_forks;
    int      layer = 0;
    for (int i = 0; i < n; i++) {
        layer += draw(0, 2);
        at[i] = layer < j->s.n_layers ? layer : j->s.n_layers - 1;
    }
    j->slots[slot].fork_layer = at;
    j->slots[slot].n_forks = n;
    j->n_forks += n;
}

/* steps tokens for each of m micro-batches in turn; each needs its token of the step before. */
static void add_decode(job *j, int m, int steps, int first_after) {
    int last[16];
    for (int i = 0; i < m; i++) last[i] = first_after;
    for (int t = 0; t < steps; t++)
        for (int i = 0; i < m; i++) {
            int rows = draw(1, 4), back = draw(1, 64);
            last[i] = add_slot(j, RK_SLOT_DECODE, rows, back, 0, last[i]);
        }
}

static void add_random_prompt(job *j) {
    int after = -1;
    for (int c = draw(1, 6); c > 0; c--) {
        int rows = draw(1, 9), back = c == 1 ? draw(0, 9) : 0, stat = draw(0, 3) ? 0 : 16;
        after = add_slot(j, RK_SLOT_PREFILL, rows, back, stat, -1);
    }
    if (draw(0, 1)) {
        int rows = draw(1, 5), back = draw(0, 99), stat = draw(0, 1) * 40;
        int slot = add_slot(j, RK_SLOT_MEASURE, rows, back, stat, -1);
        add_forks(j, slot, draw(0, 12));
    }
    if (draw(0, 1)) {
        int stat = draw(0, 1) * 24;
        add_slot(j, RK_SLOT_COMPRESS, 0, 0, stat, draw(0, 1) ? after : -1);
    }
    if (draw(0, 2)) {
        int m = draw(1, 9), steps = draw(1, 4);
        add_decode(j, m, steps, after);
    }
    if (draw(0, 1)) add_slot(j, RK_SLOT_FREE, 0, 0, 0, -1);
}

static const rk_schedule_cost unit_cost = {.layer_row_s = 1};
static const rk_schedule_cost slow_cost = {1e-3, 1e6, 1e-4, 1e-5};

static rk_schedule_report simulate(const job *j, const rk_schedule_cost *cost) {
    rk_schedule_report r = {0};
    rk_status st = rk_schedule_simulate(&j->s, j->slots, j->n_slots, cost, &r);
    CU_ASSERT_EQUAL(st, RK_OK);
    if (st != RK_OK) printf("\n  %s\n", rk_err_last()->text);
    CU_ASSERT_FALSE(r.deadlock);
    return r;
}

/* ---- rows, fields, lists ---- */

static void test_rows(void) {
    int32_t forks[] = {0, 2, 2, 5};
    rk_slot slot = {.kind = RK_SLOT_MEASURE, .n_rows = 3, .n_forks = 4, .fork_layer = forks};
    int64_t want[] = {3, 6, 6, 12, 12, 12, 15, 15};
    for (int l = 0; l < 8; l++) CU_ASSERT_EQUAL(rk_schedule_rows(&slot, l), want[l]);
    slot.n_forks = 0;
    CU_ASSERT_EQUAL(rk_schedule_rows(&slot, 7), 3);
    slot.n_rows = 2000000000;
    slot.n_forks = 4;
    CU_ASSERT_EQUAL(rk_schedule_rows(&slot, 7), INT64_C(10000000000));
}

static void test_check(void) {
    job *j = &test_job;
    job_begin(j, 3, 2, 7);
    CU_ASSERT_EQUAL(rk_schedule_check(&j->s), RK_OK);
    rk_schedule bad = j->s;
    bad.n_stages = 0;
    CU_ASSERT_EQUAL(rk_schedule_check(&bad), RK_E_USAGE);
    bad = j->s;
    bad.n_groups = 3;
    CU_ASSERT_EQUAL(rk_schedule_check(&bad), RK_E_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "7 layers"));
    bad = j->s;
    bad.d_model = 0;
    CU_ASSERT_EQUAL(rk_schedule_check(&bad), RK_E_USAGE);
    bad = j->s;
    bad.n_layers = 8;
    CU_ASSERT_EQUAL(rk_schedule_check(&bad), RK_E_USAGE);
    j->begin[2] = j->begin[3];
    CU_ASSERT_EQUAL(rk_schedule_check(&j->s), RK_E_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "group 2"));
}

static void print_ops(const rk_op *ops, int n, char *out, size_t cap) {
    static const char *const kinds[] = {"+recv", "?recv", "run", "+send", "?send"};
    static const char *const channels[] = {"plan", "rows", "back"};
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < n && at < cap; i++) {
        const rk_op *o = &ops[i];
        int k = o->kind == RK_OP_RUN
                    ? snprintf(out + at, cap - at, "run %d.%d, ", o->slot, o->group)
                    : snprintf(out + at, cap - at, "%s %s %d.%d @%d %lld, ", kinds[o->kind],
                               channels[o->channel], o->slot, o->group, o->peer,
                               (long long)o->bytes);
        at += (size_t)k;
    }
}

static void expect_list(const job *j, int stage, int which, const char *want) {
    rk_op ops[64];
    char  text[4096];
    int   n = rk_schedule_ops(&j->s, stage, j->slots, j->n_slots, which, ops, 64);
    CU_ASSERT(n <= 64);
    print_ops(ops, n, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, want);
    if (strcmp(text, want) != 0) printf("\n  stage %d slot %d: %s\n", stage, which, text);
}

/* The lists of the opening comment, written out. */
static void test_lists(void) {
    job *j = &test_job;
    job_begin(j, 3, 1, 6);
    add_slot(j, RK_SLOT_PREFILL, 10, 0, 0, -1);
    add_slot(j, RK_SLOT_PREFILL, 5, 4, 0, -1);
    add_slot(j, RK_SLOT_COMPRESS, 0, 0, 24, -1);
    add_slot(j, RK_SLOT_DECODE, 1, 4, 0, 1);
    add_slot(j, RK_SLOT_STOP, 0, 0, 0, -1);
    expect_list(j, 0, 0, "+send plan 0.0 @1 4096, run 0.0, +send rows 0.1 @1 2560, ");
    expect_list(j, 0, 2, "?send plan 0.0 @1 4096, ?send rows 0.1 @1 2560, +recv back 2.1 @1 24, "
                         "+recv back 2.1 @2 24, +send plan 2.0 @1 4096, run 2.0, ");
    expect_list(j, 0, 3, "?recv back 1.0 @2 4, ?send plan 1.0 @1 4096, ?send rows 1.1 @1 1280, "
                         "+recv back 3.0 @2 4, +send plan 3.0 @1 4096, run 3.0, "
                         "+send rows 3.1 @1 256, ");
    expect_list(j, 0, 4, "?send plan 2.0 @1 4096, +send plan 4.0 @1 4096, ?send plan 3.0 @1 4096, "
                         "?send plan 4.0 @1 4096, ?send rows 3.1 @1 256, ?recv back 2.1 @1 24, "
                         "?recv back 2.1 @2 24, ?recv back 3.0 @2 4, ");
    expect_list(j, 1, 0, "+recv plan 0.0 @0 4096, ?recv plan 0.0 @0 4096, +recv plan 1.0 @0 4096, "
                         "+recv rows 0.1 @0 2560, +send plan 0.0 @2 4096, ?recv rows 0.1 @0 2560, "
                         "run 0.1, +send rows 0.2 @2 2560, ");
    expect_list(j, 1, 2, "?recv plan 2.0 @0 4096, ?send plan 1.0 @2 4096, +recv plan 3.0 @0 4096, "
                         "?send rows 0.2 @2 2560, +send plan 2.0 @2 4096, run 2.1, "
                         "+send back 2.1 @0 24, ");
    expect_list(j, 2, 3, "?recv plan 3.0 @1 4096, +recv plan 4.0 @1 4096, ?send back 1.0 @0 4, "
                         "+recv rows 3.2 @1 256, ?recv rows 3.2 @1 256, run 3.2, "
                         "+send back 3.0 @0 4, ");
    expect_list(j, 2, 4, "?recv plan 4.0 @1 4096, ?send back 2.1 @0 24, ?send back 3.0 @0 4, ");
}

static void test_lists_circular(void) {
    job *j = &test_job;
    job_begin(j, 2, 2, 4);
    add_slot(j, RK_SLOT_PREFILL, 1, 0, 0, -1);
    add_slot(j, RK_SLOT_PREFILL, 1, 0, 0, -1);
    add_slot(j, RK_SLOT_STOP, 0, 0, 0, -1);
    expect_list(j, 0, 1, "?send rows 0.1 @1 256, +send plan 1.0 @1 4096, "
                         "?send rows 0.3 @1 256, +recv rows 1.2 @1 256, run 1.0, "
                         "+send rows 1.1 @1 256, ?recv rows 1.2 @1 256, run 1.2, "
                         "+send rows 1.3 @1 256, ");
    expect_list(j, 1, 1, "?recv plan 1.0 @0 4096, +recv plan 2.0 @0 4096, ?send rows 0.2 @0 256, "
                         "+recv rows 1.1 @0 256, ?recv rows 1.1 @0 256, +recv rows 1.3 @0 256, "
                         "run 1.1, +send rows 1.2 @0 256, ?recv rows 1.3 @0 256, run 1.3, ");
}

static void test_one_stage(void) {
    job *j = &test_job;
    job_begin(j, 1, 2, 4);
    int first = add_slot(j, RK_SLOT_PREFILL, 3, 4, 8, -1);
    add_slot(j, RK_SLOT_DECODE, 1, 4, 0, first);
    add_slot(j, RK_SLOT_STOP, 0, 0, 8, -1);
    expect_list(j, 0, 0, "run 0.0, run 0.1, ");
    expect_list(j, 0, 1, "run 1.0, run 1.1, ");
    expect_list(j, 0, 2, "");
    rk_schedule_report r = simulate(j, &unit_cost);
    CU_ASSERT_DOUBLE_EQUAL(r.makespan_s, 16, 1e-9);
    CU_ASSERT_EQUAL(r.max_in_flight, 0);
}

/* ---- properties of random jobs ---- */

static void random_job(job *j, int P, int v) {
    job_begin(j, P, v, P * v + draw(0, 6));
    for (int n = draw(1, 3); n > 0; n--) add_random_prompt(j);
    add_slot(j, RK_SLOT_STOP, 0, 0, draw(0, 1) * 48, -1);
}

static void test_random_jobs(void) {
    random_state = 1;
    for (int P = 1; P <= MAX_P; P++)
        for (int v = 1; v <= MAX_V; v++)
            for (int i = 0; i < 12; i++) {
                random_job(&test_job, P, v);
                rk_schedule_report r = simulate(&test_job, i % 2 ? &slow_cost : &unit_cost);
                CU_ASSERT(r.makespan_s * P >= r.busy_s * (1 - 1e-12));
                CU_ASSERT_EQUAL(r.stuck_stage, -1);
            }
}

/* Small and lopsided ones: one sequence, one row, fewer chunks or micro-batches than stages. */
static void test_small_jobs(void) {
    for (int P = 1; P <= MAX_P; P++)
        for (int v = 1; v <= MAX_V; v++)
            for (int m = 1; m <= 9; m++) {
                job *j = &test_job;
                job_begin(j, P, v, P * v);
                int last = add_slot(j, RK_SLOT_PREFILL, 1, 4, 0, -1);
                add_decode(j, m, 3, last);
                add_slot(j, RK_SLOT_STOP, 0, 0, 0, -1);
                simulate(j, &slow_cost);
            }
    for (int P = 1; P <= MAX_P; P++) {
        job_begin(&test_job, P, 1, P);
        add_slot(&test_job, RK_SLOT_STOP, 0, 0, 0, -1);
        rk_schedule_report r = simulate(&test_job, &unit_cost);
        CU_ASSERT_EQUAL(r.makespan_s, 0);
    }
}

/* The engine asks slot by slot: what comes later does not matter, nor what is long past. */
static void test_local(void) {
    random_state = 2;
    for (int i = 0; i < 60; i++) {
        int P = draw(1, 5), v = draw(1, 3);
        random_job(&test_job, P, v);
        job *j = &test_job;
        int  cap = rk_schedule_max_ops(&j->s);
        for (int w = 0; w < j->n_slots; w++)
            for (int p = 0; p < P; p++) {
                rk_op a[256], b[256], few[3];
                int   n = rk_schedule_ops(&j->s, p, j->slots, j->n_slots, w, a, 256);
                bool  stop = j->slots[w].kind == RK_SLOT_STOP;
                CU_ASSERT(n <= cap || (stop && p == 0));
                CU_ASSERT(n <= 256);
                CU_ASSERT_EQUAL(rk_schedule_ops(&j->s, p, j->slots, j->n_slots, w, few, 3), n);
                CU_ASSERT_EQUAL(memcmp(few, a, sizeof *a * (size_t)(n < 3 ? n : 3)), 0);
                rk_slot kept[MAX_SLOTS];
                memcpy(kept, j->slots, sizeof kept);
                for (int k = 0; k < MAX_SLOTS; k++)
                    if (k > w || (p > 0 && k < w - 2))
                        j->slots[k] = (rk_slot){.kind = RK_SLOT_DECODE, .n_rows = 77,
                                                .back_bytes = 9, .stat_bytes = 3, .after = -1};
                CU_ASSERT_EQUAL(rk_schedule_ops(&j->s, p, j->slots, w + 1, w, b, 256), n);
                CU_ASSERT_EQUAL(memcmp(a, b, sizeof *a * (size_t)n), 0);
                memcpy(j->slots, kept, sizeof kept);
            }
    }
}

/* No two messages of a pair of stages share channel and number. */
static void test_steps(void) {
    random_state = 3;
    for (int i = 0; i < 40; i++) {
        int P = draw(2, 4), v = draw(1, 3), n_seen = 0;
        random_job(&test_job, P, v);
        static struct {
            int from, to, channel, step;
        } seen[MAX_OPS];
        job *j = &test_job;
        for (int p = 0; p < P; p++)
            for (int w = 0; w < j->n_slots; w++) {
                rk_op ops[256];
                int   n = rk_schedule_ops(&j->s, p, j->slots, j->n_slots, w, ops, 256);
                for (int k = 0; k < n; k++) {
                    if (ops[k].kind != RK_OP_POST_SEND) continue;
                    int step = rk_schedule_step(&j->s, &ops[k]), same = 0;
                    for (int q = 0; q < n_seen; q++)
                        same += seen[q].from == p && seen[q].to == ops[k].peer &&
                                seen[q].channel == (int)ops[k].channel && seen[q].step == step;
                    CU_ASSERT_EQUAL(same, 0);
                    seen[n_seen].from = p;
                    seen[n_seen].to = ops[k].peer;
                    seen[n_seen].channel = (int)ops[k].channel;
                    seen[n_seen++].step = step;
                }
            }
    }
}

/* ---- time ---- */

static void add_chunks(job *j, int n) {
    for (int c = 0; c < n; c++) add_slot(j, RK_SLOT_PREFILL, 8, 0, 0, -1);
    add_slot(j, RK_SLOT_STOP, 0, 0, 0, -1);
}

/* C equal chunks on P stages: (C + P - 1) t; slot-major with v groups C ((v-1) P + 1) t + (P-1) t.
 * With a time h per hop the first chunk's way and nothing else grows. */
static void test_prefill_time(void) {
    const double t = 8 * 2; /* 8 rows, 2 layers a group */
    for (int P = 1; P <= MAX_P; P++)
        for (int C = 1; C <= 20; C++) {
            for (int v = 1; v <= 3; v++) {
                job_begin(&test_job, P, v, 2 * P * v);
                add_chunks(&test_job, C);
                rk_schedule_report r = simulate(&test_job, &unit_cost);
                CU_ASSERT_DOUBLE_EQUAL(r.makespan_s, (C * ((v - 1) * P + 1) + P - 1) * t, 1e-6);
                CU_ASSERT_DOUBLE_EQUAL(r.busy_s, C * P * v * t, 1e-6);
            }
            job_begin(&test_job, P, 1, 2 * P);
            add_chunks(&test_job, C);
            rk_schedule_cost cost = {.latency_s = 0.5, .layer_row_s = 1};
            rk_schedule_report r = simulate(&test_job, &cost);
            CU_ASSERT(r.makespan_s >= (C + P - 1) * t + (P - 1) * 0.5 - 1e-9);
            CU_ASSERT(r.makespan_s <= (C + P - 1) * t + (C + P) * 0.5 * 3);
            if (P > 1) CU_ASSERT(r.max_in_flight > 0);
        }
}

/* m micro-batches of equal time round the ring of P: a step takes max(m, P) t. */
static void test_decode_time(void) {
    for (int P = 1; P <= MAX_P; P++)
        for (int m = 1; m <= 9; m++) {
            const int steps = 5;
            job_begin(&test_job, P, 1, P);
            int last[16];
            for (int i = 0; i < m; i++) last[i] = -1;
            for (int k = 0; k < steps; k++)
                for (int i = 0; i < m; i++)
                    last[i] = add_slot(&test_job, RK_SLOT_DECODE, 1, 4, 0, last[i]);
            add_slot(&test_job, RK_SLOT_STOP, 0, 0, 0, -1);
            rk_schedule_report r = simulate(&test_job, &unit_cost);
            double want = m >= P ? steps * m + P - 1 : steps * P + m - 1;
            CU_ASSERT_DOUBLE_EQUAL(r.makespan_s, want, 1e-9);
        }
}

/* A variant costs its rows from its fork's layer on, in time and on the wire. */
static void test_fork_time(void) {
    job *j = &test_job;
    job_begin(j, 2, 1, 4);
    int slot = add_slot(j, RK_SLOT_MEASURE, 2, 0, 0, -1);
    static const int32_t forks[] = {0, 1, 2, 3};
    j->slots[slot].fork_layer = forks;
    j->slots[slot].n_forks = 4;
    add_slot(j, RK_SLOT_STOP, 0, 0, 0, -1);
    rk_schedule_report r = simulate(j, &unit_cost);
    CU_ASSERT_DOUBLE_EQUAL(r.busy_s, 2 * (2 + 3 + 4 + 5), 1e-9);
    rk_op ops[64];
    int   n = rk_schedule_ops(&j->s, 0, j->slots, j->n_slots, slot, ops, 64);
    CU_ASSERT_EQUAL(ops[n - 1].kind, RK_OP_POST_SEND);
    CU_ASSERT_EQUAL(ops[n - 1].bytes, 2 * 3 * 4 * 64); /* layer 2's own variant begins there */
}

/* ---- planted faults ---- */

typedef struct programs {
    rk_op  ops[MAX_P][2048];
    int    n[MAX_P];
    rk_op *lists[MAX_P];
} programs;

static programs planted, original;

static void make_programs(const job *j, programs *g) {
    memset(g->n, 0, sizeof g->n);
    for (int p = 0; p < j->s.n_stages; p++)
        for (int w = 0; w < j->n_slots; w++)
            g->n[p] += rk_schedule_ops(&j->s, p, j->slots, j->n_slots, w, g->ops[p] + g->n[p],
                                       2048 - g->n[p]);
}

typedef enum verdict { FINE, STUCK, WRONG } verdict;

static verdict judge(const job *j, programs *g, rk_schedule_report *report) {
    rk_schedule_report r = {0};
    for (int p = 0; p < j->s.n_stages; p++) g->lists[p] = g->ops[p];
    rk_status st = rk_schedule_simulate_ops(&j->s, j->slots, j->n_slots,
                                            (const rk_op *const *)g->lists, g->n, &slow_cost, &r);
    if (report) *report = r;
    if (st != RK_OK) {
        CU_ASSERT_EQUAL(st, RK_E_BUG);
        return WRONG;
    }
    return r.deadlock ? STUCK : FINE;
}

/* Where an op stands in a program; -1: nowhere. */
static int find_op(const programs *g, int p, rk_op_kind kind, rk_channel ch, int slot) {
    for (int i = 0; i < g->n[p]; i++)
        if (g->ops[p][i].kind == kind && g->ops[p][i].channel == ch && g->ops[p][i].slot == slot)
            return i;
    CU_FAIL("no such op");
    return 0;
}

/* Take the op at `from` out and put it before what then stands at `to`. */
static void move_op(programs *g, int p, int from, int to) {
    rk_op op = g->ops[p][from];
    memmove(&g->ops[p][from], &g->ops[p][from + 1], sizeof op * (size_t)(g->n[p] - from - 1));
    memmove(&g->ops[p][to + 1], &g->ops[p][to], sizeof op * (size_t)(g->n[p] - 1 - to));
    g->ops[p][to] = op;
}

static void remove_op(programs *g, int p, int at) {
    g->n[p]--;
    memmove(&g->ops[p][at], &g->ops[p][at + 1], sizeof(rk_op) * (size_t)(g->n[p] - at));
}

static void planted_job(job *j, int P, int v) {
    job_begin(j, P, v, P * v + 1);
    add_slot(j, RK_SLOT_PREFILL, 4, 0, 8, -1);
    int after = add_slot(j, RK_SLOT_PREFILL, 3, 4, 0, -1);
    int slot = add_slot(j, RK_SLOT_MEASURE, 2, 16, 0, -1);
    add_forks(j, slot, 3);
    add_slot(j, RK_SLOT_COMPRESS, 0, 0, 24, -1);
    add_decode(j, 2, 2, after);
    add_slot(j, RK_SLOT_FREE, 0, 0, 0, -1);
    add_slot(j, RK_SLOT_STOP, 0, 0, 40, -1);
    make_programs(j, &original);
}

/* No single op can be missing, doubled or changed. */
static void test_faults_single(void) {
    random_state = 4;
    for (int P = 1; P <= 4; P++)
        for (int v = 1; v <= 3; v++) {
            planted_job(&test_job, P, v);
            planted = original;
            CU_ASSERT_EQUAL(judge(&test_job, &planted, NULL), FINE);
            for (int p = 0; p < P; p++)
                for (int i = 0; i < original.n[p]; i++) {
                    planted = original;
                    remove_op(&planted, p, i);
                    CU_ASSERT_NOT_EQUAL(judge(&test_job, &planted, NULL), FINE);
                    planted = original;
                    planted.ops[p][planted.n[p]++] = planted.ops[p][i];
                    CU_ASSERT_NOT_EQUAL(judge(&test_job, &planted, NULL), FINE);
                    planted = original;
                    planted.ops[p][i].slot++;
                    CU_ASSERT_NOT_EQUAL(judge(&test_job, &planted, NULL), FINE);
                    if (original.ops[p][i].kind == RK_OP_RUN) continue;
                    planted = original;
                    planted.ops[p][i].bytes++;
                    CU_ASSERT_EQUAL(judge(&test_job, &planted, NULL), WRONG);
                    planted = original;
                    planted.ops[p][i].peer = (planted.ops[p][i].peer + 1) % P;
                    CU_ASSERT_EQUAL(judge(&test_job, &planted, NULL), WRONG);
                }
        }
}

/* Both ends agree with themselves, but not with each other. */
static void test_fault_sizes(void) {
    planted_job(&test_job, 3, 2);
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < original.n[p]; i++) {
            rk_op op = original.ops[p][i];
            if (op.kind != RK_OP_POST_RECV && op.kind != RK_OP_POST_SEND) continue;
            planted = original;
            for (int k = i; k < planted.n[p]; k++) {
                rk_op *o = &planted.ops[p][k];
                bool   same = o->kind == op.kind || (int)o->kind == (int)op.kind + 1;
                if (same && o->channel == op.channel && o->slot == op.slot &&
                    o->group == op.group && o->peer == op.peer)
                    o->bytes -= 4;
            }
            CU_ASSERT_EQUAL(judge(&test_job, &planted, NULL), WRONG);
            CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "sizes differ"));
        }
}

/* A wait for what is never posted, in a list whose end is open. */
static void test_fault_open_wait(void) {
    planted_job(&test_job, 2, 1);
    test_job.n_slots--;
    make_programs(&test_job, &original);
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < original.n[p]; i++) {
            rk_op_kind kind = original.ops[p][i].kind;
            if (kind != RK_OP_WAIT_RECV && kind != RK_OP_WAIT_SEND) continue;
            for (int k = 0; k < i; k++) {
                rk_op *o = &original.ops[p][k], *w = &original.ops[p][i];
                if ((int)o->kind + 1 != (int)kind || /* the post that belongs to the wait */
                    o->channel != w->channel || o->slot != w->slot || o->group != w->group ||
                    o->peer != w->peer)
                    continue;
                planted = original;
                remove_op(&planted, p, k);
                CU_ASSERT_EQUAL(judge(&test_job, &planted, NULL), WRONG);
            }
        }
}

/* A receive that is posted after it is waited for. */
static void test_fault_late_post(void) {
    planted_job(&test_job, 3, 1);
    planted = original;
    int post = find_op(&planted, 1, RK_OP_POST_RECV, RK_CH_ROWS, 2);
    move_op(&planted, 1, post, find_op(&planted, 1, RK_OP_WAIT_RECV, RK_CH_ROWS, 2));
    rk_schedule_report r;
    CU_ASSERT_EQUAL(judge(&test_job, &planted, &r), STUCK);
    CU_ASSERT_EQUAL(r.stuck_slot, 2);
    CU_ASSERT_EQUAL(r.stuck_stage, 1);
}

/* Rank 0 waits for a result before it has sent the plan that leads to it. */
static void test_fault_early_wait(void) {
    planted_job(&test_job, 3, 1);
    planted = original;
    int wait = find_op(&planted, 0, RK_OP_WAIT_RECV, RK_CH_BACK, 1);
    move_op(&planted, 0, wait, find_op(&planted, 0, RK_OP_POST_SEND, RK_CH_PLAN, 1));
    rk_schedule_report r;
    CU_ASSERT_EQUAL(judge(&test_job, &planted, &r), STUCK);
    CU_ASSERT(r.stuck_slot <= 2);
}

/* Both sides send first and receive later: works where messages are buffered, and only there. */
static void test_fault_send_first(void) {
    job *j = &test_job;
    job_begin(j, 2, 1, 2);
    add_slot(j, RK_SLOT_PREFILL, 1, 4, 0, -1);
    add_slot(j, RK_SLOT_PREFILL, 1, 4, 0, -1);
    add_slot(j, RK_SLOT_STOP, 0, 0, 0, -1);
    make_programs(j, &original);
    planted = original;
    /* Stage 1 hands over result 0 before it listens for plan 1. */
    move_op(&planted, 1, find_op(&planted, 1, RK_OP_WAIT_SEND, RK_CH_BACK, 0),
            find_op(&planted, 1, RK_OP_POST_SEND, RK_CH_BACK, 0) + 1);
    move_op(&planted, 1, find_op(&planted, 1, RK_OP_POST_RECV, RK_CH_PLAN, 1),
            find_op(&planted, 1, RK_OP_WAIT_SEND, RK_CH_BACK, 0));
    CU_ASSERT_EQUAL(judge(j, &planted, NULL), FINE); /* one side alone does no harm */
    /* Rank 0 hands over plan 1 before it listens for result 0. */
    move_op(&planted, 0, find_op(&planted, 0, RK_OP_WAIT_SEND, RK_CH_PLAN, 1),
            find_op(&planted, 0, RK_OP_POST_SEND, RK_CH_PLAN, 1) + 1);
    move_op(&planted, 0, find_op(&planted, 0, RK_OP_POST_RECV, RK_CH_BACK, 0),
            find_op(&planted, 0, RK_OP_WAIT_SEND, RK_CH_PLAN, 1));
    rk_schedule_report r;
    CU_ASSERT_EQUAL(judge(j, &planted, &r), STUCK);
    CU_ASSERT_EQUAL(r.stuck_stage, 1);
    CU_ASSERT_EQUAL(r.stuck_slot, 0);
}

/* A program made as if slots needed no results is wrong for slots that do. */
static void test_fault_dropped_after(void) {
    job *j = &test_job;
    planted_job(j, 3, 1);
    int32_t kept[MAX_SLOTS];
    for (int i = 0; i < j->n_slots; i++) kept[i] = j->slots[i].after;
    for (int i = 0; i < j->n_slots; i++) j->slots[i].after = -1;
    make_programs(j, &planted);
    CU_ASSERT_EQUAL(judge(j, &planted, NULL), FINE);
    for (int i = 0; i < j->n_slots; i++) j->slots[i].after = kept[i];
    CU_ASSERT_EQUAL(judge(j, &planted, NULL), WRONG);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "result that the slot needs"));
    j->slots[2].after = 2; /* its own result: never there in time */
    make_programs(j, &planted);
    CU_ASSERT_EQUAL(judge(j, &planted, NULL), WRONG);
}

/* A third buffer would be needed if a send were not waited for until later. */
static void test_fault_buffers(void) {
    planted_job(&test_job, 3, 1);
    for (int p = 0; p < 2; p++) {
        planted = original;
        int wait = find_op(&planted, p, RK_OP_WAIT_SEND, RK_CH_ROWS, 0);
        move_op(&planted, p, wait, planted.n[p] - 1);
        CU_ASSERT_EQUAL(judge(&test_job, &planted, NULL), WRONG);
        CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "still being sent"));
    }
}

static void test_open_list(void) {
    random_state = 5;
    for (int i = 0; i < 20; i++) {
        int P = draw(1, 5), v = draw(1, 2);
        random_job(&test_job, P, v);
        test_job.n_slots--; /* no STOP */
        simulate(&test_job, &unit_cost);
    }
}

static void test_no_memory(void) {
    planted_job(&test_job, 3, 2);
    rk_schedule_report r = {.makespan_s = -7};
    int64_t   blocks = rk_mem_blocks();
    rk_status st = RK_E_MEM;
    for (int n = 1; n < 100 && st != RK_OK; n++) {
        rk_mem_fail_at(n);
        st = rk_schedule_simulate(&test_job.s, test_job.slots, test_job.n_slots, &unit_cost, &r);
        rk_mem_fail_at(0);
        CU_ASSERT(st == RK_OK || (st == RK_E_MEM && r.makespan_s == -7));
        CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
    }
    CU_ASSERT_EQUAL(st, RK_OK);
}

int rk_suite_schedule(void) {
    CU_pSuite s = CU_add_suite("schedule", NULL, NULL);
    if (!s) return 1;
    bool ok = CU_ADD_TEST(s, test_rows) && CU_ADD_TEST(s, test_check) &&
              CU_ADD_TEST(s, test_lists) && CU_ADD_TEST(s, test_lists_circular) &&
              CU_ADD_TEST(s, test_one_stage) && CU_ADD_TEST(s, test_random_jobs) &&
              CU_ADD_TEST(s, test_small_jobs) && CU_ADD_TEST(s, test_local) &&
              CU_ADD_TEST(s, test_steps) && CU_ADD_TEST(s, test_prefill_time) &&
              CU_ADD_TEST(s, test_decode_time) && CU_ADD_TEST(s, test_fork_time) &&
              CU_ADD_TEST(s, test_faults_single) && CU_ADD_TEST(s, test_fault_sizes) &&
              CU_ADD_TEST(s, test_fault_open_wait) && CU_ADD_TEST(s, test_fault_late_post) &&
              CU_ADD_TEST(s, test_fault_early_wait) && CU_ADD_TEST(s, test_fault_send_first) &&
              CU_ADD_TEST(s, test_fault_dropped_after) && CU_ADD_TEST(s, test_fault_buffers) &&
              CU_ADD_TEST(s, test_open_list) && CU_ADD_TEST(s, test_no_memory);
    return ok ? 0 : 1;
}
