/* test_profile_h5.c - the sensitivity file: same profile, same bytes; what is not one is refused.
 *
 * Malformed files are forged from a good one: bytes of its metadata are changed and the checksum of
 * the block around them is made right again, so that the reader's own checks are what refuses. */
#define _GNU_SOURCE
#include <CUnit/CUnit.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "profiler/profile_h5.h"
#include "tests/harness.h"
#include "tests/suites.h"

enum { L = 5, N = 3, E = 2, D = 4 };

typedef struct bytes {
    unsigned char *at;
    size_t         n;
} bytes;

static uint32_t next(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

/* The full name of a file of the tests; the same string for the same name. */
static const char *file_at(const char *name) {
    enum { MAX = 48 };
    static char path[MAX][512];
    static int  n;
    char        want[512];
    snprintf(want, sizeof want, "%s/%s", rk_test_tmpdir(), name);
    int i = 0;
    while (i < n && strcmp(path[i], want) != 0) i++;
    CU_ASSERT_FATAL(i < MAX);
    if (i == n) strcpy(path[n++], want);
    return path[i];
}

static bytes load(const char *path) {
    bytes b = {0};
    void *p = NULL;
    FILE *f = fopen(path, "rb");
    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT_FATAL(fseek(f, 0, SEEK_END) == 0);
    b.n = (size_t)ftell(f);
    rewind(f);
    CU_ASSERT_FATAL(rk_mem_alloc((int64_t)b.n, 1, "file", &p) == RK_OK);
    b.at = p;
    CU_ASSERT(fread(b.at, 1, b.n, f) == b.n);
    fclose(f);
    return b;
}

static void store(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT(fwrite(data, 1, n, f) == n);
    CU_ASSERT(fclose(f) == 0);
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

static bool clear_message(const char *must_hold) {
    const char *t = rk_err_last()->text;
    bool        ok = strchr(t, '\n') == NULL && strstr(t, must_hold) != NULL;
    if (!ok) fprintf(stderr, "  message: %s\n", t);
    return ok;
}

/* Two samples of three done. */
static rk_profile make(int n_layers, int n_samples, int n_epsilon, int n_draws) {
    rk_profile p;
    uint32_t   seed = 9;
    CU_ASSERT_FATAL(rk_profile_init(&p, n_layers, n_samples, n_epsilon, n_draws) == RK_OK);
    int per_sample = n_epsilon * n_draws * n_layers;
    for (int i = 0; i < n_samples; i++) {
        p.done[i] = i % 3 != 1;
        p.prompt_tokens[i] = 100 + i;
        p.hash[i] = 0xfedcba9876543210u + (uint64_t)i;
        p.floor_kl[i] = p.done[i] ? 1e-7 * (i + 1) : NAN;
        for (int k = 0; k < per_sample && p.done[i]; k++)
            p.kl[(int64_t)i * per_sample + k] = next(&seed) * 0x1p-24;
    }
    for (int e = 0; e < n_epsilon; e++) p.epsilon[e] = 0.3 / (e + 1);
    p.seed = 0xffffffffffffffffu;
    p.context = 3000000000;
    p.response = 64;
    p.n_kv_heads = 8;
    p.head_dim = 128;
    p.ranks = p.replicas = p.threads = 1;
    p.model_shape_hash = 0x00123456789abcdeu;
    p.weights_hash = 1;
    p.calibration_hash = 0xffeeddccbbaa9988u;
    strcpy(p.model_name, "Modell-\xc3\xa9\xe2\x82\xac");
    strcpy(p.backend, "cpu");
    strcpy(p.dtype, "bf16");
    strcpy(p.numerics, "tile");
    strcpy(p.weights, "0123456789abcde"); /* fills its field */
    strcpy(p.signal, "kl");
    strcpy(p.version, "0.1.0");
    CU_ASSERT_FATAL(rk_mem_strdup("ripplekv profile --seed 1", &p.command) == RK_OK);
    CU_ASSERT(rk_profile_reduce(&p) == RK_OK);
    return p;
}

static bool same_f64(const double *a, const double *b, int64_t n) {
    return memcmp(a, b, sizeof *a * (size_t)n) == 0;
}

static bool same_data(const rk_profile *a, const rk_profile *b) {
    int64_t n = a->n_samples;
    return a->n_layers == b->n_layers && n == b->n_samples && a->n_epsilon == b->n_epsilon &&
           a->n_draws == b->n_draws &&
           same_f64(a->kl, b->kl, n * a->n_epsilon * a->n_draws * a->n_layers) &&
           memcmp(a->done, b->done, (size_t)n) == 0 &&
           memcmp(a->prompt_tokens, b->prompt_tokens, 4 * (size_t)n) == 0 &&
           memcmp(a->hash, b->hash, 8 * (size_t)n) == 0 &&
           same_f64(a->sensitivity, b->sensitivity, a->n_layers) &&
           same_f64(a->sensitivity_std, b->sensitivity_std, a->n_layers) &&
           same_f64(a->epsilon, b->epsilon, a->n_epsilon) &&
           same_f64(&a->noise_floor, &b->noise_floor, 1) && a->seed == b->seed &&
           a->context == b->context && a->response == b->response &&
           a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
           a->model_shape_hash == b->model_shape_hash && a->weights_hash == b->weights_hash &&
           a->calibration_hash == b->calibration_hash && !strcmp(a->model_name, b->model_name) &&
           !strcmp(a->backend, b->backend) && !strcmp(a->dtype, b->dtype) &&
           !strcmp(a->numerics, b->numerics) && !strcmp(a->weights, b->weights) &&
           !strcmp(a->signal, b->signal) && !strcmp(a->version, b->version);
}

static bool same_run(const rk_profile *a, const rk_profile *b) {
    return a->ranks == b->ranks && a->replicas == b->replicas && a->threads == b->threads &&
           strcmp(a->command, b->command) == 0;
}

static void reduce(void) {
    rk_profile p;
    CU_ASSERT_FATAL(rk_profile_init(&p, 2, 3, 2, 2) == RK_OK);
    CU_ASSERT(rk_profile_reduce(&p) == RK_E_NO && clear_message("no sample"));
    CU_ASSERT(isnan(p.sensitivity[0]) && isnan(p.noise_floor));
    /* [sample][epsilon][draw][layer]; the second epsilon and sample 1 must not count */
    const double kl[3][2][2][2] = {{{{1, 10}, {3, 20}}, {{77, 77}, {77, 77}}},
                                   {{{99, 99}, {NAN, 99}}, {{99, 99}, {99, 99}}},
                                   {{{6, 40}, {10, 50}}, {{77, 77}, {77, 77}}}};
    memcpy(p.kl, kl, sizeof kl);
    p.done[0] = 1;
    p.floor_kl[0] = 1e-6;
    p.floor_kl[1] = 9;
    CU_ASSERT(rk_profile_reduce(&p) == RK_OK);
    CU_ASSERT(p.sensitivity[0] == 2 && p.sensitivity[1] == 15);
    CU_ASSERT(p.sensitivity_std[0] == 0 && p.sensitivity_std[1] == 0);
    CU_ASSERT(p.noise_floor == 1e-6);
    p.done[2] = 1;
    p.floor_kl[2] = 3e-6;
    CU_ASSERT(rk_profile_reduce(&p) == RK_OK);
    CU_ASSERT(p.sensitivity[0] == 5 && p.sensitivity[1] == 30);
    CU_ASSERT_DOUBLE_EQUAL(p.sensitivity_std[0], sqrt(18), 1e-15); /* of 2 and 8 */
    CU_ASSERT_DOUBLE_EQUAL(p.sensitivity_std[1], sqrt(450), 1e-14);
    CU_ASSERT_DOUBLE_EQUAL(p.noise_floor, 2e-6, 1e-20);
    rk_profile_free(&p);
    CU_ASSERT(rk_profile_init(&p, 0, 1, 1, 1) == RK_E_BUG);
    CU_ASSERT(rk_profile_init(&p, INT32_MAX, INT32_MAX, INT32_MAX, 9) == RK_E_MEM);
}

static void round_trip(void) {
    static const int sizes[][4] = {{L, N, E, D}, {1, 1, 1, 1}, {126, 40, 3, 2}, {32, 1500, 3, 16}};
    const char      *path = file_at("trip.h5");
    int64_t          blocks = rk_mem_blocks();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const int *n = sizes[i];
        rk_profile p = make(n[0], n[1], n[2], n[3]), q;
        CU_ASSERT(rk_profile_write(&p, path) == RK_OK);
        CU_ASSERT_FATAL(rk_profile_read(path, &q) == RK_OK);
        CU_ASSERT(same_data(&p, &q) && same_run(&p, &q));
        CU_ASSERT(n[1] < 2 || isnan(q.kl[(int64_t)n[0] * n[2] * n[3]])); /* sample 1: not done */
        rk_profile_free(&p);
        rk_profile_free(&q);
    }
    CU_ASSERT(!exists(file_at("trip.h5.tmp")));
    CU_ASSERT(rk_mem_blocks() == blocks);
}

/* What is measured beside the sensitivities comes back as it was; a file without it has none. */
static void optional_groups(void) {
    static const double levels[] = {0.05, 0.25, 1};
    const char         *path = file_at("optional.h5");
    int64_t             blocks = rk_mem_blocks();
    for (int which = 0; which < 4; which++) {
        rk_profile p = make(L, N, E, D), q;
        double     mean[3 * L];
        if (which & 1) {
            CU_ASSERT_FATAL(rk_profile_add_local(&p) == RK_OK);
            for (int i = 0; i < N * L; i++) p.local[i] = i / L == 1 ? NAN : 0.5 + i;
            CU_ASSERT(rk_profile_mean(&p, p.local, mean) == RK_OK);
            CU_ASSERT_FATAL(rk_profile_add_attention(&p) == RK_OK);
            for (int i = 0; i < N * L; i++) p.entropy[i] = 3 + i, p.variance[i] = 0.1 * i;
            for (int l = 0; l < L; l++) CU_ASSERT(mean[l] == 0.5 + L + l); /* of samples 0 and 2 */
        }
        if (which & 2) {
            CU_ASSERT_FATAL(rk_profile_add_damage(&p, levels, 3) == RK_OK);
            for (int i = 0; i < N * 3 * L; i++) p.damage[i] = i / (3 * L) == 1 ? NAN : 1.0 / (i + 1);
            strcpy(p.policy.policy, "snapkv");
            strcpy(p.policy.pool, "max");
            strcpy(p.policy.group_reduce, "mean");
            strcpy(p.policy.head_mode, "kv");
            p.policy.window = 32, p.policy.kernel = 7, p.policy.alpha = 0.2;
            CU_ASSERT(rk_profile_mean_damage(&p, mean) == RK_OK);
            CU_ASSERT(mean[3 * L - 1] == (1.0 / (3 * L) + 1.0 / (9 * L)) / 2);
        }
        CU_ASSERT_FATAL(rk_profile_write(&p, path) == RK_OK);
        CU_ASSERT_FATAL(rk_profile_read(path, &q) == RK_OK);
        CU_ASSERT(same_data(&p, &q) && !q.local == !p.local && q.n_levels == p.n_levels);
        if (q.local) CU_ASSERT(same_f64(p.local, q.local, N * L) && same_f64(p.entropy, q.entropy, N * L) && same_f64(p.variance, q.variance, N * L));
        if (q.n_levels) {
            CU_ASSERT(same_f64(p.damage, q.damage, N * 3 * L) && same_f64(p.levels, q.levels, 3));
            CU_ASSERT(memcmp(&p.policy, &q.policy, sizeof p.policy) == 0);
        }
        rk_profile_free(&q);
        if (which == 2) { /* levels that do not ascend */
            p.levels[1] = 0.01;
            CU_ASSERT(rk_profile_write(&p, path) == RK_OK);
            CU_ASSERT(rk_profile_read(path, &q) == RK_E_INPUT && clear_message("do not ascend"));
        }
        rk_profile_free(&p);
    }
    CU_ASSERT(rk_mem_blocks() == blocks);
}

static void long_command(void) {
    char       text[2000];
    rk_profile p = make(L, N, E, D), q;
    memset(text, 'x', sizeof text);
    text[1999] = 0;
    memcpy(text + 1019, "\xe2\x82\xac", 3); /* the cut would fall into this character */
    rk_mem_free(p.command);
    CU_ASSERT_FATAL(rk_mem_strdup(text, &p.command) == RK_OK);
    CU_ASSERT(rk_profile_write(&p, file_at("long.h5")) == RK_OK);
    CU_ASSERT_FATAL(rk_profile_read(file_at("long.h5"), &q) == RK_OK);
    CU_ASSERT(strlen(q.command) == 1022 && strcmp(q.command + 1019, "...") == 0);
    CU_ASSERT(strncmp(q.command, text, 1019) == 0);
    rk_profile_free(&q);
    text[1023] = 0; /* fits exactly */
    rk_mem_free(p.command);
    CU_ASSERT_FATAL(rk_mem_strdup(text, &p.command) == RK_OK);
    CU_ASSERT(rk_profile_write(&p, file_at("long.h5")) == RK_OK);
    CU_ASSERT_FATAL(rk_profile_read(file_at("long.h5"), &q) == RK_OK);
    CU_ASSERT(strcmp(q.command, text) == 0);
    rk_profile_free(&q);
    rk_profile_free(&p);
}

/* ---- bytes ---- */

static void same_profile_same_bytes(void) {
    rk_profile p = make(L, N, E, D), q = make(L, N, E, D);
    CU_ASSERT(rk_profile_write(&p, file_at("first.h5")) == RK_OK);
    usleep(1100000); /* object times have whole seconds */
    CU_ASSERT(rk_profile_write(&q, file_at("second.h5")) == RK_OK);
    bytes a = load(file_at("first.h5")), b = load(file_at("second.h5"));
    CU_ASSERT(a.n == b.n && memcmp(a.at, b.at, a.n) == 0);
    rk_mem_free(a.at);
    rk_mem_free(b.at);
    rk_profile_free(&p);
    rk_profile_free(&q);
}

static uint32_t rotate(uint32_t x, int k) {
    return x << k | x >> (32 - k);
}

static uint32_t little(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Jenkins' lookup3, the checksum of HDF5's metadata blocks. */
static uint32_t lookup3(const unsigned char *p, size_t n) {
    uint32_t      a = 0xdeadbeefu + (uint32_t)n, b = a, c = a;
    unsigned char rest[12] = {0};
    for (; n > 12; n -= 12, p += 12) {
        a += little(p), b += little(p + 4), c += little(p + 8);
        a -= c, a ^= rotate(c, 4), c += b;
        b -= a, b ^= rotate(a, 6), a += c;
        c -= b, c ^= rotate(b, 8), b += a;
        a -= c, a ^= rotate(c, 16), c += b;
        b -= a, b ^= rotate(a, 19), a += c;
        c -= b, c ^= rotate(b, 4), b += a;
    }
    memcpy(rest, p, n);
    a += little(rest), b += little(rest + 4), c += little(rest + 8);
    c ^= b, c -= rotate(b, 14);
    a ^= c, a -= rotate(c, 11);
    b ^= a, b -= rotate(a, 25);
    c ^= b, c -= rotate(b, 16);
    a ^= c, a -= rotate(c, 4);
    b ^= a, b -= rotate(a, 14);
    c ^= b, c -= rotate(b, 24);
    return c;
}

/* The object header block around offset at: *begin, and *sum where its checksum stands. */
static bool find_block(const bytes *f, size_t at, size_t *begin, size_t *sum) {
    for (size_t i = at + 1; i-- > 0;) {
        if (memcmp(f->at + i, "OHDR", 4) != 0 && memcmp(f->at + i, "OCHK", 4) != 0) continue;
        for (size_t end = i + 4; end + 4 <= f->n; end++)
            if (lookup3(f->at + i, end - i) == little(f->at + end)) {
                *begin = i;
                *sum = end;
                return end > at;
            }
        return false;
    }
    return false;
}

/* Change n bytes and make the checksum right again. */
static void forge(bytes *f, size_t at, const void *fresh, size_t n) {
    size_t begin = 0, sum = 0;
    CU_ASSERT_FATAL(find_block(f, at, &begin, &sum) && at + n <= sum);
    memcpy(f->at + at, fresh, n);
    uint32_t h = lookup3(f->at + begin, sum - begin);
    for (int i = 0; i < 4; i++) f->at[sum + (size_t)i] = (unsigned char)(h >> 8 * i);
}

/* Offset of the k-th occurrence; f->n where there is none. */
static size_t find(const bytes *f, const void *what, size_t n, int k) {
    for (size_t i = 0; i + n <= f->n; i++)
        if (memcmp(f->at + i, what, n) == 0 && k-- == 0) return i;
    return f->n;
}

/* Offset of a scalar attribute's value: its name, 12 bytes of type, 4 of dataspace, the value. */
static size_t value_of(const bytes *f, const char *name) {
    size_t at = find(f, name, strlen(name) + 1, 0);
    CU_ASSERT_FATAL(at < f->n);
    return at + strlen(name) + 1 + 12 + 4;
}

static void only_run_attributes_differ(void) {
    rk_profile p = make(L, N, E, D), q = make(L, N, E, D), r;
    q.ranks = 64;
    q.replicas = 16;
    q.threads = 1000;
    rk_mem_free(q.command);
    CU_ASSERT_FATAL(rk_mem_strdup("mpirun -n 64 ripplekv profile", &q.command) == RK_OK);
    CU_ASSERT(rk_profile_write(&p, file_at("one.h5")) == RK_OK);
    CU_ASSERT(rk_profile_write(&q, file_at("many.h5")) == RK_OK);
    CU_ASSERT_FATAL(rk_profile_read(file_at("many.h5"), &r) == RK_OK);
    CU_ASSERT(same_data(&p, &r) && same_run(&q, &r) && !same_run(&p, &r));
    rk_profile_free(&r);
    bytes a = load(file_at("one.h5")), b = load(file_at("many.h5"));
    CU_ASSERT_FATAL(a.n == b.n);
    /* Put one file's values into the other: then all bytes agree. */
    static const char *const names[] = {"ranks", "replicas", "threads", "command"};
    for (int i = 0; i < 4; i++) {
        bool   text = i == 3; /* a text's type takes 8 bytes */
        size_t at = value_of(&a, names[i]) - (text ? 4 : 0);
        CU_ASSERT(memcmp(a.at + at, b.at + at, text ? 1024 : 4) != 0);
        forge(&b, at, a.at + at, text ? 1024 : 4);
    }
    CU_ASSERT(memcmp(a.at, b.at, a.n) == 0);
    rk_mem_free(a.at);
    rk_mem_free(b.at);
    rk_profile_free(&p);
    rk_profile_free(&q);
}

/* ---- what is refused ---- */

static bool refused(const char *path, const char *must_hold) {
    rk_profile q = {0};
    rk_status  st = rk_profile_read(path, &q);
    if (st == RK_OK) rk_profile_free(&q);
    return st == RK_E_INPUT && clear_message(must_hold) && clear_message(path);
}

static bytes good_file(const char *path) {
    rk_profile p = make(L, N, E, D);
    CU_ASSERT_FATAL(rk_profile_write(&p, path) == RK_OK);
    rk_profile_free(&p);
    return load(path);
}

static void not_a_file_of_ours(void) {
    const char *path = file_at("odd.h5");
    CU_ASSERT(refused(file_at("absent.h5"), "No such file"));
    CU_ASSERT(refused(rk_test_tmpdir(), "not a regular file"));
    CU_ASSERT(refused("/dev/zero", "not a regular file"));
    store(path, "", 0);
    CU_ASSERT(refused(path, "not an HDF5 file"));
    store(path, "layer sensitivity\n0 0.1\n1 0.2\n", 30);
    CU_ASSERT(refused(path, "not an HDF5 file"));
    char junk[3000];
    memset(junk, 0x5a, sizeof junk);
    memcpy(junk, "\x89HDF\r\n\x1a\n", 8);
    store(path, junk, sizeof junk);
    CU_ASSERT(refused(path, "damaged"));
}

/* A name in the metadata, and what it becomes. */
typedef struct rename_case {
    const char *from, *to; /* of equal length, compared with the final 0 if with_end */
    bool        with_end;
    const char *message;
} rename_case;

static const rename_case renames[] = {
    {"\007samples", "\007sampler", false, "samples/done is missing"},
    {"\002kl", "\002kx", false, "samples/kl is missing"},
    {"\004done", "\004dome", false, "samples/done is missing"},
    {"\015prompt_tokens", "\015prompt_Tokens", false, "samples/prompt_tokens is missing"},
    {"\004hash", "\004hasp", false, "samples/hash is missing"},
    {"\013sensitivity", "\013sensitivitx", false, "sensitivity is missing"},
    {"\017sensitivity_std", "\017sensitivity_sxx", false, "sensitivity_std is missing"},
    {"format", "farmat", true, "not a sensitivity file"},
    {"format_version", "format_Version", true, "not a sensitivity file"},
    {"ripplekv-sensitivity", "ripplekv-sensitivita", false, "not a sensitivity file"},
    {"model_name", "model_nome", true, "model_name is missing"},
    {"weights_hash", "weights_hasp", true, "weights_hash is missing"},
    {"n_layers", "n_loyers", true, "n_layers is missing"},
    {"draws", "drows", true, "draws is missing"},
    {"epsilon", "opsilon", true, "epsilon is missing"},
    {"seed", "sead", true, "seed is missing"},
    {"noise_floor", "noise_flour", true, "noise_floor is missing"},
    {"command", "commend", true, "command is missing"},
    {"units", "onits", true, "units is missing"},
    {"nats", "bits", false, "units is not \"nats\""},
    {"ffeeddccbbaa9988", "ffeeddccbbaa998X", false, "calibration_hash is not 16 hex digits"},
};

static void missing_parts(void) {
    const char *path = file_at("missing.h5");
    bytes       good = good_file(path);
    for (size_t i = 0; i < sizeof renames / sizeof renames[0]; i++) {
        const rename_case *c = &renames[i];
        size_t             n = strlen(c->from) + c->with_end;
        bytes              f = load(path);
        size_t             at = find(&f, c->from, n, 0);
        CU_ASSERT_FATAL(at < f.n);
        forge(&f, at, c->to, n);
        store(file_at("forged.h5"), f.at, f.n);
        bool ok = refused(file_at("forged.h5"), c->message);
        if (!ok) fprintf(stderr, "  case: %s -> %s\n", c->from, c->to);
        CU_ASSERT(ok);
        rk_mem_free(f.at);
    }
    rk_mem_free(good.at);
}

static void wrong_values(void) {
    static const struct {
        const char *name;
        int32_t     before, after;
        const char *message;
    } cases[] = {
        {"format_version", 1, 2, "newer"},
        {"format_version", 1, 0, "unknown"},
        {"n_layers", L, 0, "n_layers is 0"},
        {"n_layers", L, -1, "n_layers is -1"},
        {"n_layers", L, L + 1, "sensitivity has another shape"},
        {"n_layers", L, INT32_MAX, "n_layers is"},
        {"n_layers", L, 1 << 23, "does not fit in the file"},
        {"draws", D, 0, "draws is 0"},
        {"draws", D, D - 1, "samples/kl has another shape"},
        {"draws", D, 1 << 24, "does not fit in the file"},
    };
    const char *path = file_at("values.h5");
    bytes       good = good_file(path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bytes  f = load(path);
        size_t at = value_of(&f, cases[i].name);
        CU_ASSERT_FATAL(little(f.at + at) == (uint32_t)cases[i].before);
        forge(&f, at, &cases[i].after, 4);
        store(file_at("forged.h5"), f.at, f.n);
        CU_ASSERT(refused(file_at("forged.h5"), cases[i].message));
        rk_mem_free(f.at);
    }
    rk_mem_free(good.at);
}

/* Every number's type, one at a time: its sign bit or, of reals, its exponent bias. */
static void wrong_types(void) {
    static const unsigned char i32[] = {0x10, 8, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0};
    static const unsigned char u64[] = {0x10, 0, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0};
    static const unsigned char u8[] = {0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0};
    static const unsigned char f64[] = {0x11, 0x20, 0x3f, 0,  8, 0,  0,    0, 0, 0,
                                        64,   0,    52,   11, 0, 52, 0xff, 3, 0, 0};
    static const struct {
        const unsigned char *type;
        size_t               n, at;
        unsigned char        fresh;
        int                  count; /* how many the file has */
    } cases[] = {
        {i32, sizeof i32, 1, 0, 9}, /* 8 attributes, prompt_tokens */
        {u64, sizeof u64, 1, 8, 2}, /* seed, hash */
        {u8, sizeof u8, 1, 8, 1},
        {f64, sizeof f64, 16, 0xfe, 5}, /* noise_floor, epsilon, two sensitivities, kl */
    };
    const char *path = file_at("types.h5");
    bytes       good = good_file(path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int k = 0;
        for (;; k++) {
            bytes  f = load(path);
            size_t at = find(&f, cases[i].type, cases[i].n, k);
            if (at < f.n) {
                forge(&f, at + cases[i].at, &cases[i].fresh, 1);
                store(file_at("forged.h5"), f.at, f.n);
                CU_ASSERT(refused(file_at("forged.h5"), "has another type"));
            }
            rk_mem_free(f.at);
            if (at == good.n) break;
        }
        CU_ASSERT(k == cases[i].count);
    }
    rk_mem_free(good.at);
}

static void wrong_shapes(void) {
    const char *path = file_at("shapes.h5");
    bytes       good = good_file(path);
    uint64_t    dim[4] = {N, E, D, L}, swapped[4] = {N, D, E, L}, one = 1, list[2] = {N, N};
    bytes       f = load(path);
    size_t      at = find(&f, dim, sizeof dim, 0);
    CU_ASSERT_FATAL(at < f.n);
    forge(&f, at, swapped, sizeof swapped);
    store(file_at("forged.h5"), f.at, f.n);
    CU_ASSERT(refused(file_at("forged.h5"), "samples/kl has another shape"));
    rk_mem_free(f.at);
    /* A list of samples that is shorter than the others; after a length stands its maximum. */
    int n_tried = 0;
    for (int k = 0;; k++) {
        f = load(path);
        at = find(&f, list, sizeof list, k);
        bool more = at < f.n;
        if (more) {
            forge(&f, at, &one, sizeof one);
            store(file_at("forged.h5"), f.at, f.n);
            CU_ASSERT(refused(file_at("forged.h5"), "has another shape"));
            n_tried++;
        }
        rk_mem_free(f.at);
        if (!more) break;
    }
    CU_ASSERT(n_tried == 3); /* done, prompt_tokens, hash */
    rk_mem_free(good.at);
}

/* Run a check in a child: a crash or hang is a failure of this test alone, limits of the process
 * end with it, and what HDF5 loses of a damaged header is not held against this program. */
static bool in_child(bool (*check)(const char *path, const bytes *good), const char *path,
                     const bytes *good) {
    enum { PATIENCE_S = 100 };
    int   status = -1;
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_S);
        _exit(check(path, good) ? 0 : 1);
    }
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    if (status != 0) fprintf(stderr, "  child's status: 0x%x\n", (unsigned)status);
    return ended && status == 0;
}

