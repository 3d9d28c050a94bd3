/* test_gguf.c - the GGUF reader: kinds of values, placing of tensors, damaged files, blocks to f32.
 */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "core/gguf.h"
#include "tests/harness.h"
#include "tests/suites.h"
#include "tests/tiny_model.h"

/* ---- a writer of small files ----------------------------------------------------------------- */

typedef struct bytes {
    uint8_t p[8192];
    size_t  n;
} bytes;

static void put(bytes *b, const void *src, size_t n) {
    CU_ASSERT_FATAL(b->n + n <= sizeof b->p);
    memcpy(b->p + b->n, src, n);
    b->n += n;
}
static void u32(bytes *b, uint32_t v) {
    put(b, &v, 4);
}
static void u64(bytes *b, uint64_t v) {
    put(b, &v, 8);
}
static void str(bytes *b, const char *s) {
    u64(b, strlen(s));
    put(b, s, strlen(s));
}
static void head(bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    b->n = 0;
    put(b, "GGUF", 4);
    u32(b, version);
    u64(b, n_tensors);
    u64(b, n_keys);
}
static void info(bytes *b, const char *name, uint64_t d0, uint64_t d1, uint32_t type, uint64_t at) {
    str(b, name);
    u32(b, 2);
    u64(b, d0);
    u64(b, d1);
    u32(b, type);
    u64(b, at);
}
static void pad(bytes *b, size_t to) {
    while (b->n % to) put(b, "", 1);
}

static const char *path_of(void) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/case.gguf", rk_test_tmpdir());
    return path;
}

static rk_status open_bytes(const void *p, size_t n, rk_gguf **g) {
    CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(path_of(), p, (int64_t)n), RK_OK);
    return rk_gguf_open(path_of(), g);
}

/* Refused as input, in one line that names the file and the thing; nothing kept. */
static void refused(const bytes *b, const char *expected) {
    rk_gguf  *g = NULL;
    int64_t   blocks = rk_mem_blocks();
    rk_status st = open_bytes(b->p, b->n, &g);
    CU_ASSERT_EQUAL(st, RK_E_INPUT);
    CU_ASSERT_PTR_NULL(g);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
    const char *text = rk_err_last()->text;
    if (!strstr(text, expected) || strchr(text, '\n') || !strstr(text, path_of())) {
        fprintf(stderr, "expected \"%s\" in one line: %s\n", expected, text);
        CU_FAIL("message");
    }
    if (st == RK_OK) rk_gguf_close(g);
}

/* ---- values ---------------------------------------------------------------------------------- */

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static void value(bytes *b, const char *key, uint32_t kind, const void *v, size_t n) {
    str(b, key);
    u32(b, kind);
    put(b, v, n);
}

static void scalar_file(bytes *b) {
    head(b, 3, 0, 13);
    value(b, "u8", U8, &(uint8_t){200}, 1);
    value(b, "i8", I8, &(int8_t){-3}, 1);
    value(b, "u16", U16, &(uint16_t){60000}, 2);
    value(b, "i16", I16, &(int16_t){-300}, 2);
    value(b, "u32", U32, &(uint32_t){4000000000u}, 4);
    value(b, "i32", I32, &(int32_t){-70000}, 4);
    value(b, "f32", F32, &(float){0.1f}, 4);
    value(b, "yes", BOOL, &(uint8_t){1}, 1);
    value(b, "u64", U64, &(uint64_t){1ull << 40}, 8);
    value(b, "big", U64, &(uint64_t){UINT64_MAX}, 8);
    value(b, "i64", I64, &(int64_t){-(1ll << 40)}, 8);
    value(b, "f64", F64, &(double){0.1}, 8);
    str(b, "text");
    u32(b, STRING);
    u64(b, 5);
    put(b, "a\0b\xff!", 5);
}

