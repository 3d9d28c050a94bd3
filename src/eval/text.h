/* text.h - strings of Unicode code points, and the rules of Python's str and re that scores of
 * texts are defined by. */
#pragma once
#include "base/err.h"

/* Owner: c from rk_mem; rk_text_free. Empty: {0} */
typedef struct rk_text {
    int32_t *c;
    int64_t  n;
} rk_text;

/* From n bytes of UTF-8; what is not UTF-8 becomes U+FFFD. Errors: RK_E_MEM */
rk_status rk_text_open(const char *utf8, size_t n, rk_text *out);
void      rk_text_free(rk_text *t);
/* Owner: *utf8 from rk_mem, NUL-terminated */
rk_status rk_text_utf8(const rk_text *t, char **utf8, size_t *n);

/* Full lower case as str.lower: U+0130 becomes two code points, a final capital sigma U+03C2. */
rk_status rk_text_lower(const rk_text *t, rk_text *out);

bool rk_char_is_space(int32_t c);             /* str.split, str.isspace */
bool rk_char_is_word(int32_t c);              /* re: \w */
bool rk_char_is_digit(int32_t c);             /* re: \d */
bool rk_char_is_ascii_punctuation(int32_t c); /* string.punctuation */

/* A part of a text. */
typedef struct rk_slice {
    const int32_t *c;
    int64_t        n;
} rk_slice;
static inline rk_slice rk_slice_of(const rk_text *t) {
    return (rk_slice){t->c, t->n};
}
bool    rk_slice_equal(rk_slice a, rk_slice b);
int     rk_slice_compare(rk_slice a, rk_slice b);
int64_t rk_slice_find(rk_slice in, rk_slice what, int64_t from); /* first place; -1; empty: from */

/* Parts between runs of white space, as str.split(). Shapes: out [cap]; returns how many there are.
 */
int64_t rk_slice_split_space(rk_slice s, rk_slice *out, int64_t cap);
