/* schedule.c - the op lists of slots.
 *
 * P stages, v groups a stage, slot s. A rows message has the number k = s * v + round of the round
 * that it enters or leaves; buffers of all kinds are double, chosen by the parity of their number,
 * and a buffer is filled again only when the send of two numbers before is done. [x] stands for an
 * op that is there only when the slot has such a message.
 *
 * Rank 0 (P > 1), any slot:
 *     [wait for the result, then for the statistics of stages 1 .. P-1, of the slot in `after`]
 *     wait send plan s-2                                   [wait send rows k-2, each round]
 *     [post recv result s from P-1] [post recv statistics s from 1 .. P-1]
 *     post send plan s
 *     rounds r = 0 .. v-1 (group r * P):
 *         [wait recv rows, r > 0]
 *         [wait send rows k-1; post recv rows k+1, r < v-1]
 *         run                                              (every kind but STOP)
 *         [post send rows]
 *     at STOP also: wait for all sends that are left, then for all results that are left
 * Stages 1 .. P-1:
 *     post recv plan 0 (slot 0 only)
 *     wait recv plan s          only from here on can the stage know the slot and ask for its list
 *     [wait send plan s-1, p < P-1]   [post recv plan s+1, unless STOP]
 *     [wait send results s-2]   [wait send rows k-2]   [post recv rows, round 0]
 *     [post send plan s, p < P-1]
 *     rounds as on rank 0, the wait for rows in every round
 *     [post send result, p = P-1] [post send statistics]
 *     at STOP also: wait for all sends that are left
 * One stage: the runs alone; results are at home already.
 *
 * So a plan is passed on before the rows of its slot are computed; a slot without rows (COMPRESS,
 * FREE) has runs without rows messages; STOP has no run. The last group sends no rows on. Between
 * groups of one stage when P = 1 nothing is sent. Slots follow one another (slot-major): with
 * v > 1 a slot passes all its groups before the next one starts. */
#include "pipeline/schedule.h"

typedef struct op_list {
    const rk_schedule *s;
    const rk_slot     *slots;
    int                stage, which;
    rk_op             *out;
    int                cap, n;
} op_list;

rk_status rk_schedule_check(const rk_schedule *s) {
    if (s->n_stages < 1 || s->n_groups < 1)
        return RK_FAIL(RK_E_USAGE,
                       "a schedule of %d stages with %d groups each: both must be at least 1 "
                       "(--groups)",
                       s->n_stages, s->n_groups);
    int64_t n = (int64_t)s->n_stages * s->n_groups;
    if (n > s->n_layers)
        return RK_FAIL(RK_E_USAGE,
                       "%d layers cannot fill %d stages of %d groups: use fewer ranks or fewer "
                       "--groups",
                       s->n_layers, s->n_stages, s->n_groups);
    if (s->d_model < 1 || s->plan_bytes < 0 || !s->begin)
        return RK_FAIL(RK_E_USAGE, "a schedule with d_model %d and plans of %d bytes", s->d_model,
                       s->plan_bytes);
    for (int64_t g = 0; g < n; g++)
        if (s->begin[g + 1] <= s->begin[g])
            return RK_FAIL(RK_E_USAGE,
                           "group %lld owns layers %d to %d: every group needs at least one "
                           "(--partition)",
                           (long long)g, s->begin[g], s->begin[g + 1] - 1);
    if (s->begin[0] != 0 || s->begin[n] != s->n_layers)
        return RK_FAIL(RK_E_USAGE,
                       "the groups cover layers %d to %d of a model of %d layers (--partition)",
                       s->begin[0], s->begin[n] - 1, s->n_layers);
    return RK_OK;
}

int64_t rk_schedule_rows(const rk_slot *slot, int layer) {
    int64_t sets = 1;
    while (sets <= slot->n_forks && slot->fork_layer[sets - 1] < layer) sets++;
    return slot->n_rows * sets;
}

int rk_schedule_step(const rk_schedule *s, const rk_op *op) {
    if (op->channel == RK_CH_ROWS) return op->slot * s->n_groups + op->group / s->n_stages;
    if (op->channel == RK_CH_BACK) return op->slot * 2 + op->group;
    return op->slot;
}

int rk_schedule_max_ops(const rk_schedule *s) { return 5 * s->n_groups + 2 * s->n_stages + 18; }

static void add(op_list *l, rk_op_kind kind, rk_channel ch, int peer, int slot, int group,
                int64_t bytes) {
    if (l->n < l->cap)
        l->out[l->n] = (rk_op){.kind = kind, .channel = ch, .peer = peer, .slot = slot,
                               .group = group, .bytes = bytes};
    l->n++;
}

static void add_plan(op_list *l, rk_op_kind kind, int slot) {
    bool recv = kind == RK_OP_POST_RECV || kind == RK_OP_WAIT_RECV;
    if (!recv && l->stage == l->s->n_stages - 1) return;
    if (slot < 0) return;
    add(l, kind, RK_CH_PLAN, l->stage + (recv ? -1 : 1), slot, 0, l->s->plan_bytes);
}

/* The rows message that enters group g, if slot has one: a send of the stage before, a receive of
 * the group's own. */
static void add_rows(op_list *l, rk_op_kind kind, int slot, int g) {
    int P = l->s->n_stages, n = P * l->s->n_groups;
    if (P == 1 || slot < 0 || g <= 0 || g >= n || l->slots[slot].n_rows == 0) return;
    bool    recv = kind == RK_OP_POST_RECV || kind == RK_OP_WAIT_RECV;
    int     peer = recv ? (g - 1) % P : g % P;
    int64_t rows = rk_schedule_rows(&l->slots[slot], l->s->begin[g]);
    add(l, kind, RK_CH_ROWS, peer, slot, g, rows * 4 * l->s->d_model);
}