static void test_scalars(void) {
    static const struct {
        const char *key;
        int64_t     want;
    } ints[] = {{"u8", 200},         {"i8", -3},      {"u16", 60000},     {"i16", -300},
                {"u32", 4000000000}, {"i32", -70000}, {"u64", 1ll << 40}, {"i64", -(1ll << 40)}};
    bytes    b;
    rk_gguf *g;
    scalar_file(&b);
    CU_ASSERT_EQUAL_FATAL(open_bytes(b.p, b.n, &g), RK_OK);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        CU_ASSERT(rk_gguf_has(g, ints[i].key));
        CU_ASSERT_EQUAL(rk_gguf_int(g, ints[i].key, -1), ints[i].want);
        CU_ASSERT_EQUAL(rk_gguf_num(g, ints[i].key, -1), (double)ints[i].want);
        CU_ASSERT_EQUAL(rk_gguf_arr_len(g, ints[i].key), -1);
        CU_ASSERT_PTR_NULL(rk_gguf_str(g, ints[i].key, NULL));
    }
    CU_ASSERT_EQUAL(rk_gguf_num(g, "f32", 0), (double)0.1f);
    CU_ASSERT_EQUAL(rk_gguf_num(g, "f64", 0), 0.1);
    CU_ASSERT_EQUAL(rk_gguf_int(g, "f64", 42), 42);
    CU_ASSERT_EQUAL(rk_gguf_int(g, "big", 42), 42);
    CU_ASSERT_EQUAL(rk_gguf_int(g, "yes", 42), 42);
    CU_ASSERT(rk_gguf_bool(g, "yes", false));
    CU_ASSERT(rk_gguf_bool(g, "u8", true) && !rk_gguf_bool(g, "none", false));
    CU_ASSERT(memcmp(rk_gguf_str(g, "text", ""), "a\0b\xff!", 6) == 0);
    CU_ASSERT_STRING_EQUAL(rk_gguf_str(g, "none", "dflt"), "dflt");
    CU_ASSERT(!rk_gguf_has(g, "none"));
    CU_ASSERT_EQUAL(rk_gguf_int(g, "text", 7), 7);
    CU_ASSERT_STRING_EQUAL(rk_gguf_path(g), path_of());
    rk_gguf_close(g);
    rk_gguf_close(NULL);
}

static void array(bytes *b, const char *key, uint32_t elem, uint64_t n) {
    str(b, key);
    u32(b, ARRAY);
    u32(b, elem);
    u64(b, n);
}

static void array_file(bytes *b) {
    head(b, 3, 0, 5);
    array(b, "ints", I16, 3);
    put(b, (int16_t[]){-1, 2, 300}, 6);
    array(b, "reals", F32, 2);
    put(b, (float[]){0.5f, -2}, 8);
    array(b, "strings", STRING, 3);
    str(b, "one");
    str(b, "");
    u64(b, 3);
    put(b, "x\0y", 3);
    array(b, "nested", ARRAY, 2);
    u32(b, STRING);
    u64(b, 1);
    str(b, "in");
    u32(b, U8);
    u64(b, 2);
    put(b, "ab", 2);
    array(b, "empty", U32, 0);
}

static void test_arrays(void) {
    bytes    b;
    rk_gguf *g;
    size_t   len;
    array_file(&b);
    CU_ASSERT_EQUAL_FATAL(open_bytes(b.p, b.n, &g), RK_OK);
    CU_ASSERT_EQUAL(rk_gguf_arr_len(g, "ints"), 3);
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "ints", 0, 9), -1);
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "ints", 2, 9), 300);
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "ints", 3, 9), 9);
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "ints", -1, 9), 9);
    CU_ASSERT_EQUAL(rk_gguf_arr_num(g, "reals", 1, 9), -2.0);
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "reals", 1, 9), 9);
    CU_ASSERT_STRING_EQUAL(rk_gguf_arr_str(g, "strings", 0, &len), "one");
    CU_ASSERT_EQUAL(len, 3);
    CU_ASSERT_STRING_EQUAL(rk_gguf_arr_str(g, "strings", 1, &len), "");
    CU_ASSERT_EQUAL(len, 0);
    CU_ASSERT(memcmp(rk_gguf_arr_str(g, "strings", 2, &len), "x\0y", 4) == 0);
    CU_ASSERT_EQUAL(len, 3);
    CU_ASSERT_PTR_NULL(rk_gguf_arr_str(g, "strings", 3, &len));
    CU_ASSERT_PTR_NULL(rk_gguf_arr_str(g, "ints", 0, NULL));
    CU_ASSERT_EQUAL(rk_gguf_arr_len(g, "nested"), 2);
    CU_ASSERT_PTR_NULL(rk_gguf_arr_str(g, "nested", 0, NULL));
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "nested", 0, 9), 9);
    CU_ASSERT_EQUAL(rk_gguf_arr_int(g, "strings", 0, 9), 9);
    CU_ASSERT_EQUAL(rk_gguf_arr_len(g, "empty"), 0);
    CU_ASSERT_EQUAL(rk_gguf_arr_len(g, "none"), -1);
    rk_gguf_close(g);
}

