/* test_tokenizer.c - the tokenizer's rules on small made-up files: merge order, added tokens,
 * components, damaged files, GGUF metadata. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "core/tokenizer.h"
#include "tests/harness.h"
#include "tests/suites.h"
#include "tests/xz.h"

/* ---- small tokenizer.json files ---- */

/* The 256 bytes have the ids 0..255; merges and added tokens come on top. */
typedef struct spec {
    const char *added, *normalizer, *pre, *post, *model; /* JSON; NULL: a plain default */
    const char *vocab, *merges;                          /* more entries, JSON without brackets */
} spec;

#define PLAIN  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"
#define GPT2   "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

static char        json[1 << 17];
static char        path[512];
static const char *or_else(const char *s, const char *dflt) {
    return s ? s : dflt;
}

static unsigned alphabet(int byte) {
    int n = 0;
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad))
        return (unsigned)byte;
    for (int b = 0; b < byte; b++)
        n += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xff && b != 0xad));
    return 0x100 + (unsigned)n;
}

/* Write the file's text into json; returns its length. */
static size_t make_json(const spec *s) {
    size_t k = (size_t)snprintf(
        json, sizeof json,
        "{\"version\":\"1.0\",\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
        "\"post_processor\":%s,\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",%s\"vocab\":{",
        or_else(s->added, ""), or_else(s->normalizer, "null"), or_else(s->pre, PLAIN),
        or_else(s->post, "null"), or_else(s->model, ""));
    for (int b = 0; b < 256; b++)
        k += (size_t)snprintf(json + k, sizeof json - k, "%s\"\\u%04x\":%d", b ? "," : "",
                              alphabet(b), b);
    k += (size_t)snprintf(json + k, sizeof json - k, "%s},\"merges\":[%s]}}", or_else(s->vocab, ""),
                          or_else(s->merges, ""));
    CU_ASSERT_FATAL(k < sizeof json);
    return k;
}

static rk_status open_text(const char *text, size_t n, rk_tokenizer **t) {
    rk_test_write("small.json", text, n, path);
    return rk_tokenizer_open_json(path, t);
}

static rk_tokenizer *open_spec(const spec *s) {
    rk_tokenizer *t = NULL;
    rk_status     st = open_text(json, make_json(s), &t);
    if (st != RK_OK) fprintf(stderr, "  %s\n", rk_err_last()->text);
    CU_ASSERT_EQUAL_FATAL(st, RK_OK);
    return t;
}

/* Ids as text: a byte's id as the byte, others as {id}. */
static void show(const int32_t *ids, int64_t n, char *out) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 256)
            *out++ = (char)ids[i];
        else
            out += sprintf(out, "{%d}", ids[i]);
    }
    *out = 0;
}

static void expect_parts(const rk_tokenizer *t, const rk_text_part *parts, int n_parts, bool add,
                         const char *want) {
    static char got[1 << 16];
    int32_t    *ids;
    int64_t     n;
    CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, parts, n_parts, add, &ids, &n), RK_OK);
    show(ids, n, got);
    CU_ASSERT_STRING_EQUAL(got, want);
    if (strcmp(got, want) != 0) fprintf(stderr, "  got \"%s\", want \"%s\"\n", got, want);
    rk_mem_free(ids);
}

static void expect(const rk_tokenizer *t, const char *text, const char *want) {
    rk_text_part part = {text, strlen(text), false};
    expect_parts(t, &part, 1, false, want);
}

/* ---- merges ---- */

enum { N_MERGES = 150, LONGEST = 8 };
static struct {
    char    text[LONGEST + 1];
    int32_t left, right; /* what it was merged from, as ids */
    int32_t rank;
} made[256 + N_MERGES];

static uint32_t rng_state;
static int      rng(int below) {
         rng_state = rng_state * 1664525u + 1013904223u;
         return (int)((rng_state >> 8) % (unsigned)below);
}

/* Random tokens over a, b, c with merges in an order unlike that of their ids, so that a merge can
 * give a pair of lower rank than its own. */
