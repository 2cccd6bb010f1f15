#!/usr/bin/env bash
# Installs what this project needs; does nothing for what is already there.
#
#     tools/setup.sh build      compilers and libraries, from the system's packages (apt)
#     tools/setup.sh oracles    a Python venv outside the repo with the packages of tools/oracles.txt;
#                               the last line printed is its folder
#     tools/setup.sh onednn     the library that `miles bench` compares with, into onednn/ of the cache;
#                               the last line printed is its file
#
# The venv is ${MILES_ORACLES}, by default oracles/ in ${MILES_CACHE}, by default ~/.cache/miles.
# Building and running miles needs only `build`; the others are for tests and benchmarks.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ORACLES=${MILES_ORACLES:-${MILES_CACHE:-$HOME/.cache/miles}/oracles}
PINS=$ROOT/tools/oracles.txt
ONEDNN=${MILES_CACHE:-$HOME/.cache/miles}/onednn/lib/libdnnl.so.3
# The newest packaged build of oneDNN (3.6.2) with OpenMP threads that needs nothing else: it lies in
# this wheel. The packages named onednn are built for SYCL and have no CPU engine without OpenCL.
ONEDNN_WHEEL=paddlepaddle==3.3.1

BUILD_PACKAGES=(
    build-essential ca-certificates clang clang-format cmake curl git libcmocka-dev
    libjansson-dev libmicrohttpd-dev libpcre2-dev libutf8proc-dev ninja-build openssl pkg-config
    python3 python3-venv shellcheck
)

die() {
    printf 'setup.sh: %s\n' "$*" >&2
    exit 1
}

# Mirrors and networks fail now and then: three attempts, with a pause that grows.
retry() {
    local i
    for i in 1 2 3; do
        "$@" && return 0
        printf 'setup.sh: attempt %d failed: %s\n' "$i" "$*" >&2
        [ "$i" = 3 ] || sleep $((i * 5))
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "not root and no sudo: cannot run $*"
    fi
}

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# apt_install PACKAGE...: installs those that are missing, one call for all.
apt_install() {
    local missing=() p
    command -v apt-get >/dev/null ||
        die "no apt here: install the equivalents of: $*"
    for p in "$@"; do
        installed "$p" || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    printf 'installing %s\n' "${missing[*]}" >&2
    retry as_root apt-get update -q >&2 || die "apt-get update failed"
    retry as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}" >&2 ||
        die "apt-get could not install: ${missing[*]}"
}

setup_build() {
    local major runtime
    apt_install "${BUILD_PACKAGES[@]}"
    # libcurl's development files come in flavours that exclude each other: any of them serves.
    pkg-config --exists libcurl || apt_install libcurl4-gnutls-dev
    # Where the distribution packs clang's sanitizer runtime apart, clang -fsanitize needs it.
    major=$(clang -dumpversion)
    runtime=libclang-rt-${major%%.*}-dev
    if apt-cache show "$runtime" >/dev/null 2>&1; then
        apt_install "$runtime"
    fi
    echo "build tools are installed"
}

# True when the venv has every pinned package in its pinned version.
oracles_ready() {
    [ -x "$ORACLES/bin/python" ] && "$ORACLES/bin/python" - "$PINS" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version

for line in open(sys.argv[1]):
    name, _, pin = line.partition("#")[0].strip().partition("==")
    try:
        # A local build tag such as "+cpu" is the same version.
        if name and version(name).partition("+")[0] != pin:
            sys.exit(1)
    except PackageNotFoundError:
        sys.exit(1)
PY
}

setup_oracles() {
    if ! oracles_ready; then
        if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
            apt_install python3-venv
        fi
        # A venv without a working pip was interrupted while it was made.
        if ! "$ORACLES/bin/python" -m pip --version >/dev/null 2>&1; then
            python3 -m venv --clear "$ORACLES" >&2
        fi
        retry "$ORACLES/bin/python" -m pip install -q -r "$PINS" >&2 ||
            die "pip could not install the packages of $PINS"
        oracles_ready || die "$ORACLES does not have the versions of $PINS"
    fi
    echo "$ORACLES"
}

setup_onednn() {
    local tmp
    if [ ! -f "$ONEDNN" ]; then
        apt_install libgomp1 python3-venv
        tmp=$(mktemp -d)
        # shellcheck disable=SC2064
        trap "rm -rf '$tmp'" EXIT
        python3 -m venv "$tmp/venv" >&2
        retry "$tmp/venv/bin/python" -m pip download -q --no-deps --only-binary :all: \
            -d "$tmp" "$ONEDNN_WHEEL" >&2 || die "pip could not fetch $ONEDNN_WHEEL"
        python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel"
        mkdir -p "$(dirname "$ONEDNN")"
        mv "$tmp/wheel/paddle/libs/libdnnl.so.3" "$ONEDNN.new"
        mv "$ONEDNN.new" "$ONEDNN"
    fi
    echo "$ONEDNN"
}

case ${1:-} in
build) setup_build ;;
oracles) setup_oracles ;;
onednn) setup_onednn ;;
*)
    echo "usage: tools/setup.sh build|oracles|onednn" >&2
    exit 2
    ;;
esac