static bool refuses_every_length(const char *path, const bytes *good) {
    bool ok = true;
    for (size_t n = 0; ok && n < good->n; n += n < 128 ? 1 : 61) {
        store(path, good->at, n);
        ok = refused(path, "");
    }
    return ok;
}

static void truncated(void) {
    bytes good = good_file(file_at("whole.h5"));
    CU_ASSERT(in_child(refuses_every_length, file_at("cut.h5"), &good));
    rk_mem_free(good.at);
}

/* One or more bytes changed anywhere: refused, or nothing that is read has changed. */
static bool never_misreads(const char *path, const bytes *good) {
    enum { ROUNDS = 1500 };
    rk_profile want = make(L, N, E, D);
    uint32_t   seed = 3;
    int        n_refused = 0;
    int64_t    blocks = rk_mem_blocks();
    bool       ok = true;
    for (int round = 0; ok && round < ROUNDS; round++) {
        rk_profile q = {0};
        int        n = round % 2 ? 1 : 1 + (int)(next(&seed) % 8);
        uint32_t   at[8];
        for (int k = 0; k < n; k++) {
            at[k] = next(&seed) % (uint32_t)good->n;
            good->at[at[k]] ^= 0x55;
        }
        store(path, good->at, good->n);
        for (int k = 0; k < n; k++) good->at[at[k]] ^= 0x55;
        rk_status st = rk_profile_read(path, &q);
        if (st == RK_OK) {
            ok = same_data(&want, &q) && same_run(&want, &q);
            rk_profile_free(&q);
        } else {
            ok = st == RK_E_INPUT && clear_message(path);
            n_refused++;
        }
        ok = ok && rk_mem_blocks() == blocks;
    }
    rk_profile_free(&want);
    return ok && n_refused > ROUNDS / 2;
}

