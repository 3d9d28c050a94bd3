/* tokenizer_split.c - NFC, and the split of text into pieces by a file's regular expressions.
 *
 * The only user of PCRE2 and utf8proc. The expressions were written for another engine; the one
 * construct of theirs that PCRE2 reads differently is \s (PCRE2's has U+180E), so it is spelled
 * out. Escapes that might differ and that no supported file uses are refused. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "core/tokenizer_impl.h"

/* White_Space of Unicode and its complement, as the inside of a bracket class. */
#define SPACES                                                                                     \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"       \
    "\\x{3000}"
#define NO_SPACES                                                                                  \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}"                   \
    "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}"                 \
    "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

typedef struct step {
    pcre2_code *code;  /* NULL: put a space before the piece */
    char       *regex; /* as in the file, for messages */
} step;

struct rk_splitter {
    pcre2_general_context *memory;
    step                   step[RK_SPLIT_STEPS];
    int                    n_steps;
};

struct rk_split_run {
    const rk_splitter *s;
    pcre2_match_data  *match[RK_SPLIT_STEPS];
    rk_piece_fn        fn;
    void              *arg;
};

static void *counted_alloc(size_t n, void *unused) {
    (void)unused;
    void     *p;
    rk_status st = rk_mem_alloc((int64_t)n, 1, "regular expression", &p);
    return st == RK_OK ? p : NULL;
}
static void counted_free(void *p, void *unused) {
    (void)unused;
    rk_mem_free(p);
}

static rk_status fail_regex(const char *origin, const char *regex, const char *what) {
    return RK_FAIL(RK_E_INPUT,
                   "%s: the pre-tokenizer's regular expression \"%.200s\" has %s, which is not "
                   "supported; use a model of a supported tokenizer family (Llama 3, Qwen, GPT-2, "
                   "SmolLM2)",
                   origin, regex, what);
}

/* Check the escape at e[0] == '\\'; what PCRE2 might read differently is refused. */
static rk_status check_escape(const char *e, const char *origin, const char *regex) {
    char c = e[1], what[32];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c && !(c >= '0' && c <= '9') && (!letter || strchr("pPrntdDx", c))) return RK_OK;
    snprintf(what, sizeof what, "the escape \\%c", c ? c : ' ');
    return fail_regex(origin, regex, what);
}

/* The expression with \s and \S spelled out, into o. */
static rk_status spell_out(const char *regex, const char *origin, char *o) {
    bool in_class = false;
    for (const char *r = regex; *r; r++) {
        if (r[0] == '\\' && (r[1] == 's' || r[1] == 'S')) {
            o = stpcpy(o, in_class ? "" : "[");
            o = stpcpy(o, r[1] == 's' ? SPACES : NO_SPACES);
            o = stpcpy(o, in_class ? "" : "]");
            r++;
        } else if (r[0] == '\\') {
            RK_TRY(check_escape(r, origin, regex));
            *o++ = *r++;
            *o++ = *r;
        } else {
            if (in_class && (r[0] == '[' || (r[0] == '&' && r[1] == '&')))
                return fail_regex(origin, regex, "a class within a class");
            if (r[0] == '[') in_class = true;
            if (r[0] == ']') in_class = false;
            *o++ = *r;
        }
    }
    *o = 0;
    return RK_OK;
}

static rk_status compile(rk_splitter *s, step *to, const char *regex, const char *origin) {
    RK_TRY(rk_mem_strdup(regex, &to->regex));
    size_t n = strlen(regex);
    void  *pattern; /* \S takes most room: two characters become the ranges and brackets */
    RK_TRY(rk_mem_alloc((int64_t)((n / 2 + 1) * (sizeof NO_SPACES + 2)), 1, "regular expression",
                        &pattern));
    rk_status st = spell_out(regex, origin, pattern);
    if (st != RK_OK) {
        rk_mem_free(pattern);
        RK_TRY(st);
    }
    int                    code = 0;
    PCRE2_SIZE             at;
    pcre2_compile_context *cc = pcre2_compile_context_create(s->memory);
    uint32_t               flags = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    if (cc) to->code = pcre2_compile(pattern, PCRE2_ZERO_TERMINATED, flags, &code, &at, cc);
    pcre2_compile_context_free(cc);
    rk_mem_free(pattern);
    if (!cc || (!to->code && code == PCRE2_ERROR_HEAP_FAILED))
        return RK_FAIL(RK_E_MEM, "%s: no memory for the pre-tokenizer's regular expression",
                       origin);
    if (!to->code) {
        PCRE2_UCHAR text[160];
        if (pcre2_get_error_message(code, text, sizeof text) < 0) text[0] = 0;
        return RK_FAIL(RK_E_INPUT,
                       "%s: the pre-tokenizer's regular expression \"%.200s\" is not valid: %s",
                       origin, regex, (const char *)text);
    }
    (void)pcre2_jit_compile(to->code, PCRE2_JIT_COMPLETE); /* without it: slower, the same */
    return RK_OK;
}