/* Wait for the send of rows number k, if there was one. */
static void add_rows_sent(op_list *l, int64_t k) {
    if (k < 0) return;
    int v = l->s->n_groups, slot = (int)(k / v), round = (int)(k % v);
    add_rows(l, RK_OP_WAIT_SEND, slot, round * l->s->n_stages + l->stage + 1);
}

/* What this stage, not rank 0's, returns of a slot. */
static void add_back(op_list *l, rk_op_kind kind, int slot) {
    if (slot < 0 || l->stage == 0) return;
    const rk_slot *t = &l->slots[slot];
    if (t->back_bytes > 0 && l->stage == l->s->n_stages - 1)
        add(l, kind, RK_CH_BACK, 0, slot, RK_BACK_RESULT, t->back_bytes);
    if (t->stat_bytes > 0) add(l, kind, RK_CH_BACK, 0, slot, RK_BACK_STATS, t->stat_bytes);
}

/* What rank 0 gets of a slot from all stages. */
static void add_results(op_list *l, rk_op_kind kind, int slot) {
    const rk_slot *t = &l->slots[slot];
    int            P = l->s->n_stages;
    if (P == 1) return;
    if (t->back_bytes > 0) add(l, kind, RK_CH_BACK, P - 1, slot, RK_BACK_RESULT, t->back_bytes);
    for (int p = 1; p < P && t->stat_bytes > 0; p++)
        add(l, kind, RK_CH_BACK, p, slot, RK_BACK_STATS, t->stat_bytes);
}

/* True if a slot before `before` has already named slot a, so that its result was waited for. */
static bool was_named(const op_list *l, int a, int before) {
    for (int i = a + 1; i < before; i++)
        if (l->slots[i].after == a) return true;
    return false;
}

/* Rank 0's part of a slot up to the plan. */
static void open_first(op_list *l) {
    int s = l->which, after = l->slots[s].after;
    if (after >= 0 && after < s && !was_named(l, after, s)) add_results(l, RK_OP_WAIT_RECV, after);
    add_plan(l, RK_OP_WAIT_SEND, s - 2);
}

/* Another stage's part of a slot up to its buffers. */
static void open_other(op_list *l) {
    int s = l->which;
    if (s == 0) add_plan(l, RK_OP_POST_RECV, 0);
    add_plan(l, RK_OP_WAIT_RECV, s);
    add_plan(l, RK_OP_WAIT_SEND, s - 1);
    if (l->slots[s].kind != RK_SLOT_STOP) add_plan(l, RK_OP_POST_RECV, s + 1);
    add_back(l, RK_OP_WAIT_SEND, s - 2);
}

/* The slot's way through the groups of this stage. The send of number k-1 is waited for in round k
 * while there is a round k+1 whose rows need its buffer; where not, by the slot after. */
static void add_rounds(op_list *l) {
    int s = l->which, v = l->s->n_groups, P = l->s->n_stages;
    for (int r = 0; r < v; r++) {
        int g = r * P + l->stage;
        add_rows(l, RK_OP_WAIT_RECV, s, g);
        if (r < v - 1) {
            add_rows_sent(l, (int64_t)s * v + r - 1);
            add_rows(l, RK_OP_POST_RECV, s, g + P);
        }
        if (l->slots[s].kind != RK_SLOT_STOP)
            add(l, RK_OP_RUN, RK_CH_ROWS, l->stage, s, g, 0);
        add_rows(l, RK_OP_POST_SEND, s, g + 1);
    }
}

static void add_last_waits(op_list *l) {
    int s = l->which, v = l->s->n_groups;
    if (l->stage == 0) add_plan(l, RK_OP_WAIT_SEND, s - 1);
    add_plan(l, RK_OP_WAIT_SEND, s);
    add_rows_sent(l, (int64_t)s * v + v - 2);
    add_rows_sent(l, (int64_t)s * v + v - 1);
    add_back(l, RK_OP_WAIT_SEND, s - 1);
    add_back(l, RK_OP_WAIT_SEND, s);
    if (l->stage != 0) return;
    for (int i = 0; i <= s; i++) {
        bool any = l->slots[i].back_bytes > 0 || l->slots[i].stat_bytes > 0;
        if (any && !was_named(l, i, s + 1)) add_results(l, RK_OP_WAIT_RECV, i);
    }
}

int rk_schedule_ops(const rk_schedule *s, int stage, const rk_slot *slots, int n_slots, int which,
                    rk_op *out, int cap) {
    RK_ASSERT(stage >= 0 && stage < s->n_stages && which >= 0 && which < n_slots);
    op_list l = {.s = s, .slots = slots, .stage = stage, .which = which, .out = out, .cap = cap};
    int64_t k = (int64_t)which * s->n_groups;
    bool    stop = slots[which].kind == RK_SLOT_STOP;
    if (stage == 0)
        open_first(&l);
    else
        open_other(&l);
    add_rows_sent(&l, k - 2);
    if (stage == 0)
        add_results(&l, RK_OP_POST_RECV, which);
    else
        add_rows(&l, RK_OP_POST_RECV, which, stage);
    add_plan(&l, RK_OP_POST_SEND, which);
    add_rounds(&l);
    add_back(&l, RK_OP_POST_SEND, which);
    if (stop) add_last_waits(&l);
    return l.n;
}
