#!/usr/bin/env bash
# scripts/run_python_tests.sh LIBRARY: the tests of the Python package on a libqdelta that was just built, with the first
# Python that has NumPy and pytest. What needs PyTorch runs where that Python has it. Exit code 77: there is no such Python.
# Without LIBRARY it only says which Python that is, and what it has: ctest does not show what passing tests print.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1
for python in "${QDELTA_TEST_PYTHON:-}" /usr/bin/python3 python3; do
  if [[ $python ]] && "$python" -c 'import numpy, pytest' 2>/dev/null; then
    if ! "$python" -c 'import torch' 2>/dev/null; then
      echo "python tests: $python has no PyTorch, only the part for NumPy (make test-python runs all)"
    elif ! "$python" -c 'import transformers' 2>/dev/null; then
      echo "python tests: $python has PyTorch but not transformers, all but the part for models (make test-python runs all)"
    else
      echo "python tests: $python has PyTorch and transformers, all of them"
    fi
    if [[ $# -eq 0 ]]; then exit 0; fi
    QDELTA_LIBRARY=$1 exec "$python" -m pytest -q -p no:cacheprovider python/tests
  fi
done
echo "python tests: no Python here has NumPy and pytest (Debian: python3-numpy, python3-pytest); skipped"
if [[ $# -gt 0 ]]; then exit 77; fi
