/* calibration.c - see calibration.h.
 *
 * Text (a file, or `text` in JSONL) is tokenized literally: control tokens spelled in it stay text.
 * A `prompt`/`response` pair may hold a rendered chat, so there they count. Where the tokenizer has
 * a BOS it is the prompt's first token and counts into context. Line ends in a text are kept as
 * they are; a byte order mark is dropped. */
#define _GNU_SOURCE
#include "profiler/calibration.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

typedef struct loader {
    const char         *path;
    const rk_tokenizer *t;
    int64_t             context, response;
    int                 max;     /* INT32_MAX: all */
    int64_t             longest; /* tokens of the longest item that was skipped, BOS included */
    int                 cap;
    char                id[48]; /* of the item at hand; empty: a window of a text */
    rk_hash_state       hash;
    rk_calibration      out;
} loader;

typedef struct ids {
    int32_t *id;
    int64_t  n;
} ids;

static rk_status read_file(const char *path, char **buf, int64_t *n) {
    struct stat s;
    rk_status   st = RK_OK;
    void       *p = NULL;
    int64_t     cap = 0, used = 0;
    int         fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return RK_FAIL(RK_E_INPUT, "%s: cannot open the calibration file: %m", path);
    if (fstat(fd, &s) == 0 && s.st_size > 0 && S_ISREG(s.st_mode)) cap = s.st_size;
    for (;;) {
        /* One byte more than the size, so that a regular file ends without a second round. */
        if (used == cap || !p) {
            cap = used == cap ? 2 * cap + 4096 : cap + 1;
            RK_TRY_OUT(st, rk_mem_resize(&p, cap, 1, "calibration text"));
        }
        ssize_t k = read(fd, (char *)p + used, (size_t)(cap - used));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            st = RK_FAIL(RK_E_INPUT, "%s: cannot read the calibration file: %m", path);
            goto out;
        }
        if (k == 0) break;
        used += k;
    }
    *buf = p;
    *n = used;
    p = NULL;
out:
    rk_mem_free(p);
    close(fd);
    return st;
}

