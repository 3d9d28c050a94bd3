/* test_tokenizer_vectors.c - every record of the tokenizer data, and the real model's tokenizer.
 *
 * timeout: 600 */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/tokenizer.h"
#include "tests/harness.h"
#include "tests/suites.h"
#include "tests/xz.h"

enum { MAX_FOLDERS = 64, PATH = 4400, MAX_PRINTED = 20 };

static struct {
    char          path[PATH], name[256];
    rk_tokenizer *t; /* NULL: refused */
} folder[MAX_FOLDERS];
static int  n_folders;
static bool looked;

/* One assertion; what failed is printed, the first few times. */
static bool check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool check(bool ok, const char *fmt, ...) {
    static int n_printed;
    CU_ASSERT(ok);
    if (!ok && n_printed++ < MAX_PRINTED) {
        va_list a;
        va_start(a, fmt);
        vfprintf(stderr, fmt, a);
        va_end(a);
        fputc('\n', stderr);
    }
    return ok;
}

/* ---- the folders ---- */

/* Does the file describe a byte-level tokenizer? Then it must open. */
static bool is_byte_level(const char *path) {
    rk_json *j;
    if (rk_json_load(path, &j) != RK_OK) return false;
    const rk_json *d = rk_json_get(j, "decoder");
    bool           yes = strcmp(rk_json_str(rk_json_get(d, "type"), ""), "ByteLevel") == 0;
    rk_json_close(j);
    return yes;
}

