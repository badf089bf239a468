#!/usr/bin/env bash
# Runs the C++ kernels' tests (tests/kernels/cpp/native) for this machine's CPU, and under qemu for ARM CPUs without and
# with dot products and bfloat16: a Raspberry Pi 4, a Graviton 2, and the newest that qemu knows. CI does not run it: it
# takes some minutes. On Debian it needs the packages g++, g++-aarch64-linux-gnu and qemu-user.
#
#   tests/arm.sh                          with g++ and aarch64-linux-gnu-g++
#   CXX=g++-11 tests/arm.sh native        with another compiler, for this machine only
#   ARM_CXX='clang++-19 --target=aarch64-linux-gnu' tests/arm.sh arm
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
read -ra native <<< "${CXX:-g++}"
read -ra cross <<< "${ARM_CXX:-aarch64-linux-gnu-g++}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags=(-O3 -std=c++17 tests/kernels/cpp/native/main.cpp)
# A compiler without OpenMP for its target makes a program of one thread.
threads() { echo 'int main() {}' | "$@" -fopenmp -x c++ - -o "$folder/threads" 2> "$folder/why" && echo -fopenmp || true; }

if [[ $what != arm ]]; then
    for target in ${TARGETS:-native}; do
        echo "== ${native[*]} -march=$target"
        "${native[@]}" "-march=$target" $(threads "${native[@]}") "${flags[@]}" -o "$folder/native"
        timeout 300 "$folder/native"
    done
fi
if [[ $what != native ]]; then
    for pair in cortex-a72:-mcpu=cortex-a72 neoverse-n1:-mcpu=neoverse-n1 max:-march=armv8.2-a+dotprod+bf16+i8mm; do
        echo "== ${cross[*]} ${pair#*:} on qemu's ${pair%%:*}"
        "${cross[@]}" "${pair#*:}" $(threads "${cross[@]}" -static) "${flags[@]}" -static -o "$folder/arm" 2> "$folder/why" ||
            { cat "$folder/why" >&2; exit 1; }
        timeout 600 qemu-aarch64 -cpu "${pair%%:*}" "$folder/arm"
    done
fi