/* Two tensors behind an alignment of 64, the later one first in the data. */
static void tensor_file(bytes *b, uint32_t alignment, uint64_t second_at) {
    head(b, 3, 2, 1);
    value(b, "general.alignment", U32, &alignment, 4);
    info(b, "b", 4, 3, RK_GGML_F32, second_at);
    info(b, "a", 32, 2, RK_GGML_Q8_0, 0);
    pad(b, 64);
    uint8_t data[128 + 48];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    put(b, data, sizeof data);
}

static void test_tensors(void) {
    bytes    b;
    rk_gguf *g;
    tensor_file(&b, 64, 128);
    CU_ASSERT_EQUAL_FATAL(open_bytes(b.p, b.n, &g), RK_OK);
    CU_ASSERT_EQUAL(rk_gguf_n_tensors(g), 2);
    const rk_gguf_tensor *t = rk_gguf_find(g, "b"), *u = rk_gguf_find(g, "a");
    CU_ASSERT_PTR_EQUAL(t, rk_gguf_tensor_at(g, 0));
    CU_ASSERT_PTR_NOT_NULL_FATAL(u);
    CU_ASSERT_PTR_NULL(rk_gguf_find(g, "c"));
    CU_ASSERT(t->rank == 2 && t->dim[0] == 3 && t->dim[1] == 4 && t->bytes == 48);
    CU_ASSERT(u->rank == 2 && u->dim[0] == 2 && u->dim[1] == 32 && u->bytes == 68);
    CU_ASSERT_EQUAL(*(const uint8_t *)t->data, 128);
    CU_ASSERT_EQUAL(*(const uint8_t *)u->data, 0);
    rk_gguf_close(g);
    tensor_file(&b, 64, 96);
    refused(&b, "tensor b: offset 96 is not aligned to 64");
    tensor_file(&b, 32, 96); /* the data begins elsewhere, both fit */
    CU_ASSERT_EQUAL(open_bytes(b.p, b.n, &g), RK_OK);
    rk_gguf_close(g);
}

/* ---- damaged files --------------------------------------------------------------------------- */

static void one_info(bytes *b, uint64_t d0, uint64_t d1, uint32_t type, uint64_t at) {
    head(b, 3, 1, 0);
    info(b, "t", d0, d1, type, at);
    pad(b, 32);
    uint8_t zero[256] = {0};
    put(b, zero, sizeof zero);
}

