/* chat.h - conversations to token ids by the model's own chat template.
 *
 * Templates are recognised by their text (a program for a template language is not run): ChatML
 * with the model's default system message. One that is not known is refused with the remedy. */
#pragma once
#include "core/tokenizer.h"

typedef struct rk_chat rk_chat;

typedef struct rk_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t      n;    /* bytes of content */
} rk_message;

/* template_text: the model's (may be NULL); name: a --chat-template override or NULL ("chatml":
 * plain ChatML whatever the model's says, without a default system message). t must outlive.
 * Errors: RK_E_INPUT template unknown or absent, with the remedy; RK_E_USAGE name unknown */
rk_status   rk_chat_open(const char *template_text, const char *name, const rk_tokenizer *t,
                         rk_chat **out);
void        rk_chat_close(rk_chat *c);
const char *rk_chat_name(const rk_chat *c);

/* Render, with the opening of the assistant's turn at the end, and encode. Contents never parse
 * special tokens. Owner: *ids from rk_mem, the caller frees. */
rk_status rk_chat_encode(const rk_chat *c, const rk_message *messages, int n_messages,
                         int32_t **ids, int64_t *n_ids);

/* The token that ends an assistant turn (im_end); -1 if the tokenizer has none. */
int32_t rk_chat_stop(const rk_chat *c);