static void open_folder(int i) {
    char        path[PATH + 32], file[280], plain[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/tokenizer.json.xz", folder[i].path);
    snprintf(file, sizeof file, "%s.json", folder[i].name);
    if (stat(path, &st) == 0) {
        if (!check(rk_test_unpack(path, file, plain), "%s: cannot be unpacked", path)) return;
    } else {
        snprintf(plain, sizeof plain, "%.480s/tokenizer.json", folder[i].path);
    }
    double    start = rk_now_s();
    rk_status rc = rk_tokenizer_open_json(plain, &folder[i].t);
    if (is_byte_level(plain)) {
        check(rc == RK_OK, "%s: %s", folder[i].name, rc == RK_OK ? "" : rk_err_last()->text);
        if (rc == RK_OK)
            printf("        %s: %s, %d ids, opened in %.2f s\n", folder[i].name,
                   rk_tokenizer_kind(folder[i].t), rk_tokenizer_size(folder[i].t),
                   rk_now_s() - start);
        return;
    }
    check(rc == RK_E_INPUT, "%s: not byte-level, and not refused", folder[i].name);
    check(strstr(rk_err_last()->text, "not supported") != NULL, "%s: refused with: %s",
          folder[i].name, rk_err_last()->text);
    char reason[320];
    snprintf(reason, sizeof reason, "%s: its model type is not supported yet", folder[i].name);
    rk_test_skip(reason);
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Find and open the tokenizers once; false where there are none. */
static bool look(void) {
    const char *goldens = rk_test_goldens();
    if (!goldens) {
        rk_test_skip("no tokenizer data");
        return false;
    }
    if (looked) return n_folders > 0;
    looked = true;
    char parent[PATH], names[MAX_FOLDERS][256];
    snprintf(parent, sizeof parent, "%.4000s/../tokenizers", goldens);
    DIR *d = opendir(parent);
    if (!check(d != NULL, "%s: no such folder", parent)) return false;
    for (struct dirent *e; (e = readdir(d)) && n_folders < MAX_FOLDERS;) {
        char path[PATH + 300];
        snprintf(path, sizeof path, "%s/%s/vectors.jsonl", parent, e->d_name);
        struct stat st;
        if (e->d_name[0] != '.' && stat(path, &st) == 0)
            snprintf(names[n_folders++], sizeof names[0], "%s", e->d_name);
    }
    closedir(d);
    qsort(names, (size_t)n_folders, sizeof names[0], by_name);
    for (int i = 0; i < n_folders; i++) {
        snprintf(folder[i].name, sizeof folder[i].name, "%s", names[i]);
        snprintf(folder[i].path, sizeof folder[i].path, "%.4100s/%s", parent, names[i]);
        open_folder(i);
    }
    return check(n_folders > 0, "%s: holds no tokenizer", parent);
}

static int close_all(void) {
    for (int i = 0; i < n_folders; i++) rk_tokenizer_close(folder[i].t);
    n_folders = 0;
    looked = false;
    return 0;
}

/* ---- helpers ---- */

static bool same_ids(const rk_json *want, const int32_t *ids, int64_t n) {
    if (rk_json_kind_of(want) != RK_JSON_ARRAY || (int64_t)rk_json_len(want) != n) return false;
    for (int64_t i = 0; i < n; i++)
        if (rk_json_int(rk_json_at(want, (size_t)i), -1) != ids[i]) return false;
    return true;
}

static bool same_text(const rk_json *want, const char *text, size_t n) {
    return rk_json_kind_of(want) == RK_JSON_STRING && rk_json_str_len(want) == n &&
           memcmp(rk_json_str(want, ""), text, n) == 0;
}

static void check_decode(const rk_tokenizer *t, const char *what, const int32_t *ids, int64_t n,
                         bool skip, const rk_json *want) {
    char  *text, *streamed;
    size_t n_text, k = 0, cap = 4 * rk_tokenizer_max_bytes(t) + 16;
    if (!check(rk_tokenizer_decode(t, ids, n, skip, &text, &n_text) == RK_OK, "%s", what)) return;
    check(same_text(want, text, n_text), "%s: decoded to \"%s\"", what, text);
    check(text[n_text] == 0, "%s: not terminated", what);
    void *p;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc((n + 1) * (int64_t)cap, 1, "stream", &p), RK_OK);
    streamed = p;
    rk_decode_stream s;
    rk_decode_begin(&s, t, skip);
    for (int64_t i = 0; i < n; i++) k += rk_decode_push(&s, ids[i], streamed + k, cap);
    k += rk_decode_end(&s, streamed + k, cap);
    check(k == n_text && memcmp(streamed, text, k) == 0, "%s: the stream differs", what);
    rk_mem_free(text);
    rk_mem_free(streamed);
}

/* Call fn for each line of the folder's file; returns how many there were. */
static int each_record(int i, const char *file,
                       void (*fn)(const rk_tokenizer *t, const char *what, const rk_json *rec)) {
    char   path[PATH + 64], what[640], *bytes;
    size_t n;
    int    count = 0;
    snprintf(path, sizeof path, "%s/%s", folder[i].path, file);
    if (!check(rk_test_read(path, &bytes, &n), "%s: cannot be read", path)) return 0;
    for (char *line = bytes, *end; *line; line = end) {
        end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) : strlen(line);
        end = line + len + (end != NULL);
        rk_json *rec;
        if (!check(rk_json_parse(line, len, path, &rec) == RK_OK, "%s", path)) continue;
        snprintf(what, sizeof what, "%s %s \"%s\"", folder[i].name, file,
                 rk_json_str(rk_json_get(rec, "name"), "?"));
        fn(folder[i].t, what, rec);
        rk_json_close(rec);
        count++;
    }
    rk_mem_free(bytes);
    return count;
}

static void run_file(const char *file,
                     void (*fn)(const rk_tokenizer *t, const char *what, const rk_json *rec)) {
    if (!look()) return;
    int total = 0, open = 0;
    for (int i = 0; i < n_folders; i++) {
        if (!folder[i].t) continue;
        int n = each_record(i, file, fn);
        check(n > 0, "%s/%s: no records", folder[i].path, file);
        total += n;
        open++;
    }
    check(open > 0, "no tokenizer of a supported kind");
    printf("        %s: %d records of %d tokenizers\n", file, total, open);
}

/* ---- records ---- */

