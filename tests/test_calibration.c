/* test_calibration.c - texts to samples, with a tokenizer of one token a byte that the tests write
 * themselves: expected tokens are the bytes of the text. */
#define _GNU_SOURCE
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "profiler/calibration.h"
#include "tests/harness.h"
#include "tests/suites.h"

enum { BOS = 256 };

static rk_tokenizer *plain, *with_bos;

static const char *file_at(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", rk_test_tmpdir(), name);
    return path;
}

static const char *store_n(const char *name, const char *text, size_t n) {
    const char *path = file_at(name);
    FILE       *f = fopen(path, "wb");
    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT(fwrite(text, 1, n, f) == n);
    CU_ASSERT(fclose(f) == 0);
    return path;
}

static const char *store(const char *name, const char *text) {
    return store_n(name, text, strlen(text));
}

/* The byte-level alphabet: printable Latin-1 stands for itself, the rest follows at U+0100. */
static void write_vocab(FILE *f) {
    int extra = 256;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        fprintf(f, "%s\"\\u%04x\": %d", b ? ", " : "", itself ? b : extra, b);
        extra += !itself;
    }
}

static rk_tokenizer *open_bytes(const char *name, bool bos) {
    const char   *path = file_at(name);
    rk_tokenizer *t = NULL;
    FILE         *f = fopen(path, "w");
    if (!f) return NULL;
    fprintf(f,
            "{\"version\": \"1.0\", \"normalizer\": null, \"added_tokens\": [{\"id\": %d, "
            "\"content\": \"<bos>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
            "false, \"normalized\": false, \"special\": true}], ",
            BOS);
    fprintf(f, "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
               "\"trim_offsets\": true, \"use_regex\": true}, \"decoder\": {\"type\": "
               "\"ByteLevel\"}, \"post_processor\": ");
    if (bos)
        fprintf(f,
                "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                "\"<bos>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
                "\"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": "
                "{\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"<bos>\": {\"id\": "
                "\"<bos>\", \"ids\": [%d], \"tokens\": [\"<bos>\"]}}}",
                BOS);
    else
        fprintf(f, "null");
    fprintf(f, ", \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
               "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": "
               "false, \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {");
    write_vocab(f);
    fprintf(f, "}, \"merges\": []}}");
    if (fclose(f) != 0 || rk_tokenizer_open_json(path, &t) != RK_OK) return NULL;
    return t;
}

static int open_tokenizers(void) {
    plain = open_bytes("plain.json", false);
    with_bos = open_bytes("bos.json", true);
    if (!plain || !with_bos) rk_err_print(rk_err_last());
    return plain && with_bos ? 0 : 1;
}

static int close_tokenizers(void) {
    rk_tokenizer_close(plain);
    rk_tokenizer_close(with_bos);
    return 0;
}

/* Whether a sample is `prompt` and `response`, byte for byte; ^ stands for the BOS. */
static bool is(const rk_sample *s, const char *prompt, const char *response) {
    size_t np = strlen(prompt), nr = strlen(response);
    if (s->n_prompt != (int64_t)np || s->n_response != (int64_t)nr) return false;
    for (size_t i = 0; i < np + nr; i++) {
        unsigned char b = (unsigned char)(i < np ? prompt[i] : response[i - np]);
        if (s->tokens[i] != (b == '^' ? BOS : b)) return false;
    }
    return true;
}

static bool clear_message(const char *must_hold) {
    const char *t = rk_err_last()->text;
    bool        ok = strchr(t, '\n') == NULL && strstr(t, must_hold) != NULL;
    if (!ok) fprintf(stderr, "  message: %s\n", t);
    return ok;
}

static bool fails(rk_status want, const char *path, int64_t context, int64_t response,
                  const char *must_hold) {
    rk_calibration c = {0};
    int64_t        blocks = rk_mem_blocks();
    rk_status      st = rk_calibration_load(path, plain, context, response, 0, &c);
    bool ok = st == want && clear_message(must_hold) && !c.samples && rk_mem_blocks() == blocks;
    if (st == RK_OK) rk_calibration_free(&c);
    return ok;
}

