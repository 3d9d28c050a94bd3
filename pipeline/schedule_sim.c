/* schedule_sim.c - proves and prices programs of ops.
 *
 * First a pass over each program alone: every message is posted once at either end with one size
 * and waited for once; rows are there before a group runs, and a group has run before its rows
 * leave; no buffer is filled while the send from it may still read it; rank 0 holds the result that
 * a slot needs. Then all programs together, with rendezvous only: a wait ends when both ends are
 * posted and the message has travelled. As waits name their message, the outcome does not depend on
 * the order in which stages are advanced, so a round robin finds the one possible run. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "pipeline/schedule.h"

typedef struct side {
    bool    posted, waited; /* seen in the program */
    bool    ran;            /* posted in the run of all programs */
    int     stage;
    int64_t bytes;
    double  at_s;
} side;

typedef struct message {
    side send, recv;
} message;

typedef struct sim {
    const rk_schedule      *s;
    const rk_slot          *slots;
    int                     n_slots;
    const rk_op *const     *ops;
    const int              *n_ops;
    const rk_schedule_cost *cost;
    message                *messages; /* [n_slots + 1][per_slot]: plans, rows, results */
    int                     per_slot;
    uint8_t                *has_run;  /* [n_slots][P * v] */
    int                    *at;       /* [P] next op of each stage */
    double                 *now_s;    /* [P] */
} sim;

static const char *const kind_names[] = {"post receive", "wait for receive", "run", "post send",
                                         "wait for send"};
static const char *const channel_names[RK_CHANNELS] = {"plan", "rows", "results"};

static rk_status fail_op(int stage, const rk_op *op, const char *why) {
    return RK_FAIL(RK_E_BUG, "stage %d, slot %d, %s of %s with stage %d (group %d, %lld bytes): %s",
                   stage, op->slot, kind_names[op->kind], channel_names[op->channel], op->peer,
                   op->group, (long long)op->bytes, why);
}

static bool is_recv(const rk_op *op) {
    return op->kind == RK_OP_POST_RECV || op->kind == RK_OP_WAIT_RECV;
}

static message *message_at(const sim *m, rk_channel ch, int slot, int which) {
    int P = m->s->n_stages, first = 0;
    if (ch == RK_CH_ROWS) first = P;
    if (ch == RK_CH_BACK) first = P + P * m->s->n_groups;
    return &m->messages[(int64_t)slot * m->per_slot + first + which];
}

/* The message of an op; NULL if its fields name none. Plans are told apart by receiver, rows by the
 * group they enter, results by sender and rk_back. */
static message *message_of(const sim *m, int stage, const rk_op *op) {
    int P = m->s->n_stages;
    if (op->slot < 0 || op->slot > m->n_slots || op->peer < 0 || op->peer >= P) return NULL;
    int src = is_recv(op) ? op->peer : stage, dst = is_recv(op) ? stage : op->peer, which = 0;
    switch (op->channel) {
    case RK_CH_PLAN:
        if (dst != src + 1) return NULL;
        which = dst;
        break;
    case RK_CH_ROWS:
        if (op->group < 1 || op->group >= P * m->s->n_groups) return NULL;
        if (dst != op->group % P || src != (op->group - 1) % P) return NULL;
        which = op->group;
        break;
    case RK_CH_BACK:
        if (dst != 0 || src == 0 || op->group < RK_BACK_RESULT || op->group > RK_BACK_STATS)
            return NULL;
        which = src * 2 + op->group;
        break;
    default: return NULL;
    }
    return message_at(m, op->channel, op->slot, which);
}

/* ---- each program alone ---- */

static bool rows_moved(const sim *m, int slot, int g) {
    return m->s->n_stages > 1 && g > 0 && m->slots[slot].n_rows > 0;
}

/* The buffer of this stage's number k = slot * v + round is free: what was sent of number k - 2 has
 * been waited for. */
static bool buffer_free(const sim *m, int stage, int slot, int g) {
    int     P = m->s->n_stages, v = m->s->n_groups;
    int64_t k = (int64_t)slot * v + g / P - 2;
    if (k < 0) return true;
    int next = (int)(k % v) * P + stage + 1;
    if (next >= P * v) return true;
    const side *x = &message_at(m, RK_CH_ROWS, (int)(k / v), next)->send;
    return !x->posted || x->waited;
}