static void one_vector(const rk_tokenizer *t, const char *what, const rk_json *rec) {
    const rk_json *text = rk_json_get(rec, "text");
    bool           literal = !rk_json_bool(rk_json_get(rec, "parse_special"), true);
    bool           add = rk_json_bool(rk_json_get(rec, "add_special"), false);
    rk_text_part   part = {rk_json_str(text, ""), rk_json_str_len(text), literal};
    int32_t       *ids;
    int64_t        n;
    if (!check(rk_tokenizer_encode(t, &part, 1, add, &ids, &n) == RK_OK, "%s: %s", what,
               rk_err_last()->text))
        return;
    check(same_ids(rk_json_get(rec, "ids"), ids, n), "%s: other ids", what);
    check_decode(t, what, ids, n, false, rk_json_get(rec, "decoded"));
    if (rk_json_get(rec, "decoded_skip"))
        check_decode(t, what, ids, n, true, rk_json_get(rec, "decoded_skip"));
    if (add && n > 0 && rk_tokenizer_bos(t) >= 0)
        check(ids[0] == rk_tokenizer_bos(t), "%s: no BOS in front", what);
    /* The same text in parts: byte by byte, and in two halves. */
    enum { MANY = 6000 };
    static rk_text_part parts[MANY];
    int32_t            *again;
    int64_t             n_again;
    for (int step = 1; step < 3 && part.n > 1 && part.n <= MANY; step++) {
        size_t size = step == 1 ? 1 : part.n / 2;
        int    k = 0;
        for (size_t at = 0; at < part.n; at += size)
            parts[k++] =
                (rk_text_part){part.text + at, part.n - at < size ? part.n - at : size, literal};
        CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, parts, k, add, &again, &n_again), RK_OK);
        check(n_again == n && memcmp(ids, again, (size_t)n * sizeof *ids) == 0,
              "%s: other ids in %d parts", what, k);
        rk_mem_free(again);
    }
    rk_mem_free(ids);
}

static void one_decode(const rk_tokenizer *t, const char *what, const rk_json *rec) {
    const rk_json *list = rk_json_get(rec, "ids");
    int64_t        n = (int64_t)rk_json_len(list);
    void          *p;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(n + 1, sizeof(int32_t), "ids", &p), RK_OK);
    int32_t *ids = p;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)rk_json_int(rk_json_at(list, (size_t)i), -1);
    check_decode(t, what, ids, n, rk_json_bool(rk_json_get(rec, "skip_special"), false),
                 rk_json_get(rec, "decoded"));
    rk_mem_free(ids);
}

static void test_vectors(void) {
    run_file("vectors.jsonl", one_vector);
}
static void test_literal(void) {
    run_file("vectors_literal.jsonl", one_vector);
}
static void test_decode(void) {
    run_file("decode.jsonl", one_decode);
}

/* ---- round trips ---- */

static uint64_t rng_state;
static uint32_t rng(uint32_t below) {
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

static size_t put_code(char *out, uint32_t c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    size_t   n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    unsigned head = n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0;
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(head | c);
    return n;
}

/* Words, blanks, digits, marks and any character of a few blocks, mixed. */
static size_t random_text(char *out, int n_chars) {
    static const uint32_t block[][2] = {
        {0x20, 0x7e},     {0x61, 0x7a},       {0x09, 0x0d},     {0x20, 0x20},
        {0x30, 0x39},     {0xa0, 0x17f},      {0x300, 0x345},   {0x400, 0x44f},
        {0x5d0, 0x5ea},   {0x905, 0x94d},     {0x1100, 0x11ff}, {0x2000, 0x206f},
        {0x3040, 0x30ff}, {0x4e00, 0x9fff},   {0xac00, 0xd7a3}, {0xfb00, 0xfb06},
        {0xff01, 0xff5e}, {0x1f300, 0x1f64f}, {0x180e, 0x180e}, {0x10000, 0x10ffff}};
    size_t k = 0;
    for (int i = 0; i < n_chars;) {
        const uint32_t *b = block[rng(sizeof block / sizeof *block)];
        for (uint32_t run = 1 + rng(5); run-- && i < n_chars; i++)
            k += put_code(out + k, b[0] + rng(b[1] - b[0] + 1));
    }
    return k;
}

/* With all 256 bytes in the vocabulary, literal text comes back as it was, or, where the
 * tokenizer normalizes, as something that then stays. */
static void round_trips(const rk_tokenizer *t, const char *name, bool has_bytes) {
    enum { STRINGS = 3000, CHARS = 60 };
    char buf[4 * CHARS];
    int  n_changed = 0;
    rng_state = 12345;
    for (int i = 0; i < STRINGS; i++) {
        rk_text_part part = {buf, random_text(buf, 1 + (int)rng(CHARS)), true};
        int32_t     *ids, *again;
        int64_t      n, n_again;
        char        *text;
        size_t       n_text;
        CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, &part, 1, false, &ids, &n), RK_OK);
        CU_ASSERT_EQUAL_FATAL(rk_tokenizer_decode(t, ids, n, false, &text, &n_text), RK_OK);
        n_changed += n_text != part.n || memcmp(text, buf, n_text) != 0;
        rk_text_part back = {text, n_text, true};
        CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, &back, 1, false, &again, &n_again), RK_OK);
        if (has_bytes)
            check(n == n_again && memcmp(ids, again, (size_t)n * sizeof *ids) == 0,
                  "%s: string %d is not stable: \"%.*s\"", name, i, (int)part.n, buf);
        rk_mem_free(ids);
        rk_mem_free(again);
        rk_mem_free(text);
    }
    bool nfc = strstr(rk_tokenizer_kind(t), "qwen") != NULL;
    if (has_bytes)
        check(nfc ? n_changed < STRINGS : n_changed == 0, "%s: %d strings changed", name,
              n_changed);
}

