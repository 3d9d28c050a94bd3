/* tiny_model.h - a small random model of the Llama family, written to disk, for tests.
 *
 * It is whole: weights, config, a byte-level BPE tokenizer and a ChatML template, so that every
 * command runs on it. Equal specs give equal bytes; the GGUF and the folder of one spec hold the
 * same values where the type can (F32, F16, BF16).
 *
 * Vocabulary (288): ids 0-255 the bytes, 256-284 merges, 285 <|im_start|> (bos), 286 <|im_end|>
 * (eos), 287 <|endoftext|>. Bos is not put before a prompt. */
#pragma once
#include "core/weights.h"

enum {
    RK_TINY_BYTES = 256,
    RK_TINY_MERGES = 29,
    RK_TINY_IM_START = RK_TINY_BYTES + RK_TINY_MERGES,
    RK_TINY_IM_END,
    RK_TINY_ENDOFTEXT,
    RK_TINY_VOCAB,
};

typedef struct rk_tiny_spec {
    const char *arch; /* "llama", "qwen2", "qwen3"; "mistral" is "llama" in GGUF */
    int         n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ffn;
    int         type; /* rk_ggml_type of the matrices; vectors are F32. A folder: F32, F16, BF16 */
    bool        tied;
    uint64_t    seed;
} rk_tiny_spec;

/* llama, 4 layers, D 64, H 4, G 2, d 32, F 96, F32, tied, seed 1. */
rk_tiny_spec rk_tiny_default(void);

/* One .gguf file. Errors: RK_E_OUTPUT */
rk_status rk_tiny_model_write_gguf(const char *path, const rk_tiny_spec *spec);

/* config.json, generation_config.json, tokenizer.json, tokenizer_config.json, model.safetensors in
 * a folder, which is made. Errors: RK_E_OUTPUT; RK_E_USAGE a type that a folder cannot hold */
rk_status rk_tiny_model_write_folder(const char *folder, const rk_tiny_spec *spec);

/* The files' bytes, for tests that damage them. Owner: *bytes from rk_mem, the caller frees */
rk_status rk_tiny_model_gguf_bytes(const rk_tiny_spec *spec, uint8_t **bytes, int64_t *n);
rk_status rk_tiny_model_safetensors_bytes(const rk_tiny_spec *spec, uint8_t **bytes, int64_t *n);
char     *rk_tiny_model_config_text(const rk_tiny_spec *spec); /* config.json */

/* The values of a role before they are rounded to a type, in the Hugging Face layout, and how many
 * they are (rk_tiny_count; 0 where the model has no such role). */
int64_t rk_tiny_count(const rk_tiny_spec *spec, rk_role role);
void    rk_tiny_values(const rk_tiny_spec *spec, rk_role role, int layer, float *out);

/* Write bytes to a file. */
rk_status rk_tiny_write_file(const char *path, const void *bytes, int64_t n);