static rk_tokenizer *random_merges(void) {
    static char vocab[1 << 14], merges[1 << 14];
    int32_t     order[N_MERGES];
    size_t      v = 0, m = 0;
    for (int i = 0; i < 3; i++) snprintf(made[i].text, 2, "%c", 'a' + i);
    for (int k = 0; k < N_MERGES;) {
        int  a = rng(3 + k), b = rng(3 + k);
        bool fresh = strlen(made[a].text) + strlen(made[b].text) <= LONGEST;
        char text[2 * LONGEST + 1];
        snprintf(text, sizeof text, "%.8s%.8s", made[a].text, made[b].text);
        for (int i = 0; i < 3 + k; i++) fresh = fresh && strcmp(made[i].text, text) != 0;
        if (!fresh) continue;
        memcpy(made[3 + k].text, text, strlen(text) + 1);
        made[3 + k].left = a;
        made[3 + k].right = b;
        v += (size_t)snprintf(vocab + v, sizeof vocab - v, ",\"%s\":%d", text, 256 + k);
        order[k] = 3 + k;
        k++;
    }
    for (int r = 0; r < N_MERGES; r++) {
        int     at = r + rng(N_MERGES - r);
        int32_t e = order[at];
        order[at] = order[r];
        made[e].rank = r;
        const char *fmt = r % 2 ? "%s[\"%s\",\"%s\"]" : "%s\"%s %s\""; /* both forms */
        m += (size_t)snprintf(merges + m, sizeof merges - m, fmt, r ? "," : "",
                              made[made[e].left].text, made[made[e].right].text);
    }
    return open_spec(&(spec){.vocab = vocab, .merges = merges});
}

/* The rule word for word: join the pair of lowest rank, the leftmost of equals, until none. */
static int naive(const char *text, int32_t *sym) {
    int n = 0;
    for (; text[n]; n++) sym[n] = text[n] - 'a';
    for (;;) {
        int best = -1, at = 0;
        for (int i = 0; i + 1 < n; i++)
            for (int k = 3; k < 3 + N_MERGES; k++)
                if (made[k].left == sym[i] && made[k].right == sym[i + 1] &&
                    (best < 0 || made[k].rank < made[best].rank)) {
                    best = k;
                    at = i;
                }
        if (best < 0) break;
        sym[at] = best;
        for (int i = at + 1; i + 1 < n; i++) sym[i] = sym[i + 1];
        n--;
    }
    for (int i = 0; i < n; i++) sym[i] = sym[i] < 3 ? 'a' + sym[i] : 256 + sym[i] - 3;
    return n;
}

static void test_merge_order(void) {
    enum { MAX = 300 };
    for (uint32_t seed = 1; seed <= 4; seed++) {
        rng_state = seed;
        rk_tokenizer *t = random_merges();
        for (int i = 0; i < 150; i++) {
            char    text[MAX + 1], want[8 * MAX];
            int32_t sym[MAX];
            int     n = 1 + rng(i % 3 ? 20 : MAX);
            for (int k = 0; k < n; k++) text[k] = (char)('a' + (i % 5 ? rng(3) : 0));
            text[n] = 0;
            show(sym, naive(text, sym), want);
            expect(t, text, want);
        }
        rk_tokenizer_close(t);
    }
}

static void test_ignore_merges(void) {
    spec          s = {.vocab = ",\"ab\":256,\"abc\":257", .merges = "\"a b\"", .pre = GPT2};
    rk_tokenizer *t = open_spec(&s);
    expect(t, "abc abc", "{256}c {256}c"); /* no merge makes abc */
    rk_tokenizer_close(t);
    s.model = "\"ignore_merges\":true,";
    t = open_spec(&s);
    expect(t, "abc abc", "{257} {256}c"); /* the second piece is " abc" */
    rk_tokenizer_close(t);
}

#define TWO_BYTES                                                                                  \
    "{\"pre_tokenizer\":" PLAIN ",\"model\":{%s\"vocab\":{\"a\":97,\"d\":100},\"merges\":[]}}"

/* A byte without a token vanishes, or is the unk_token, a run of them one if so told. */
static void test_missing_bytes(void) {
    static const char *const model[] = {"", "\"unk_token\":\"a\",",
                                        "\"unk_token\":\"a\",\"fuse_unk\":true,"};
    static const char *const want[] = {"ad", "aaad", "aad"};
    for (int i = 0; i < 3; i++) {
        char          text[400];
        int           n = snprintf(text, sizeof text, TWO_BYTES, model[i]);
        rk_tokenizer *t;
        CU_ASSERT_EQUAL_FATAL(open_text(text, (size_t)n, &t), RK_OK);
        expect(t, "abcd", want[i]);
        CU_ASSERT_EQUAL(rk_tokenizer_size(t), 101);
        rk_tokenizer_close(t);
    }
}

/* ---- components ---- */

static void test_pre_tokenizers(void) {
    spec          s = {.vocab = ",\"12\":256,\"a1\":257,\"\xc4\xa0\xc4\xa0\":258",
                       .merges = "\"1 2\",\"a 1\",\"\xc4\xa0 \xc4\xa0\""};
    rk_tokenizer *t = open_spec(&s);
    expect(t, "12a1  a", "{256}{257}{258}a");
    rk_tokenizer_close(t);
    s.pre = GPT2; /* "12", "a", "1", " ", " a" */
    t = open_spec(&s);
    expect(t, "12a1  a", "{256}a1  a");
    CU_ASSERT_STRING_EQUAL(rk_tokenizer_kind(t), "byte-level BPE, gpt-2");
    rk_tokenizer_close(t);
    s.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" DIGITS "," GPT2 "]}";
    t = open_spec(&s);
    expect(t, "12a1  1", "12a1{258}1"); /* look-ahead ends with the piece */
    CU_ASSERT_STRING_EQUAL(rk_tokenizer_kind(t), "byte-level BPE, smollm");
    rk_tokenizer_close(t);
    s.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"1\\\\s|\\\\S[\\\\S]\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":true,\"use_regex\":false}]}";
    t = open_spec(&s); /* "12", "a1", " ", " ", "1 ", "12"; one that has no space gets one */
    expect(t, "12a1  1 12", " {256} {257}{258} 1  {256}");
    rk_tokenizer_close(t);
}

