/* answers.c - see answers.h. */
#include "cli/answers.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

/* Text of one prompt so far. */
typedef struct answer {
    rk_decode_stream stream;
    char            *text;
    size_t           n, cap, shown; /* shown: bytes that are on stdout */
    bool             ended;         /* by a stop text; n is where it began */
} answer;

struct rk_answers {
    const rk_options *o;
    const rk_prompts *p;
    rk_answers_mode   mode;
    FILE             *out;
    const char       *out_name;
    answer           *at; /* [p->n] */
    char             *piece;
    size_t            cap_piece;
    int32_t           stop[RK_MAX_STOP + 1]; /* the template's end of turn last */
    int               n_stop, n_stop_chat, n_layers;
    rk_json          *collected;
};

rk_status rk_answers_open(const rk_options *o, const rk_prompts *p, const rk_config *m,
                          rk_answers_mode mode, FILE *out, const char *out_name,
                          rk_answers **result) {
    rk_answers *a = NULL;
    rk_status   st;
    *result = NULL;
    RK_TRY(rk_mem_alloc_to(1, sizeof *a, "answers", &a));
    *a = (rk_answers){.o = o, .p = p, .mode = mode, .out = out, .out_name = out_name};
    a->n_layers = m->n_layers;
    a->cap_piece = 4 * rk_tokenizer_max_bytes(p->tokenizer) + 16;
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)a->cap_piece, 1, "answers", &a->piece));
    RK_TRY_OUT(st, rk_mem_alloc_to(p->n, sizeof(answer), "answers", &a->at));
    for (int i = 0; i < p->n; i++) rk_decode_begin(&a->at[i].stream, p->tokenizer, true);
    for (int i = 0; i < m->n_stop; i++) a->stop[a->n_stop++] = m->stop[i];
    a->n_stop_chat = a->n_stop;
    if (p->chat && rk_chat_stop(p->chat) >= 0) a->stop[a->n_stop_chat++] = rk_chat_stop(p->chat);
    if (o->input && mode == RK_ANSWERS_COLLECT) a->collected = rk_json_array();
    *result = a;
    return RK_OK;
out:
    rk_answers_close(a);
    return st;
}

void rk_answers_close(rk_answers *a) {
    if (!a) return;
    for (int i = 0; a->at && i < a->p->n; i++) rk_mem_free(a->at[i].text);
    rk_mem_free(a->at);
    rk_mem_free(a->piece);
    rk_json_close(a->collected);
    rk_mem_free(a);
}

const int32_t *rk_answers_stop(const rk_answers *a, int i, int *n) {
    *n = a->p->at[i].chat ? a->n_stop_chat : a->n_stop;
    return a->stop;
}

rk_json *rk_answers_take(rk_answers *a) {
    rk_json *j = a->collected;
    a->collected = NULL;
    return j;
}

static rk_status write_out(const rk_answers *a, const char *text, size_t n) {
    errno = 0;
    if (fwrite(text, 1, n, a->out) == n && fflush(a->out) == 0) return RK_OK;
    return RK_FAIL(RK_E_OUTPUT, "cannot write to %s: %s", a->out_name, strerror(errno));
}

/* ---- text as it grows ---- */

static rk_status append(answer *w, const char *piece, size_t n) {
    if (w->n + n > w->cap) {
        size_t cap = 2 * (w->n + n) + 256;
        void  *p = w->text;
        RK_TRY(rk_mem_resize(&p, (int64_t)cap, 1, "answer text"));
        w->text = p;
        w->cap = cap;
    }
    if (n) memcpy(w->text + w->n, piece, n);
    w->n += n;
    return RK_OK;
}

/* Cut at the first stop text that ends after byte `from`. */
static void find_stop(const rk_answers *a, answer *w, size_t from) {
    size_t first = w->n;
    for (int s = 0; s < a->o->stop.n; s++) {
        const char *stop = a->o->stop.v[s];
        size_t      k = strlen(stop), begin = from >= k ? from - k + 1 : 0;
        for (size_t i = begin; i + k <= w->n && i < first; i++)
            if (memcmp(w->text + i, stop, k) == 0) {
                first = i;
                w->ended = true;
            }
    }
    w->n = first;
}

