#!/usr/bin/env bash
# label: unit
# check_layers.sh [ROOT]: who may include whom, which file owns which third-party header, and who may
# end the process, allocate or print. One line per violation. Before that the check is tried on a
# small tree with one violation of each kind, all of which it must find.
#
# Layers: base <- kernels <- core <- pipeline <- profiler <- eval <- cli; each uses what stands left of it.
set -uo pipefail
root=${1:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}

# Source without comments and (but for includes) string contents; lines stay where they are.
plain() {
    awk '
        BEGIN { in_comment = 0 }
        {
            s = $0; out = ""
            while (s != "") {
                if (in_comment) {
                    i = index(s, "*/")
                    if (i == 0) { s = ""; break }
                    s = substr(s, i + 2); in_comment = 0
                } else if (substr(s, 1, 2) == "/*") {
                    in_comment = 1; out = out " "; s = substr(s, 3)
                } else if (substr(s, 1, 2) == "//") {
                    s = ""
                } else if (substr(s, 1, 1) == "\"" && $0 !~ /^[ \t]*#[ \t]*include/) {
                    out = out "\"\""; s = substr(s, 2)
                    while (s != "" && substr(s, 1, 1) != "\"")
                        s = substr(s, substr(s, 1, 1) == "\\" ? 3 : 2)
                    s = substr(s, 2)
                } else {
                    out = out substr(s, 1, 1); s = substr(s, 2)
                }
            }
            print out
        }' "$1"
}

# Space-separated directories of "include prefixes" that files of a directory may name.
allowed_layers() {
    case $1 in
        src/base) echo base ;;
        kernels) echo base kernels ;;
        src/core) echo base kernels core ;;
        pipeline) echo base kernels core pipeline ;;
        profiler) echo base kernels core pipeline profiler ;;
        src/eval) echo base kernels core pipeline profiler eval ;;
        src/cli) echo base kernels core pipeline profiler eval cli ;;
    esac
}