/* PCRE2's own \s has U+180E, the library's has not. */
static void test_space_class(void) {
    spec s = {.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                     "\"Regex\":\"\\\\s\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":true,\"use_regex\":false}]}"};
    rk_tokenizer *t = open_spec(&s);
    expect(t,
           "a\xe1\xa0\x8e"
           "b",
           " a\xe1\xa0\x8e"
           "b");
    expect(t,
           "a\xc2\x85"
           "b",
           " a \xc2\x85 b");
    expect(t,
           "a\xe3\x80\x80"
           "b",
           " a \xe3\x80\x80 b");
    expect(t,
           "a\xef\xbb\xbf"
           "b",
           " a\xef\xbb\xbf"
           "b");
    rk_tokenizer_close(t);
}

#define TOKEN(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"" flags "}"
#define SPECIAL                   ",\"special\":true"
#define NORMALIZED                ",\"normalized\":true"

#define FLAGGED                                                                                    \
    TOKEN(300, "<x>", SPECIAL)                                                                     \
    "," TOKEN(301, "<x>y", "") "," TOKEN(302, "[L]", ",\"lstrip\":true") "," TOKEN(                \
        303, "[R]",                                                                                \
        ",\"rstrip\":true") "," TOKEN(304, "word",                                                 \
                                      ",\"single_word\":true") "," TOKEN(305, "\xc3\xa9",          \
                                                                         "") "," TOKEN(97, "a",    \
                                                                                       SPECIAL)

static void test_added_tokens(void) {
    spec          s = {.added = FLAGGED};
    rk_tokenizer *t = open_spec(&s);
    expect(t, "", "");
    expect(t, "b<x>c", "b{300}c");
    expect(t, "<x>y<x>", "{301}{300}"); /* longest */
    expect(t, "<<x><x", "<{300}<x");
    expect(t, "b \t\xc2\xa0[L] b", "b{302} b");
    expect(t, "b [R]\n\n [L]b", "b {303}{302}b");
    expect(t, "[R]  [R]  ", "{303}{303}");
    expect(t, "word", "{304}");
    expect(t, "words sword word.", "words sword {304}.");
    expect(t, "word\xc3\xa9", "word{305}");
    expect(t, "\xc3\xa9\xc3\xa8", "{305}\xc3\xa8");
    CU_ASSERT_EQUAL(rk_tokenizer_find(t, "<x>y"), 301);
    CU_ASSERT_EQUAL(rk_tokenizer_find(t, "<x"), -1);
    CU_ASSERT(rk_tokenizer_is_special(t, 300) && !rk_tokenizer_is_special(t, 301));
    CU_ASSERT(rk_tokenizer_is_special(t, 97) && !rk_tokenizer_is_special(t, 98));
    CU_ASSERT(!rk_tokenizer_is_special(t, -1) && !rk_tokenizer_is_special(t, 306));
    CU_ASSERT_EQUAL(rk_tokenizer_size(t), 306);
    CU_ASSERT_EQUAL(rk_tokenizer_max_bytes(t), 4);
    size_t n;
    CU_ASSERT_PTR_NULL(rk_tokenizer_bytes(t, 299, &n));
    const char *p = rk_tokenizer_bytes(t, 301, &n);
    CU_ASSERT(n == 4 && memcmp(p, "<x>y", 4) == 0);
    rk_tokenizer_close(t);
}