static rk_status check_run(const sim *m, int stage, const rk_op *op) {
    int P = m->s->n_stages, n = P * m->s->n_groups;
    if (op->slot < 0 || op->slot >= m->n_slots || op->group < 0 || op->group >= n ||
        op->group % P != stage)
        return fail_op(stage, op, "no such group here");
    uint8_t *ran = &m->has_run[(int64_t)op->slot * n + op->group];
    if (*ran) return fail_op(stage, op, "it has run before");
    if (rows_moved(m, op->slot, op->group) &&
        !message_at(m, RK_CH_ROWS, op->slot, op->group)->recv.waited)
        return fail_op(stage, op, "its rows are not there yet");
    if (op->group == 0 && !buffer_free(m, stage, op->slot, 0))
        return fail_op(stage, op, "its buffer is still being sent");
    *ran = 1;
    return RK_OK;
}

/* What must have happened at this stage before a post. */
static rk_status check_post(const sim *m, int stage, const rk_op *op) {
    int P = m->s->n_stages, n = P * m->s->n_groups;
    if (op->slot == m->n_slots) return RK_OK;
    const uint8_t *ran = &m->has_run[(int64_t)op->slot * n];
    const rk_slot *slot = &m->slots[op->slot];
    if (op->channel == RK_CH_ROWS && is_recv(op) && !buffer_free(m, stage, op->slot, op->group))
        return fail_op(stage, op, "its buffer is still being sent");
    if (is_recv(op)) return RK_OK;
    if (op->channel == RK_CH_ROWS && !ran[op->group - 1])
        return fail_op(stage, op, "the group before has not run");
    if (op->channel == RK_CH_BACK && op->group == RK_BACK_RESULT && slot->kind != RK_SLOT_STOP &&
        !ran[n - 1])
        return fail_op(stage, op, "the last group has not run");
    if (op->channel != RK_CH_PLAN) return RK_OK;
    if (stage > 0 && !message_at(m, RK_CH_PLAN, op->slot, stage)->recv.waited)
        return fail_op(stage, op, "the plan has not come");
    int a = slot->after;
    if (stage > 0 || a < 0) return RK_OK;
    if (a >= op->slot) return fail_op(stage, op, "it needs the result of a slot not before it");
    if (m->slots[a].back_bytes > 0 &&
        !message_at(m, RK_CH_BACK, a, (P - 1) * 2 + RK_BACK_RESULT)->recv.waited)
        return fail_op(stage, op, "the result that the slot needs is not there");
    return RK_OK;
}

static rk_status check_program(const sim *m, int stage) {
    for (int i = 0; i < m->n_ops[stage]; i++) {
        const rk_op *op = &m->ops[stage][i];
        if (op->kind == RK_OP_RUN) {
            RK_TRY(check_run(m, stage, op));
            continue;
        }
        message *msg = message_of(m, stage, op);
        if (!msg) return fail_op(stage, op, "no such message");
        side *x = is_recv(op) ? &msg->recv : &msg->send;
        bool  post = op->kind == RK_OP_POST_RECV || op->kind == RK_OP_POST_SEND;
        if (post ? x->posted : x->waited) return fail_op(stage, op, "twice");
        if ((x->posted || x->waited) && x->bytes != op->bytes)
            return fail_op(stage, op, "another size than posted");
        if (post) RK_TRY(check_post(m, stage, op));
        if (post)
            x->posted = true;
        else
            x->waited = true;
        x->stage = stage;
        x->bytes = op->bytes;
    }
    return RK_OK;
}

static rk_status fail_message(const sim *m, int64_t i, const char *why) {
    int P = m->s->n_stages, rest = (int)(i % m->per_slot), ch = RK_CH_PLAN;
    if (rest >= P) ch = RK_CH_ROWS, rest -= P;
    if (ch == RK_CH_ROWS && rest >= P * m->s->n_groups) ch = RK_CH_BACK, rest -= P * m->s->n_groups;
    const message *x = &m->messages[i];
    return RK_FAIL(RK_E_BUG,
                   "%s of slot %lld (number %d): %s; sent by stage %d %lld bytes, received by "
                   "stage %d %lld bytes",
                   channel_names[ch], (long long)(i / m->per_slot), rest, why,
                   x->send.posted ? x->send.stage : -1, (long long)x->send.bytes,
                   x->recv.posted ? x->recv.stage : -1, (long long)x->recv.bytes);
}

/* Every message has two ends of one size. A list without STOP leaves its end open: the receive of a
 * plan that would come next, and waits that STOP would bring. */