static void damaged_bytes(void) {
    bytes good = good_file(file_at("whole.h5"));
    CU_ASSERT(in_child(never_misreads, file_at("flip.h5"), &good));
    rk_mem_free(good.at);
}

/* ---- what cannot be written ---- */

static void unwritable(void) {
    rk_profile  p = make(L, N, E, D);
    struct stat s;
    store(file_at("plain"), "x", 1);
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"absent/x.h5", "No such file"},
        {"plain/x.h5", "Not a directory"},
        {".", "is a folder"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = file_at(cases[i].name);
        CU_ASSERT(rk_profile_write(&p, path) == RK_E_OUTPUT);
        CU_ASSERT(clear_message(cases[i].message) && clear_message(path));
        CU_ASSERT(rk_profile_probe(path) == RK_E_OUTPUT);
        CU_ASSERT(clear_message(cases[i].message) && clear_message(path));
    }
    /* What is no file is not renamed over: root would lose a device. A FIFO stands for it, so that
     * a failure of this test harms nothing. */
    const char *fifo = file_at("fifo");
    CU_ASSERT_FATAL(mkfifo(fifo, 0600) == 0);
    CU_ASSERT(rk_profile_write(&p, fifo) == RK_E_OUTPUT && clear_message("not a regular file"));
    CU_ASSERT(rk_profile_probe(fifo) == RK_E_OUTPUT);
    CU_ASSERT(stat(fifo, &s) == 0 && S_ISFIFO(s.st_mode) && !exists(file_at("fifo.tmp")));
    rk_profile_free(&p);
}

