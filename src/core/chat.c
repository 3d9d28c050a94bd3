/* chat.c - ChatML, recognised by its markers in the template's text.
 *
 * What a template may add to plain ChatML is read from its text: a default system message, a BOS,
 * and Qwen3's rule that earlier answers lose their reasoning. */
#include "core/chat.h"

#include <string.h>

#include "base/mem.h"

#define START     "<|im_start|>"
#define END       "<|im_end|>"
#define THINK     "<think>"
#define END_THINK "</think>"

struct rk_chat {
    const rk_tokenizer *t;      /* must outlive */
    char               *system; /* put first when the conversation has none; NULL: nothing */
    bool                bos, drops_thinking;
    int32_t             stop;
};

/* ---- reading the template ---- */

/* Length of a newline at p, as itself or as an escape in a string of the template; 0: none. */
static size_t newline_at(const char *p) {
    return p[0] == '\n' ? 1 : p[0] == '\\' && p[1] == 'n' ? 2 : 0;
}

/* Copy template text up to END, escapes resolved if quoted; false where the string or the plain
 * text ends before (then other things are put together there). */
static bool copy_message(const char *p, char quote, char *out) {
    for (; *p; p++) {
        if (strncmp(p, END, strlen(END)) == 0) {
            *out = 0;
            return true;
        }
        if (quote ? *p == quote : *p == '{') return false;
        if (quote && *p == '\\' && p[1]) {
            p++;
            *out++ = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
        } else {
            *out++ = *p;
        }
    }
    return false;
}

/* A system turn that the template spells out whole is its default message. */
static rk_status find_default_system(const char *text, char **system) {
    static const char opening[] = START "system";
    void             *buf;
    RK_TRY(rk_mem_alloc((int64_t)strlen(text) + 1, 1, "chat template", &buf));
    for (const char *p = text; (p = strstr(p, opening)); p++) {
        const char *body = p + strlen(opening);
        char        before = p > text ? p[-1] : 0;
        char        quote = before == '\'' || before == '"' ? before : 0;
        size_t      nl = newline_at(body);
        if (nl && copy_message(body + nl, quote, buf)) {
            *system = buf;
            return RK_OK;
        }
    }
    rk_mem_free(buf);
    return RK_OK;
}

/* ChatML and nothing that would change what stands between the markers. */
static bool is_chatml(const char *text) {
    return strstr(text, START) && strstr(text, END) && !strstr(text, "<|im_sep|>") &&
           !strstr(text, "|trim") && !strstr(text, "| trim") && !strstr(text, ".strip()");
}

static rk_status read_template(rk_chat *c, const char *text) {
    static const char remedy[] = "give --chat-template chatml, or prompts as raw text";
    if (!text || !*text) return RK_FAIL(RK_E_INPUT, "the model has no chat template: %s", remedy);
    if (!is_chatml(text))
        return RK_FAIL(RK_E_INPUT,
                       "the model's chat template is not known (only ChatML is; this one begins "
                       "\"%.60s\"): %s",
                       text, remedy);
    c->bos = strstr(text, "bos_token") != NULL;
    c->drops_thinking = strstr(text, "split('" END_THINK "')") != NULL;
    RK_TRY(find_default_system(text, &c->system));
    return RK_OK;
}

rk_status rk_chat_open(const char *template_text, const char *name, const rk_tokenizer *t,
                       rk_chat **out) {
    *out = NULL;
    if (name && strcmp(name, "chatml") != 0)
        return RK_FAIL(RK_E_USAGE, "--chat-template %s is not known; the one there is: chatml",
                       name);
    void *p;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_chat), "chat template", &p));
    rk_chat *c = p;
    c->t = t;
    c->stop = rk_tokenizer_find(t, END);
    if (!name) {
        rk_status st = read_template(c, template_text);
        if (st != RK_OK) {
            rk_chat_close(c);
            RK_TRY(st);
        }
    }
    *out = c;
    return RK_OK;
}

void rk_chat_close(rk_chat *c) {
    if (!c) return;
    rk_mem_free(c->system);
    rk_mem_free(c);
}

const char *rk_chat_name(const rk_chat *c) {
    return c ? "chatml" : "";
}
int32_t rk_chat_stop(const rk_chat *c) {
    return c->stop;
}

/* ---- rendering ---- */

enum { PARTS_A_MESSAGE = 8, PARTS_AROUND = 5 };

