#!/usr/bin/env bash
# What the engine does, in about two minutes: `make demo` builds first.
set -euo pipefail
cd "$(dirname "$0")/.."
exec build/qdelta demo --out demo "$@"
