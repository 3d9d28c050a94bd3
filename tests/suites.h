/* suites.h - declares rk_suite_<name> for every tests/test_<name>.c.
 *
 * Each adds its suite and tests to CUnit's registry and returns 0, or a CUnit error. The list is
 * suites.inc, generated from the file names when the build is configured. */
#pragma once

#if __has_include("suites.inc")
#define RK_SUITE(name) int rk_suite_##name(void);
#include "suites.inc"
#undef RK_SUITE
#endif