static bool has_all_bytes(const rk_tokenizer *t) {
    bool seen[256] = {false};
    int  n_seen = 0;
    for (int32_t id = 0; id < rk_tokenizer_size(t); id++) {
        size_t      n;
        const char *p = rk_tokenizer_bytes(t, id, &n);
        if (!p || n != 1 || seen[(unsigned char)*p]) continue;
        seen[(unsigned char)*p] = true;
        n_seen++;
    }
    return n_seen == 256;
}

static void test_round_trips(void) {
    if (!look()) return;
    for (int i = 0; i < n_folders; i++)
        if (folder[i].t) round_trips(folder[i].t, folder[i].name, has_all_bytes(folder[i].t));
}

/* Bytes that are not UTF-8 count as U+FFFD each maximal part, wherever parts are cut. */
static void test_invalid_utf8(void) {
    static const char bad[] = "a\xff b\xe2\x82 c\xf0\x9f\x98 \xed\xa0\x80 x\xc0\xaf\xe2\x82";
    static const char good[] = "a\xef\xbf\xbd b\xef\xbf\xbd c\xef\xbf\xbd "
                               "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd x"
                               "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd";
    if (!look()) return;
    for (int i = 0; i < n_folders; i++) {
        if (!folder[i].t) continue;
        rk_text_part want_part = {good, sizeof good - 1, false};
        int32_t     *want, *got;
        int64_t      n_want, n_got;
        CU_ASSERT_EQUAL_FATAL(
            rk_tokenizer_encode(folder[i].t, &want_part, 1, false, &want, &n_want), RK_OK);
        for (size_t at = 0; at < sizeof bad; at++) {
            rk_text_part parts[2] = {{bad, at, false}, {bad + at, sizeof bad - 1 - at, false}};
            CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(folder[i].t, parts, 2, false, &got, &n_got),
                                  RK_OK);
            check(n_got == n_want && memcmp(got, want, (size_t)n_got * sizeof *got) == 0,
                  "%s: cut at %zu", folder[i].name, at);
            rk_mem_free(got);
        }
        rk_mem_free(want);
    }
}

/* ---- large texts ---- */

static double time_encode(const rk_tokenizer *t, const char *text, size_t n, bool comes_back) {
    rk_text_part part = {text, n, false};
    int32_t     *ids;
    int64_t      n_ids;
    double       start = rk_now_s();
    CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, &part, 1, false, &ids, &n_ids), RK_OK);
    double took = rk_now_s() - start;
    char  *back;
    size_t n_back;
    CU_ASSERT_EQUAL_FATAL(rk_tokenizer_decode(t, ids, n_ids, false, &back, &n_back), RK_OK);
    CU_ASSERT(!comes_back || (n_back == n && memcmp(back, text, n) == 0));
    rk_mem_free(back);
    rk_mem_free(ids);
    return took;
}

