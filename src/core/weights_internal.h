/* weights_internal.h - shared by config.c, weights.c and the two readers behind it. */
#pragma once
#include "base/json.h"
#include "core/infile.h"
#include "core/weights.h"

/* A tensor of the file. Before roles are given, entry.role is RK_W_ROLES. */
typedef struct rk_stored {
    rk_weights_entry entry;
    int              type; /* rk_ggml_type */
    const uint8_t   *data; /* in a mapping */
} rk_stored;

/* One safetensors file. */
typedef struct rk_shard {
    char      path[RK_PATH_LEN];
    rk_infile file;
    rk_json  *head; /* owns the names of its tensors */
} rk_shard;

struct rk_weights {
    char      *path;
    rk_config  config;
    rk_gguf   *gguf;
    rk_shard  *shards;
    int        n_shards;
    rk_stored *stored; /* in name order */
    int        n_stored, cap_stored;
    int       *at; /* [RK_W_ROLES][L]: index into stored, -1; layer 0 where not per layer */
    bool       interleaved; /* rows of Q and K lie in interleaved RoPE order */
    char      *chat_template;
    int64_t   *bytes_read; /* outside the struct, since hashing takes it const; atomic */
};

/* What the readers fill: gguf or shards, config (n_vocab may stay 0), stored in any order,
 * interleaved, chat_template. On failure weights.c closes what is there. */
rk_status rk_weights_load_gguf(rk_weights *w);
rk_status rk_weights_load_folder(rk_weights *w);

/* Map s->path and add its tensors to stored. */
rk_status rk_weights_load_shard(rk_weights *w, rk_shard *s);
rk_status rk_weights_add_stored(rk_weights *w, const rk_stored *s);

/* config.json, generation_config.json and the chat template of a folder. n_vocab becomes
 * vocab_size, 0 where absent: the embedding's rows must agree. */
rk_status rk_weights_read_hf_config(rk_weights *w);

/* Add a token id that ends a generation, once. Errors: RK_E_INPUT more than RK_MAX_STOP */
rk_status rk_config_add_stop(rk_config *c, int64_t id, const char *origin);

/* Name of a role, "attn_q", and whether each layer has one. */
const char *rk_role_name(rk_role role);
bool        rk_role_per_layer(rk_role role);
bool        rk_role_is_matrix(rk_role role);
bool        rk_role_wanted(const rk_config *c, rk_role role);
void        rk_role_shape(const rk_config *c, rk_role role, int *rows, int *cols);

/* How much frequency i (of d/2) is slowed down, 1 without scaling. */
double rk_config_rope_factor(const rk_config *c, int i);

/* Set the llama3 scaling of c (whose head_dim and rope_theta are set) from a table of d/2 factors,
 * as GGUF keeps it. Equal factors become linear scaling; all 1, none.
 * Errors: RK_E_INPUT not a table that the rule can make */
rk_status rk_config_fit_rope(rk_config *c, const float *factor, const char *origin);
