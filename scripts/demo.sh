#!/usr/bin/env bash
# Shows what the engine does, on small things, and says what is seen. `make demo` builds first.
set -euo pipefail
cd "$(dirname "$0")/.."

qdelta=build/qdelta
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

bold='' plain=''
if [[ -t 1 ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi
title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
say() { printf '%s\n' "$@"; }
show() {
  printf '\n  $ %s\n' "$*"
  "$@" 2>&1 | sed 's/^/  /'
}

title "1. What is here"
say "The build, the processor it found, and which instruction set its kernels run on:"
show $qdelta info

title "2. Q-Delta on tensors from a file, with its gradients"
say "A recorded case: queries, keys, values and gates of 130 tokens. The chunk form turns the recurrence into matrix" \
  "products; the results are the outputs, the last state, and the gradient of every input."
show $qdelta op --in tests/golden/op/q_delta.safetensors --out "$scratch/chunk.safetensors" --backward

title "3. The same, token by token in float64"
say "The oracle: the formula as the paper writes it, and what the fast form is tested against. The times of so small" \
  "a case say little; 'make bench' has the real ones."
show $qdelta op --in tests/golden/op/q_delta.safetensors --out "$scratch/oracle.safetensors" --backward --form oracle

title "4. From C"
say "examples/q_delta.c uses libqdelta: one sequence at once, then token by token on a recurrent state. Both ways must" \
  "give the same outputs:"
show build/qdelta_example

title "Where to go on"
say "  build/qdelta --help    the subcommands" \
  "  make bench             how fast it is on this machine" \
  "  make test              how we know that it is right" \
  "  docs/                  the rest"