static void test_bad_tensors(void) {
    static const struct {
        uint64_t    d0, d1;
        uint32_t    type;
        uint64_t    at;
        const char *expected;
    } cases[] = {
        {8, 8, 0, 32, "tensor t (256 bytes at offset 32) lies beyond the file's end"},
        {8, 8, 0, UINT64_MAX - 31, "lies beyond the file's end"},
        {8, 8, 0, 1ull << 63, "lies beyond the file's end"},
        {8, 9, 0, 0, "lies beyond the file's end"},
        {8, 8, 0, 4, "offset 4 is not aligned to 32"},
        {0, 8, 0, 0, "tensor t has an absurd dimension 0"},
        {1ull << 32, 1ull << 32, 0, 0, "absurd dimension"},
        {UINT64_MAX, 1, 0, 0, "absurd dimension"},
        {1ull << 62, 1, 0, 0, "absurdly large"},
        {48, 1, 2, 0, "rows of 48 values are no whole Q4_0 blocks of 32"},
        {128, 1, 14, 0, "rows of 128 values are no whole Q6_K blocks of 256"},
        {256, 2, 12, 0, "tensor t (288 bytes at offset 0) lies beyond the file's end"},
        {256, 1, 10, 0, "tensor t is of type Q2_K"},
        {256, 1, 15, 0, "tensor t is of type Q8_K"},
        {32, 1, 9, 0, "tensor t is of type Q8_1"},
        {32, 1, 4711, 0, "tensor t is of type type 4711"},
        {32, 1, UINT32_MAX, 0, "tensor t is of type type 2147483647"},
    };
    bytes    b;
    rk_gguf *g;
    one_info(&b, 8, 8, 0, 0);
    CU_ASSERT_EQUAL_FATAL(open_bytes(b.p, b.n, &g), RK_OK);
    rk_gguf_close(g);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        one_info(&b, cases[i].d0, cases[i].d1, cases[i].type, cases[i].at);
        refused(&b, cases[i].expected);
    }
}

static void test_bad_heads(void) {
    static const struct {
        uint32_t    version;
        uint64_t    n_tensors, n_keys;
        const char *expected;
    } cases[] = {
        {2, 0, 0, "GGUF version 2"},
        {4, 0, 0, "GGUF version 4"},
        {3u << 24, 0, 0, "big-endian"},
        {3, UINT64_MAX, 0, "a tensor count of 18446744073709551615 does not fit"},
        {3, 1ull << 62, 0, "does not fit"},
        {3, 0, UINT64_MAX, "a key count of 18446744073709551615 does not fit"},
        {3, 0, 1, "does not fit"},
        {3, 1, 0, "does not fit"},
    };
    bytes b;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        head(&b, cases[i].version, cases[i].n_tensors, cases[i].n_keys);
        refused(&b, cases[i].expected);
    }
    b.n = 0;
    put(&b, "not a model at all\n", 19);
    refused(&b, "not a GGUF file");
    b.n = 3;
    refused(&b, "not a GGUF file");
    b.n = 0;
    refused(&b, "the file is empty");
    rk_gguf *g;
    CU_ASSERT_EQUAL(rk_gguf_open(rk_test_tmpdir(), &g), RK_E_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "not a regular file"));
    CU_ASSERT_EQUAL(rk_gguf_open("/nonexistent/model.gguf", &g), RK_E_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "cannot open: No such file"));
}

/* A file of one key, k, with room behind it. */
static void one_key(bytes *b, uint32_t kind, const void *v, size_t n) {
    head(b, 3, 0, 1);
    value(b, "k", kind, v, n);
    put(b, (uint8_t[64]){0}, 64);
}