static void probe(void) {
    const char *path = file_at("probe.h5"), *tmp = file_at("probe.h5.tmp");
    CU_ASSERT(rk_profile_probe(path) == RK_OK);
    CU_ASSERT(!exists(path) && !exists(tmp));
    store(path, "old", 3);
    store(tmp, "left by a killed run", 20);
    CU_ASSERT(rk_profile_probe(path) == RK_OK);
    CU_ASSERT(exists(path) && !exists(tmp));
    bytes old = load(path);
    CU_ASSERT(old.n == 3); /* it was not touched */
    rk_mem_free(old.at);
}

/* With a file size limit as the full disk, at every size: the old file survives, nothing else is
 * left, and with room again the next write succeeds. */
static bool survives_full_disk(const char *path, const bytes *good) {
    struct rlimit limit;
    rk_profile    p = make(L, N, E, D), q;
    bool          ok = signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &limit) == 0;
    rlim_t        unlimited = limit.rlim_cur;
    for (size_t room = 0; ok && room < good->n; room += 397) {
        limit.rlim_cur = room;
        ok = setrlimit(RLIMIT_FSIZE, &limit) == 0;
        ok = ok && rk_profile_write(&p, path) == RK_E_OUTPUT && clear_message("File too large");
        ok = ok && !exists(file_at("full.h5.tmp"));
        ok = ok && rk_profile_read(path, &q) == RK_OK && same_data(&p, &q);
        if (ok) rk_profile_free(&q);
        limit.rlim_cur = unlimited;
        ok = ok && setrlimit(RLIMIT_FSIZE, &limit) == 0 && rk_profile_write(&p, path) == RK_OK;
    }
    return ok;
}

