/* options_help.c - help, README table and settings line, all from the table. */
#include <stdio.h>
#include <string.h>

#include "cli/options_table.h"

enum { COLUMN = 30, WIDTH = 96 };

/* The value as help shows it, "N" or "cpu|ref"; "" for a flag. */
static const char *arg_of(const rk_option_row *row) {
    if (row->type == RK_OPTION_FLAG) return "";
    return row->values ? row->values : row->arg;
}

/* Meaning, unit, range and default of a row for a command. */
static void describe(const rk_option_row *row, bool required, char *buf, size_t cap) {
    int n = snprintf(buf, cap, "%s", row->help);
    if (row->unit) n += snprintf(buf + n, cap - (size_t)n, ", in %s", row->unit);
    if (required)
        snprintf(buf + n, cap - (size_t)n, " (required)");
    else if (row->dflt)
        snprintf(buf + n, cap - (size_t)n, " (default %s)", row->dflt);
}

/* Print text from column `at` on, wrapped at words with a hanging indent. */
static void wrap(const char *text, int at) {
    int x = at;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (x > at && x + 1 + n > WIDTH) {
            printf("\n%*s", at, "");
            x = at;
        } else if (x > at) {
            putchar(' ');
            x++;
        }
        printf("%.*s", n, p);
        x += n;
        p += n;
        p += strspn(p, " ");
    }
    putchar('\n');
}

static void show_row(const rk_option_row *row, rk_command c) {
    char        text[256];
    const char *arg = arg_of(row);
    int         n = printf("  --%s%s%s", row->name, arg[0] ? " " : "", arg);
    if (n >= COLUMN - 1) {
        putchar('\n');
        n = 0;
    }
    printf("%*s", COLUMN - n, "");
    describe(row, (row->required & 1u << c) != 0, text, sizeof text);
    wrap(text, COLUMN);
}

static void show_options(rk_command c) {
    int group = -1;
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        if (!(row->commands & 1u << c)) continue;
        if (row->group != group) printf("\n%s\n", rk_option_groups[row->group]);
        group = row->group;
        show_row(row, c);
    }
}

void rk_options_help(rk_command command) {
    if (command < RK_CMDS) {
        const rk_command_row *row = &rk_command_rows[command];
        printf("ripplekv %s %s\n  %s\n", row->name, row->synopsis, row->help);
        show_options(command);
        return;
    }
    printf("ripplekv COMMAND [OPTIONS]; alone, under mpirun -n P, or under srun --mpi=pmix\n\n");
    for (int c = 0; c < RK_CMDS; c++)
        printf("  %-10s %s\n", rk_command_rows[c].name, rk_command_rows[c].help);
    printf("\nripplekv COMMAND --help lists the options of a command.\n\n"
           "Exit codes: 0 done, 1 the answer is no, 2 usage, 3 does not fit in memory, 4 model or "
           "input\nfile, 5 output or disk, 70 internal, 71 a rank was lost or a wait ran out of "
           "time, 72 device,\n75 stopped on request (profile: --resume goes on).\n");
}

static void print_cell(const char *text) {
    for (const char *p = text; *p; p++) {
        if (*p == '|') putchar('\\');
        putchar(*p);
    }
}

void rk_options_markdown(void) {
    printf("| option | commands | meaning |\n|---|---|---|\n");
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        const char          *arg = arg_of(row), *sep = "";
        char                 text[256];
        printf("| `--%s%s", row->name, arg[0] ? " " : "");
        print_cell(arg);
        printf("` | ");
        for (int c = 0; c < RK_CMDS; c++)
            if (row->commands & 1u << c) {
                printf("%s%s", sep, rk_command_rows[c].name);
                sep = ", ";
            }
        printf(" | ");
        describe(row, row->required != 0, text, sizeof text);
        print_cell(text);
        printf(" |\n");
    }
}

/* ---- the settings line ---- */

static void value_text(const rk_options *o, int id, char *buf, size_t cap) {
    const rk_option_row *row = &rk_option_rows[id];
    const char          *at = (const char *)o + row->offset, *text = NULL;
    int64_t              i;
    uint64_t             u;
    double               d;
    buf[0] = 0;
    switch (row->type) {
    case RK_OPTION_FLAG:
        if (o->given[id]) snprintf(buf, cap, "yes");
        break;
    case RK_OPTION_CHOICE:
    case RK_OPTION_TEXT:
        memcpy(&text, at, sizeof text);
        if (text) snprintf(buf, cap, "%s", text);
        break;
    case RK_OPTION_TEXTS:
        for (int k = 0; k < o->stop.n; k++) {
            size_t n = strlen(buf);
            snprintf(buf + n, cap - n, "%s%s", k ? "," : "", o->stop.v[k]);
        }
        break;
    case RK_OPTION_INT:
    case RK_OPTION_INT_OR_AUTO:
        memcpy(&i, at, sizeof i);
        if (i == 0 && row->type == RK_OPTION_INT_OR_AUTO)
            snprintf(buf, cap, "auto");
        else if (row->dflt || o->given[id])
            snprintf(buf, cap, "%lld", (long long)i);
        break;
    case RK_OPTION_SEED:
        memcpy(&u, at, sizeof u);
        snprintf(buf, cap, "%llu", (unsigned long long)u);
        break;
    case RK_OPTION_REAL:
        memcpy(&d, at, sizeof d);
        if (row->dflt || o->given[id]) snprintf(buf, cap, "%g", d);
        break;
    case RK_OPTION_REALS:
        for (int k = 0; k < o->epsilon.n; k++) {
            size_t n = strlen(buf);
            snprintf(buf + n, cap - n, "%s%g", k ? "," : "", o->epsilon.v[k]);
        }
        break;
    case RK_OPTION_INTS: {
        const rk_int_list *list = (const rk_int_list *)(const void *)at;
        for (int k = 0; k < list->n; k++) {
            size_t n = strlen(buf);
            snprintf(buf + n, cap - n, "%s%lld", k ? "," : "", (long long)list->v[k]);
        }
        break;
    }
    }
}

const char *rk_options_settings(const rk_options *o, char *buf, size_t cap) {
    size_t used = 0;
    buf[0] = 0;
    for (int id = 0; id < RK_OPTS; id++) {
        char value[256]; /* paths whole; of a prompt the beginning */
        bool floor_only = id == RK_OPT_WINDOW || id == RK_OPT_SINKS;
        if (!(rk_option_rows[id].commands & 1u << o->command) || rk_options_unused(o, (rk_opt)id))
            continue;
        if (floor_only && rk_options_full_cache(o) && !o->given[id]) continue;
        value_text(o, id, value, sizeof value);
        for (char *p = value; *p; p++)
            if ((unsigned char)*p < 0x20) *p = ' ';
        if (!value[0]) continue;
        int n = snprintf(buf + used, cap - used, "%s%s=%s", used ? " " : "",
                         rk_option_rows[id].name, value);
        if (n < 0 || (size_t)n >= cap - used) break;
        used += (size_t)n;
    }
    return buf;
}