/* NFC runs on the gaps; tokens with normalized set are found in its result. */
static void test_normalization(void) {
    spec          s = {.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
                       .added = TOKEN(300, "<x>", "") "," TOKEN(301, "e\\u0301", NORMALIZED)};
    rk_tokenizer *t = open_spec(&s);
    expect(t, "<x>\xcc\xb8", "{300}\xcc\xb8"); /* not "not greater than" */
    expect(t,
           "e\xcc\x81"
           "e",
           "{301}e"); /* composed, and so is the token */
    expect(t,
           "\xc3\xa9"
           "e",
           "{301}e");
    expect(t, "a\xcc\x8a", "\xc3\xa5");
    expect(t, "\xe2\x84\xab", "\xc3\x85");                               /* Angstrom sign */
    expect(t, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81");   /* Hangul */
    expect(t, "q\xcc\x95\xcc\x80\xcc\xa7", "q\xcc\xa7\xcc\x80\xcc\x95"); /* by class */
    rk_text_part parts[] = {{"e\xcc\x81", 3, true}, {"e\xcc\x81", 3, false}};
    expect_parts(t, parts, 2, false, "\xc3\xa9{301}");
    rk_tokenizer_close(t);
}

#define BOTH_ENDS                                                                                  \
    "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"            \
    "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}],"                         \
    "\"special_tokens\":{\"<s>\":{\"ids\":[300]},\"</s>\":{\"ids\":[301,98]}}}]}"

static void test_template(void) {
    spec          s = {.added = TOKEN(300, "<s>", SPECIAL) "," TOKEN(301, "</s>", SPECIAL),
                       .post = BOTH_ENDS};
    rk_tokenizer *t = open_spec(&s);
    rk_text_part  part = {"<s>a", 4, false}, none = {NULL, 0, false};
    expect_parts(t, &part, 1, true, "{300}{300}a{301}b");
    expect_parts(t, &part, 1, false, "{300}a");
    expect_parts(t, &none, 1, true, "{300}{301}b");
    expect_parts(t, NULL, 0, false, "");
    CU_ASSERT_EQUAL(rk_tokenizer_bos(t), 300);
    rk_tokenizer_close(t);
    t = open_spec(&(spec){0});
    CU_ASSERT_EQUAL(rk_tokenizer_bos(t), -1);
    rk_tokenizer_close(t);
}

/* ---- parts and streams ---- */

static void test_literal_parts(void) {
    spec          s = {.added = TOKEN(300, "<x>", SPECIAL) "," TOKEN(
                           302, "[L]", ",\"lstrip\":true") "," TOKEN(303, "\xc3\xa9", ""),
                       .vocab = ",\"ab\":256",
                       .merges = "\"a b\"",
                       .pre = GPT2};
    rk_tokenizer *t = open_spec(&s);
    rk_text_part  forged[] = {{"<x>", 3, false}, {"<x>a", 4, true}, {"b<x>", 4, false}};
    expect_parts(t, forged, 3, false, "{300}<x>{256}{300}"); /* and a, b merge across */
    rk_text_part straddling[] = {{"<", 1, false}, {"x", 1, true}, {">", 1, false}};
    expect_parts(t, straddling, 3, false, "<x>");
    rk_text_part half[] = {{"<x", 2, true}, {">", 1, false}};
    expect_parts(t, half, 2, false, "<x>");
    half[0].literal = false;
    expect_parts(t, half, 2, false, "{300}"); /* both may be matched: one text */
    rk_text_part blanks[] = {{"c  ", 3, true}, {" [L]", 4, false}};
    expect_parts(t, blanks, 2, false, "c  {302}"); /* literal blanks stay */
    rk_text_part letter[] = {{"\xc3", 1, false}, {"\xa9", 1, true}, {"\xc3\xa9", 2, false}};
    expect_parts(t, letter, 3, false, "\xc3\xa9{303}"); /* a character that is partly literal */
    rk_text_part character[] = {{"\xf0\x9f", 2, false}, {"", 0, true}, {"\x99\x82", 2, true}};
    expect_parts(t, character, 3, false, "\xf0\x9f\x99\x82");
    rk_tokenizer_close(t);
}

static void test_stream(void) {
    rk_tokenizer              *t = open_spec(&(spec){.added = TOKEN(300, "<x>", SPECIAL)});
    rk_decode_stream           s;
    char                       buf[64];
    static const unsigned char bytes[] = {'a', 0xf0, 0x9f, 0x99, 0x82, 0xe2, 0x82, 'b', 0xff};
    static const char *const   out[] = {"a",
                                        "",
                                        "",
                                        "",
                                        "\xf0\x9f\x99\x82",
                                        "",
                                        "",
                                        ("\xef\xbf\xbd"
                                         "b"),
                                        "\xef\xbf\xbd"};
    rk_decode_begin(&s, t, false);
    for (size_t i = 0; i < sizeof bytes; i++) {
        size_t n = rk_decode_push(&s, bytes[i], buf, sizeof buf);
        CU_ASSERT(n == strlen(out[i]) && memcmp(buf, out[i], n) == 0);
    }
    CU_ASSERT_EQUAL(rk_decode_push(&s, 0xe2, buf, sizeof buf), 0);
    CU_ASSERT_EQUAL(rk_decode_push(&s, 299, buf, sizeof buf), 0); /* no token */
    CU_ASSERT_EQUAL(rk_decode_push(&s, 300, buf, sizeof buf), 6); /* U+FFFD, then <x> */
    CU_ASSERT_EQUAL(rk_decode_push(&s, 0xe2, buf, sizeof buf), 0);
    CU_ASSERT(rk_decode_end(&s, buf, sizeof buf) == 3 && memcmp(buf, "\xef\xbf\xbd", 3) == 0);
    CU_ASSERT_EQUAL(rk_decode_end(&s, buf, sizeof buf), 0);
    rk_decode_begin(&s, t, true);
    CU_ASSERT_EQUAL(rk_decode_push(&s, 300, buf, sizeof buf), 0);
    char   *text;
    size_t  n;
    int32_t ids[] = {'a', 300, 0xe2, -1, 1 << 30, 0x82, 0xac};
    CU_ASSERT_EQUAL_FATAL(rk_tokenizer_decode(t, ids, 7, true, &text, &n), RK_OK);
    CU_ASSERT_STRING_EQUAL(text, "a\xe2\x82\xac");
    CU_ASSERT_EQUAL(n, 4);
    rk_mem_free(text);
    rk_tokenizer_close(t);
}

/* ---- damaged and unsupported files ---- */

static void refused(const char *text, size_t n, const char *names) {
    rk_tokenizer *t = NULL;
    int64_t       blocks = rk_mem_blocks();
    rk_status     st = open_text(text, n, &t);
    bool          ok = st == RK_E_INPUT && !t && strstr(rk_err_last()->text, names) &&
              strstr(rk_err_last()->text, "small.json") && rk_mem_blocks() == blocks;
    CU_ASSERT(ok);
    if (!ok)
        fprintf(stderr, "  wanted a refusal that names \"%s\", got %s: %s\n", names,
                rk_status_name(st), st == RK_OK ? "" : rk_err_last()->text);
    rk_tokenizer_close(t);
}

static void refused_spec(const spec *s, const char *names) {
    refused(json, make_json(s), names);
}

#define SEQUENCE(x) "{\"type\":\"Sequence\",\"pretokenizers\":[" x "," PLAIN "]}"
#define SPLIT(regex, behavior)                                                                     \
    SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior  \
             "\"}")
