/* json.h - JSON values, parsed and built; the library behind it is seen in json.c only.
 *
 * A borrowed value (const rk_json *) lives as long as the document it came from. Getters are total:
 * they accept NULL and a value of another kind and then give the default. */
#pragma once
#include "base/err.h"

typedef struct rk_json rk_json;

typedef enum rk_json_kind {
    RK_JSON_NONE, /* NULL pointer */
    RK_JSON_NULL,
    RK_JSON_BOOL,
    RK_JSON_INT,
    RK_JSON_REAL,
    RK_JSON_STRING,
    RK_JSON_ARRAY,
    RK_JSON_OBJECT,
} rk_json_kind;

/* Parse one document of n bytes; origin (a file name, "FILE line 3") begins the message.
 * Errors: RK_E_INPUT with line and reason; duplicate keys and trailing text are errors */
rk_status rk_json_parse(const char *text, size_t n, const char *origin, rk_json **out);
rk_status rk_json_load(const char *path, rk_json **out);
void      rk_json_close(rk_json *j); /* documents and built values; NULL is fine */

rk_json_kind   rk_json_kind_of(const rk_json *j);
const char    *rk_json_kind_name(const rk_json *j); /* "a string", for messages */
const rk_json *rk_json_get(const rk_json *object, const char *key); /* NULL if absent */
size_t         rk_json_len(const rk_json *array_or_object);
const rk_json *rk_json_at(const rk_json *array, size_t i);
const char    *rk_json_str(const rk_json *j, const char *dflt);
size_t         rk_json_str_len(const rk_json *j); /* bytes; strings may hold NUL */
double         rk_json_num(const rk_json *j, double dflt); /* INT or REAL */
int64_t        rk_json_int(const rk_json *j, int64_t dflt);
bool           rk_json_bool(const rk_json *j, bool dflt);

/* Call fn for every member in file order; stop at the first status that is not RK_OK. */
rk_status rk_json_each(const rk_json *object,
                       rk_status (*fn)(void *arg, const char *key, const rk_json *value),
                       void *arg);

/* Building. Keys keep insertion order. A child given to set or add belongs to its parent.
 * Out of memory ends in the assert hook: these values are small. */
rk_json *rk_json_object(void);
rk_json *rk_json_array(void);
void     rk_json_set(rk_json *object, const char *key, rk_json *child);
void     rk_json_set_str(rk_json *object, const char *key, const char *value); /* invalid UTF-8: U+FFFD */
void     rk_json_set_strn(rk_json *object, const char *key, const char *value, size_t n);
void     rk_json_set_int(rk_json *object, const char *key, int64_t value);
void     rk_json_set_num(rk_json *object, const char *key, double value); /* not finite: null */
void     rk_json_set_bool(rk_json *object, const char *key, bool value);
void     rk_json_add(rk_json *array, rk_json *child);
void     rk_json_add_int(rk_json *array, int64_t value);
void     rk_json_add_num(rk_json *array, double value);
void     rk_json_add_str(rk_json *array, const char *value);

/* One line without a newline, or indented by 2; free with rk_mem_free. Reals with 17 digits. */
char *rk_json_text(const rk_json *j, bool indent);
