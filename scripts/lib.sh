# lib.sh - what the scripts share. Source it; it changes to the source root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
RK_ROOT=$PWD
RK_MODEL_FILE=$RK_ROOT/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

# absolute PATH [BASE]: an absolute form of PATH, which may not exist.
absolute() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "${2:-$PWD}/$1" ;; esac; }

# Install what is missing; where that is not possible the configure step says what is needed.
need_deps() {
    scripts/install-deps.sh "$@" || say "going on with what is installed"
}

# build PRESET: configure and build into build/PRESET.
build() {
    local generator=()
    if [ ! -f "build/$1/CMakeCache.txt" ] && [ -z "${CMAKE_GENERATOR:-}" ] &&
        command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    cmake --preset "$1" "${generator[@]}"
    cmake --build "build/$1" --parallel "$(nproc)"
}