/* Bytes at the end that may be the beginning of a stop text. */
static size_t held_back(const rk_answers *a, const answer *w) {
    size_t most = 0;
    for (int s = 0; s < a->o->stop.n; s++) {
        const char *stop = a->o->stop.v[s];
        for (size_t k = strlen(stop) - 1; k > most; k--)
            if (k <= w->n && memcmp(w->text + w->n - k, stop, k) == 0) most = k;
    }
    return most;
}

static rk_status show(const rk_answers *a, answer *w, bool all) {
    if (a->mode != RK_ANSWERS_STREAM) return RK_OK;
    size_t end = all ? w->n : w->n - held_back(a, w);
    if (end > w->shown) {
        RK_TRY(write_out(a, w->text + w->shown, end - w->shown));
        w->shown = end;
    }
    return all ? write_out(a, "\n", 1) : RK_OK;
}

rk_status rk_answers_on_token(void *arg, int index, int32_t token) {
    rk_answers    *a = arg;
    answer        *w = &a->at[index];
    int            n_stop;
    const int32_t *stop = rk_answers_stop(a, index, &n_stop);
    for (int i = 0; i < n_stop; i++)
        if (stop[i] == token) return RK_OK; /* ends the answer and is no text */
    size_t before = w->n;
    RK_TRY(append(w, a->piece, rk_decode_push(&w->stream, token, a->piece, a->cap_piece)));
    find_stop(a, w, before);
    if (w->ended) return RK_E_NO;
    return show(a, w, false);
}

/* ---- done ---- */

static rk_json *answer_json(const rk_answers *a, int index, const rk_completion *c) {
    const rk_prompt *p = &a->p->at[index];
    const answer    *w = &a->at[index];
    rk_json         *o = rk_json_object(), *ids = rk_json_array(), *kept = rk_json_array();
    const rk_json   *id = rk_json_get(p->id, "id");
    if (rk_json_kind_of(id) == RK_JSON_INT)
        rk_json_set_int(o, "id", rk_json_int(id, 0));
    else
        rk_json_set_strn(o, "id", rk_json_str(id, ""), rk_json_str_len(id));
    for (int64_t i = 0; i < c->n_new; i++) rk_json_add_int(ids, c->tokens[i]);
    for (int l = 0; l < a->n_layers; l++) rk_json_add_int(kept, c->kv_tokens[l]);
    rk_json_set_strn(o, "text", w->text ? w->text : "", w->n);
    rk_json_set(o, "token_ids", ids);
    rk_json_set_int(o, "prompt_tokens", p->n_tokens);
    rk_json_set_int(o, "new_tokens", c->n_new);
    rk_json_set_str(o, "finish_reason", c->stopped ? "stop" : "length");
    rk_cli_set_hash(o, "logits_hash", c->logits_hash);
    rk_json_set(o, "kv_tokens", kept);
    rk_json_set_int(o, "kv_bytes", c->kv_bytes);
    rk_json_set_num(o, "ttft_s", c->ttft_s);
    rk_json_set_num(o, "decode_s", c->decode_s);
    return o;
}

rk_status rk_answers_on_done(void *arg, int index, const rk_completion *c) {
    rk_answers *a = arg;
    answer     *w = &a->at[index];
    if (!w->ended) RK_TRY(append(w, a->piece, rk_decode_end(&w->stream, a->piece, a->cap_piece)));
    if (a->mode == RK_ANSWERS_STREAM) return show(a, w, true);
    rk_json *o = answer_json(a, index, c);
    if (a->mode == RK_ANSWERS_COLLECT) {
        if (a->collected)
            rk_json_add(a->collected, o);
        else
            a->collected = o;
        return RK_OK;
    }
    char     *text = rk_json_text(o, false);
    size_t    n = strlen(text);
    rk_status st;
    text[n] = '\n'; /* the 0 is not needed any more */
    st = write_out(a, text, n + 1);
    rk_mem_free(text);
    rk_json_close(o);
    return st;
}
