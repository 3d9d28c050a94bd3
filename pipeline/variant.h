/* variant.h - what is measured over a prompt's cache beside the reference, and what comes of it. */
#pragma once
#include <stdint.h>

/* What a measured variant sees in place of the prompt's whole cache. */
typedef enum rk_variant_kind {
    RK_VARIANT_NOISE,    /* disturbed values in its layer */
    RK_VARIANT_COMPRESS, /* in its layer, what the engine's policy keeps under a budget */
    RK_VARIANT_SEQUENCE, /* in every layer, the cache of a fork of the prompt; its layer is 0 */
} rk_variant_kind;

typedef struct rk_variant {
    rk_variant_kind kind;
    int32_t         layer;
    float           epsilon;      /* noise: relative size */
    int32_t         sample, draw; /* noise: of the counter */
    int32_t         budget;       /* compress: tokens per stored head */
    int32_t         seq;          /* sequence: the fork */
} rk_variant;

/* What came of a variant, means over the response rows. */
typedef struct rk_measured {
    double kl;        /* KL(reference || variant), nats per token */
    double agreement; /* share of rows with the reference's likeliest token */
    double nll;       /* -log of the response's next token; over the T - 1 rows that have one */
    double local; /* noise: || O (a' - a) || / || O a || over all rows, of the attention's output
                     in its layer (a: reference, a': variant); else 0 */
} rk_measured;