#define POST(single, tokens)                                                                       \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{" tokens "}}"

static void test_unsupported(void) {
    static const struct {
        spec        s;
        const char *names;
    } c[] = {
        {{.normalizer = "{\"type\":\"NFKC\"}"}, "normalizer NFKC"},
        {{.normalizer = "{}"}, "normalizer without a type"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, "Sequence"},
        {{.pre = "null"}, "without ByteLevel"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, "SentencePiece"},
        {{.pre = SEQUENCE("{\"type\":\"Punctuation\"}")}, "pre_tokenizer Punctuation"},
        {{.pre = SEQUENCE(PLAIN)}, "after ByteLevel"},
        {{.pre = SPLIT("a", "Removed")}, "Split with another behavior"},
        {{.pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"}}")}, "Regex"},
        {{.pre = SPLIT("(a", "Isolated")}, "is not valid"},
        {{.pre = SPLIT("\\\\h", "Isolated")}, "the escape \\h"},
        {{.pre = SPLIT("(a)\\\\1", "Isolated")}, "the escape \\1"},
        {{.pre = SPLIT("a\\\\", "Isolated")}, "the escape"},
        {{.pre = SPLIT("[a[b]]", "Isolated")}, "a class within a class"},
        {{.pre = SPLIT("a\\u0000b", "Isolated")}, "U+0000"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, "post_processor BertProcessing"},
        {{.post = POST("", "")}, "without one text"},
        {{.post = POST("{\"SpecialToken\":{\"id\":\"q\"}},{\"Sequence\":{}}", "")}, "without ids"},
        {{.post =
              POST("{\"SpecialToken\":{\"id\":\"q\"}},{\"Sequence\":{}}", "\"q\":{\"ids\":[999]}")},
         "no token has"},
        {{.model = "\"byte_fallback\":true,"}, "SentencePiece"},
        {{.model = "\"dropout\":0.1,"}, "dropout"},
        {{.model = "\"end_of_word_suffix\":\"</w>\","}, "end_of_word_suffix"},
        {{.model = "\"continuing_subword_prefix\":\"##\","}, "continuing_subword_prefix"},
        {{.model = "\"unk_token\":\"nope\","}, "unk_token"},
        {{.model = "\"a\":1,\"a\":2,"}, "JSON"},
        {{.vocab = ",\"xy\":97"}, "the id 97"},
        {{.vocab = ",\"xy\":-3"}, "not a number from 0"},
        {{.vocab = ",\"xy\":\"3\""}, "not a number from 0"},
        {{.vocab = ",\"xy\":1.5"}, "not a number from 0"},
        {{.vocab = ",\"xy\":2000000000"}, "2000000000"},
        {{.vocab = ",\"xy\":9223372036854775807"}, "impossibly large"},
        {{.merges = "\"a b\""}, "merge 0"},
        {{.merges = "\"ab\""}, "no space"},
        {{.merges = "[\"a\"]"}, "pair of strings"},
        {{.merges = "[\"a\",1]"}, "pair of strings"},
        {{.merges = "7"}, "pair of strings"},
        {{.merges = "\" \""}, "merge 0"},
        {{.merges = "\"\\u2581 a\""}, "merge 0"},
        {{.added = "{\"id\":300}"}, "no content"},
        {{.added = "{\"content\":\"x\"}"}, "not a number from 0"},
        {{.added = TOKEN(97, "b", "")}, "the id 97 of another token"},
        {{.added = "3"}, "no content"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) refused_spec(&c[i].s, c[i].names);
    static const char *const whole[][2] = {
        {"", "JSON"},
        {"[]", "no object"},
        {"{}", "no model"},
        {"{\"model\":{\"type\":\"Unigram\"}}", "model Unigram"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "model WordPiece"},
        {"{\"model\":{},\"decoder\":{\"type\":\"Metaspace\"}}", "decoder Metaspace"},
        {"{\"model\":{},\"pre_tokenizer\":" PLAIN "}", "model.vocab"},
        {"{\"model\":{\"vocab\":{}},\"pre_tokenizer\":" PLAIN "}", "empty"},
        {"{\"model\":{\"vocab\":{\"a\":0}},\"pre_tokenizer\":" PLAIN "}", "model.merges"},
        {"{\"model\":{\"vocab\":{\"a\":0}},\"added_tokens\":{},\"pre_tokenizer\":" PLAIN "}",
         "added_tokens"},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        refused(whole[i][0], strlen(whole[i][0]), whole[i][1]);
}

static void test_absent_files(void) {
    rk_tokenizer *t;
    CU_ASSERT_EQUAL(rk_tokenizer_open_json("/nonexistent/tokenizer.json", &t), RK_E_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "/nonexistent/tokenizer.json"));
    CU_ASSERT_EQUAL(rk_tokenizer_open_json("/", &t), RK_E_INPUT);
    CU_ASSERT_EQUAL(rk_tokenizer_open_model("/nonexistent", NULL, &t), RK_E_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "/nonexistent/tokenizer.json"));
    CU_ASSERT_EQUAL(rk_tokenizer_open_model("/nonexistent.gguf", NULL, &t), RK_E_INPUT);
    make_json(&(spec){0});
    rk_test_write("tokenizer.json", json, strlen(json), path);
    CU_ASSERT_EQUAL(rk_tokenizer_open_model(rk_test_tmpdir(), NULL, &t), RK_OK);
    rk_tokenizer_close(t);
}