static void full_disk(void) {
    bytes whole = good_file(file_at("full.h5"));
    CU_ASSERT(in_child(survives_full_disk, file_at("full.h5"), &whole));
    rk_mem_free(whole.at);
}

static void failing_allocations(void) {
    const char *path = file_at("alloc.h5"), *tmp = file_at("alloc.h5.tmp");
    rk_profile  p = make(L, N, E, D);
    int64_t     blocks = rk_mem_blocks();
    bool        done = false;
    int         n = 0;
    CU_ASSERT(rk_profile_write(&p, path) == RK_OK);
    for (; !done && n < 100; n++) {
        rk_profile q = {0};
        rk_mem_fail_at(n + 1);
        rk_status st = rk_profile_write(&p, path);
        if (st == RK_OK) st = rk_profile_read(path, &q);
        rk_mem_fail_at(0);
        done = st == RK_OK;
        CU_ASSERT(done || (st == RK_E_MEM && !q.kl));
        if (done) rk_profile_free(&q);
        CU_ASSERT(rk_mem_blocks() == blocks && !exists(tmp));
    }
    CU_ASSERT(done && n > 10);
    rk_profile_free(&p);
}

int rk_suite_profile_h5(void) {
    CU_pSuite s = CU_add_suite("profile_h5", NULL, NULL);
    if (!s || !CU_ADD_TEST(s, reduce) || !CU_ADD_TEST(s, round_trip) ||
        !CU_ADD_TEST(s, optional_groups) || !CU_ADD_TEST(s, long_command) || !CU_ADD_TEST(s, same_profile_same_bytes) ||
        !CU_ADD_TEST(s, only_run_attributes_differ) || !CU_ADD_TEST(s, not_a_file_of_ours) ||
        !CU_ADD_TEST(s, missing_parts) || !CU_ADD_TEST(s, wrong_values) ||
        !CU_ADD_TEST(s, wrong_types) || !CU_ADD_TEST(s, wrong_shapes) ||
        !CU_ADD_TEST(s, truncated) || !CU_ADD_TEST(s, damaged_bytes) ||
        !CU_ADD_TEST(s, unwritable) || !CU_ADD_TEST(s, probe) || !CU_ADD_TEST(s, full_disk) ||
        !CU_ADD_TEST(s, failing_allocations))
        return (int)CU_get_error();
    return 0;
}
