/* record.c - see record.h. */
#include "pipeline/record.h"

#include <string.h>

#define MAGIC 0x524b504cu

typedef struct part {
    const void *from;
    int64_t     bytes;
} part;
enum { PARTS = 6 };

static int64_t align8(int64_t n) { return (n + 7) / 8 * 8; }

static void parts_of(const rk_record *r, part out[PARTS]) {
    const rk_record_head *h = &r->head;
    out[0] = (part){r->sets, h->n_sets * (int64_t)sizeof(rk_record_set)};
    out[1] = (part){r->draws, h->n_draws * (int64_t)sizeof(rk_record_draw)};
    out[2] = (part){r->forks, h->n_forks * (int64_t)sizeof(rk_record_fork)};
    out[3] = (part){r->tokens, h->n_rows * (int64_t)sizeof(int32_t)};
    out[4] = (part){r->want, h->n_want * (int64_t)sizeof(int32_t)};
    out[5] = (part){r->budget, h->n_budget * (int64_t)sizeof(int32_t)};
}

int64_t rk_record_bytes(const rk_record_caps *c) {
    return align8((int64_t)sizeof(rk_record_head)) + c->sets * (int64_t)sizeof(rk_record_set) +
           c->sets * (int64_t)sizeof(rk_record_draw) + c->forks * (int64_t)sizeof(rk_record_fork) +
           align8(c->rows * (int64_t)sizeof(int32_t)) * 2 + align8(c->layers * (int64_t)sizeof(int32_t));
}

rk_status rk_record_write(const rk_record *r, void *message, int64_t bytes) {
    part    p[PARTS];
    int64_t at = align8((int64_t)sizeof r->head), need = at;
    parts_of(r, p);
    for (int i = 0; i < PARTS; i++) need += align8(p[i].bytes);
    if (need > bytes)
        return RK_FAIL(RK_E_BUG, "plan record of slot %d: %lld bytes, room for %lld", r->head.step,
                       (long long)need, (long long)bytes);
    rk_record_head h = r->head;
    h.magic = MAGIC;
    memcpy(message, &h, sizeof h);
    for (int i = 0; i < PARTS; i++) {
        if (p[i].bytes) memcpy((char *)message + at, p[i].from, (size_t)p[i].bytes);
        at += align8(p[i].bytes);
    }
    return RK_OK;
}

rk_status rk_record_read(const void *message, int64_t bytes, int step, rk_record *out) {
    memset(out, 0, sizeof *out);
    memcpy(&out->head, message, sizeof out->head);
    const rk_record_head *h = &out->head;
    if (h->magic != MAGIC || h->step != step || h->kind < 0 || h->kind > RK_SLOT_STOP ||
        h->n_rows < 0 || h->n_sets < 0 || h->n_forks < 0 || h->n_draws < 0 || h->n_want < 0 ||
        h->n_budget < 0)
        return RK_FAIL(RK_E_BUG, "plan record of slot %d is damaged", step);
    part    p[PARTS];
    int64_t at = align8((int64_t)sizeof *h);
    parts_of(out, p);
    const void *where[PARTS];
    for (int i = 0; i < PARTS; i++) {
        where[i] = (const char *)message + at;
        at += align8(p[i].bytes);
    }
    if (at > bytes)
        return RK_FAIL(RK_E_BUG, "plan record of slot %d claims %lld bytes of %lld", step, (long long)at,
                       (long long)bytes);
    out->sets = where[0];
    out->draws = where[1];
    out->forks = where[2];
    out->tokens = where[3];
    out->want = where[4];
    out->budget = where[5];
    return RK_OK;
}