/* Cut, and with bytes changed, a file opens or is refused; it never crashes or leaks. */
static void test_damage(void) {
    spec        s = {.added = TOKEN(300, "<x>", SPECIAL),
                     .vocab = ",\"ab\":256",
                     .merges = "\"a b\"",
                     .normalizer = "{\"type\":\"NFC\"}",
                     .pre = SPLIT("\\\\s+(?!\\\\S)|a", "Isolated"),
                     .post = POST("{\"SpecialToken\":{\"id\":\"q\"}},{\"Sequence\":{}}",
                                  "\"q\":{\"ids\":[300]}")};
    static char whole[sizeof json];
    size_t      n = make_json(&s);
    memcpy(whole, json, n);
    int64_t blocks = rk_mem_blocks();
    int     n_open = 0;
    rng_state = 7;
    for (size_t k = 0; k < n; k += 1 + n / 400) refused(whole, k, "JSON");
    for (int i = 0; i < 2000; i++) {
        memcpy(json, whole, n);
        size_t part = i % 2 ? n : 600; /* half of them where the components stand */
        for (int c = 1 + rng(2); c--;) {
            size_t at = (size_t)rng((int)part);
            json[at] = rng(3) ? whole[rng((int)part)] : (char)rng(256);
        }
        rk_tokenizer *t = NULL;
        rk_status     st = open_text(json, n, &t);
        CU_ASSERT(st == RK_OK || st == RK_E_INPUT);
        if (st == RK_OK) {
            int32_t     *ids;
            int64_t      n_ids;
            rk_text_part part_of = {"ab <x> a\xcc\x81", 10, false};
            st = rk_tokenizer_encode(t, &part_of, 1, true, &ids, &n_ids);
            CU_ASSERT(st == RK_OK);
            if (st == RK_OK) rk_mem_free(ids);
            n_open++;
        }
        rk_tokenizer_close(t);
    }
    CU_ASSERT(n_open > 0 && n_open < 2000);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
}