# The files (glob patterns) that may include a header in angle brackets; "any" for C and POSIX.
owners() {
    case $1 in
        mpi.h) echo 'pipeline/comm.c pipeline/link_mpi.c' ;;
        nccl.h) echo 'pipeline/link_nccl.c' ;;
        cuda*.h | cublas*.h | mma.h) echo 'kernels/cuda* pipeline/link_nccl.c' ;;
        hdf5*.h | H5*.h) echo 'profiler/profile_h5.c' ;;
        jansson.h) echo 'src/base/json.c' ;;
        xxhash.h) echo 'src/base/hash.c' ;;
        pcre2.h) echo 'src/core/tokenizer*.c' ;;
        utf8proc.h) echo 'src/core/tokenizer*.c src/eval/text.c' ;;
        assert.h | ctype.h | errno.h | fenv.h | float.h | inttypes.h | limits.h | locale.h | \
            math.h | signal.h | stdalign.h | stdarg.h | stdatomic.h | stdbool.h | stddef.h | \
            stdint.h | stdio.h | stdlib.h | stdnoreturn.h | string.h | strings.h | time.h | \
            sys/*.h | unistd.h | fcntl.h | pthread.h | sched.h | dirent.h | poll.h | semaphore.h | \
            libgen.h | linux/*.h | getopt.h | cpuid.h | *intrin.h) echo any ;;
        *) echo none ;;
    esac
}

matches() { # matches FILE PATTERN...
    local file=$1 pattern
    shift
    for pattern in "$@"; do
        # shellcheck disable=SC2254
        case $file in $pattern) return 0 ;; esac
    done
    return 1
}

bad() { printf '%s\n' "$*"; }

check_include() { # check_include FILE DIR LINE TOKEN (with its quotes or brackets)
    local file=$1 dir=$2 at="$1:$3" name=${4:1:-1} layer
    if [ "${4:0:1}" = '<' ]; then
        local who
        who=$(owners "$name")
        case $who in
            any) ;;
            none) bad "$at: <$name> has no owner; give it one in check_layers.sh" ;;
            *)
                set -f
                # shellcheck disable=SC2086
                matches "$file" $who || bad "$at: <$name> belongs to $who only"
                set +f
                case $file in *.h) bad "$at: a header includes the third-party <$name>" ;; esac
                ;;
        esac
        return
    fi
    layer=${name%%/*}
    case $name in
        rk_version.h)
            [ "$dir" = src/cli ] || bad "$at: rk_version.h is for src/cli only"
            return ;;
        */*) ;;
        *) bad "$at: \"$name\" lacks its folder (\"base/err.h\")"; return ;;
    esac
    # shellcheck disable=SC2046
    matches "$layer" $(allowed_layers "$dir") || bad "$at: $dir may not use \"$name\""
    case $dir:$name in
        src/core:kernels/backend.h | pipeline:kernels/backend.h) ;;
        pipeline:kernels/cuda_ops.h)
            [ "$file" = pipeline/link_nccl.c ] || bad "$at: only link_nccl.c uses \"$name\"" ;;
        src/core:kernels/* | pipeline:kernels/*) bad "$at: $dir sees only kernels/backend.h" ;;
    esac
}

# only WORDS FILES... on standard input "line:text": WORDS may be called in FILES only.
check_words() { # check_words TEXT FILE WORDS OWNERS MESSAGE
    local line
    set -f
    # shellcheck disable=SC2086
    if ! matches "$2" $4; then
        grep -nE "(^|[^A-Za-z0-9_.>])($3)" "$1" | while IFS=: read -r line _; do
            bad "$2:$line: $5"
        done
    fi
    set +f
}

check_prefix() { # functions declared or defined in a header are named rk_*
    awk -v file="$2" '
        /^[a-z][A-Za-z0-9_ *]*[ *][A-Za-z_][A-Za-z0-9_]*\(/ && !/^(typedef|return|else|if|for|while|switch)/ {
            s = $0; sub(/\(.*/, "", s); sub(/.*[ *]/, "", s)
            if (s !~ /^rk_/ && s != "__attribute__")
                print file ":" FNR ": public function " s " lacks the prefix rk_"
        }' "$1"
}

check_file() { # check_file ROOT FILE
    local file=$2 dir=${2%/*} line token
    plain "$1/$file" >"$scratch/plain"
    while IFS=' ' read -r line token; do
        check_include "$file" "$dir" "$line" "$token"
    done < <(sed -nE '/^[ \t]*#[ \t]*include/{=;s/^[ \t]*#[ \t]*include[ \t]*(<[^>]*>|"[^"]*").*/\1/p}' \
        "$scratch/plain" | paste -d' ' - -)
    sed -E 's/^[ \t]*#[ \t]*include.*//' "$scratch/plain" >"$scratch/code"
    check_words "$scratch/code" "$file" 'exit *\(' 'src/cli/main.c' 'exit() is for src/cli/main.c only'
    check_words "$scratch/code" "$file" '(_exit|_Exit|quick_exit|abort) *\(' \
        'src/base/err.c src/cli/main.c pipeline/comm.c' 'ends the process; return a status instead'
    check_words "$scratch/code" "$file" 'MPI_Abort' 'pipeline/comm.c' 'MPI_Abort is for pipeline/comm.c only'
    check_words "$scratch/code" "$file" '(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup) *\(' \
        'src/base/mem.c src/base/json.c' 'memory comes from base/mem.h'
    check_words "$scratch/code" "$file" 'printf *\(|puts *\(|putchar *\(|perror *\(|(stdout|stderr)[^A-Za-z0-9_]' \
        'src/cli/*' 'a library does not print'
    case $file in *.h) check_prefix "$scratch/code" "$file" ;; esac
}

