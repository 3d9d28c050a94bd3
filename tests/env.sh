#!/usr/bin/env bash
# The environment of every test: env.sh BUILD_DIR COMMAND... runs COMMAND in it.
#
# Set for tests: RIPPLEKV_ROOT (source tree), RIPPLEKV_BUILD, RIPPLEKV_BIN (the program), MPIRUN;
# by ctest RIPPLEKV_PYTHON (a Python with h5py; empty if there is none).
# Kept if set: RIPPLEKV_GOLDENS, RIPPLEKV_MODEL (default: the demo model, if it was fetched).
build=$1
shift
RIPPLEKV_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export RIPPLEKV_ROOT RIPPLEKV_BUILD=$build RIPPLEKV_BIN=$build/ripplekv
MPIRUN=$(command -v mpirun.openmpi || command -v mpirun)
export MPIRUN
model=$RIPPLEKV_ROOT/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -z "${RIPPLEKV_MODEL:-}" ] && [ -f "$model" ]; then export RIPPLEKV_MODEL=$model; fi

# Ranks share the cores of one machine and stay on its loopback.
export OMPI_MCA_rmaps_base_oversubscribe=1
export HWLOC_HIDE_ERRORS=2 # mpirun's own, where /sys is not mounted
export OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Sanitizer builds: the MPI library leaks a little at exit. Its frames have no frame pointers, so
# that the suppressions match only with the slow unwinder; of the suites these start MPI.
unwind=0
case "$1 ${2:-}" in
*/rk_tests\ golden_* | */rk_tests\ native) ;;
*/rk_tests*) unwind=1 ;;
esac
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:fast_unwind_on_malloc=$unwind}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$RIPPLEKV_ROOT/tests/lsan.supp:print_suppressions=0:use_tls=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
exec "$@"