static void windows_of_a_text(void) {
    rk_calibration c;
    const char    *path = store("abc.txt", "abcdefghijklmnopqrstuvwxyz");
    int64_t        blocks = rk_mem_blocks();
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 5, 3, 0, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 3 && c.n_skipped == 0);
    CU_ASSERT(is(&c.samples[0], "abcde", "fgh"));
    CU_ASSERT(is(&c.samples[1], "ijklm", "nop"));
    CU_ASSERT(is(&c.samples[2], "qrstu", "vwx"));
    CU_ASSERT(c.samples[0].hash != c.samples[1].hash);
    rk_calibration_free(&c);

    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 20, 6, 0, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 1 && is(&c.samples[0], "abcdefghijklmnopqrst", "uvwxyz"));
    rk_calibration_free(&c);

    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 5, 3, 2, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 2);
    rk_calibration_free(&c);
    CU_ASSERT(rk_mem_blocks() == blocks);
}

/* The BOS belongs to the context, so that prompts of all models have the same length. */
static void bos_stands_in_front_of_each(void) {
    rk_calibration c;
    const char    *path = store("bos.txt", "abcdefghijklmnopqrstuvwxyz");
    CU_ASSERT_FATAL(rk_calibration_load(path, with_bos, 5, 3, 0, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 3);
    CU_ASSERT(is(&c.samples[0], "^abcd", "efg") && is(&c.samples[2], "^opqr", "stu"));
    rk_calibration_free(&c);
    path = store("bos.jsonl", "{\"prompt\": \"<bos>\", \"response\": \"xyz\"}\n"
                              "{\"prompt\": \"0123456\", \"response\": \"xyz\"}\n"
                              "{\"text\": \"a<bos>bc\"}\n");
    CU_ASSERT_FATAL(rk_calibration_load(path, with_bos, 5, 3, 0, &c) == RK_OK);
    CU_ASSERT_FATAL(c.n_samples == 3);
    CU_ASSERT(is(&c.samples[0], "^^", "xyz")); /* in a prompt control tokens count, ... */
    CU_ASSERT(is(&c.samples[1], "^3456", "xyz"));
    CU_ASSERT(is(&c.samples[2], "^a<bo", "s>b")); /* ... in a text they are letters */
    rk_calibration_free(&c);
}

static void jsonl(void) {
    rk_calibration c;
    const char    *path = store("a.jsonl", "\xef\xbb\xbf{\"text\": \"abcdefghijklmnop\"}\r\n"
                                              "\r\n"
                                              " \t \n"
                                              "{\"text\": \"short\", \"id\": 7}\n"
                                              "{\"prompt\": \"pq\", \"response\": \"r\"}\n"
                                              "{\"response\": \"12345\", \"prompt\": \"abcdefg\"}\n"
                                              "{\"prompt\": \"\", \"response\": \"r\"}\n"
                                              "{\"prompt\": \"p\", \"response\": \"\"}\n"
                                              "{\"text\": \"\\u00e9\\n12345678\"}");
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 4, 3, 0, &c) == RK_OK);
    CU_ASSERT_FATAL(c.n_samples == 4);
    CU_ASSERT(c.n_skipped == 3);
    CU_ASSERT(is(&c.samples[0], "abcd", "efg"));
    CU_ASSERT(is(&c.samples[1], "pq", "r"));
    CU_ASSERT(is(&c.samples[2], "defg", "123"));
    CU_ASSERT(is(&c.samples[3], "\xc3\xa9\n1", "234"));
    rk_calibration_free(&c);
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 4, 3, 2, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 2 && c.n_skipped == 1);
    rk_calibration_free(&c);
}

