/* weights.h - a model's tensors by role, from a GGUF file or a Hugging Face folder.
 *
 * The file is mapped; reading a tensor touches its own bytes only, so a rank that asks for its
 * layers reads its layers. Values come out as f32 in the Hugging Face layout whatever the file:
 * rows of Q and K in half-split RoPE order (GGUF's interleaved rows are put back for "llama"),
 * matrices [out][in] row-major. At open every tensor of the file must be known by role, every role
 * must be there, and every shape must fit the config. */
#pragma once
#include "core/config.h"
#include "core/gguf.h"

typedef struct rk_weights rk_weights;

typedef enum rk_role {
    RK_W_EMBED,     /* [V][D] */
    RK_W_OUT_NORM,  /* [D] */
    RK_W_HEAD,      /* [V][D]; absent where tied */
    RK_W_ATTN_NORM, /* [D] and from here on one per layer */
    RK_W_Q,         /* [H d][D] */
    RK_W_K,         /* [G d][D] */
    RK_W_V,         /* [G d][D] */
    RK_W_O,         /* [D][H d] */
    RK_W_FFN_NORM,  /* [D] */
    RK_W_GATE,      /* [F][D] */
    RK_W_UP,        /* [F][D] */
    RK_W_DOWN,      /* [D][F] */
    RK_W_Q_BIAS,    /* [H d], Qwen2 */
    RK_W_K_BIAS,    /* [G d] */
    RK_W_V_BIAS,    /* [G d] */
    RK_W_Q_NORM,    /* [d], Qwen3 */
    RK_W_K_NORM,    /* [d] */
    RK_W_ROLES,
} rk_role;

/* Open a .gguf file or a folder with config.json and model.safetensors.
 * Errors: RK_E_INPUT naming file, tensor or config key, and what was expected */
rk_status rk_weights_open(const char *path, rk_weights **out);
void      rk_weights_close(rk_weights *w);

const rk_config *rk_weights_config(const rk_weights *w);
const rk_gguf   *rk_weights_gguf(const rk_weights *w);   /* NULL for a folder */
const char      *rk_weights_path(const rk_weights *w);   /* as given to open */
const char      *rk_weights_dtype(const rk_weights *w);  /* of the majority of bytes: "Q4_1" */

bool rk_weights_has(const rk_weights *w, rk_role role, int layer);

/* Shape of a role: rows (1 for vectors) and columns. */
void rk_weights_shape(const rk_weights *w, rk_role role, int *rows, int *cols);

/* Rows [row, row + n) as f32.
 * Shapes: dst [n][cols]; layer is ignored for roles that are not per layer */
rk_status rk_weights_read(rk_weights *w, rk_role role, int layer, int row, int n, float *dst);

/* Type of a role's tensor as stored: "Q4_1". */
const char *rk_weights_type(const rk_weights *w, rk_role role, int layer);

/* One row as it is stored, in the row order of read.
 * Owner: *row points into the file's mapping, any alignment */
rk_status rk_weights_stored_row(rk_weights *w, rk_role role, int layer, int row, const void **stored);

/* The file's directory, in name order, for inspect and for the hash. */
typedef struct rk_weights_entry {
    const char *name, *dtype; /* "blk.0.attn_q.weight", "Q4_1" */
    rk_role     role;
    int         layer;        /* -1: not of a layer */
    int         rank;
    int64_t     dim[4], bytes;
} rk_weights_entry;
int                     rk_weights_count(const rk_weights *w);
const rk_weights_entry *rk_weights_entry_at(const rk_weights *w, int i);

/* XXH64 of a tensor's stored bytes. weights_hash is XXH64 over these digests (u64, little-endian)
 * in name order; each rank hashes the tensors that it reads. */
uint64_t rk_weights_entry_hash(const rk_weights *w, int i);
uint64_t rk_weights_combine(const uint64_t *digests, int n);

/* Bytes of the file read so far through this handle (read and entry_hash). */
int64_t rk_weights_bytes_read(const rk_weights *w);

/* The model's chat template source and its generation stop ids were put in config; the template
 * text itself, or NULL. */
const char *rk_weights_chat_template(const rk_weights *w);