static rk_status check_messages(const sim *m) {
    bool    stops = m->n_slots > 0 && m->slots[m->n_slots - 1].kind == RK_SLOT_STOP;
    int64_t n = (int64_t)(m->n_slots + 1) * m->per_slot;
    for (int64_t i = 0; i < n; i++) {
        const message *x = &m->messages[i];
        bool           open = i / m->per_slot == m->n_slots && !stops;
        if (x->send.posted && !x->recv.posted) return fail_message(m, i, "no receive");
        if (x->recv.posted && !x->send.posted && !open) return fail_message(m, i, "no send");
        if (x->send.posted && x->send.bytes != x->recv.bytes)
            return fail_message(m, i, "sizes differ");
        if (stops && (x->send.posted != x->send.waited || x->recv.posted != x->recv.waited))
            return fail_message(m, i, "never waited for");
    }
    int64_t groups = (int64_t)m->s->n_stages * m->s->n_groups;
    for (int64_t i = 0; i < m->n_slots * groups; i++)
        if (!m->has_run[i] && m->slots[i / groups].kind != RK_SLOT_STOP)
            return RK_FAIL(RK_E_BUG, "group %lld of slot %lld never runs", (long long)(i % groups),
                           (long long)(i / groups));
    return RK_OK;
}

/* ---- all programs together ---- */

static double run_s(const sim *m, const rk_op *op) {
    const rk_slot *slot = &m->slots[op->slot];
    int64_t        rows = 0; /* over the group's layers; a variant works in its fork's layer too */
    for (int l = m->s->begin[op->group]; l < m->s->begin[op->group + 1]; l++)
        rows += rk_schedule_rows(slot, l + 1);
    return m->cost->layer_row_s * (double)rows + m->cost->overhead_s;
}

static double done_s(const sim *m, const message *x) {
    double start = x->send.at_s > x->recv.at_s ? x->send.at_s : x->recv.at_s;
    double rate = m->cost->bytes_per_s;
    return start + m->cost->latency_s + (rate > 0 ? (double)x->send.bytes / rate : 0);
}

/* Do the next op of a stage; false if it must wait for another stage, or is at its end. */
static bool advance(sim *m, int stage, double *busy_s) {
    if (m->at[stage] == m->n_ops[stage]) return false;
    const rk_op *op = &m->ops[stage][m->at[stage]];
    double      *now = &m->now_s[stage];
    if (op->kind == RK_OP_RUN) {
        double t = run_s(m, op);
        *now += t;
        *busy_s += t;
    } else {
        message *x = message_of(m, stage, op);
        side    *mine = is_recv(op) ? &x->recv : &x->send;
        if (op->kind == RK_OP_POST_RECV || op->kind == RK_OP_POST_SEND) {
            mine->ran = true;
            mine->at_s = *now;
        } else {
            if (!x->send.ran || !x->recv.ran) return false;
            double t = done_s(m, x);
            if (t > *now) *now = t;
        }
    }
    m->at[stage]++;
    return true;
}

typedef struct event {
    double at_s;
    int    change; /* +1 posted, -1 received */
} event;

static int event_order(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->at_s != y->at_s) return x->at_s < y->at_s ? -1 : 1;
    return x->change - y->change; /* what arrives at an instant makes room first */
}

/* The most messages that were sent and not yet received. */
static rk_status count_in_flight(const sim *m, int *most) {
    int64_t n = (int64_t)(m->n_slots + 1) * m->per_slot, k = 0;
    void   *p = NULL;
    RK_TRY(rk_mem_alloc(2 * n, (int64_t)sizeof(event), "the schedule's events", &p));
    event *e = p;
    for (int64_t i = 0; i < n; i++) {
        const message *x = &m->messages[i];
        if (!x->send.ran) continue;
        bool   ends = x->recv.ran;
        double end = ends ? done_s(m, x) : 0;
        if (ends && end <= x->send.at_s) continue;
        e[k++] = (event){x->send.at_s, 1};
        if (ends) e[k++] = (event){end, -1};
    }
    qsort(e, (size_t)k, sizeof *e, event_order);
    int now = 0;
    *most = 0;
    for (int64_t i = 0; i < k; i++) {
        now += e[i].change;
        if (now > *most) *most = now;
    }
    rk_mem_free(p);
    return RK_OK;
}

/* How late in a chain of waits a stuck stage stands: one that waits for what it has itself not
 * posted is the cause, else the one with the lowest slot is the nearest to it. */
static int64_t stuck_rank(const sim *m, int stage) {
    const rk_op   *op = &m->ops[stage][m->at[stage]];
    const message *x = message_of(m, stage, op);
    bool           cause = !(is_recv(op) ? x->recv.ran : x->send.ran);
    return cause ? op->slot - (int64_t)INT32_MAX : op->slot;
}

