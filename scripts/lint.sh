#!/usr/bin/env bash
# Checks format, C++ and scripts: scripts/lint.sh [JOBS [SECONDS]]. Says all that is wrong before it fails. SECONDS bounds
# what clang-tidy may take; it then begins with the files that changed last.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-$(nproc)}
failed=false

# Tracked files and new ones; in a tree without git, all that is not built.
files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
      if [[ -f $file ]]; then echo "$file"; fi
    done
  else
    local pattern names=()
    for pattern in "$@"; do names+=(-o -path "./$pattern"); done
    find . -path './build*' -prune -o -path ./dist -prune -o -type f \( "${names[@]:1}" \) -print
  fi
}

scripts/setup.sh lint

mapfile -t sources < <(files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')
echo "lint: clang-format on ${#sources[@]} files"
clang-format --dry-run -Werror "${sources[@]}" || {
  echo "lint: to put the format right: clang-format -i FILE"
  failed=true
}

mapfile -t shell < <(files '*.sh' '.ci/run')
echo "lint: bash -n and shellcheck on ${#shell[@]} scripts"
for file in "${shell[@]}"; do bash -n "$file" || failed=true; done
shellcheck "${shell[@]}" || failed=true

echo "lint: includes against the map in ARCHITECTURE.md"
python3 scripts/check_layers.py || failed=true

# A compile database of its own: clang-tidy cannot read headers that GCC has precompiled.
if [[ ! -f build-lint/build.ninja ]]; then
  cmake --preset cpu -B build-lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DQDELTA_UNITY=OFF -DQDELTA_EMULATOR=OFF \
    >/dev/null
fi
# New and removed files must be in it.
ninja -C build-lint build.ninja qdelta_commit >/dev/null
python3 scripts/tidy.py build-lint "$jobs" "${@:2}" || failed=true

if $failed; then echo "lint: not in order"; exit 1; fi
echo "lint: all in order"
