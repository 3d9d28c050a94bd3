/* cmd_version.c - ripplekv version: what was built, from what, and what runs it. */
#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "rk_version.h"

static const char *const instruction_sets[] = {"amx", "avx512bf16", "avx512", "avx2", "scalar"};
enum { N_SETS = sizeof instruction_sets / sizeof *instruction_sets };

static rk_json *collect(bool full) {
    rk_json *o = rk_json_object();
    rk_json_set_str(o, "version", RK_VERSION);
    rk_json_set_str(o, "git", RK_GIT);
    if (!full) return o;
    rk_json_set_str(o, "compiler", RK_COMPILER);
    rk_json_set_str(o, "build_type", RK_BUILD_TYPE);
    rk_json_set_str(o, "flags", RK_BUILD_FLAGS);
    rk_json_set_str(o, "libraries", RK_LIBRARIES);
    rk_json *paths = rk_json_array();
    for (int i = 0; i < N_SETS; i++)
        if (rk_backend_has_isa(instruction_sets[i], "tile") ||
            rk_backend_has_isa(instruction_sets[i], "pair"))
            rk_json_add_str(paths, instruction_sets[i]);
    rk_json_set(o, "cpu_paths", paths);
    struct utsname u;
    if (uname(&u) == 0) {
        char text[300];
        snprintf(text, sizeof text, "%.64s %.128s %.64s", u.sysname, u.release, u.machine);
        rk_json_set_str(o, "system", text);
    }
    rk_json_set_int(o, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    rk_json_set_int(o, "memory_available", rk_mem_available());
    return o;
}

static rk_status show(void *arg, const char *key, const rk_json *value) {
    (void)arg;
    if (rk_json_kind_of(value) == RK_JSON_STRING) {
        printf("%-17s %s\n", key, rk_json_str(value, ""));
    } else if (rk_json_kind_of(value) == RK_JSON_INT) {
        printf("%-17s %lld\n", key, (long long)rk_json_int(value, 0));
    } else {
        printf("%-17s", key);
        for (size_t i = 0; i < rk_json_len(value); i++)
            printf(" %s", rk_json_str(rk_json_at(value, i), ""));
        putchar('\n');
    }
    return RK_OK;
}

rk_status rk_cmd_version(rk_cli *c) {
    rk_json *o = collect(c->o->full);
    if (c->o->json) {
        rk_cli_print_json(o);
        return rk_cli_flush_stdout();
    }
    rk_status st = RK_OK;
    if (c->o->full)
        st = rk_json_each(o, show, NULL);
    else
        printf("ripplekv %s (%s)\n", RK_VERSION, RK_GIT);
    rk_json_close(o);
    RK_TRY(st);
    return rk_cli_flush_stdout();
}