check_tree() { # check_tree ROOT
    local dir file header users
    for dir in src/base kernels src/core pipeline profiler src/eval src/cli; do
        for file in "$1/$dir"/*.[ch] "$1/$dir"/*.cu; do
            [ -e "$file" ] && check_file "$1" "$dir/${file##*/}"
        done
    done
    # Some third parties have one user, whichever it is.
    for header in pcre2 utf8proc; do
        users=$(cd "$1" && grep -lE "^[ \t]*#[ \t]*include[ \t]*<$header\.h>" src/core/*.c 2>/dev/null)
        [ "$(wc -w <<<"$users")" -le 1 ] || bad "<$header.h> is included by more than one file:" $users
    done
}

check_symbols() { # check_symbols BUILD_DIR: what the libraries export is named rk_*
    local lib
    for lib in base kernels core pipeline profiler; do
        [ -f "$1/librk_$lib.a" ] || continue
        nm -g --defined-only "$1/librk_$lib.a" 2>/dev/null |
            awk -v lib="librk_$lib.a" 'NF == 3 && $2 ~ /^[TDBRC]$/ && $3 !~ /^(rk_|_|__)/ {
                print lib ": exported symbol " $3 " lacks the prefix rk_" }'
    done
}

plant() { mkdir -p "$scratch/t/${1%/*}" && printf '%b' "$2" >>"$scratch/t/$1"; }

self_test() { # each planted line must yield a violation that names its file and line
    local want
    plant src/base/a.c '#include "core/plan.h"\n'
    plant src/base/b.c '#include "b.h"\n'
    plant src/base/c.c '#include "base/err.h"\n/* exit(1) */ int x; // abort()\nvoid f(void) { exit(1); }\n'
    plant src/base/d.c 'void f(void) { puts("exit(1)"); }\n'
    plant kernels/a.c '#include "core/plan.h"\n#include <mpi.h>\n'
    plant src/core/a.c '#include "kernels/layout.h"\n#include <jansson.h>\n#include <curl/curl.h>\n'
    plant src/core/a.h '#include <xxhash.h>\nint bad_name(int a);\nint rk_fine(int a);\n'
    plant src/core/tokenizer.c '#include <pcre2.h>\n'
    plant src/core/tokenizer_b.c '#include <pcre2.h>\n'
    plant pipeline/engine.c '#include <mpi.h>\n#include "profiler/journal.h"\nint a = MPI_Abort(c, 1);\n'
    plant pipeline/comm.c '#include <mpi.h>\nint a = MPI_Abort(c, 1);\nvoid *p = malloc(3);\n'
    plant profiler/a.c '#include "cli/cli.h"\n#include <hdf5.h>\n'
    plant src/cli/cmd_a.c '#include "pipeline/comm.h"\nvoid f(void) { exit(2); _Exit(2); puts(""); }\n'
    check_tree "$scratch/t" >"$scratch/found"
    for want in src/base/a.c:1 src/base/b.c:1 src/base/c.c:3 src/base/d.c:1 kernels/a.c:1 kernels/a.c:2 \
        src/core/a.c:1 src/core/a.c:2 src/core/a.c:3 src/core/a.h:1 src/core/a.h:2 pcre2.h \
        pipeline/engine.c:1 pipeline/engine.c:2 pipeline/engine.c:3 pipeline/comm.c:3 profiler/a.c:1 \
        profiler/a.c:2 src/cli/cmd_a.c:2; do
        grep -qF "$want" "$scratch/found" || bad "check_layers.sh missed the planted violation $want"
    done
    for want in src/base/c.c:1 src/base/c.c:2 src/core/a.h:3 pipeline/comm.c:1 pipeline/comm.c:2 \
        src/cli/cmd_a.c:1; do
        grep -F "$want:" "$scratch/found" | sed 's/^/check_layers.sh is wrong about: /'
    done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
{
    self_test
    check_tree "$root"
    [ -z "${RIPPLEKV_BUILD:-}" ] || check_symbols "$RIPPLEKV_BUILD"
} >"$scratch/violations"
if [ -s "$scratch/violations" ]; then
    cat "$scratch/violations"
    echo "$(wc -l <"$scratch/violations") violations"
    exit 1
fi
echo "no violations"