/* Length of the UTF-8 sequence at p, 0 where there is none. */
static int64_t utf8_length(const unsigned char *p, int64_t n) {
    unsigned c = p[0];
    if (c < 0x80) return 1;
    int64_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || len > n) return 0;
    for (int64_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    /* overlong forms, surrogates, beyond U+10FFFF */
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) ||
        (c == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

static rk_status check_utf8(const char *path, const char *text, int64_t n) {
    int64_t line = 1;
    for (int64_t i = 0; i < n;) {
        int64_t len = utf8_length((const unsigned char *)text + i, n - i);
        if (len == 0)
            return RK_FAIL(RK_E_INPUT,
                           "%s line %lld: not UTF-8 (byte 0x%02x at offset %lld): convert the file "
                           "to UTF-8",
                           path, (long long)line, (unsigned)(unsigned char)text[i], (long long)i);
        line += text[i] == '\n';
        i += len;
    }
    return RK_OK;
}

static rk_status encode(const loader *l, const char *text, size_t n, bool literal, ids *out) {
    rk_text_part part = {text, n, literal};
    return rk_tokenizer_encode(l->t, &part, 1, false, &out->id, &out->n);
}

static int64_t n_bos(const loader *l) {
    return rk_tokenizer_bos(l->t) >= 0;
}

static bool full(const loader *l) {
    return l->out.n_samples >= l->max;
}

/* Append the sample BOS + prompt[np] + response[nr]. */
static rk_status add(loader *l, const int32_t *prompt, int64_t np, const int32_t *response,
                     int64_t nr) {
    rk_calibration *c = &l->out;
    void           *p;
    if (c->n_samples == l->cap) {
        int cap = l->cap ? 2 * l->cap : 16;
        p = c->samples;
        RK_TRY(rk_mem_resize(&p, cap, sizeof *c->samples, "calibration samples"));
        c->samples = p;
        l->cap = cap;
    }
    rk_sample s = {.n_prompt = n_bos(l) + np, .n_response = nr};
    if (l->id[0])
        memcpy(s.id, l->id, sizeof s.id);
    else
        snprintf(s.id, sizeof s.id, "window %d", c->n_samples);
    int64_t   n = s.n_prompt + s.n_response;
    RK_TRY(rk_mem_alloc(n, sizeof *s.tokens, "calibration tokens", &p));
    s.tokens = p;
    if (n_bos(l)) s.tokens[0] = rk_tokenizer_bos(l->t);
    memcpy(s.tokens + n_bos(l), prompt, sizeof *prompt * (size_t)np);
    memcpy(s.tokens + s.n_prompt, response, sizeof *response * (size_t)nr);

    rk_hash_state h;
    int64_t       lengths[2] = {s.n_prompt, s.n_response};
    rk_hash_init(&h);
    rk_hash_add(&h, lengths, sizeof lengths);
    rk_hash_add(&h, s.tokens, sizeof *s.tokens * (size_t)n);
    s.hash = rk_hash_digest(&h);
    rk_hash_add(&l->hash, lengths, sizeof lengths);
    rk_hash_add(&l->hash, s.tokens, sizeof *s.tokens * (size_t)n);
    c->samples[c->n_samples++] = s;
    return RK_OK;
}

static void skip(loader *l, int64_t n_tokens) {
    l->out.n_skipped++;
    if (n_tokens > l->longest) l->longest = n_tokens;
}

/* At most max_windows consecutive windows of one text; a text without any is skipped. */
static rk_status add_windows(loader *l, const char *text, size_t n, int64_t max_windows) {
    ids       x = {0};
    rk_status st = encode(l, text, n, true, &x);
    int64_t   np = l->context - n_bos(l), window = np + l->response, i = 0;
    for (; st == RK_OK && i < max_windows && !full(l) && x.n - i * window >= window; i++) {
        const int32_t *at = x.id + i * window;
        st = add(l, at, np, at + np, l->response);
    }
    if (st == RK_OK && i == 0) skip(l, n_bos(l) + x.n);
    rk_mem_free(x.id);
    return st;
}

/* A pair as it is, but for what exceeds context (off the prompt's front) and response. */
static rk_status add_pair(loader *l, const rk_json *prompt, const rk_json *response) {
    ids       p = {0}, r = {0};
    rk_status st;
    RK_TRY_OUT(st, encode(l, rk_json_str(prompt, ""), rk_json_str_len(prompt), false, &p));
    RK_TRY_OUT(st, encode(l, rk_json_str(response, ""), rk_json_str_len(response), false, &r));
    int64_t np = p.n, nr = r.n < l->response ? r.n : l->response;
    if (np > l->context - n_bos(l)) np = l->context - n_bos(l);
    if (n_bos(l) + np < 1 || p.n < 1 || nr < 1)
        skip(l, n_bos(l) + p.n + r.n);
    else
        RK_TRY_OUT(st, add(l, p.id + (p.n - np), np, r.id, nr));
out:
    rk_mem_free(p.id);
    rk_mem_free(r.id);
    return st;
}

static rk_status need_string(const char *origin, const char *key, const rk_json *v) {
    if (rk_json_kind_of(v) == RK_JSON_STRING) return RK_OK;
    return RK_FAIL(RK_E_INPUT, "%s: `%s` must be a string, it is %s", origin, key,
                   v ? rk_json_kind_name(v) : "absent");
}

static rk_status add_line(loader *l, const char *origin, const rk_json *j) {
    if (rk_json_kind_of(j) != RK_JSON_OBJECT)
        return RK_FAIL(RK_E_INPUT,
                       "%s: must be an object with `text` or `prompt` and `response`, "
                       "it is %s",
                       origin, rk_json_kind_name(j));
    const rk_json *text = rk_json_get(j, "text"), *prompt = rk_json_get(j, "prompt"),
                  *response = rk_json_get(j, "response");
    if (!text && !prompt && !response)
        return RK_FAIL(RK_E_INPUT, "%s: has neither `text` nor `prompt` and `response`", origin);
    if (text && (prompt || response))
        return RK_FAIL(RK_E_INPUT, "%s: has both `text` and `%s`: keep one", origin,
                       prompt ? "prompt" : "response");
    if (text) {
        RK_TRY(need_string(origin, "text", text));
        return add_windows(l, rk_json_str(text, ""), rk_json_str_len(text), 1);
    }
    RK_TRY(need_string(origin, "prompt", prompt));
    RK_TRY(need_string(origin, "response", response));
    return add_pair(l, prompt, response);
}

static void name_item(loader *l, const rk_json *j, int64_t line) {
    const rk_json *id = rk_json_get(j, "id") ? rk_json_get(j, "id") : rk_json_get(j, "_id");
    if (rk_json_kind_of(id) == RK_JSON_STRING)
        snprintf(l->id, sizeof l->id, "%.47s", rk_json_str(id, ""));
    else if (rk_json_kind_of(id) == RK_JSON_INT)
        snprintf(l->id, sizeof l->id, "%lld", (long long)rk_json_int(id, 0));
    else
        snprintf(l->id, sizeof l->id, "line %lld", (long long)line);
}

static bool blank(const char *s, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || s[i] == 0) return false;
    return true;
}

