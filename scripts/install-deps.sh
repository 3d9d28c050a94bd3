#!/usr/bin/env bash
# install-deps.sh [--ci]: install what building, testing and the demo need (Debian 12, Ubuntu 24.04).
# Asks nothing, installs only what is missing; --ci adds clang for the second compiler's build.
set -euo pipefail

packages=(
    gcc libc6-dev cmake ninja-build pkg-config git        # build
    libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools     # ranks, sensitivity files
    libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev
    libcunit1-dev liblzma-dev                             # tests
    python3 python3-numpy python3-h5py                    # tests, the demo's table
    python3-pip unzip ca-certificates                     # demo model
)
for arg in "$@"; do
    case $arg in
        --ci) packages+=(clang) ;;
        *) echo "usage: scripts/install-deps.sh [--ci]" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install-deps: no apt here. Install these by the system's own means (Debian names):" >&2
    echo "  ${packages[*]}" >&2
    exit 1
fi

installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null |
    sed -n 's/^installed //p')
missing=()
for p in "${packages[@]}"; do
    grep -qxF "$p" <<<"$installed" || missing+=("$p")
done
# The name pkg-config is a package of its own or comes from pkgconf.
if command -v pkg-config >/dev/null; then
    kept=()
    for p in "${missing[@]}"; do [ "$p" = pkg-config ] || kept+=("$p"); done
    missing=("${kept[@]}")
fi
if [ ${#missing[@]} -eq 0 ]; then
    echo "install-deps: all packages are there"
    exit 0
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "install-deps: not root and no sudo; ask for: ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n) # nobody is there to type a password
fi

echo "install-deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } \
    </dev/null >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "install-deps: apt-get failed, see above" >&2
    exit 1
fi
echo "install-deps: done"
