/* eval_gen.h - prompts that are answered under every configuration, for the tasks that score text.
 */
#pragma once
#include "cli/eval.h"
#include "core/chat.h"

enum { RK_EVAL_STOPS = RK_MAX_STOP + 2 };

typedef struct rk_eval_prompt {
    int32_t *tokens; /* from rk_mem */
    int64_t  n, max_new;
    int32_t  stop[RK_EVAL_STOPS];
    int      n_stop;
} rk_eval_prompt;

/* Ids that end an answer: the model's; with chat also its end of turn. */
void      rk_eval_add_stops(const rk_eval *v, const rk_chat *chat, rk_eval_prompt *p);
/* After load made prompts: check lengths, set the frame's sizes, add to its hash.
 * Errors: RK_E_INPUT a prompt that does not fit in the model's context, named by what */
rk_status rk_eval_take_prompts(rk_eval *v, const rk_eval_prompt *p, int n, const char *what);
/* One prompt, greedily, under all configurations: `predictions`, `new_tokens`, `kept` (tokens over
 * all layers) and `bytes` in the record, a list each. */
rk_status rk_eval_answer(rk_eval *v, int item, const rk_eval_prompt *p, rk_json *record);
