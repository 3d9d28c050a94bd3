/* json.c - over jansson, whose header stays here. */
#include "base/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static json_t *of(const rk_json *j) {
    union {
        const rk_json *c;
        json_t        *p;
    } u = {.c = j};
    return u.p;
}
static rk_json *wrap(json_t *j) { return (rk_json *)j; }

static rk_status fail_parse(const char *origin, const json_error_t *e) {
    return RK_FAIL(RK_E_INPUT, "%s: not valid JSON: line %d: %s", origin, e->line, e->text);
}

rk_status rk_json_parse(const char *text, size_t n, const char *origin, rk_json **out) {
    json_error_t e;
    *out = wrap(json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e));
    return *out ? RK_OK : fail_parse(origin, &e);
}

rk_status rk_json_load(const char *path, rk_json **out) {
    json_error_t e;
    *out = NULL;
    FILE *f = fopen(path, "rb");
    if (!f) return RK_FAIL(RK_E_INPUT, "%s: cannot open: %m", path);
    *out = wrap(json_loadf(f, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e));
    fclose(f);
    return *out ? RK_OK : fail_parse(path, &e);
}

void rk_json_close(rk_json *j) { json_decref(of(j)); }

rk_json_kind rk_json_kind_of(const rk_json *j) {
    if (!j) return RK_JSON_NONE;
    switch (json_typeof(of(j))) {
    case JSON_NULL: return RK_JSON_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return RK_JSON_BOOL;
    case JSON_INTEGER: return RK_JSON_INT;
    case JSON_REAL: return RK_JSON_REAL;
    case JSON_STRING: return RK_JSON_STRING;
    case JSON_ARRAY: return RK_JSON_ARRAY;
    case JSON_OBJECT: return RK_JSON_OBJECT;
    }
    return RK_JSON_NONE;
}

const char *rk_json_kind_name(const rk_json *j) {
    static const char *const names[] = {"absent",    "null",     "a boolean", "an integer",
                                        "a number", "a string", "an array",  "an object"};
    return names[rk_json_kind_of(j)];
}

const rk_json *rk_json_get(const rk_json *object, const char *key) {
    return object ? wrap(json_object_get(of(object), key)) : NULL;
}

size_t rk_json_len(const rk_json *j) {
    return rk_json_kind_of(j) == RK_JSON_OBJECT ? json_object_size(of(j)) : json_array_size(of(j));
}

const rk_json *rk_json_at(const rk_json *array, size_t i) {
    return array ? wrap(json_array_get(of(array), i)) : NULL;
}

const char *rk_json_str(const rk_json *j, const char *dflt) {
    const char *s = j ? json_string_value(of(j)) : NULL;
    return s ? s : dflt;
}

size_t rk_json_str_len(const rk_json *j) { return j ? json_string_length(of(j)) : 0; }

double rk_json_num(const rk_json *j, double dflt) {
    return j && json_is_number(of(j)) ? json_number_value(of(j)) : dflt;
}

int64_t rk_json_int(const rk_json *j, int64_t dflt) {
    return j && json_is_integer(of(j)) ? (int64_t)json_integer_value(of(j)) : dflt;
}

bool rk_json_bool(const rk_json *j, bool dflt) {
    return j && json_is_boolean(of(j)) ? json_is_true(of(j)) : dflt;
}

rk_status rk_json_each(const rk_json *object,
                       rk_status (*fn)(void *arg, const char *key, const rk_json *value),
                       void *arg) {
    json_t *o = of(object);
    for (void *it = o ? json_object_iter(o) : NULL; it; it = json_object_iter_next(o, it))
        RK_TRY(fn(arg, json_object_iter_key(it), wrap(json_object_iter_value(it))));
    return RK_OK;
}

static json_t *must(json_t *j) {
    RK_ASSERT(j != NULL);
    return j;
}
static void must_zero(int rc) { RK_ASSERT(rc == 0); }

rk_json *rk_json_object(void) { return wrap(must(json_object())); }
rk_json *rk_json_array(void) { return wrap(must(json_array())); }

void rk_json_set(rk_json *object, const char *key, rk_json *child) {
    must_zero(json_object_set_new(of(object), key, of(child)));
}

/* Length of the valid UTF-8 sequence at p, 0 where there is none. */
static size_t utf8_len(const unsigned char *p, size_t n) {
    unsigned c = p[0];
    if (c < 0x80) return 1;
    size_t len = c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (c == 0xe0 && p[1] < 0xa0) return 0;
    if (c == 0xed && p[1] > 0x9f) return 0;
    if (c == 0xf0 && p[1] < 0x90) return 0;
    if (c == 0xf4 && p[1] > 0x8f) return 0;
    return len;
}

static json_t *string_value(const char *s, size_t n) {
    json_t *j = json_stringn(s, n);
    if (j) return j;
    void *buf; /* not valid UTF-8: each bad byte becomes U+FFFD */
    rk_status st = rk_mem_alloc((int64_t)(3 * n + 1), 1, "json string", &buf);
    RK_ASSERT(st == RK_OK);
    char  *o = buf;
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_len((const unsigned char *)s + i, n - i);
        if (len) {
            memcpy(o + k, s + i, len);
            k += len;
            i += len;
        } else {
            memcpy(o + k, "\xef\xbf\xbd", 3);
            k += 3;
            i++;
        }
    }
    j = must(json_stringn(o, k));
    rk_mem_free(buf);
    return j;
}

void rk_json_set_str(rk_json *object, const char *key, const char *value) {
    must_zero(json_object_set_new(of(object), key, string_value(value, strlen(value))));
}
void rk_json_set_strn(rk_json *object, const char *key, const char *value, size_t n) {
    must_zero(json_object_set_new(of(object), key, string_value(value, n)));
}
void rk_json_set_int(rk_json *object, const char *key, int64_t value) {
    must_zero(json_object_set_new(of(object), key, must(json_integer(value))));
}
static json_t *number(double v) { return must(isfinite(v) ? json_real(v) : json_null()); }
void           rk_json_set_num(rk_json *object, const char *key, double value) {
    must_zero(json_object_set_new(of(object), key, number(value)));
}
void rk_json_set_bool(rk_json *object, const char *key, bool value) {
    must_zero(json_object_set_new(of(object), key, json_boolean(value)));
}
void rk_json_add(rk_json *array, rk_json *child) {
    must_zero(json_array_append_new(of(array), of(child)));
}
void rk_json_add_int(rk_json *array, int64_t value) {
    must_zero(json_array_append_new(of(array), must(json_integer(value))));
}
void rk_json_add_num(rk_json *array, double value) {
    must_zero(json_array_append_new(of(array), number(value)));
}
void rk_json_add_str(rk_json *array, const char *value) {
    must_zero(json_array_append_new(of(array), string_value(value, strlen(value))));
}

char *rk_json_text(const rk_json *j, bool indent) {
    size_t flags = JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY | (indent ? JSON_INDENT(2) : 0);
    char  *raw = json_dumps(of(j), flags), *out = NULL;
    RK_ASSERT(raw != NULL);
    rk_status st = rk_mem_strdup(raw, &out);
    RK_ASSERT(st == RK_OK);
    free(raw);
    return out;
}