/* Every allocation may fail, in open and in encode. */
static void test_no_memory(void) {
    spec          s = {.added = TOKEN(300, "<x>", SPECIAL) "," TOKEN(301, "e\\u0301", NORMALIZED),
                       .vocab = ",\"ab\":256",
                       .merges = "\"a b\"",
                       .normalizer = "{\"type\":\"NFC\"}",
                       .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" DIGITS ","
                                       "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]}"};
    char          text[400];
    rk_tokenizer *t = NULL;
    int32_t      *ids;
    int64_t       n_ids, n = 0, blocks = rk_mem_blocks();
    rk_status     st;
    make_json(&s);
    rk_test_write("small.json", json, strlen(json), path);
    do {
        rk_mem_fail_at(++n);
        st = rk_tokenizer_open_json(path, &t);
        rk_mem_fail_at(0);
        CU_ASSERT(st == RK_OK || (st == RK_E_MEM && rk_mem_blocks() == blocks));
    } while (st != RK_OK && n < 500);
    CU_ASSERT_EQUAL_FATAL(st, RK_OK);
    CU_ASSERT(n > 10);
    for (size_t i = 0; i < sizeof text; i++) text[i] = "ab1\xcc\x81<x>"[i % 8];
    memset(text, 'a', 100); /* one long piece */
    rk_text_part parts[2] = {{text, 200, false}, {text + 200, 200, true}};
    blocks = rk_mem_blocks();
    n = 0;
    do {
        rk_mem_fail_at(++n);
        st = rk_tokenizer_encode(t, parts, 2, true, &ids, &n_ids);
        rk_mem_fail_at(0);
        CU_ASSERT(st == RK_OK || (st == RK_E_MEM && rk_mem_blocks() == blocks && !ids));
    } while (st != RK_OK && n < 5000);
    CU_ASSERT_EQUAL(st, RK_OK);
    CU_ASSERT(n > 10);
    rk_mem_free(ids);
    rk_tokenizer_close(t);
}

/* ---- GGUF metadata ---- */

static unsigned char gguf[1 << 16];
static size_t        gguf_n, gguf_count;

