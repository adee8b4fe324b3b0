#!/usr/bin/env bash
# Installs into a temporary prefix and uses the library from there as a stranger would: through pkg-config and through
# CMake's find_package. Expects that `make build` has run.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
DESTDIR='' cmake --install build --prefix "$prefix" >/dev/null
libraries=$(dirname "$(find "$prefix" -name libqdelta.so)")
echo "check_install: installed into a temporary prefix"

"$prefix/bin/qdelta" info >/dev/null
echo "check_install: bin/qdelta runs from there"

read -ra flags < <(PKG_CONFIG_PATH=$libraries/pkgconfig pkg-config --cflags --libs qdelta)
cc -std=c11 -Wall -Wextra -Werror examples/q_delta.c -o "$scratch/with_pkg_config" "${flags[@]}" -lm
LD_LIBRARY_PATH=$libraries "$scratch/with_pkg_config"
echo "check_install: the C example builds and runs with pkg-config"

mkdir "$scratch/consumer"
cp examples/q_delta.c "$scratch/consumer/"
cat >"$scratch/consumer/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(qdelta 0.1 REQUIRED)
add_executable(with_cmake q_delta.c)
target_link_libraries(with_cmake PRIVATE qdelta::qdelta m)
TEXT
sed -i "s/qdelta 0.1/qdelta $(build/qdelta --version | sed 's/.* //; s/\.[0-9]*$//')/" "$scratch/consumer/CMakeLists.txt"
cmake -S "$scratch/consumer" -B "$scratch/consumer/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$scratch/consumer/build" >/dev/null
"$scratch/consumer/build/with_cmake"
echo "check_install: the C example builds and runs with find_package(qdelta)"