static void test_bad_keys(void) {
    bytes    b;
    uint64_t huge = UINT64_MAX, many = 1ull << 61;
    one_key(&b, 13, "", 1);
    refused(&b, "key k has unknown value kind 13");
    one_key(&b, BOOL, "\2", 1);
    refused(&b, "key k: 2 is not a boolean");
    one_key(&b, STRING, &huge, 8);
    refused(&b, "a string's length of 18446744073709551615 does not fit");
    head(&b, 3, 0, 1);
    array(&b, "k", F64, many); /* 8 * 2^61 is 0 in 64 bits */
    refused(&b, "an array's length of 2305843009213693952 does not fit");
    head(&b, 3, 0, 1);
    array(&b, "k", 77, 1);
    refused(&b, "unknown value kind 77");
    head(&b, 3, 0, 1);
    array(&b, "k", STRING, 2);
    str(&b, "a string that is there");
    u64(&b, 100);
    refused(&b, "an array's string of 100 does not fit");
    head(&b, 3, 0, 1);
    array(&b, "k", ARRAY, 1);
    for (int i = 0; i < 20; i++) {
        u32(&b, ARRAY);
        u64(&b, 1);
    }
    refused(&b, "nests arrays more than 8 deep");
    head(&b, 3, 0, 1);
    u64(&b, 0); /* a key without a name */
    put(&b, (uint8_t[64]){0}, 64);
    refused(&b, "not a printable name");
    head(&b, 3, 0, 1);
    value(&b, "a\nb", U8, "", 1);
    put(&b, (uint8_t[64]){0}, 64);
    refused(&b, "not a printable name");
    head(&b, 3, 0, 2);
    value(&b, "same", U8, "", 1);
    value(&b, "same", U8, "", 1);
    refused(&b, "key same stands twice");
    head(&b, 3, 2, 0);
    info(&b, "twin", 1, 1, 0, 0);
    info(&b, "twin", 1, 1, 0, 0);
    pad(&b, 32);
    put(&b, (uint8_t[64]){0}, 64);
    refused(&b, "tensor twin stands twice");
    head(&b, 3, 1, 0);
    str(&b, "deep");
    u32(&b, 5);
    put(&b, (uint8_t[64]){0}, 64);
    refused(&b, "tensor deep has 5 dimensions");
}

static void test_bad_alignment(void) {
    static const uint32_t bad[] = {0, 1, 12, 3u << 30};
    bytes                 b;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tensor_file(&b, bad[i], 128);
        refused(&b, "general.alignment is not a multiple of 8");
    }
    head(&b, 3, 0, 1);
    value(&b, "general.alignment", F32, &(float){32}, 4);
    refused(&b, "general.alignment");
}

/* Cut anywhere, a file is refused; only a cut of unused bytes at the end may pass. */
static void test_truncated(void) {
    bytes    full[3];
    rk_gguf *g;
    scalar_file(&full[0]);
    array_file(&full[1]);
    tensor_file(&full[2], 64, 128);
    for (int f = 0; f < 3; f++)
        for (size_t n = 0; n < full[f].n; n++) {
            bytes cut = full[f];
            cut.n = n;
            refused(&cut, "");
        }
    CU_ASSERT_EQUAL(open_bytes(full[2].p, full[2].n, &g), RK_OK);
    rk_gguf_close(g);
}

/* Bytes changed at random: open succeeds or refuses as input, and what it gives can be read. */
static void test_fuzz(void) {
    bytes    full[3];
    uint32_t seed = 12345;
    int      passed = 0, failed = 0;
    scalar_file(&full[0]);
    array_file(&full[1]);
    tensor_file(&full[2], 64, 128);
    int64_t blocks = rk_mem_blocks();
    for (int i = 0; i < 3000; i++) {
        bytes b = full[i % 3];
        for (int k = 0; k < 1 + i % 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            b.p[(seed >> 8) % b.n] = (uint8_t)(i % 2 ? seed >> 24 : 0xffu);
        }
        rk_gguf  *g = NULL;
        rk_status st = open_bytes(b.p, b.n, &g);
        if (st == RK_OK) {
            for (int t = 0; t < rk_gguf_n_tensors(g); t++) {
                const rk_gguf_tensor *x = rk_gguf_tensor_at(g, t);
                float                 sink[256];
                rk_ggml_dequant(x->type, x->data, x->dim[x->rank - 1] < 256 ? 0 : 256, sink);
            }
            (void)rk_gguf_arr_str(g, "strings", 2, NULL);
            rk_gguf_close(g);
            passed++;
        } else {
            CU_ASSERT_EQUAL(st, RK_E_INPUT);
            CU_ASSERT_PTR_NULL(strchr(rk_err_last()->text, '\n'));
            failed++;
        }
    }
    CU_ASSERT(passed > 100 && failed > 1000);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
}

