#!/usr/bin/env bash
# Builds one preset: scripts/build.sh [PRESET [JOBS [TARGET...]]]; without a target, everything. Configures only where
# that was not done yet.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cpu}
jobs=${2:-$(nproc)}
folder=build
packages=build
case $preset in
  cpu) ;;
  cuda) folder=build-cuda ;;
  asan | tsan) folder=build-$preset; packages=sanitize ;;
  *) echo "build: there is no preset '$preset' for this script; choose from: cpu cuda asan tsan" >&2; exit 2 ;;
esac

scripts/setup.sh $packages
if [[ ! -f $folder/build.ninja ]]; then
  echo "build: configuring $folder (preset $preset)"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! cmake --preset "$preset" >"$log" 2>&1; then cat "$log" >&2; exit 1; fi
fi
echo "build: compiling in $folder, $jobs at a time"
cmake --build "$folder" --parallel "$jobs" ${3:+--target "${@:3}"}
