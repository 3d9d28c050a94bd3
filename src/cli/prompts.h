/* prompts.h - the prompts of generate, read and checked before any work begins. */
#pragma once
#include "base/json.h"
#include "cli/options.h"
#include "core/chat.h"
#include "core/weights.h"

typedef struct rk_prompt {
    rk_json *id;     /* a string or whole number, owned */
    int32_t *tokens; /* [n_tokens], owned */
    int64_t  n_tokens, max_new;
    bool     chat; /* made with the chat template: its end of turn stops the answer */
} rk_prompt;

typedef struct rk_prompts {
    rk_tokenizer *tokenizer;
    rk_chat      *chat; /* NULL where no prompt needs one */
    rk_prompt    *at;
    int           n, cap;
    int64_t       max_prompt, max_new; /* longest of all */
} rk_prompts;

/* Read the one prompt of --prompt or --prompt-file, or all lines of --input.
 * Errors: RK_E_INPUT naming file and line: bad JSON, unknown or missing fields, an empty prompt,
 *         one that is too long for the model with its new tokens, token ids out of range */
rk_status rk_prompts_load(const rk_options *o, const rk_weights *w, rk_prompts *out);
void      rk_prompts_free(rk_prompts *p);