rk_status rk_splitter_open(const char *const *regex, int n_steps, const char *origin,
                           rk_splitter **out) {
    RK_ASSERT(n_steps <= RK_SPLIT_STEPS);
    *out = NULL;
    void *p;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_splitter), "pre-tokenizer", &p));
    rk_splitter *s = p;
    s->memory = pcre2_general_context_create(counted_alloc, counted_free, NULL);
    rk_status st = RK_OK;
    if (!s->memory)
        RK_TRY_OUT(st, RK_FAIL(RK_E_MEM, "%s: no memory for the pre-tokenizer", origin));
    for (int i = 0; i < n_steps; i++) {
        s->n_steps = i + 1;
        if (regex[i]) RK_TRY_OUT(st, compile(s, &s->step[i], regex[i], origin));
    }
    *out = s;
    return RK_OK;
out:
    rk_splitter_close(s);
    return st;
}

void rk_splitter_close(rk_splitter *s) {
    if (!s) return;
    for (int i = 0; i < s->n_steps; i++) {
        pcre2_code_free(s->step[i].code);
        rk_mem_free(s->step[i].regex);
    }
    pcre2_general_context_free(s->memory);
    rk_mem_free(s);
}

rk_status rk_split_begin(const rk_splitter *s, rk_split_run **out) {
    *out = NULL;
    void *p;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_split_run), "pre-tokenizer", &p));
    rk_split_run *r = p;
    r->s = s;
    for (int i = 0; i < s->n_steps; i++) {
        if (!s->step[i].code) continue;
        r->match[i] = pcre2_match_data_create(1, s->memory); /* the whole match is all we read */
        if (!r->match[i]) {
            rk_split_end(r);
            return RK_FAIL(RK_E_MEM, "no memory for the pre-tokenizer");
        }
    }
    *out = r;
    return RK_OK;
}

void rk_split_end(rk_split_run *r) {
    if (!r) return;
    for (int i = 0; i < r->s->n_steps; i++) pcre2_match_data_free(r->match[i]);
    rk_mem_free(r);
}

/* Find the next non-empty match in text[from, n). */
static rk_status next_match(rk_split_run *r, int i, const char *text, size_t n, size_t from,
                            rk_range *m, bool *found) {
    const step *s = &r->s->step[i];
    uint32_t    flags = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int         rc = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, flags, r->match[i], NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's stack is the heap */
        rc = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, flags | PCRE2_NO_JIT, r->match[i],
                         NULL);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return RK_OK;
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return RK_FAIL(RK_E_MEM, "no memory to split text into pieces");
    if (rc < 0)
        return RK_FAIL(RK_E_INPUT,
                       "the pre-tokenizer's regular expression \"%.200s\" gave up on a text "
                       "(PCRE2 error %d)",
                       s->regex, rc);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(r->match[i]);
    *m = (rk_range){at[0], at[1]};
    return RK_OK;
}

static rk_status split_from(rk_split_run *r, int i, const char *text, size_t n);

static rk_status with_space(rk_split_run *r, int i, const char *text, size_t n) {
    void *p;
    RK_TRY(rk_mem_alloc((int64_t)n + 1, 1, "piece", &p));
    char *buf = p;
    buf[0] = ' ';
    memcpy(buf + 1, text, n);
    rk_status st = split_from(r, i + 1, buf, n + 1);
    rk_mem_free(buf);
    return st;
}

/* Steps i and later on one piece. The piece is the whole subject: look-ahead ends with it. */
static rk_status split_from(rk_split_run *r, int i, const char *text, size_t n) {
    if (n == 0) return RK_OK;
    if (i == r->s->n_steps) return r->fn(r->arg, text, n);
    if (!r->s->step[i].code) {
        if (text[0] == ' ') return split_from(r, i + 1, text, n);
        return with_space(r, i, text, n);
    }
    for (size_t done = 0; done < n;) {
        rk_range m = {n, n};
        bool     found;
        RK_TRY(next_match(r, i, text, n, done, &m, &found));
        if (!found) m = (rk_range){n, n};
        RK_TRY(split_from(r, i + 1, text + done, m.begin - done));
        RK_TRY(split_from(r, i + 1, text + m.begin, m.end - m.begin));
        done = m.end;
    }
    return RK_OK;
}