static void form_is_told_by_content(void) {
    rk_calibration c;
    CU_ASSERT_FATAL(rk_calibration_load(store("x", "\n{\"text\": \"abcdefgh\"}\n"), plain, 4, 2, 0,
                                        &c) == RK_OK);
    CU_ASSERT(c.n_samples == 1 && is(&c.samples[0], "abcd", "ef"));
    rk_calibration_free(&c);
    CU_ASSERT_FATAL(rk_calibration_load(store("x", "{ not JSON }"), plain, 4, 2, 0, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 2 && is(&c.samples[0], "{ no", "t "));
    CU_ASSERT(rk_err_last()->code == RK_OK);
    rk_calibration_free(&c);
    CU_ASSERT_FATAL(rk_calibration_load(store("x.txt", "{\"text\": \"abcdefgh\"}"), plain, 4, 2, 1,
                                        &c) == RK_OK);
    CU_ASSERT(is(&c.samples[0], "{\"te", "xt"));
    rk_calibration_free(&c);
}

/* A text keeps its line ends; a byte order mark is no part of it. */
static void text_bytes(void) {
    rk_calibration c;
    const char    *path = store("crlf.txt", "\xef\xbb\xbf"
                                               "ab\r\n\r\nc\xe2\x82\xac");
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 6, 4, 0, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 1 && is(&c.samples[0], "ab\r\n\r\n", "c\xe2\x82\xac"));
    rk_calibration_free(&c);
}

static void hashes(void) {
    rk_calibration a, b;
    const char    *path = store("h.txt", "abcdefghijklmnop");
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 4, 2, 0, &a) == RK_OK);
    path =
        store("h.jsonl", "{\"text\": \"abcdefgh\"}\n{\"text\": \"x\"}\n{\"text\": \"ghijkl\"}\n");
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 4, 2, 0, &b) == RK_OK);
    CU_ASSERT(a.n_samples == 2 && b.n_samples == 2 && a.hash == b.hash); /* of used tokens alone */
    CU_ASSERT(a.samples[1].hash == b.samples[1].hash);
    rk_calibration_free(&b);
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 3, 3, 0, &b) == RK_OK);
    CU_ASSERT(a.hash != b.hash); /* the same tokens, cut elsewhere */
    CU_ASSERT(a.samples[0].hash != b.samples[0].hash);
    rk_calibration_free(&a);
    rk_calibration_free(&b);
}

static void huge_line(void) {
    enum { N = 3000000 };
    rk_calibration c;
    void          *p;
    CU_ASSERT_FATAL(rk_mem_alloc(N + 100, 1, "line", &p) == RK_OK);
    char *text = p;
    int   head = sprintf(text, "{\"text\": \"");
    for (int i = 0; i < N; i++) text[head + i] = "abcdef "[i % 7];
    sprintf(text + head + N, "\"}\n{\"text\": \"end end end\"}");
    const char *path = store("huge.jsonl", text);
    CU_ASSERT_FATAL(rk_calibration_load(path, plain, 8, 2, 0, &c) == RK_OK);
    CU_ASSERT(c.n_samples == 2 && is(&c.samples[0], "abcdef a", "bc"));
    CU_ASSERT(is(&c.samples[1], "end end ", "en"));
    rk_calibration_free(&c);
    rk_mem_free(p);
}

static void refusals(void) {
    const char *good = "{\"text\": \"abcdefgh\"}\n";
    char        text[512];
    CU_ASSERT(fails(RK_E_INPUT, file_at("absent"), 4, 2, "absent: cannot open"));
    CU_ASSERT(fails(RK_E_INPUT, rk_test_tmpdir(), 4, 2, "directory"));
    CU_ASSERT(fails(RK_E_USAGE, store("a.txt", "abcdefgh"), 0, 2, "--context"));
    CU_ASSERT(fails(RK_E_USAGE, file_at("a.txt"), 4, 0, "--response"));
    CU_ASSERT(fails(RK_E_USAGE, file_at("a.txt"), INT64_MAX, 1, "--context"));
    CU_ASSERT(fails(RK_E_INPUT, file_at("a.txt"), 7, 2, "want 9 tokens, the longest of 1 has 8"));
    CU_ASSERT(fails(RK_E_INPUT, store("e.txt", ""), 4, 2, "has 0"));
    CU_ASSERT(fails(RK_E_INPUT, store("e.jsonl", "\n \r\n"), 4, 2, "holds no items"));
    CU_ASSERT(fails(RK_E_INPUT, store("s.jsonl", "{\"text\": \"abcd\"}\n{\"text\": \"ab\"}"), 4, 2,
                    "longest of 2 has 4"));
    CU_ASSERT(fails(RK_E_INPUT,
                    store("u.txt", "ab\ncd\xff"
                                   "efgh"),
                    4, 2, "u.txt line 2: not UTF-8"));

    static const struct {
        const char *line, *message;
    } bad[] = {
        {"{\"text\": \"abc\xc3\"}", "line 3: not UTF-8"},
        {"{\"text\": \"\xed\xa0\x80\"}", "line 3: not UTF-8"},
        {"{\"text\": \"\xc0\x80\"}", "line 3: not UTF-8"},
        {"{\"text\": \"abc\"", "line 3: not valid JSON"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "line 3: not valid JSON"},
        {"{\"text\": \"abc\"} {}", "line 3: not valid JSON"},
        {"[\"text\"]", "line 3: must be an object"},
        {"{\"id\": 3}", "line 3: has neither `text` nor `prompt`"},
        {"{\"text\": 3}", "line 3: `text` must be a string, it is an integer"},
        {"{\"text\": null}", "line 3: `text` must be a string, it is null"},
        {"{\"prompt\": \"abc\"}", "line 3: `response` must be a string, it is absent"},
        {"{\"response\": \"abc\"}", "line 3: `prompt` must be a string, it is absent"},
        {"{\"prompt\": \"a\", \"response\": []}", "line 3: `response` must be a string"},
        {"{\"text\": \"a\", \"response\": \"b\"}", "line 3: has both `text` and `response`"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "%s\r\n%s\n%s", good, bad[i].line, good);
        CU_ASSERT(fails(RK_E_INPUT, store("bad.jsonl", text), 4, 2, bad[i].message));
        CU_ASSERT(clear_message("bad.jsonl line 3"));
    }
}

