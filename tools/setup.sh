#!/usr/bin/env bash
# Installs what this project needs; does nothing for what is already there.
#
#     tools/setup.sh build      compilers and libraries, from the system's packages (apt)
#     tools/setup.sh oracles    a Python venv outside the repo with the packages of tools/oracles.txt;
#                               the last line printed is its folder
#     tools/setup.sh onednn     the library that `miles bench` compares with, into onednn/ of the cache;
#                               the last line printed is its file
#     tools/setup.sh sglang     a venv with the packages of tools/sglang.txt that serves on CPU, and the
#                               stub of CUDA's driver library that it wants; prints its folder
#     tools/setup.sh vllm       a venv with the packages of tools/vllm.txt (6 GB); prints its folder
#     tools/setup.sh llamacpp   a venv with the packages of tools/llamacpp.txt; prints its folder
#     tools/setup.sh nginx      a web server, for tests of weights that come through one (apt)
#     tools/setup.sh trackers   a venv with the packages of tools/trackers.txt; prints its folder
#
# The venv is ${MILES_ORACLES}, by default oracles/ in ${MILES_CACHE}, by default ~/.cache/miles.
# Building and running miles needs only `build`; the others are for tests and benchmarks.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ORACLES=${MILES_ORACLES:-${MILES_CACHE:-$HOME/.cache/miles}/oracles}
PINS=$ROOT/tools/oracles.txt
SGLANG=${MILES_CACHE:-$HOME/.cache/miles}/sglang
SGLANG_PINS=$ROOT/tools/sglang.txt
VLLM=${MILES_CACHE:-$HOME/.cache/miles}/vllm
VLLM_PINS=$ROOT/tools/vllm.txt
LLAMACPP=${MILES_CACHE:-$HOME/.cache/miles}/llamacpp
LLAMACPP_PINS=$ROOT/tools/llamacpp.txt
TRACKERS=${MILES_CACHE:-$HOME/.cache/miles}/trackers
TRACKERS_PINS=$ROOT/tools/trackers.txt
ONEDNN=${MILES_CACHE:-$HOME/.cache/miles}/onednn/lib/libdnnl.so.3
# The newest packaged build of oneDNN (3.6.2) with OpenMP threads that needs nothing else: it lies in
# this wheel. The packages named onednn are built for SYCL and have no CPU engine without OpenCL.
ONEDNN_WHEEL=paddlepaddle==3.3.1

BUILD_PACKAGES=(
    bubblewrap build-essential ca-certificates clang clang-format cmake curl git libcmocka-dev
    libgmp-dev libjansson-dev libmicrohttpd-dev libmpfr-dev libpcre2-dev libsqlite3-dev
    libutf8proc-dev libxxhash-dev libyaml-dev libzstd-dev ninja-build openssl pkg-config python3
    python3-venv shellcheck zlib1g-dev
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

# venv_ready VENV PINS: true when the venv has every pinned package in its pinned version.
venv_ready() {
    [ -x "$1/bin/python" ] && "$1/bin/python" - "$2" <<'PY'
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

# venv_install VENV PINS PIP_OPTION...: makes the venv have them.
venv_install() {
    local venv=$1 pins=$2
    shift 2
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        apt_install python3-venv
    fi
    # A venv without a working pip was interrupted while it was made.
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python3 -m venv --clear "$venv" >&2
    fi
    retry "$venv/bin/python" -m pip install -q "$@" -r "$pins" >&2 ||
        die "pip could not install the packages of $pins"
    venv_ready "$venv" "$pins" || die "$venv does not have the versions of $pins"
}

setup_oracles() {
    venv_ready "$ORACLES" "$PINS" || venv_install "$ORACLES" "$PINS"
    echo "$ORACLES"
}

# SGLang's kernels are linked with libcuda.so.1, which comes with the driver of a GPU. Where there is
# none, a library serves that has the functions they name, each of which answers
# CUDA_ERROR_NO_DEVICE.
sglang_stub() {
    local dir=$SGLANG/cuda-stub tmp so
    [ ! -f "$dir/libcuda.so.1" ] || return 0
    command -v cc >/dev/null && command -v readelf >/dev/null || apt_install build-essential
    tmp=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$tmp'" EXIT
    printf '%s\n' cuInit cuDeviceGetCount cuDriverGetVersion cuGetErrorString cuGetErrorName >"$tmp/names"
    while IFS= read -r -d '' so; do
        if readelf -d "$so" 2>/dev/null | grep -q 'NEEDED.*libcuda\.so\.1'; then
            nm -D --undefined-only "$so" | sed -n 's/.* U \(cu[A-Z][A-Za-z0-9_]*\)$/\1/p' >>"$tmp/names"
        fi
    done < <(find "$SGLANG/lib" -name '*.so*' -type f -print0)
    sort -u "$tmp/names" | sed 's/.*/int &(void) { return 100; }/' >"$tmp/stub.c"
    mkdir -p "$dir"
    cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$tmp/libcuda.so.1" "$tmp/stub.c" ||
        die "the compiler could not make a libcuda.so.1"
    mv "$tmp/libcuda.so.1" "$dir/libcuda.so.1"
}

setup_sglang() {
    # The pins name every package: without the resolver they are installed as they were tried.
    venv_ready "$SGLANG" "$SGLANG_PINS" || venv_install "$SGLANG" "$SGLANG_PINS" --no-deps
    sglang_stub
    echo "$SGLANG"
}

setup_vllm() {
    # Without the resolver, because what vLLM asks of torch is not what is installed.
    venv_ready "$VLLM" "$VLLM_PINS" || venv_install "$VLLM" "$VLLM_PINS" --no-deps
    # It compiles the model when it starts.
    command -v g++ >/dev/null || apt_install build-essential >&2
    echo "$VLLM"
}

setup_llamacpp() {
    venv_ready "$LLAMACPP" "$LLAMACPP_PINS" || venv_install "$LLAMACPP" "$LLAMACPP_PINS"
    echo "$LLAMACPP"
}

setup_trackers() {
    venv_ready "$TRACKERS" "$TRACKERS_PINS" || venv_install "$TRACKERS" "$TRACKERS_PINS"
    echo "$TRACKERS"
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
sglang) setup_sglang ;;
vllm) setup_vllm ;;
llamacpp) setup_llamacpp ;;
nginx) apt_install nginx-light ;;
trackers) setup_trackers ;;
*)
    echo "usage: tools/setup.sh build|oracles|onednn|sglang|vllm|llamacpp|nginx|trackers" >&2
    exit 2
    ;;
esac