static void raw(const void *p, size_t n) {
    memcpy(gguf + gguf_n, p, n);
    gguf_n += n;
}
static void raw_u64(uint64_t v) {
    raw(&v, 8);
}
static void raw_u32(uint32_t v) {
    raw(&v, 4);
}
static void raw_str(const char *s) {
    raw_u64(strlen(s));
    raw(s, strlen(s));
}
static void key(const char *name, uint32_t type) {
    raw_str(name);
    raw_u32(type);
    gguf_count++;
}
enum { T_U32 = 4, T_I32 = 5, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

typedef struct gguf_spec {
    const char *model, *pre;
    int         bos, n_types, odd_type; /* -1: no key; n_types 0: no array */
    const char *merge;
} gguf_spec;

/* ids 0..255: the bytes; 256 "ab", 257 control, 258 user-defined, 259 unused, 260 again "ab" */
static rk_status open_gguf_spec(const gguf_spec *s, rk_tokenizer **t) {
    static const char *const more[] = {"ab", "<|im_end|>", "<think>", "[PAD]", "ab"};
    static const uint32_t    type[] = {1, 3, 4, 5, 1};
    char                     buf[16];
    gguf_n = gguf_count = 0;
    raw("GGUF", 4);
    raw_u32(3);
    raw_u64(0);
    raw_u64(0); /* the count, set below */
    if (s->model) key("tokenizer.ggml.model", T_STRING), raw_str(s->model);
    if (s->pre) key("tokenizer.ggml.pre", T_STRING), raw_str(s->pre);
    if (s->bos >= 0) {
        key("tokenizer.ggml.add_bos_token", T_BOOL), raw("\1", 1);
        key("tokenizer.ggml.bos_token_id", T_U32), raw_u32((uint32_t)s->bos);
    }
    key("tokenizer.ggml.tokens", T_ARRAY), raw_u32(T_STRING), raw_u64(261);
    for (int b = 0; b < 256; b++) {
        unsigned c = alphabet(b);
        snprintf(buf, sizeof buf, c < 0x80 ? "%c" : "%c%c",
                 c < 0x80 ? (int)c : (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
        raw_str(buf);
    }
    for (int i = 0; i < 5; i++) raw_str(more[i]);
    if (s->n_types) {
        key("tokenizer.ggml.token_type", T_ARRAY), raw_u32(T_I32);
        raw_u64((uint64_t)s->n_types);
        for (int i = 0; i < s->n_types; i++)
            raw_u32(i == s->odd_type ? 6 : i < 256 ? 1 : type[i - 256]);
    }
    if (s->merge) {
        key("tokenizer.ggml.merges", T_ARRAY), raw_u32(T_STRING), raw_u64(1);
        raw_str(s->merge);
    }
    memcpy(gguf + 16, &gguf_count, 8);
    while (gguf_n % 32) gguf[gguf_n++] = 0;
    rk_test_write("small.gguf", gguf, gguf_n, path);
    *t = NULL;
    return rk_tokenizer_open_model(path, NULL, t);
}

static void test_gguf(void) {
    gguf_spec     s = {"gpt2", "smollm", -1, 261, -1, "a b"};
    rk_tokenizer *t;
    rk_status     st = open_gguf_spec(&s, &t);
    if (st != RK_OK) fprintf(stderr, "  %s\n", rk_err_last()->text);
    CU_ASSERT_EQUAL_FATAL(st, RK_OK);
    expect(t, "ab12<|im_end|><think>[PAD]", "{256}12{257}{258}[PAD]");
    CU_ASSERT(rk_tokenizer_is_special(t, 257) && !rk_tokenizer_is_special(t, 258));
    CU_ASSERT_STRING_EQUAL(rk_tokenizer_kind(t), "byte-level BPE, smollm");
    CU_ASSERT_EQUAL(rk_tokenizer_bos(t), -1);
    size_t n;
    CU_ASSERT_PTR_NULL(rk_tokenizer_bytes(t, 259, &n));
    CU_ASSERT_PTR_NOT_NULL(rk_tokenizer_bytes(t, 260, &n));
    CU_ASSERT_EQUAL(n, 2);
    rk_tokenizer_close(t);
    s.n_types = 0; /* without types all are plain */
    s.bos = 257;
    s.pre = "qwen2";
    CU_ASSERT_EQUAL_FATAL(open_gguf_spec(&s, &t), RK_OK);
    rk_text_part part = {"<think>e\xcc\x81", 10, false};
    expect_parts(t, &part, 1, true, "{257}<think>\xc3\xa9");
    rk_tokenizer_close(t);
}

static void test_gguf_refusals(void) {
    static const struct {
        gguf_spec   s;
        const char *names;
    } c[] = {
        {{NULL, "smollm", -1, 261, -1, "a b"}, "tokenizer.ggml.model is absent"},
        {{"llama", "default", -1, 261, -1, "a b"}, "SentencePiece"},
        {{"bert", "default", -1, 261, -1, "a b"}, "\"bert\""},
        {{"gpt2", "tekken", -1, 261, -1, "a b"}, "\"tekken\""},
        {{"gpt2", "smollm", 259, 261, -1, "a b"}, "bos_token_id"},
        {{"gpt2", "smollm", 999, 261, -1, "a b"}, "bos_token_id"},
        {{"gpt2", "llama-bpe", -1, 261, -1, "a b"}, "bos_token_id"}, /* that family adds one */
        {{"gpt2", "smollm", -1, 260, -1, "a b"}, "260 entries"},
        {{"gpt2", "smollm", -1, 261, 5, "a b"}, "token 5 has the type 6"},
        {{"gpt2", "smollm", -1, 261, -1, NULL}, "tokenizer.ggml.merges"},
        {{"gpt2", "smollm", -1, 261, -1, "ab"}, "entry 0"},
        {{"gpt2", "smollm", -1, 261, -1, "b a"}, "merge 0"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        rk_tokenizer *t;
        int64_t       blocks = rk_mem_blocks();
        rk_status     st = open_gguf_spec(&c[i].s, &t);
        bool          ok = st == RK_E_INPUT && !t && strstr(rk_err_last()->text, c[i].names) &&
                  strstr(rk_err_last()->text, "small.gguf") && rk_mem_blocks() == blocks;
        CU_ASSERT(ok);
        if (!ok)
            fprintf(stderr, "  GGUF case %zu: %s: %s\n", i, rk_status_name(st),
                    st == RK_OK ? "" : rk_err_last()->text);
        rk_tokenizer_close(t);
    }
}

int rk_suite_tokenizer(void) {
    CU_pSuite s = CU_add_suite("tokenizer", NULL, NULL);
    if (!s || !CU_ADD_TEST(s, test_merge_order) || !CU_ADD_TEST(s, test_ignore_merges) ||
        !CU_ADD_TEST(s, test_missing_bytes) || !CU_ADD_TEST(s, test_pre_tokenizers) ||
        !CU_ADD_TEST(s, test_space_class) || !CU_ADD_TEST(s, test_added_tokens) ||
        !CU_ADD_TEST(s, test_normalization) || !CU_ADD_TEST(s, test_template) ||
        !CU_ADD_TEST(s, test_literal_parts) || !CU_ADD_TEST(s, test_stream) ||
        !CU_ADD_TEST(s, test_unsupported) || !CU_ADD_TEST(s, test_absent_files) ||
        !CU_ADD_TEST(s, test_damage) || !CU_ADD_TEST(s, test_no_memory) ||
        !CU_ADD_TEST(s, test_gguf) || !CU_ADD_TEST(s, test_gguf_refusals))
        return (int)CU_get_error();
    return 0;
}