static void test_out_of_memory(void) {
    bytes    b;
    rk_gguf *g;
    int64_t  blocks = rk_mem_blocks();
    array_file(&b);
    CU_ASSERT_EQUAL_FATAL(open_bytes(b.p, b.n, &g), RK_OK);
    rk_gguf_close(g);
    for (int64_t n = 1; n < 1000; n++) {
        rk_mem_fail_at(n);
        rk_status st = rk_gguf_open(path_of(), &g);
        rk_mem_fail_at(0);
        if (st == RK_OK) {
            rk_gguf_close(g);
            CU_ASSERT(n > 8);
            break;
        }
        CU_ASSERT_EQUAL(st, RK_E_MEM);
        CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Each type against its formula, at an odd address, over all codes. */
static void test_dequant(void) {
    uint8_t raw[1 + 2 * (4 + 32)], *p = raw + 1;
    float   out[64], d = 0.3f, m = -1.7f;
    int     bad = 0;
    for (int block = 0; block < 2; block++) {
        uint16_t d16 = rk_f32_to_f16(d * (float)(block + 1)), m16 = rk_f32_to_f16(m);
        float    df = rk_f16_to_f32(d16), mf = rk_f16_to_f32(m16);
        memcpy(p, &d16, 2);
        for (int i = 0; i < 32; i++) p[2 + i] = (uint8_t)(i * 37 + block);
        rk_ggml_dequant(RK_GGML_Q8_0, p, 32, out);
        for (int i = 0; i < 32; i++) bad += out[i] != df * (float)(int8_t)p[2 + i];
        rk_ggml_dequant(RK_GGML_Q4_0, p, 32, out);
        for (int i = 0; i < 32; i++) {
            int q = i < 16 ? p[2 + i] % 16 : p[2 + i - 16] / 16;
            bad += out[i] != df * (float)(q - 8);
        }
        memcpy(p + 2, &m16, 2);
        rk_ggml_dequant(RK_GGML_Q4_1, p, 32, out);
        for (int i = 0; i < 32; i++) {
            int   q = i < 16 ? p[4 + i] % 16 : p[4 + i - 16] / 16;
            float product = df * (float)q; /* rounded before the sum */
            bad += out[i] != product + mf;
        }
    }
    CU_ASSERT_EQUAL(bad, 0);
    const uint16_t half[4] = {0x3c00, 0xc000, 0x0001, 0x7bff};
    memcpy(p, half, sizeof half);
    rk_ggml_dequant(RK_GGML_F16, p, 4, out);
    CU_ASSERT(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f && out[3] == 65504);
    rk_ggml_dequant(RK_GGML_BF16, p, 4, out);
    CU_ASSERT(out[0] == 0.0078125f && out[1] == -2 && out[2] == 0x1p-133f);
    const float f[2] = {1e30f, -0.0f};
    memcpy(p, f, sizeof f);
    rk_ggml_dequant(RK_GGML_F32, p, 2, out);
    CU_ASSERT(out[0] == 1e30f && signbit(out[1]) && out[1] == 0);
}

/* Each quantised type on 8,192 values of pseudo-random bytes (f16 fields below 2 in size): the bits
 * and some values as another implementation gives them (numpy code of the Python package gguf). */
static const struct vector {
    int      type, bytes, f16_at[2];
    uint64_t hash; /* FNV-1a over the words of the values */
    float    some[5];
} vectors[] = {
    {RK_GGML_Q8_0, 34, {0, 0}, 0x335ec18a92292ea5u,
     {-0x1.8c4p-13f, -0x1.4bdcp-10f, 0x1.1f48p-10f, 0x1.150f8p-7f, -0x1.05a4p+0f}},
    {RK_GGML_Q4_0, 18, {0, 0}, 0xbe89fc03e1b80325u,
     {0x1.a2cp+0f, 0x1.f68p-1f, -0x1.f68p-1f, -0x0.0p+0f, -0x1.93cp+1f}},
    {RK_GGML_Q4_1, 20, {0, 2}, 0xee55b9a9d6b79eaau,
     {-0x1.c81ep-9f, -0x1.c81ep-9f, -0x1.2e7cp-10f, -0x1.c6f64p-6f, -0x1.712d4p+0f}},
    {RK_GGML_Q5_0, 22, {0, 0}, 0x9d1cb82c0c6e3125u,
     {0x1.4464p-7f, -0x1.8f4p-10f, 0x1.8f4p-10f, -0x1.ffd8p-11f, -0x1.3e4cp+0f}},
    {RK_GGML_Q5_1, 24, {0, 2}, 0x1de14ced74f58ca9u,
     {-0x1.135cp-1f, -0x1.672cp-1f, -0x1.135cp-1f, -0x1.50e36p+4f, -0x1.a818p-11f}},
    {RK_GGML_Q4_K, 144, {0, 2}, 0xa4cb6f8081c34d14u,
     {0x1.20634p+1f, 0x1.1243cp+0f, 0x1.77aa8p-1f, -0x1.5982p+5f, -0x1.1f46p+3f}},
    {RK_GGML_Q5_K, 176, {0, 2}, 0xec4babaca2e2d281u,
     {0x1.b1b78p+5f, 0x1.2db3p+4f, 0x1.d44bcp+6f, -0x1.5de84p-1f, -0x1.b95e8p+5f}},
    {RK_GGML_Q6_K, 210, {208, 208}, 0x249a85516d9c95e5u,
     {-0x1.e0bep+4f, -0x1.6d672p+9f, -0x1.b3ac3p+9f, -0x1.6d5938p+3f, -0x1.0f194p+4f}},
};
enum { N_VECTORS = sizeof vectors / sizeof vectors[0], VALUES = 8192 };

static void test_dequant_vectors(void) {
    static const int at[5] = {1, 17, 31, VALUES / 2 + 5, VALUES - 1};
    static uint8_t   raw[1 + VALUES / 32 * 34], *p = raw + 1; /* an odd address */
    static float     out[VALUES];
    for (const struct vector *v = vectors; v < vectors + N_VECTORS; v++) {
        int      block = v->type >= RK_GGML_Q4_K ? 256 : 32, n = VALUES / block * v->bytes;
        uint32_t x = (uint32_t)v->type, word;
        uint64_t hash = 0xcbf29ce484222325u;
        for (int i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            p[i] = (uint8_t)(x >> 24);
            if (i % v->bytes == v->f16_at[0] + 1 || i % v->bytes == v->f16_at[1] + 1) p[i] &= 0xbf;
        }
        rk_ggml_dequant(v->type, p, VALUES, out);
        for (int i = 0; i < VALUES; i++) {
            memcpy(&word, &out[i], 4);
            hash = (hash ^ word) * 0x100000001b3u;
        }
        for (int i = 0; i < 5; i++) CU_ASSERT_EQUAL(out[at[i]], v->some[i]);
        if (hash != v->hash) {
            fprintf(stderr, "%s: other values\n", rk_ggml_type_name(v->type));
            CU_FAIL("hash");
        }
    }
}

static void test_type_names(void) {
    CU_ASSERT_STRING_EQUAL(rk_ggml_type_name(RK_GGML_Q4_1), "Q4_1");
    CU_ASSERT_STRING_EQUAL(rk_ggml_type_name(RK_GGML_BF16), "BF16");
    CU_ASSERT_STRING_EQUAL(rk_ggml_type_name(13), "Q5_K");
    CU_ASSERT_STRING_EQUAL(rk_ggml_type_name(99), "type 99");
}

int rk_suite_gguf(void) {
    CU_pSuite s = CU_add_suite("gguf", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_scalars);
    CU_ADD_TEST(s, test_arrays);
    CU_ADD_TEST(s, test_tensors);
    CU_ADD_TEST(s, test_bad_tensors);
    CU_ADD_TEST(s, test_bad_heads);
    CU_ADD_TEST(s, test_bad_keys);
    CU_ADD_TEST(s, test_bad_alignment);
    CU_ADD_TEST(s, test_truncated);
    CU_ADD_TEST(s, test_fuzz);
    CU_ADD_TEST(s, test_out_of_memory);
    CU_ADD_TEST(s, test_dequant);
    CU_ADD_TEST(s, test_dequant_vectors);
    CU_ADD_TEST(s, test_type_names);
    return 0;
}