/* Every seeded change of a good file is loaded or refused with one clear line. */
static void damaged_bytes(void) {
    char     text[512];
    uint32_t seed = 1;
    int      n_refused = 0;
    snprintf(text, sizeof text, "%s",
             "{\"text\": \"abcdefgh\"}\n{\"prompt\": \"abcd\\u00e9\", "
             "\"response\": \"efgh\"}\n\n{\"text\": \"\xe2\x82\xac end\"}");
    size_t n = strlen(text);
    for (int round = 0; round < 2000; round++) {
        char           bad[512];
        rk_calibration c = {0};
        memcpy(bad, text, n);
        for (int k = 0; k <= round % 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            bad[(seed >> 8) % n] = (char)(seed >> 24);
        }
        rk_status st = rk_calibration_load(store_n("flip.jsonl", bad, n), plain, 4, 2, 0, &c);
        CU_ASSERT(st == RK_OK || (st == RK_E_INPUT && clear_message("flip.jsonl")));
        n_refused += st != RK_OK;
        if (st == RK_OK) rk_calibration_free(&c);
    }
    CU_ASSERT(n_refused > 500);
}

static void failing_allocations(void) {
    const char *path = store("alloc.jsonl", "{\"text\": \"abcdefgh\"}\n"
                                            "{\"prompt\": \"abcd\", \"response\": \"efgh\"}\n");
    int64_t     blocks = rk_mem_blocks();
    bool        done = false;
    int         n = 0;
    for (; !done && n < 200; n++) {
        rk_calibration c = {0};
        rk_mem_fail_at(n + 1);
        rk_status st = rk_calibration_load(path, plain, 4, 2, 0, &c);
        rk_mem_fail_at(0);
        CU_ASSERT(st == RK_OK || (st == RK_E_MEM && !c.samples));
        done = st == RK_OK;
        rk_calibration_free(&c);
        CU_ASSERT(rk_mem_blocks() == blocks);
    }
    CU_ASSERT(done && n > 5);
}

int rk_suite_calibration(void) {
    CU_pSuite s = CU_add_suite("calibration", open_tokenizers, close_tokenizers);
    if (!s || !CU_ADD_TEST(s, windows_of_a_text) || !CU_ADD_TEST(s, bos_stands_in_front_of_each) ||
        !CU_ADD_TEST(s, jsonl) || !CU_ADD_TEST(s, form_is_told_by_content) ||
        !CU_ADD_TEST(s, text_bytes) || !CU_ADD_TEST(s, hashes) || !CU_ADD_TEST(s, huge_line) ||
        !CU_ADD_TEST(s, refusals) || !CU_ADD_TEST(s, damaged_bytes) ||
        !CU_ADD_TEST(s, failing_allocations))
        return (int)CU_get_error();
    return 0;
}