rk_status rk_split_text(rk_split_run *r, const char *text, size_t n, rk_piece_fn fn, void *arg) {
    r->fn = fn;
    r->arg = arg;
    return split_from(r, 0, text, n);
}

/* ---- characters ---- */

bool rk_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool rk_is_word(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d; /* the joiners */
    }
}

/* ---- NFC ---- */

/* Ranges in which every character is its own NFC and never composes with one before it (from the
 * Unicode data): text of these only is left alone. */
static bool is_plain(uint32_t c) {
    static const uint32_t plain[][2] = {
        {0, 0x2ff},       {0x388, 0x482},   {0x2002, 0x20cf}, {0x212c, 0x2328}, {0x3030, 0x3098},
        {0x309b, 0xa66e}, {0xabee, 0xd7ff}, {0xfb4f, 0xfe1f}, {0xfe30, 0xffff}, {0x1f000, 0x1faff}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (c <= plain[i][1]) return c >= plain[i][0];
    return false;
}

static bool is_nfc_at_sight(const char *text, size_t n) {
    for (size_t i = 0, len; i < n; i += len) {
        if ((unsigned char)text[i] < 0x80) {
            len = 1;
            continue;
        }
        (void)rk_utf8_scan(text + i, n - i, &len);
        if (!is_plain(rk_utf8_code(text + i, len))) return false;
    }
    return true;
}

static int combining_class(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* Order runs of marks by combining class, stable. Counting, not insertion: a text may be one long
 * run. tmp has n entries. */
static void order_marks(utf8proc_int32_t *c, int64_t n, utf8proc_int32_t *tmp) {
    for (int64_t i = 0; i < n;) {
        if (combining_class(c[i]) == 0) {
            i++;
            continue;
        }
        int64_t end = i, count[257] = {0};
        for (; end < n && combining_class(c[end]); end++) count[combining_class(c[end]) + 1]++;
        for (int k = 1; k < 257; k++) count[k] += count[k - 1];
        for (int64_t k = i; k < end; k++) tmp[count[combining_class(c[k])]++] = c[k];
        memcpy(c + i, tmp, (size_t)(end - i) * sizeof *c);
        i = end;
    }
}

/* Canonical decomposition of text into *c (room *cap, grown), its length in *n_c. */
static rk_status decompose(const char *text, size_t n, utf8proc_int32_t **c, int64_t *cap,
                           int64_t *n_c) {
    enum { LONGEST = 8 }; /* of one character; Unicode's longest canonical one has 4 */
    int64_t k = 0;
    for (size_t i = 0, len; i < n; i += len) {
        if (k + LONGEST > *cap) {
            void     *p = *c;
            int64_t   more = *cap ? *cap * 2 : (int64_t)n + LONGEST;
            rk_status st = rk_mem_resize(&p, more, sizeof **c, "text normalization");
            *c = p;
            RK_TRY(st);
            *cap = more;
        }
        (void)rk_utf8_scan(text + i, n - i, &len);
        int              unused = 0;
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)rk_utf8_code(text + i, len), *c + k, LONGEST,
                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE, &unused);
        RK_ASSERT(got >= 0 && got <= LONGEST);
        k += got;
    }
    *n_c = k;
    return RK_OK;
}

rk_status rk_nfc(const char *text, size_t n, char **out, size_t *n_out) {
    *out = NULL;
    *n_out = n;
    if (is_nfc_at_sight(text, n)) return RK_OK;
    utf8proc_int32_t *c = NULL;
    int64_t           cap = 0, n_c = 0;
    void             *tmp = NULL, *buf = NULL;
    rk_status         st;
    RK_TRY_OUT(st, decompose(text, n, &c, &cap, &n_c));
    RK_TRY_OUT(st, rk_mem_alloc(n_c, sizeof *c, "text normalization", &tmp));
    order_marks(c, n_c, tmp);
    utf8proc_ssize_t left = utf8proc_normalize_utf32(c, n_c, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    RK_ASSERT(left >= 0);
    RK_TRY_OUT(st, rk_mem_alloc(4 * left + 1, 1, "normalized text", &buf));
    char  *o = buf;
    size_t k = 0;
    for (int64_t i = 0; i < left; i++)
        k += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)o + k);
    *out = o;
    *n_out = k;
out:
    rk_mem_free(c);
    rk_mem_free(tmp);
    return st;
}