typedef struct part_list {
    rk_text_part *at;
    int           n;
} part_list;

static void put(part_list *l, const char *text, size_t n, bool literal) {
    l->at[l->n++] = (rk_text_part){text, n, literal};
}
static void put_markup(part_list *l, const char *text) {
    put(l, text, strlen(text), false);
}

/* Where sub first (or last) stands in s, or n. */
static size_t find_in(const char *s, size_t n, const char *sub, bool last) {
    size_t k = strlen(sub), found = n;
    for (size_t i = 0; i + k <= n && (last || found == n); i++)
        if (memcmp(s + i, sub, k) == 0) found = i;
    return found;
}
static void trim_newlines(const char **s, size_t *n, bool left, bool right) {
    for (; left && *n && **s == '\n'; --*n) ++*s;
    while (right && *n && (*s)[*n - 1] == '\n') --*n;
}

/* Qwen3's rule: an answer is what follows its reasoning, which is only kept after the last
 * question; there a last answer always has a reasoning block. */
static void put_answer(part_list *l, const rk_message *m, bool after_question, bool last) {
    const char *answer = m->content, *thought = m->content;
    size_t      n = m->n, n_thought = 0, cut = find_in(m->content, m->n, END_THINK, true);
    if (cut < m->n) {
        answer += cut + strlen(END_THINK);
        n -= cut + strlen(END_THINK);
        trim_newlines(&answer, &n, true, false);
        n_thought = find_in(m->content, m->n, END_THINK, false);
        trim_newlines(&thought, &n_thought, false, true);
        size_t open = find_in(thought, n_thought, THINK, true);
        if (open < n_thought) {
            thought += open + strlen(THINK);
            n_thought -= open + strlen(THINK);
        }
        trim_newlines(&thought, &n_thought, true, false);
    }
    if (after_question && (last || n_thought)) {
        trim_newlines(&thought, &n_thought, true, true);
        trim_newlines(&answer, &n, true, false);
        put_markup(l, THINK "\n");
        put(l, thought, n_thought, true);
        put_markup(l, "\n" END_THINK "\n\n");
    }
    put(l, answer, n, true);
}

static rk_status check_messages(const rk_message *m, int n) {
    if (n < 1) return RK_FAIL(RK_E_INPUT, "a conversation has no message");
    for (int i = 0; i < n; i++)
        if (strcmp(m[i].role, "system") != 0 && strcmp(m[i].role, "user") != 0 &&
            strcmp(m[i].role, "assistant") != 0)
            return RK_FAIL(RK_E_INPUT,
                           "message %d has the role \"%.40s\"; only system, user and assistant "
                           "are known",
                           i + 1, m[i].role);
    return RK_OK;
}

static void render(const rk_chat *c, const rk_message *m, int n, part_list *l) {
    int question = n - 1; /* the last one */
    while (question > 0 && strcmp(m[question].role, "user") != 0) question--;
    if (strcmp(m[question].role, "user") != 0) question = n - 1;
    if (c->system && strcmp(m[0].role, "system") != 0) {
        put_markup(l, START "system\n");
        put(l, c->system, strlen(c->system), true);
        put_markup(l, END "\n");
    }
    for (int i = 0; i < n; i++) {
        put_markup(l, START);
        put_markup(l, m[i].role);
        put_markup(l, "\n");
        if (c->drops_thinking && strcmp(m[i].role, "assistant") == 0)
            put_answer(l, &m[i], i > question, i == n - 1);
        else
            put(l, m[i].content, m[i].n, true);
        put_markup(l, END "\n");
    }
    put_markup(l, START "assistant\n");
}

rk_status rk_chat_encode(const rk_chat *c, const rk_message *messages, int n_messages,
                         int32_t **ids, int64_t *n_ids) {
    *ids = NULL;
    *n_ids = 0;
    RK_TRY(check_messages(messages, n_messages));
    void *p;
    RK_TRY(rk_mem_alloc((int64_t)PARTS_A_MESSAGE * n_messages + PARTS_AROUND, sizeof(rk_text_part),
                        "conversation", &p));
    part_list l = {.at = p};
    render(c, messages, n_messages, &l);
    rk_status st = rk_tokenizer_encode(c->t, l.at, l.n, c->bos, ids, n_ids);
    rk_mem_free(p);
    RK_TRY(st);
    return RK_OK;
}
