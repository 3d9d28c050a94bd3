/* text.c - see text.h. */
#include "eval/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

enum {
    SIGMA = 0x3a3,
    FINAL_SIGMA = 0x3c2,
    SMALL_SIGMA = 0x3c3,
    DOTTED_I = 0x130,
    DOT_ABOVE = 0x307
};

rk_status rk_text_open(const char *utf8, size_t n, rk_text *out) {
    rk_text t = {0};
    RK_TRY(rk_mem_alloc_to((int64_t)n + 1, sizeof *t.c, "text", &t.c));
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)utf8 + at, (utf8proc_ssize_t)(n - at), &c);
        if (k <= 0) c = 0xfffd, k = 1;
        t.c[t.n++] = c;
        at += (size_t)k;
    }
    *out = t;
    return RK_OK;
}

void rk_text_free(rk_text *t) {
    rk_mem_free(t->c);
    *t = (rk_text){0};
}

rk_status rk_text_utf8(const rk_text *t, char **utf8, size_t *n) {
    char *s;
    *n = 0;
    RK_TRY(rk_mem_alloc_to(4 * t->n + 1, 1, "text", &s));
    for (int64_t i = 0; i < t->n; i++)
        *n += (size_t)utf8proc_encode_char(t->c[i], (utf8proc_uint8_t *)s + *n);
    s[*n] = 0;
    *utf8 = s;
    return RK_OK;
}

/* ---- classes ---- */

bool rk_char_is_space(int32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool is_letter(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool rk_char_is_word(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return c == '_' || is_letter(c) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
           k == UTF8PROC_CATEGORY_NO;
}

bool rk_char_is_digit(int32_t c) {
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

bool rk_char_is_ascii_punctuation(int32_t c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static bool within(int32_t c, const int32_t (*ranges)[2], size_t n) {
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

/* Unicode's Cased: Lu, Ll, Lt and the properties Other_Lowercase and Other_Uppercase. */
static bool is_cased(int32_t c) {
    static const int32_t other[][2] = {
        {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},
        {0x2e0, 0x2e4},     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},
        {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},   {0x2071, 0x2071},   {0x207f, 0x207f},
        {0x2090, 0x209c},   {0x2160, 0x217f},   {0x24b6, 0x24e9},   {0x2c7c, 0x2c7d},
        {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
        {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189},
    };
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           within(c, other, sizeof other / sizeof *other);
}

/* Unicode's Case_Ignorable: Mn, Me, Cf, Lm, Sk, and what stands within words (MidLetter, MidNumLet,
 * Single_Quote). */
static bool is_case_ignorable(int32_t c) {
    static const int32_t within_words[][2] = {
        {0x27, 0x27},     {0x2e, 0x2e},     {0x3a, 0x3a},     {0xb7, 0xb7},
        {0x387, 0x387},   {0x55f, 0x55f},   {0x5f4, 0x5f4},   {0x2018, 0x2019},
        {0x2024, 0x2024}, {0x2027, 0x2027}, {0xfe13, 0xfe13}, {0xfe52, 0xfe52},
        {0xfe55, 0xfe55}, {0xff07, 0xff07}, {0xff0e, 0xff0e}, {0xff1a, 0xff1a},
    };
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return within(c, within_words, sizeof within_words / sizeof *within_words);
    }
}

/* ---- lower case ---- */

/* A capital sigma ends a word: behind a cased letter and before none, ignorable ones aside. */
static bool is_final(const rk_text *t, int64_t i) {
    int64_t j = i - 1;
    while (j >= 0 && is_case_ignorable(t->c[j])) j--;
    if (j < 0 || !is_cased(t->c[j])) return false;
    for (j = i + 1; j < t->n && is_case_ignorable(t->c[j]);) j++;
    return j == t->n || !is_cased(t->c[j]);
}

rk_status rk_text_lower(const rk_text *t, rk_text *out) {
    rk_text r = {0};
    RK_TRY(rk_mem_alloc_to(2 * t->n + 1, sizeof *r.c, "text", &r.c));
    for (int64_t i = 0; i < t->n; i++) {
        int32_t c = t->c[i];
        if (c == SIGMA) {
            r.c[r.n++] = is_final(t, i) ? FINAL_SIGMA : SMALL_SIGMA;
        } else if (c == DOTTED_I) {
            r.c[r.n++] = 'i';
            r.c[r.n++] = DOT_ABOVE;
        } else {
            r.c[r.n++] = utf8proc_tolower(c);
        }
    }
    *out = r;
    return RK_OK;
}

/* ---- parts ---- */

bool rk_slice_equal(rk_slice a, rk_slice b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.c, b.c, (size_t)a.n * sizeof *a.c) == 0);
}

int rk_slice_compare(rk_slice a, rk_slice b) {
    int64_t n = a.n < b.n ? a.n : b.n;
    for (int64_t i = 0; i < n; i++)
        if (a.c[i] != b.c[i]) return a.c[i] < b.c[i] ? -1 : 1;
    return (a.n > b.n) - (a.n < b.n);
}

int64_t rk_slice_find(rk_slice in, rk_slice what, int64_t from) {
    for (int64_t i = from; i + what.n <= in.n; i++)
        if (what.n == 0 || memcmp(in.c + i, what.c, (size_t)what.n * sizeof *what.c) == 0) return i;
    return -1;
}

int64_t rk_slice_split_space(rk_slice s, rk_slice *out, int64_t cap) {
    int64_t n = 0;
    for (int64_t i = 0; i < s.n;) {
        while (i < s.n && rk_char_is_space(s.c[i])) i++;
        int64_t from = i;
        while (i < s.n && !rk_char_is_space(s.c[i])) i++;
        if (i > from) {
            if (n < cap) out[n] = (rk_slice){s.c + from, i - from};
            n++;
        }
    }
    return n;
}
