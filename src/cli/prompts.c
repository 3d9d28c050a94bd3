/* prompts.c - see prompts.h. */
#include "cli/prompts.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct loader {
    const rk_options *o;
    const rk_weights *w;
    rk_prompts       *out;
    const char       *origin; /* "FILE line 3", or where the one prompt comes from */
} loader;

/* ---- one prompt ---- */

static rk_status grow(rk_prompts *p) {
    if (p->n < p->cap) return RK_OK;
    int   cap = p->cap ? 2 * p->cap : 16;
    void *at = p->at;
    RK_TRY(rk_mem_resize(&at, cap, sizeof(rk_prompt), "prompts"));
    p->at = at;
    p->cap = cap;
    return RK_OK;
}

static rk_status check(const loader *l, const rk_prompt *p) {
    const rk_config *m = rk_weights_config(l->w);
    if (p->n_tokens < 1) return RK_FAIL(RK_E_INPUT, "%s: the prompt is empty", l->origin);
    if (p->n_tokens + p->max_new > m->max_positions)
        return RK_FAIL(RK_E_INPUT,
                       "%s: %lld prompt tokens and %lld new ones do not fit in the model's context "
                       "of %lld tokens",
                       l->origin, (long long)p->n_tokens, (long long)p->max_new,
                       (long long)m->max_positions);
    for (int64_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= m->n_vocab)
            return RK_FAIL(RK_E_INPUT, "%s: token id %d at %lld is outside 0 to %d", l->origin,
                           p->tokens[i], (long long)i, m->n_vocab - 1);
    return RK_OK;
}

/* Check p and append it; p's parts belong to the list only then. */
static rk_status append(const loader *l, const rk_prompt *p) {
    RK_TRY(check(l, p));
    RK_TRY(grow(l->out));
    l->out->at[l->out->n++] = *p;
    if (p->n_tokens > l->out->max_prompt) l->out->max_prompt = p->n_tokens;
    if (p->max_new > l->out->max_new) l->out->max_new = p->max_new;
    return RK_OK;
}

static rk_status encode_raw(const loader *l, const char *text, size_t n, rk_prompt *p) {
    if (n == 0) return RK_FAIL(RK_E_INPUT, "%s: the prompt is empty", l->origin);
    rk_text_part part = {.text = text, .n = n};
    return rk_tokenizer_encode(l->out->tokenizer, &part, 1, true, &p->tokens, &p->n_tokens);
}

static rk_status encode_chat(const loader *l, const rk_message *m, int n, rk_prompt *p) {
    if (!l->out->chat)
        RK_TRY(rk_chat_open(rk_weights_chat_template(l->w), l->o->chat_template, l->out->tokenizer,
                            &l->out->chat));
    p->chat = true;
    return rk_chat_encode(l->out->chat, m, n, &p->tokens, &p->n_tokens);
}

static rk_status add_single(loader *l, const char *text, size_t n) {
    rk_prompt  p = {.max_new = l->o->max_new_tokens};
    rk_message m = {.role = "user", .content = text, .n = n};
    rk_status  st;
    if (n == 0) return RK_FAIL(RK_E_INPUT, "%s: the prompt is empty", l->origin);
    RK_TRY_OUT(st, l->o->chat ? encode_chat(l, &m, 1, &p) : encode_raw(l, text, n, &p));
    rk_json *holder = rk_json_object();
    rk_json_set_str(holder, "id", "prompt");
    p.id = holder;
    RK_TRY_OUT(st, append(l, &p));
    return RK_OK;
out:
    rk_mem_free(p.tokens);
    rk_json_close(p.id);
    return st;
}

/* ---- fields of a line ---- */

static rk_status need(const loader *l, const rk_json *v, const char *name, rk_json_kind kind,
                      const char *kind_name) {
    if (rk_json_kind_of(v) == kind) return RK_OK;
    return RK_FAIL(RK_E_INPUT, "%s: `%s` must be %s, it is %s", l->origin, name, kind_name,
                   v ? rk_json_kind_name(v) : "absent");
}

static rk_status known_message_key(void *arg, const char *key, const rk_json *value) {
    const loader *l = arg;
    (void)value;
    if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0) return RK_OK;
    return RK_FAIL(RK_E_INPUT, "%s: unknown field `%.80s` in a message: role and content are known",
                   l->origin, key);
}

static rk_status take_message(loader *l, const rk_json *j, rk_message *m) {
    static const char *const roles[] = {"system", "user", "assistant"};
    RK_TRY(need(l, j, "messages", RK_JSON_OBJECT, "an array of objects"));
    RK_TRY(rk_json_each(j, known_message_key, l));
    RK_TRY(need(l, rk_json_get(j, "role"), "role", RK_JSON_STRING, "a string"));
    RK_TRY(need(l, rk_json_get(j, "content"), "content", RK_JSON_STRING, "a string"));
    *m = (rk_message){.role = rk_json_str(rk_json_get(j, "role"), ""),
                      .content = rk_json_str(rk_json_get(j, "content"), ""),
                      .n = rk_json_str_len(rk_json_get(j, "content"))};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(m->role, roles[i]) == 0) return RK_OK;
    return RK_FAIL(RK_E_INPUT, "%s: role \"%.80s\": must be system, user or assistant", l->origin,
                   m->role);
}