/* Call fn for each line that is not blank, until the sample count is full. */
static rk_status each_line(loader *l, const char *text, int64_t n) {
    int64_t line = 1;
    for (int64_t at = 0; at < n && !full(l); line++) {
        const char *nl = memchr(text + at, '\n', (size_t)(n - at));
        int64_t     len = nl ? nl - (text + at) : n - at;
        if (!blank(text + at, len)) {
            char     origin[512];
            rk_json *j;
            snprintf(origin, sizeof origin, "%.470s line %lld", l->path, (long long)line);
            RK_TRY(rk_json_parse(text + at, (size_t)len, origin, &j));
            name_item(l, j, line);
            rk_status st = add_line(l, origin, j);
            rk_json_close(j);
            RK_TRY(st);
        }
        at += len + 1;
    }
    return RK_OK;
}

/* JSONL by name, or by its first line that is not blank: an object with a known key. */
static bool is_jsonl(const char *path, const char *text, int64_t n) {
    size_t k = strlen(path);
    if (k >= 6 && strcmp(path + k - 6, ".jsonl") == 0) return true;
    if (k >= 4 && strcmp(path + k - 4, ".txt") == 0) return false;
    int64_t at = 0;
    while (at < n && strchr(" \t\r\n", text[at]) && text[at]) at++;
    if (at == n || text[at] != '{') return false;
    const char *nl = memchr(text + at, '\n', (size_t)(n - at));
    rk_json    *j;
    if (rk_json_parse(text + at, nl ? (size_t)(nl - (text + at)) : (size_t)(n - at), path, &j)) {
        rk_err_clear(); /* a text that begins with a brace */
        return false;
    }
    bool yes = rk_json_get(j, "text") || rk_json_get(j, "prompt");
    rk_json_close(j);
    return yes;
}

static rk_status check_arguments(const loader *l, int max_samples) {
    if (l->context < 1 || l->context > INT32_MAX)
        return RK_FAIL(RK_E_USAGE, "--context %lld: must be at least 1 token and fit 31 bits",
                       (long long)l->context);
    if (l->response < 1 || l->response > INT32_MAX)
        return RK_FAIL(RK_E_USAGE, "--response %lld: must be at least 1 token and fit 31 bits",
                       (long long)l->response);
    if (max_samples < 0)
        return RK_FAIL(RK_E_USAGE, "--samples %d: must be 0 (all) or more", max_samples);
    return RK_OK;
}

static rk_status check_any(const loader *l, bool jsonl) {
    if (l->out.n_samples) return RK_OK;
    if (jsonl && l->out.n_skipped == 0)
        return RK_FAIL(RK_E_INPUT, "%s: holds no items: give one JSON object a line", l->path);
    return RK_FAIL(RK_E_INPUT,
                   "%s: no item is long enough: context %lld + response %lld want %lld tokens, the "
                   "longest of %d has %lld: lower --context or --response, or give longer texts",
                   l->path, (long long)l->context, (long long)l->response,
                   (long long)(l->context + l->response), l->out.n_skipped, (long long)l->longest);
}

rk_status rk_calibration_load(const char *path, const rk_tokenizer *t, int64_t context,
                              int64_t response, int max_samples, rk_calibration *out) {
    loader l = {.path = path, .t = t, .context = context, .response = response};
    l.max = max_samples ? max_samples : INT32_MAX;
    RK_TRY(check_arguments(&l, max_samples));
    char     *buf = NULL;
    int64_t   n;
    rk_status st;
    rk_hash_init(&l.hash);
    RK_TRY_OUT(st, read_file(path, &buf, &n));
    int64_t skip_bom = n >= 3 && memcmp(buf, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    RK_TRY_OUT(st, check_utf8(path, buf, n));
    const char *text = buf + skip_bom;
    n -= skip_bom;
    bool jsonl = is_jsonl(path, text, n);
    RK_TRY_OUT(st, jsonl ? each_line(&l, text, n) : add_windows(&l, text, (size_t)n, INT32_MAX));
    RK_TRY_OUT(st, check_any(&l, jsonl));
    l.out.hash = rk_hash_digest(&l.hash);
    *out = l.out;
    l.out = (rk_calibration){0};
out:
    rk_calibration_free(&l.out);
    rk_mem_free(buf);
    return st;
}

void rk_calibration_free(rk_calibration *c) {
    for (int i = 0; i < c->n_samples; i++) rk_mem_free(c->samples[i].tokens);
    rk_mem_free(c->samples);
    *c = (rk_calibration){0};
}
