/* main.c - rk_tests: rk_tests [--list | SUITE...]. */
#include "tests/suites.h"

#include "tests/harness.h"

static const rk_test_suite suites[] = {
#define RK_SUITE(name) {#name, rk_suite_##name},
#include "suites.inc"
#undef RK_SUITE
};

int main(int argc, char **argv) {
    return rk_test_main(argc, argv, suites, (int)(sizeof suites / sizeof suites[0]));
}