/* Times are printed, not asserted; a quadratic path would run into the time limit. */
static void test_large(void) {
    static const char sentence[] = "The quick brown fox, it's said, jumped over 12 lazy dogs in "
                                   "1931; nobody recalled why.\n\nPerhaps they'd been asleep. ";
    static const char *const unit[] = {sentence, "a", " ",  "\n",
                                       "1",      "!", "ab", "\xcc\x95\xcc\x80"};
    enum { SIZE = 1 << 20, N_UNITS = sizeof unit / sizeof *unit };
    if (!look()) return;
    void *p;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(SIZE + 200, 1, "text", &p), RK_OK);
    char *text = p;
    for (int i = 0; i < n_folders; i++) {
        if (!folder[i].t) continue;
        printf("        %s, 1 MB in s:", folder[i].name);
        for (int u = 0; u < N_UNITS; u++) {
            size_t len = strlen(unit[u]), n = 0;
            bool   nfc = strstr(rk_tokenizer_kind(folder[i].t), "qwen") != NULL;
            for (; n < SIZE; n += len) memcpy(text + n, unit[u], len);
            bool marks = u == N_UNITS - 1; /* reordered by NFC */
            printf(" %.2f", time_encode(folder[i].t, text, n, !nfc || !marks));
        }
        printf("\n");
    }
    rk_mem_free(p);
}

/* ---- the model ---- */

static bool open_model(rk_gguf **g, rk_tokenizer **t) {
    const char *path = rk_test_model();
    size_t      n = path ? strlen(path) : 0;
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) {
        rk_test_skip("no GGUF model (RIPPLEKV_MODEL)");
        return false;
    }
    return check(rk_gguf_open(path, g) == RK_OK, "%s", path) &&
           check(rk_tokenizer_open_gguf(*g, t) == RK_OK, "%s: %s", path, rk_err_last()->text);
}

static void test_model_goldens(void) {
    const char   *goldens = rk_test_goldens();
    rk_gguf      *g;
    rk_tokenizer *t;
    rk_json      *j;
    char          path[PATH];
    if (!goldens) {
        rk_test_skip("no goldens");
        return;
    }
    if (!open_model(&g, &t)) return;
    snprintf(path, sizeof path, "%.4000s/smollm2/prompts.json", goldens);
    if (!check(rk_json_load(path, &j) == RK_OK, "%s", path)) return;
    const rk_json *prompts = rk_json_get(j, "prompts");
    size_t         n_prompts = rk_json_len(prompts);
    check(n_prompts > 0, "%s: no prompts", path);
    for (size_t i = 0; i < n_prompts; i++) {
        const rk_json *rec = rk_json_at(prompts, i), *text = rk_json_get(rec, "text");
        const char    *id = rk_json_str(rk_json_get(rec, "id"), "?");
        rk_text_part   part = {rk_json_str(text, ""), rk_json_str_len(text), false};
        int32_t       *ids;
        int64_t        n;
        CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, &part, 1, false, &ids, &n), RK_OK);
        check(same_ids(rk_json_get(rec, "token_ids"), ids, n), "prompt %s: other ids", id);
        check_decode(t, id, ids, n, false, text);
        rk_mem_free(ids);
    }
    rk_json_close(j);
    round_trips(t, "model", has_all_bytes(t));
    rk_tokenizer *beside;
    CU_ASSERT_EQUAL(rk_tokenizer_open_model(rk_gguf_path(g), NULL, &beside), RK_OK);
    CU_ASSERT_EQUAL(rk_tokenizer_size(beside), rk_tokenizer_size(t));
    rk_tokenizer_close(beside);
    printf("        %s, %d ids, %zu prompts\n", rk_tokenizer_kind(t), rk_tokenizer_size(t),
           n_prompts);
    rk_tokenizer_close(t);
    rk_gguf_close(g);
}

int rk_suite_tokenizer_vectors(void) {
    CU_pSuite s = CU_add_suite("tokenizer_vectors", NULL, close_all);
    if (!s || !CU_ADD_TEST(s, test_vectors) || !CU_ADD_TEST(s, test_literal) ||
        !CU_ADD_TEST(s, test_decode) || !CU_ADD_TEST(s, test_round_trips) ||
        !CU_ADD_TEST(s, test_invalid_utf8) || !CU_ADD_TEST(s, test_large) ||
        !CU_ADD_TEST(s, test_model_goldens))
        return (int)CU_get_error();
    return 0;
}