static rk_status take_messages(loader *l, const rk_json *list, rk_prompt *p) {
    RK_TRY(need(l, list, "messages", RK_JSON_ARRAY, "an array of objects"));
    size_t n = rk_json_len(list);
    if (n == 0) return RK_FAIL(RK_E_INPUT, "%s: the prompt is empty (no messages)", l->origin);
    rk_message *m = NULL;
    rk_status   st;
    RK_TRY(rk_mem_alloc_to((int64_t)n, sizeof *m, "messages", &m));
    for (size_t i = 0; i < n; i++) RK_TRY_OUT(st, take_message(l, rk_json_at(list, i), &m[i]));
    st = encode_chat(l, m, (int)n, p);
out:
    rk_mem_free(m);
    return st;
}

/* One user message: document, blank line, question. */
static rk_status take_document(loader *l, const rk_json *j, rk_prompt *p) {
    static const char gap[] = "\n\n";
    const rk_json    *d = rk_json_get(j, "document"), *q = rk_json_get(j, "question");
    char             *text = NULL;
    RK_TRY(need(l, d, "document", RK_JSON_STRING, "a string"));
    RK_TRY(need(l, q, "question", RK_JSON_STRING, "a string"));
    size_t nd = rk_json_str_len(d), nq = rk_json_str_len(q), ng = strlen(gap);
    if (nd + nq == 0) return RK_FAIL(RK_E_INPUT, "%s: the prompt is empty", l->origin);
    RK_TRY(rk_mem_alloc_to((int64_t)(nd + ng + nq), 1, "prompt text", &text));
    memcpy(text, rk_json_str(d, ""), nd);
    memcpy(text + nd, gap, ng);
    memcpy(text + nd + ng, rk_json_str(q, ""), nq);
    rk_message m = {.role = "user", .content = text, .n = nd + ng + nq};
    rk_status  st = encode_chat(l, &m, 1, p);
    rk_mem_free(text);
    return st;
}

static rk_status take_ids(const loader *l, const rk_json *list, rk_prompt *p) {
    RK_TRY(need(l, list, "token_ids", RK_JSON_ARRAY, "an array of whole numbers"));
    int64_t n = (int64_t)rk_json_len(list);
    if (n == 0) return RK_FAIL(RK_E_INPUT, "%s: the prompt is empty (no token_ids)", l->origin);
    RK_TRY(rk_mem_alloc_to(n, sizeof(int32_t), "prompt tokens", &p->tokens));
    for (int64_t i = 0; i < n; i++) {
        const rk_json *v = rk_json_at(list, (size_t)i);
        int64_t        id = rk_json_int(v, -1);
        RK_TRY(need(l, v, "token_ids", RK_JSON_INT, "an array of whole numbers"));
        if (id < 0 || id > INT32_MAX)
            return RK_FAIL(RK_E_INPUT, "%s: token id %lld at %lld is outside 0 to %d", l->origin,
                           (long long)id, (long long)i, rk_weights_config(l->w)->n_vocab - 1);
        p->tokens[i] = (int32_t)id;
    }
    p->n_tokens = n;
    return RK_OK;
}

static rk_status known_key(void *arg, const char *key, const rk_json *value) {
    static const char *const names[] = {"id",       "prompt",    "messages",      "document",
                                        "question", "token_ids", "max_new_tokens"};
    const loader            *l = arg;
    (void)value;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0) return RK_OK;
    return RK_FAIL(RK_E_INPUT,
                   "%s: unknown field `%.80s`: id, prompt, messages, document, question, token_ids "
                   "and max_new_tokens are known",
                   l->origin, key);
}

static rk_status take_id(const loader *l, const rk_json *v, rk_prompt *p) {
    rk_json_kind kind = rk_json_kind_of(v);
    if (kind != RK_JSON_STRING && kind != RK_JSON_INT)
        return RK_FAIL(RK_E_INPUT, "%s: `id` must be a string or a whole number, it is %s",
                       l->origin, v ? rk_json_kind_name(v) : "absent");
    p->id = rk_json_object();
    if (kind == RK_JSON_STRING)
        rk_json_set_strn(p->id, "id", rk_json_str(v, ""), rk_json_str_len(v));
    else
        rk_json_set_int(p->id, "id", rk_json_int(v, 0));
    return RK_OK;
}