static rk_status run_all(sim *m, rk_schedule_report *out) {
    rk_schedule_report r = {.stuck_stage = -1, .stuck_slot = -1};
    for (bool moved = true; moved;) {
        moved = false;
        for (int p = 0; p < m->s->n_stages; p++)
            while (advance(m, p, &r.busy_s)) moved = true;
    }
    for (int p = 0; p < m->s->n_stages; p++) {
        if (m->now_s[p] > r.makespan_s) r.makespan_s = m->now_s[p];
        if (m->at[p] == m->n_ops[p]) continue;
        if (!r.deadlock || stuck_rank(m, p) < stuck_rank(m, r.stuck_stage)) {
            r.stuck_stage = p;
            r.stuck_slot = m->ops[p][m->at[p]].slot;
        }
        r.deadlock = true;
    }
    RK_TRY(count_in_flight(m, &r.max_in_flight));
    *out = r;
    return RK_OK;
}

rk_status rk_schedule_simulate_ops(const rk_schedule *s, const rk_slot *slots, int n_slots,
                                   const rk_op *const *ops, const int *n_ops,
                                   const rk_schedule_cost *cost, rk_schedule_report *out) {
    RK_TRY(rk_schedule_check(s));
    int P = s->n_stages, groups = P * s->n_groups;
    sim m = {.s = s, .slots = slots, .n_slots = n_slots, .ops = ops, .n_ops = n_ops, .cost = cost,
             .per_slot = P + groups + 2 * P};
    void     *messages = NULL, *runs = NULL, *at = NULL, *now = NULL;
    rk_status st = RK_OK;
    RK_TRY_OUT(st, rk_mem_alloc((int64_t)(n_slots + 1) * m.per_slot, (int64_t)sizeof(message),
                                "the schedule's messages", &messages));
    RK_TRY_OUT(st, rk_mem_alloc((int64_t)n_slots * groups + 1, 1, "the schedule's runs", &runs));
    RK_TRY_OUT(st, rk_mem_alloc(P, (int64_t)sizeof(int), "the schedule's stages", &at));
    RK_TRY_OUT(st, rk_mem_alloc(P, (int64_t)sizeof(double), "the schedule's stages", &now));
    m.messages = messages;
    m.has_run = runs;
    m.at = at;
    m.now_s = now;
    for (int p = 0; p < P; p++) RK_TRY_OUT(st, check_program(&m, p));
    RK_TRY_OUT(st, check_messages(&m));
    RK_TRY_OUT(st, run_all(&m, out));
out:
    rk_mem_free(messages);
    rk_mem_free(runs);
    rk_mem_free(at);
    rk_mem_free(now);
    return st;
}

rk_status rk_schedule_simulate(const rk_schedule *s, const rk_slot *slots, int n_slots,
                               const rk_schedule_cost *cost, rk_schedule_report *out) {
    RK_TRY(rk_schedule_check(s));
    int       P = s->n_stages;
    void     *lists = NULL, *counts = NULL, *all = NULL;
    int64_t   total = 0;
    rk_status st = RK_OK;
    RK_TRY_OUT(st, rk_mem_alloc(P, (int64_t)sizeof(rk_op *), "the schedule's stages", &lists));
    RK_TRY_OUT(st, rk_mem_alloc(P, (int64_t)sizeof(int), "the schedule's stages", &counts));
    int *n_ops = counts;
    for (int p = 0; p < P; p++) {
        for (int i = 0; i < n_slots; i++)
            n_ops[p] += rk_schedule_ops(s, p, slots, n_slots, i, NULL, 0);
        total += n_ops[p];
    }
    RK_TRY_OUT(st, rk_mem_alloc(total + 1, (int64_t)sizeof(rk_op), "the schedule's ops", &all));
    rk_op *next = all, **ops = lists;
    for (int p = 0; p < P; p++) {
        ops[p] = next;
        for (int i = 0, left = n_ops[p]; i < n_slots; i++) {
            int n = rk_schedule_ops(s, p, slots, n_slots, i, next, left);
            next += n;
            left -= n;
        }
    }
    RK_TRY_OUT(st, rk_schedule_simulate_ops(s, slots, n_slots, (const rk_op *const *)ops, n_ops,
                                            cost, out));
out:
    rk_mem_free(all);
    rk_mem_free(counts);
    rk_mem_free(lists);
    return st;
}
