/* quant_scalar.c - the kernels of quant.h in plain C: the twin that runs anywhere. */
#include <math.h>

#include "kernels/quant_layout.h"

#define INLINE static inline

INLINE void quantise_block(const uint16_t *a, rk_quant_act *q) {
    int max = 0, sum[2] = {0};
    for (int i = 0; i < 32; i++) max = (a[i] & 0x7fff) > max ? a[i] & 0x7fff : max;
    q->da = rk_bf16_to_f32((uint16_t)(max < 0x80 ? 0 : max)) / 127.0f;
    bool some = q->da > 0 && max < 0x7f80; /* infinite and NaN reach C through da */
    for (int i = 0; i < 32; i++) {
        q->q[i] = some ? (int8_t)lrintf(rk_bf16_to_f32(a[i]) / q->da) : 0;
        sum[i / 16] += q->q[i];
    }
    q->neg_lo = -sum[0];
    q->neg = -(sum[0] + sum[1]);
    q->sum = (float)(sum[0] + sum[1]);
}

/* C of one output and row: a block's products are exact, its scales are applied at once. */
INLINE float add_block(rk_quant t, const uint8_t *unit, int i, int o, const rk_quant_act *a,
                       float c) {
    const rk_quant_form *f = &rk_quant_forms[t];
    const uint8_t       *codes = unit + rk_quant_codes_at(t, i);
    int                  per = 32 / f->halves;
    for (int h = 0; h < f->halves; h++) {
        int s = 0;
        for (int k = h * per; k < (h + 1) * per; k++)
            s += (rk_quant_code(t, codes, o, k) - f->bias) * a->q[k];
        c = fmaf(rk_quant_dw(t, unit, i, h, o) * a->da, (float)s, c);
    }
    return f->has_min ? fmaf(rk_quant_mw(t, unit, i, o) * a->da, a->sum, c) : c;
}

INLINE void dot_panel(const rk_quant t, const int rows, const uint8_t *group, int64_t b0,
                      int64_t b1, const rk_quant_act *a, float *c, int64_t ldc) {
    for (int64_t b = b0; b < b1; b++, a += rows) {
        const uint8_t *unit = group + rk_quant_unit_at(t, b);
        int            i = (int)(b % rk_quant_forms[t].unit);
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < 16; o++)
                c[r * ldc + o] = add_block(t, unit, i, o, a + r, b ? c[r * ldc + o] : 0.0f);
    }
}

INLINE void to_tile(const rk_quant t, const uint8_t *unit, int i, uint16_t *out) {
    rk_quant_tile(t, unit, i, out);
}

#define QUANT_NAME  "scalar"
#define QUANT_TABLE rk_quant_scalar
#include "kernels/quant.inc"