/* The prompt in one of its four forms. */
static rk_status take_prompt(loader *l, const rk_json *j, rk_prompt *p) {
    const rk_json *prompt = rk_json_get(j, "prompt"), *messages = rk_json_get(j, "messages"),
                  *ids = rk_json_get(j, "token_ids");
    bool document = rk_json_get(j, "document") || rk_json_get(j, "question");
    int  forms = (prompt != NULL) + (messages != NULL) + (ids != NULL) + document;
    if (forms != 1)
        return RK_FAIL(RK_E_INPUT,
                       "%s: %s of prompt, messages, document + question, token_ids; give one",
                       l->origin, forms ? "has more than one" : "has none");
    if (messages) return take_messages(l, messages, p);
    if (document) return take_document(l, j, p);
    if (ids) return take_ids(l, ids, p);
    RK_TRY(need(l, prompt, "prompt", RK_JSON_STRING, "a string"));
    return encode_raw(l, rk_json_str(prompt, ""), rk_json_str_len(prompt), p);
}

static rk_status take_max_new(const loader *l, const rk_json *v, rk_prompt *p) {
    p->max_new = l->o->max_new_tokens;
    if (!v) return RK_OK;
    RK_TRY(need(l, v, "max_new_tokens", RK_JSON_INT, "a whole number"));
    p->max_new = rk_json_int(v, 0);
    if (p->max_new < 1 || p->max_new > INT32_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: `max_new_tokens` %lld: must be 1 or more", l->origin,
                       (long long)p->max_new);
    return RK_OK;
}

static rk_status add_line(loader *l, const char *text, size_t n) {
    rk_json  *j = NULL;
    rk_prompt p = {0};
    rk_status st;
    RK_TRY(rk_json_parse(text, n, l->origin, &j));
    if (rk_json_kind_of(j) != RK_JSON_OBJECT) {
        st = RK_FAIL(RK_E_INPUT, "%s: must be an object with an id and a prompt, it is %s",
                     l->origin, rk_json_kind_name(j));
        goto out;
    }
    RK_TRY_OUT(st, rk_json_each(j, known_key, l));
    RK_TRY_OUT(st, take_id(l, rk_json_get(j, "id"), &p));
    RK_TRY_OUT(st, take_max_new(l, rk_json_get(j, "max_new_tokens"), &p));
    RK_TRY_OUT(st, take_prompt(l, j, &p));
    RK_TRY_OUT(st, append(l, &p));
    p = (rk_prompt){0};
out:
    rk_json_close(j);
    rk_json_close(p.id);
    rk_mem_free(p.tokens);
    return st;
}

/* ---- files ---- */

static bool blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r') return false;
    return true;
}

static rk_status load_lines(loader *l, const char *path) {
    char     *text = NULL;
    int64_t   n = 0;
    rk_status st = RK_OK;
    RK_TRY(rk_cli_read_file(path, &text, &n));
    int64_t line = 1;
    for (int64_t at = 0; at < n; line++) {
        const char *nl = memchr(text + at, '\n', (size_t)(n - at));
        int64_t     len = nl ? nl - (text + at) : n - at;
        if (!blank(text + at, (size_t)len)) {
            char origin[512];
            snprintf(origin, sizeof origin, "%.470s line %lld", path, (long long)line);
            l->origin = origin;
            RK_TRY_OUT(st, add_line(l, text + at, (size_t)len));
        }
        at += len + 1;
    }
    if (l->out->n == 0)
        st = RK_FAIL(RK_E_INPUT, "%s holds no prompts: give one JSON object a line", path);
out:
    l->origin = path;
    rk_mem_free(text);
    return st;
}

static rk_status load(loader *l) {
    RK_TRY(
        rk_tokenizer_open_model(rk_weights_path(l->w), rk_weights_gguf(l->w), &l->out->tokenizer));
    if (l->o->input) return load_lines(l, l->o->input);
    l->origin = "--prompt";
    if (l->o->prompt) return add_single(l, l->o->prompt, strlen(l->o->prompt));
    char   *text = NULL;
    int64_t n = 0;
    l->origin = l->o->prompt_file;
    RK_TRY(rk_cli_read_file(l->o->prompt_file, &text, &n));
    rk_status st = add_single(l, text, (size_t)n);
    rk_mem_free(text);
    return st;
}

rk_status rk_prompts_load(const rk_options *o, const rk_weights *w, rk_prompts *out) {
    *out = (rk_prompts){0};
    loader    l = {.o = o, .w = w, .out = out};
    rk_status st = load(&l);
    if (st != RK_OK) rk_prompts_free(out);
    RK_TRY(st);
    return RK_OK;
}

void rk_prompts_free(rk_prompts *p) {
    for (int i = 0; i < p->n; i++) {
        rk_json_close(p->at[i].id);
        rk_mem_free(p->at[i].tokens);
    }
    rk_mem_free(p->at);
    rk_chat_close(p->chat);
    rk_tokenizer_close(p->tokenizer);
    *p = (rk_prompts){0};
}
