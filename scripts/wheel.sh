#!/usr/bin/env bash
# scripts/wheel.sh [PRESET] [JOBS] makes a wheel of the Python package in dist/ and checks that it works in an empty
# environment. PRESET is cpu or cuda.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh build wheel
preset=${1:-cpu}
jobs=${2:-$(nproc)}
tools=build/wheel-tools
if [[ ! -x $tools/bin/pip ]]; then python3 -m venv "$tools"; fi
"$tools/bin/python" -c 'import scikit_build_core' 2>/dev/null || "$tools/bin/pip" install -q 'scikit-build-core>=0.10'

# Debian 12's pip does not know the short form, -C.
options=(--config-settings "build-dir=$PWD/build/wheel-$preset" --config-settings build.tool-args="-j$jobs")
if [[ $preset == cuda ]]; then options+=(--config-settings cmake.define.QDELTA_CUDA=ON); fi
if [[ ${QDELTA_CUDA_ARCHITECTURES:-} ]]; then
  options+=(--config-settings "cmake.define.QDELTA_CUDA_ARCHITECTURES=$QDELTA_CUDA_ARCHITECTURES")
fi
echo "wheel: building ($preset)"
mkdir -p dist
rm -f dist/qdelta-*.whl
"$tools/bin/pip" wheel -q --no-deps --no-build-isolation "${options[@]}" -w dist ./python
wheel=$(echo dist/qdelta-*.whl)

echo "wheel: checking $wheel in an empty environment"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install -q "$wheel"
model=$PWD/tests/golden/model/qdelta_tiny
(cd "$scratch" && env -i venv/bin/python - "$model" <<'PROGRAM'
import importlib.util, sys, qdelta
assert importlib.util.find_spec("torch") is None
new = qdelta.LanguageModel.load(sys.argv[1]).generate([1, 2, 3], max_new_tokens=4, temperature=0)
print(f"wheel: qdelta {qdelta.__version__} without PyTorch: {sys.argv[1].rsplit('/', 1)[1]} goes on with {new}")
PROGRAM
)
# Nothing of the build machine may be needed beyond what every system has.
folder=$("$scratch/venv/bin/python" -c 'import os, qdelta; print(os.path.dirname(qdelta.__file__))')
while read -r name path; do
  case $name in
    linux-vdso.* | ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) ;;
    libgcc_s.so.* | libstdc++.so.* | libcublas*) ;;
    *) if [[ $path != "$folder"/* ]]; then echo "wheel: $name comes from ${path:-nowhere}, not from the wheel" >&2; exit 1; fi ;;
  esac
done < <(env -i ldd "$folder/lib/libqdelta.so.0" | awk '$2 == "=>" { print $1, ($3 == "not" ? "" : $3) }')
echo "wheel: $wheel, $(du -h "$wheel" | cut -f1)"
