#!/usr/bin/env bash
# scripts/test_python.sh [PRESET] [JOBS] installs PyTorch and what else the tests of the Python package compare with, from PyPI,
# and the wheel that scripts/wheel.sh has made, into build/python, and runs all of them. The engine's own program, which some of
# them run, is built from what the wheel was made of.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cpu}
jobs=${2:-$(nproc)}
wheel=$(echo dist/qdelta-*.whl)
if [[ ! -f $wheel ]]; then echo "test-python: there is no wheel; make one with: make wheel" >&2; exit 1; fi
environment=build/python
if [[ ! -x $environment/bin/pip ]]; then python3 -m venv "$environment"; fi
echo "test-python: installing what the tests need (PyTorch: some gigabytes)"
"$environment/bin/pip" install -q "${wheel}[test]"
"$environment/bin/pip" install -q --force-reinstall --no-deps "$wheel"
echo "test-python: building the engine's program"
cmake --build "build/wheel-$preset" --target qdelta_cli -- -j"$jobs" >/dev/null
export QDELTA_BINARY=$PWD/build/wheel-$preset/qdelta
echo "test-python: running the tests"
"$environment/bin/python" -m pytest -q -p no:cacheprovider python/tests
