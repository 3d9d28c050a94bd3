/* test_options.c - the option table and its parser. */
#include "cli/options.h"

#include <CUnit/CUnit.h>
#include <string.h>

#include "cli/options_table.h"
#include "tests/suites.h"

enum { MAX_WORDS = 40 };

/* Parse words separated by blanks, after the program's name. */
static rk_status parse(const char *line, rk_options *o) {
    static char buf[1024];
    char       *argv[MAX_WORDS] = {0}, *save = NULL, program[] = "ripplekv";
    int         argc = 1;
    argv[0] = program;
    strncpy(buf, line, sizeof buf - 1);
    for (char *w = strtok_r(buf, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    return rk_options_parse(argc, argv, o);
}

static void accepts(const char *line, rk_options *o) {
    rk_err_clear();
    rk_status st = parse(line, o);
    CU_ASSERT_EQUAL(st, RK_OK);
    if (st != RK_OK) CU_FAIL(rk_err_last()->text);
}

/* The line is refused with USAGE, and the message is one line that holds part. */
static void refuses(const char *line, const char *part) {
    rk_options o;
    rk_err_clear();
    CU_ASSERT_EQUAL(parse(line, &o), RK_E_USAGE);
    const char *text = rk_err_last()->text;
    bool        fits = strstr(text, part) != NULL && strchr(text, '\n') == NULL;
    CU_ASSERT(fits);
    if (!fits) CU_assertImplementation(CU_FALSE, __LINE__, text, line, "", CU_FALSE);
}

#define GEN     "generate --model m --prompt p "
#define PROFILE "profile --model m --calibration c --output o.h5 "
#define BENCH   "bench --model m "
#define BUDGET  "budget --sensitivity s.h5 --context 100 "

static void test_defaults(void) {
    rk_options o;
    accepts(PROFILE, &o);
    CU_ASSERT_EQUAL(o.command, RK_CMD_PROFILE);
    CU_ASSERT_STRING_EQUAL(o.model, "m");
    CU_ASSERT_STRING_EQUAL(o.backend, "cpu");
    CU_ASSERT_STRING_EQUAL(o.numerics, "auto");
    CU_ASSERT_STRING_EQUAL(o.partition, "auto");
    CU_ASSERT_PTR_NULL(o.dtype);
    CU_ASSERT_EQUAL(o.samples, 8);
    CU_ASSERT_EQUAL(o.context, 1024);
    CU_ASSERT_EQUAL(o.response, 32);
    CU_ASSERT_EQUAL(o.epsilon.n, 1);
    CU_ASSERT_EQUAL(o.epsilon.v[0], 0.3);
    CU_ASSERT_EQUAL(o.draws, 1);
    CU_ASSERT_EQUAL(o.seed, 7);
    CU_ASSERT_EQUAL(o.replicas, 1);
    CU_ASSERT_EQUAL(o.chunk, 0);
    CU_ASSERT_EQUAL(o.timeout, 120);
    accepts(GEN, &o);
    CU_ASSERT(rk_options_full_cache(&o));
    CU_ASSERT_EQUAL(o.r, 4);
    CU_ASSERT_EQUAL(o.gamma, 4);
    CU_ASSERT_EQUAL(o.beta, 20);
    CU_ASSERT_EQUAL(o.window, 32);
    CU_ASSERT_EQUAL(o.sinks, 4);
    CU_ASSERT_EQUAL(o.kernel, 7);
    CU_ASSERT_STRING_EQUAL(o.policy, "snapkv");
    CU_ASSERT_STRING_EQUAL(o.pool, "max");
    CU_ASSERT_STRING_EQUAL(o.group_reduce, "mean");
    CU_ASSERT_STRING_EQUAL(o.first_token, "full");
    CU_ASSERT_STRING_EQUAL(o.allocator, "uniform");
    CU_ASSERT_EQUAL(o.temperature, 0);
    CU_ASSERT_EQUAL(o.top_p, 1);
}

static void test_bench(void) {
    rk_options o;
    accepts(BENCH, &o);
    CU_ASSERT(o.bench_prefill.n == 1 && o.bench_prefill.v[0] == 512);
    CU_ASSERT(o.bench_context.n == 1 && o.bench_context.v[0] == 512);
    CU_ASSERT(o.bench_batch.n == 1 && o.bench_batch.v[0] == 1);
    CU_ASSERT(o.bench_decode == 32 && o.repeat == 3 && o.response == 32 && !o.bench_profile);
    CU_ASSERT(rk_options_full_cache(&o));
    accepts(BENCH "--prefill=1,22,333 --context 9,8 --decode 0 --profile --response 5", &o);
    CU_ASSERT(o.bench_prefill.n == 3 && o.bench_prefill.v[1] == 22 && o.bench_prefill.v[2] == 333);
    CU_ASSERT(o.bench_context.n == 2 && o.bench_context.v[1] == 8);
    CU_ASSERT(o.bench_decode == 0 && o.bench_profile && o.response == 5);
}

static void test_bench_refusals(void) {
    rk_options o;
    refuses("bench", "needs --model");
    refuses(BENCH "--prefill 1,", "--prefill 1,: must be whole numbers");
    refuses(BENCH "--prefill ,1", "--prefill ,1");
    refuses(BENCH "--prefill 1.5", "--prefill 1.5");
    refuses(BENCH "--prefill 123456789012345678901234567890", "--prefill 1234");
    refuses(BENCH "--prefill -1", "--prefill -1");
    refuses(BENCH "--prefill 5,0", "stands alone");
    refuses(BENCH "--context 0", "whole numbers 1 or more");
    refuses(BENCH "--context 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "at most 16");
    refuses(BENCH "--batch 0", "--batch 0");
    refuses(BENCH "--batch 5000", "1 to 4096");
    refuses(BENCH "--prefill 0 --decode 0", "nothing is left");
    refuses(BENCH "--decode 0 --batch 2", "--batch has no effect: --decode 0");
    refuses(BENCH "--decode 0 --context 5", "--context has no effect");
    refuses(BENCH "--decode 0 --ratio 0.1", "--ratio has no effect");
    refuses(BENCH "--prefill 0 --repeat 2", "--repeat has no effect");
    refuses(BENCH "--response 5", "--response has no effect: there is no --profile");
    refuses(BENCH "--policy streaming", "the whole cache is kept");
    refuses(BENCH "--ratio 0.1 --policy full", "keeps every token");
    refuses(BENCH "--ratio 0.1 --kernel 2", "must be odd");
    refuses(BENCH "--backend ref --numerics tile", "--numerics tile");
    refuses(BENCH "--first-token full", "not an option of bench");
    refuses(BENCH "--max-new-tokens 3", "not an option of bench");
    accepts(BENCH "--prefill 0", &o);
    accepts(BENCH "--decode 0", &o);
    accepts(BENCH "--prefill 0 --decode 0 --profile --repeat 2", &o);
}

static void test_values(void) {
    rk_options o;
    accepts(PROFILE "--epsilon=0.1,0.3,1e-3 --seed=18446744073709551615 --threads 2 --chunk 96 "
                    "--timeout 1.5 --json --resume --dry-run",
            &o);
    CU_ASSERT_EQUAL(o.epsilon.n, 3);
    CU_ASSERT_EQUAL(o.epsilon.v[0], 0.1);
    CU_ASSERT_EQUAL(o.epsilon.v[2], 1e-3);
    CU_ASSERT_EQUAL(o.seed, UINT64_MAX);
    CU_ASSERT_EQUAL(o.threads, 2);
    CU_ASSERT_EQUAL(o.chunk, 96);
    CU_ASSERT_EQUAL(o.timeout, 1.5);
    CU_ASSERT(o.json && o.resume && o.dry_run);
    accepts(GEN "--ratio 0.1 --sensitivity s.h5 --stop a --stop=b= --chat --chunk auto", &o);
    CU_ASSERT_STRING_EQUAL(o.allocator, "ripple");
    CU_ASSERT_EQUAL(o.stop.n, 2);
    CU_ASSERT_STRING_EQUAL(o.stop.v[1], "b=");
    CU_ASSERT(o.chat && !rk_options_full_cache(&o));
    CU_ASSERT_EQUAL(o.chunk, 0);
    accepts(GEN "--budget 100 --allocator list:shares.txt --policy streaming", &o);
    CU_ASSERT_STRING_EQUAL(o.allocator, "list:shares.txt");
    CU_ASSERT_EQUAL(o.budget, 100);
    accepts("inspect a.gguf --json", &o);
    CU_ASSERT_STRING_EQUAL(o.positional, "a.gguf");
    accepts("generate --model m --prompt=--odd", &o);
    CU_ASSERT_STRING_EQUAL(o.prompt, "--odd");
    accepts("generate --model m --prompt=", &o); /* an empty prompt is found with the prompts */
}

static void test_commands(void) {
    rk_options o;
    accepts("version --full", &o);
    CU_ASSERT(o.full);
    accepts("--help", &o);
    CU_ASSERT_EQUAL(o.command, RK_CMD_HELP);
    accepts("generate --help", &o);
    CU_ASSERT(o.help);
    accepts("help budget", &o);
    refuses("", "no command");
    refuses("plan", "unknown command \"plan\"");
    refuses("profil", "did you mean \"profile\"");
    refuses("--model m", "the command comes first");
    refuses("help plan", "unknown command");
    refuses("version now", "unexpected argument");
    refuses("inspect", "needs the PATH");
    refuses("inspect a b", "too many");
    refuses("profile -x", "two dashes");
}

static void test_unknown(void) {
    refuses(GEN "--rato 0.1", "did you mean --ratio?");
    refuses(GEN "--temprature 1", "did you mean --temperature?");
    refuses(GEN "--max-new 3", "did you mean --max-new-tokens?");
    refuses(GEN "--epsilon 0.1", "not an option of generate (it belongs to profile)");
    refuses(PROFILE "--ratio 0.1", "not an option of profile");
    refuses(GEN "--zzzzzz", "generate --help");
    /* not there yet, and not accepted in silence */
    refuses(GEN "--trace f", "unknown option --trace");
    refuses(GEN "--groups 2", "unknown option --groups");
    refuses(GEN "--preset x", "unknown value");
    rk_options o;
    accepts(GEN "--ratio 0.1 --preset kvpress --kernel 3", &o);
    CU_ASSERT(o.window == 64 && o.kernel == 3 && o.pool_first && strcmp(o.pool, "avg") == 0);
    accepts(GEN "--ratio 0.1 --preset adakv", &o);
    CU_ASSERT(o.window == 32 && strcmp(o.head_mode, "blend") == 0 && o.recent < 0);
    refuses(GEN "--preset adakv", "whole cache is kept");
    refuses(GEN "--ratio 0.1 --alpha 0.5", "--head-mode kv does not read it");
    refuses(GEN "--ratio 0.1 --recent 5", "only --policy h2o reads it");
    refuses(GEN "--ratio 0.1 --policy streaming --head-mode adaptive", "the same tokens in all heads");
    refuses(GEN "--ratio 0.1 --shrink 0.5", "only --allocator curve reads it");
    refuses(GEN "--ratio 0.1 --policy h3o", "unknown value");
    refuses(GEN "--backend cuda", "possible: cpu ref");
    refuses(GEN "--numerics sorted", "possible: auto tile pair");
    refuses(GEN "--weights int4", "possible: bf16 native");
    refuses(PROFILE "--signal local", "always among them");
    refuses(PROFILE "--signal kl,kl", "each once");
    refuses(PROFILE "--signal kl,nose", "known are kl, local, attention and damage");
    refuses(PROFILE "--signal kl,", "known are");
    refuses(PROFILE "--levels 0.1", "there is no --signal damage");
    refuses(PROFILE "--policy streaming", "there is no --signal damage");
    refuses(PROFILE "--signal kl,damage --levels 0.2,0.1", "must ascend");
    refuses(PROFILE "--signal kl,damage --policy full", "cuts nothing");
    refuses(GEN "--ratio 0.1 --allocator list:", "possible: uniform pyramid ripple local cake curve list:FILE");
    refuses(GEN "--ratio 0.1 --allocator curve", "needs --sensitivity");
    refuses(GEN "--ratio 0.1 --allocator cake", "needs --sensitivity");
    refuses(GEN "--ratio 0.1 --tau1 2", "only --allocator cake reads it");
}

static void test_bad_values(void) {
    refuses(GEN "--threads abc", "--threads abc: must be a whole number");
    refuses(GEN "--threads 1.5", "--threads 1.5");
    refuses(GEN "--threads -1", "--threads -1");
    refuses(GEN "--threads 99999999999999999999", "--threads 9999");
    refuses(GEN "--seed -1", "--seed -1");
    refuses(GEN "--seed 18446744073709551616", "--seed");
    refuses(GEN "--ratio 0", "above 0 to 1");
    refuses(GEN "--ratio 2", "--ratio 2");
    refuses(GEN "--ratio nan", "--ratio nan");
    refuses(GEN "--ratio inf", "--ratio inf");
    refuses(GEN "--ratio 0.1x", "--ratio 0.1x");
    refuses(GEN "--budget 0", "--budget 0");
    refuses(GEN "--top-p 0 --temperature 1", "--top-p 0");
    refuses(GEN "--chunk 0", "or auto");
    refuses(GEN "--max-new-tokens 0", "--max-new-tokens 0");
    refuses(PROFILE "--epsilon 0.1,", "--epsilon 0.1,");
    refuses(PROFILE "--epsilon 0", "--epsilon 0");
    refuses(PROFILE "--epsilon 0.1;0.2", "--epsilon");
    refuses(PROFILE "--epsilon 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "at most 16");
    refuses(PROFILE "--samples 0", "--samples 0");
    refuses(PROFILE "--timeout 0", "--timeout 0");
    refuses(BUDGET "--gamma 0.5", "--gamma 0.5");
    refuses(GEN "--json=1", "takes no value");
    refuses(GEN "--seed", "needs a value");
    refuses(GEN "--seed --json", "needs a value");
    refuses(GEN "--log=", "the value is empty");
    refuses(GEN "--seed 1 --seed 1", "given twice");
}

static void test_together(void) {
    rk_options o;
    refuses("profile --model m --calibration c", "needs --output");
    refuses("generate --prompt p", "needs --model");
    refuses("generate --model m", "needs one of --prompt");
    refuses(GEN "--input f", "only one of");
    refuses(GEN "--replicas 2", "one replica");
    refuses("budget --context 5", "needs --sensitivity");
    refuses("budget --sensitivity s", "needs --context");
    refuses(GEN "--ratio 0.1 --budget 5", "give one");
    refuses(GEN "--ratio 0.1 --allocator ripple", "needs --sensitivity");
    refuses(GEN "--dtype f32", "--dtype f32");
    refuses(GEN "--backend ref --dtype bf16", "--dtype bf16");
    refuses(GEN "--backend ref --numerics tile", "--numerics tile");
    refuses(GEN "--backend ref --weights bf16", "--weights bf16");
    accepts(GEN "--backend ref --dtype f32", &o);
    accepts(GEN "--dtype bf16 --numerics tile --weights bf16", &o);
    refuses(GEN "--ratio 0.1 --policy full", "keeps every token");
    accepts(GEN "--policy full", &o);
    refuses(GEN "--ratio 0.1 --kernel 4", "must be odd");
}

static void test_unused(void) {
    rk_options o;
    refuses(GEN "--ratio 0.1 --r 2", "--r has no effect: only --allocator ripple");
    refuses(GEN "--ratio 0.1 --sensitivity s --allocator uniform", "--sensitivity has no effect");
    refuses(GEN "--ratio 0.1 --gamma 2", "--gamma has no effect");
    refuses(GEN "--ratio 0.1 --beta 2", "--beta has no effect: only --allocator pyramid");
    refuses(GEN "--ratio 0.1 --policy streaming --kernel 5", "--kernel has no effect");
    refuses(GEN "--ratio 0.1 --policy streaming --pool avg", "--pool has no effect");
    refuses(GEN "--ratio 0.1 --policy streaming --group-reduce max",
            "--group-reduce has no effect");
    refuses(GEN "--ratio 0.1 --policy streaming --pool-first", "--pool-first has no effect");
    refuses(GEN "--sensitivity s", "the whole cache is kept");
    refuses(GEN "--policy snapkv", "the whole cache is kept");
    refuses(GEN "--allocator uniform", "the whole cache is kept");
    refuses(GEN "--first-token compressed", "the whole cache is kept");
    refuses(GEN "--top-p 0.5", "--temperature is 0");
    refuses(GEN "--batch 2", "there is one prompt");
    refuses(GEN "--chat-template chatml", "--chat-template has no effect");
    refuses("generate --model m --input f --chat", "--chat has no effect");
    accepts("generate --model m --input f --batch 2 --chat-template chatml", &o);
    accepts(GEN "--ratio 0.1 --policy streaming --window 8 --sinks 2", &o);
    accepts(BUDGET "--ratio 0.1 --allocator uniform", &o); /* s.h5 says how many layers */
    accepts(BUDGET "--ratio 0.1 --allocator pyramid --beta 3", &o);
    accepts(BUDGET "--ratio 0.1 --r 2 --gamma 3", &o);
    accepts(GEN "--temperature 0.5 --top-p 0.5 --seed 3", &o);
}

/* What the table must hold for the parser and the help texts. */
static void test_table(void) {
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        CU_ASSERT_PTR_NOT_NULL_FATAL(row->name);
        CU_ASSERT(row->commands != 0 && (row->required & ~row->commands) == 0);
        CU_ASSERT(strlen(row->name) <= 24 && row->help != NULL);
        CU_ASSERT((row->type == RK_OPTION_CHOICE) == (row->values != NULL));
        bool flag = row->type == RK_OPTION_FLAG, choice = row->type == RK_OPTION_CHOICE;
        CU_ASSERT((row->arg != NULL) == (!flag && !choice));
        for (int k = 0; k < i; k++) { /* one meaning of a name in a command */
            bool same = strcmp(row->name, rk_option_rows[k].name) == 0;
            CU_ASSERT(!same || (row->commands & rk_option_rows[k].commands) == 0);
        }
    }
}

static void test_settings(void) {
    rk_options o;
    char       line[2000], small[24];
    accepts(GEN "--ratio 0.25 --allocator pyramid", &o);
    rk_options_settings(&o, line, sizeof line);
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "model=m "));
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "ratio=0.25"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "beta=20"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "kernel=7"));
    CU_ASSERT_PTR_NULL(strstr(line, "gamma="));   /* ripple's */
    CU_ASSERT_PTR_NULL(strstr(line, "epsilon=")); /* profile's */
    rk_options_settings(&o, small, sizeof small);
    CU_ASSERT(strlen(small) < sizeof small);
    accepts(BENCH "--context 5,6", &o);
    rk_options_settings(&o, line, sizeof line);
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "context=5,6 "));
    CU_ASSERT_PTR_NULL(strstr(line, "response="));
    accepts(PROFILE "--epsilon 0.5,0.25", &o);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_options_settings(&o, line, sizeof line), "epsilon=0.5,0.25"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "chunk=auto"));
}

int rk_suite_options(void) {
    CU_pSuite s = CU_add_suite("options", NULL, NULL);
    if (!s) return -1;
    CU_ADD_TEST(s, test_table);
    CU_ADD_TEST(s, test_defaults);
    CU_ADD_TEST(s, test_values);
    CU_ADD_TEST(s, test_bench);
    CU_ADD_TEST(s, test_bench_refusals);
    CU_ADD_TEST(s, test_commands);
    CU_ADD_TEST(s, test_unknown);
    CU_ADD_TEST(s, test_bad_values);
    CU_ADD_TEST(s, test_together);
    CU_ADD_TEST(s, test_unused);
    CU_ADD_TEST(s, test_settings);
    return 0;
}
