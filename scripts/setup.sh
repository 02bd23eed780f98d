#!/usr/bin/env bash
# Install what a build of Lavalane needs and this machine lacks; do nothing, quickly, if all is there.
#
# Needed: a Rust toolchain, a C++ compiler, the Vulkan loader with at least one driver, the GLSL compiler's
# libraries (shaderc, glslang, SPIRV-Tools), and Python 3 with pip and venv.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RUST_MINIMUM_MINOR=90
readonly SHADERC_FOLDER=.deps/shaderc

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

check_rust() {
    command -v cargo >/dev/null && command -v rustc >/dev/null ||
        fail "Rust is missing. Install version 1.$RUST_MINIMUM_MINOR or later with rustup (https://rustup.rs), then run this again."
    local version
    version=$(rustc --version | awk '{print $2}')
    local major minor
    IFS=. read -r major minor _ <<<"$version"
    ((major > 1 || minor >= RUST_MINIMUM_MINOR)) ||
        fail "Rust $version is too old: 1.$RUST_MINIMUM_MINOR or later is needed. 'rustup update stable' brings it."
}

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

# Prints the Debian packages that are needed and not there.
missing_packages() {
    local package
    for package in libvulkan1 mesa-vulkan-drivers libshaderc-dev glslang-dev spirv-tools; do
        installed "$package" || echo "$package"
    done
    # These may come from elsewhere (a compiler of another version, a Python built from source).
    command -v c++ >/dev/null && command -v cc >/dev/null && command -v ar >/dev/null || echo build-essential
    command -v python3 >/dev/null || echo python3
    python3 -c 'import pip' 2>/dev/null || echo python3-pip
    python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
}

install_packages() {
    local packages=("$@")
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null ||
            fail "missing: ${packages[*]}. As root, run: apt-get install ${packages[*]}"
        as_root=(sudo)
    fi
    say "installing ${packages[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends -qq "${packages[@]}" >&2
}

# Prints the folder that holds this machine's static libraries.
library_folder() {
    local triple=
    if command -v dpkg-architecture >/dev/null; then
        triple=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
    else
        triple=$(cc -print-multiarch)
    fi
    local folder
    for folder in "/usr/lib/$triple" /usr/lib64 /usr/lib; do
        [[ -e $folder/libshaderc_combined.a || -e $folder/libshaderc.a ]] && { echo "$folder"; return; }
    done
    fail "libshaderc's static library is not under /usr/lib."
}

# Debian's libshaderc_combined.a is a thin archive without the libraries it was made from, and its shared library
# lacks glslang's symbols. Merging the static archives gives one library that links.
merge_shaderc() {
    [[ -s $SHADERC_FOLDER/libshaderc_combined.a ]] && return
    local folder
    folder=$(library_folder)
    mkdir -p "$SHADERC_FOLDER"
    local partial=$SHADERC_FOLDER/partial-$$.a
    trap "rm -f '$partial'" EXIT
    local name
    {
        echo "create $partial"
        # Later releases of glslang have folded some of these into others: take those that exist.
        for name in shaderc_combined glslang MachineIndependent GenericCodeGen OSDependent OGLCompiler HLSL SPIRV \
            SPVRemapper glslang-default-resource-limits SPIRV-Tools SPIRV-Tools-opt; do
            [[ -e $folder/lib$name.a ]] && echo "addlib $folder/lib$name.a"
        done
        echo save
        echo end
    } | ar -M
    [[ -s $partial ]] || fail "merging shaderc's libraries from $folder failed."
    mv "$partial" "$SHADERC_FOLDER/libshaderc_combined.a"
    say "merged shaderc's libraries into $SHADERC_FOLDER/libshaderc_combined.a"
}

check_rust
if command -v apt-get >/dev/null; then
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
elif [[ ! -s $SHADERC_FOLDER/libshaderc_combined.a ]]; then
    say "this is no Debian-based system: install a Vulkan loader and driver, Python 3 with pip and venv, a C++"
    say "compiler, and the static libraries of shaderc, glslang and SPIRV-Tools yourself."
fi
merge_shaderc
