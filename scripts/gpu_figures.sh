#!/usr/bin/env bash
# Measures again what the documentation states for a GPU (docs/performance.md, gpu.md, serving.md, python.md):
# scripts/gpu_figures.sh --help. Needs the programs, from a build folder or a packed one, and bash; no build tree.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")  # the repository, or share/qdelta of a packed folder, which is laid out alike

all_stages=(tests op train generate serve sanitize torch)
declare -A minutes=([tests]=8 [op]=4 [train]=4 [generate]=8 [serve]=6 [sanitize]=15 [torch]=20)
declare -A what=(
  [tests]="cuda_tests and ops_tests, the long ones made short"
  [op]="the operator: the shapes of performance.md and gpu.md"
  [train]="training steps: 340M and 1.3B, with and without --recompute some"
  [generate]="decoding 340M and 1.3B, with and without --recent-tokens; reading prompts"
  [serve]="340M behind HTTP: 1 to 512 clients, prefixes in the cache"
  [sanitize]="some of cuda_tests under compute-sanitizer: memcheck, racecheck, synccheck"
  [torch]="the Python package's tests, operators.py and training.py (FLA too where it is installed)"
)

usage() {
  cat <<TEXT
Usage: gpu_figures.sh [OPTIONS] [STAGE ...]

Runs the commands behind the figures for a GPU, stage by stage; all stages unless some are named. What each command
printed goes to OUT/STAGE.txt, and OUT/summary.txt has the machine, the tables and how each stage ended.

Stages, with roughly the minutes to expect on an H200:
TEXT
  local stage
  for stage in "${all_stages[@]}"; do printf '  %-9s %3d  %s\n' "$stage" "${minutes[$stage]}" "${what[$stage]}"; done
  cat <<TEXT

Options:
  --out FOLDER      where the output goes; default: gpu-figures
  --bin FOLDER      where qdelta and the tests are; default: build-cuda, or bin of the packed folder
  --python PROGRAM  a Python with PyTorch (and pytest), for 'torch'; default: \$QDELTA_TEST_PYTHON, or python3
  --limit MINUTES   that a stage may take; default: three times what is listed
  --json            the benchmarks' results as OUT/json/NAME.json too, for --baseline of a later 'qdelta bench'
  --device cpu      a rehearsal without a GPU: the same commands with tiny models and shapes; no figures
  --dry-run         only print the commands

What models learn (gpu.md) and several processes (scaling.md) are not measured: their commands stand beside the figures.

Exit status: 0 all is well, 1 a stage failed, 2 wrong arguments, 77 nothing could run (no GPU, say).
TEXT
}

refuse() { echo "gpu_figures.sh: $1; see --help" >&2; exit 2; }

out=gpu-figures bin="" python=${QDELTA_TEST_PYTHON:-python3} limit="" json=false device=cuda dry=false stages=()
while (($#)); do
  case $1 in
    --out | --bin | --python | --limit | --device)
      (($# > 1)) || refuse "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    --json) json=true ;;
    --dry-run) dry=true ;;
    -h | --help) usage; exit 0 ;;
    -*) refuse "there is no option $1" ;;
    *)
      [[ $1 && " ${all_stages[*]} " == *" $1 "* ]] || refuse "'$1' is no stage (${all_stages[*]})"
      stages+=("$1")
      ;;
  esac
  shift
done
[[ $device == cuda || $device == cpu ]] ||
  refuse "--device is '$device', expected cuda or cpu (another card: CUDA_VISIBLE_DEVICES)"
[[ -z $limit || $limit =~ ^[1-9][0-9]{0,4}$ ]] || refuse "--limit is '$limit', expected a whole number of minutes"
((${#stages[@]})) || stages=("${all_stages[@]}")

if [[ -z $bin ]]; then
  bin=$root/build-cuda
  if [[ $device == cpu && ! -x $bin/qdelta ]]; then bin=$root/build; fi
  if [[ -x $root/../../bin/qdelta ]]; then bin=$(cd "$root/../../bin" && pwd); fi
fi
qdelta=$bin/qdelta
if [[ ! -x $qdelta ]] && ! $dry; then refuse "there is no program $qdelta (--bin FOLDER says where it is)"; fi
bin=$(cd "$bin" 2>/dev/null && pwd || echo "$bin")
qdelta=$bin/qdelta
library=$bin/libqdelta.so
if [[ ! -e $library ]]; then library=$(dirname "$bin")/lib/libqdelta.so; fi
# Tests look for recorded cases where they were compiled, unless they are told otherwise.
export QDELTA_QUICK=1 QDELTA_GOLDEN_DIR=$root/tests/golden

if ! $dry; then
  mkdir -p "$out" || refuse "--out $out cannot be made"
  out=$(cd "$out" && pwd)
  summary=$out/summary.txt
  {
    echo "gpu_figures.sh, $(date -u '+%Y-%m-%d %H:%M UTC'), device $device"
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null
    "$qdelta" info 2>&1
  } >"$summary"
fi

# --- Running ----------------------------------------------------------------------------------------------------------
child="" stage="" deadline=0 failures=0 commands=0
stop() {
  trap - INT TERM
  if [[ $child ]]; then kill -TERM "$child" 2>/dev/null; wait "$child" 2>/dev/null; fi
  echo "gpu_figures.sh: interrupted in '$stage'" >&2
  exit 130
}
trap stop INT TERM

# Lines for the summary: those of tables, and how tests ended.
figures='^ *(op|prompt|batch|clients|prefix|step|forward|backward|training|qdelta|fla|nothing|[0-9]+) .'
figures+='|tokens/s|GPU memory in use|ms by kind of work|[0-9] passed|PASSED|FAILED|SKIPPED|(ERROR|RACECHECK) SUMMARY'

# As one would type it.
quoted() {
  local word line=""
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_./:=,+-]+$ ]]; then word=${word@Q}; fi
    line+=" $word"
  done
  echo "${line# }"
}

# run COMMAND ...: its output goes to the stage's file. The stage goes on after a failure, but not after its time.
run() {
  local line status left
  line=$(quoted "$@")
  if $dry; then echo "  $line"; return; fi
  left=$((deadline - SECONDS))
  if ((left <= 0)); then
    failures=$((failures + 1))
    echo "  not run, out of time: $line" | tee -a "$out/$stage.txt"
    return 1
  fi
  commands=$((commands + 1))
  printf '\n$ %s\n' "$line" >>"$out/$stage.txt"
  local from
  from=$(wc -l <"$out/$stage.txt")
  # timeout has a process group of its own and ends all of it: servers that a test started, too.
  timeout --kill-after=20 "$left" "$@" >>"$out/$stage.txt" 2>&1 </dev/null &
  child=$!
  wait "$child"
  status=$?
  child=""
  {
    printf '\n%s$ %s\n' "$stage" "$line"
    tail -n "+$((from + 1))" "$out/$stage.txt" |
      grep -E "$figures" || true
  } >>"$summary"
  if ((status == 124 || status == 137)); then
    echo "ended after the stage's time" >>"$out/$stage.txt"
  elif ((status)); then
    echo "exit status $status" >>"$out/$stage.txt"
  fi
  if ((status)); then
    failures=$((failures + 1))
    echo "  failed ($status): $line"
    return 1
  fi
}

# bench NAME OPTIONS ...: a benchmark, whose results may be wanted as JSON.
bench() {
  local name=$1 more=()
  shift
  if $json; then
    $dry || mkdir -p "$out/json"
    more=(--json "$out/json/$name.json")
  fi
  run "$qdelta" bench "$@" --device "$device" "${more[@]}"
}

# The models; in a rehearsal one that is hardly there.
model_340M=(--model-config "$root/configs/340M.json") model_1B=(--model-config "$root/configs/1.3B.json")
if [[ $device == cpu ]]; then
  model_340M=(--hidden-size 64 --layers 2 --heads 2 --head-dim 16 --vocab-size 258)
  model_1B=("${model_340M[@]}")
fi
# full A B: A on a GPU, B in a rehearsal.
full() { if [[ $device == cpu ]]; then echo "$2"; else echo "$1"; fi; }

# A stage says why it cannot run by setting this.
skip=""

# --- Stages -----------------------------------------------------------------------------------------------------------
stage_tests() {
  local program found=false
  for program in ops_tests cuda_tests; do
    if $dry || [[ -x $bin/$program ]]; then found=true; run "$bin/$program" --gtest_brief=1; fi
  done
  $found || skip="there is neither ops_tests nor cuda_tests in $bin"
}

stage_op() {
  local row heads batch tokens
  for row in 6x128x256:16x2048 6x128x256:8x4096 6x128x256:2x16384 6x128x256:1x32768 6x256x512:16x2048 \
    16x128x128:8x4096 16x128x128:1x32768 16x96x192:4x8192 \
    6x128x256:1x2048 6x128x256:1x131072 6x128x256:1x1048576; do  # the last: time for each token of one sequence
    heads=${row%:*} batch=${row#*:}
    tokens=${batch#*x} batch=${batch%x*}
    bench "op-$heads-${batch}x$tokens" op --shapes "$(full "$heads" 2x16x32)" --batch "$(full "$batch" 2)" \
      --tokens "$(full "$tokens" 64)"
    if [[ $device == cpu ]]; then break; fi
  done
  for batch in 1 16 64 256; do  # steps
    bench "op-step-$batch" op --shapes "$(full 6x128x256 2x16x32)" --batch "$(full "$batch" 2)" --tokens 1
    if [[ $device == cpu ]]; then break; fi
  done
}

stage_train() {
  local steps
  steps=$(full 8 3)
  bench train-340M-16x2048 train "${model_340M[@]}" --rows "$(full 16 2)" --seq-len "$(full 2048 64)" --steps "$steps"
  bench train-340M-16x2048-some train "${model_340M[@]}" --rows "$(full 16 2)" --seq-len "$(full 2048 64)" \
    --steps "$steps" --recompute some
  bench train-340M-2x16384 train "${model_340M[@]}" --rows "$(full 2 1)" --seq-len "$(full 16384 128)" --steps "$steps"
  bench train-1.3B-8x2048 train "${model_1B[@]}" --rows "$(full 8 1)" --seq-len "$(full 2048 64)" --steps "$steps"
}

stage_generate() {
  local tokens
  tokens=$(full 256 16)
  bench generate-340M generate "${model_340M[@]}" --batch "$(full 1,2,8,16,64,128,512 1,4)" --prompt "$(full 512 32)" \
    --tokens "$tokens"
  if [[ $device == cuda ]]; then  # a GPU's own
    bench generate-340M-recent generate "${model_340M[@]}" --batch 1,128,512 --prompt 512 --tokens "$tokens" \
      --recent-tokens
  fi
  bench generate-prompts generate "${model_340M[@]}" --batch 1 --prompt "$(full 84,200,512,8192,32768,1048576 84,512)" \
    --tokens "$tokens"
  bench generate-1.3B generate "${model_1B[@]}" --batch "$(full 1,64 1)" --prompt "$(full 512 32)" --tokens "$tokens"
}

stage_serve() {
  local clients more=()
  clients=$(full 1,16,128,512 1,4)
  if [[ $device == cpu ]]; then more=(--seconds 0.5 --warm-up 0.2); fi
  bench serve-128 serve "${model_340M[@]}" --clients "$clients" --prompt "$(full 200 20)" --tokens "$(full 128 16)" \
    --temperature 0.8 --cached-prefix "$(full 8000 256)" "${more[@]}"
  bench serve-512 serve "${model_340M[@]}" --clients "$clients" --prompt "$(full 200 20)" --tokens "$(full 512 32)" \
    --temperature 0.8 "${more[@]}"
}

stage_sanitize() {
  local tool sanitizer filter='RecurrenceOnGpu.Golden*:ShortProductOnGpu.*:CudaStep.*:StepsOnGpu.M*:CudaSample.MostLikely'
  if [[ $device == cpu ]]; then skip="compute-sanitizer is for a GPU"; return; fi
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if ! $dry && [[ ! -x $sanitizer ]]; then
    skip="there is no compute-sanitizer (it comes with the CUDA toolkit)"
    return
  fi
  if ! $dry && [[ ! -x $bin/cuda_tests ]]; then skip="there is no cuda_tests in $bin"; return; fi
  for tool in memcheck racecheck synccheck; do
    run "$sanitizer" --tool "$tool" --error-exitcode 9 "$bin/cuda_tests" --gtest_brief=1 --gtest_filter="$filter"
  done
}

stage_torch() {
  local benchmarks=$root/python/benchmarks of=qdelta tests=$root/python/tests
  if ! $dry; then
    if ! "$python" -c 'import torch' 2>/dev/null; then skip="$python has no PyTorch (--python PROGRAM)"; return; fi
    if [[ $device == cuda ]] && ! "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
      skip="PyTorch of $python sees no GPU"; return
    fi
    if [[ ! -d $benchmarks ]]; then skip="the package's folder, $root/python, is not there"; return; fi
    if "$python" -c 'import fla' 2>/dev/null; then of=qdelta,fla; fi
  fi
  local with=(env "PYTHONPATH=$root/python" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 "QDELTA_LIBRARY=$library"
    "QDELTA_BINARY=$qdelta" "$python")
  if $dry || "$python" -c 'import pytest' 2>/dev/null; then
    run "${with[@]}" -m pytest -q -p no:cacheprovider "$tests"
  else
    echo "  torch: the tests are left out, $python has no pytest"
  fi
  if [[ $device == cpu ]]; then
    run "${with[@]}" "$benchmarks/operators.py" --device cpu
    return
  fi
  run "${with[@]}" "$benchmarks/operators.py" --of "$of"
  run "${with[@]}" "$benchmarks/training.py" --of "$of"
}

# --- The stages in turn -----------------------------------------------------------------------------------------------
why_no_device=""
if ! $dry && [[ $device == cuda ]]; then
  # Opening the device says why there is none: no driver, a build without CUDA or without code for the card.
  if ! why_no_device=$("$qdelta" bench op --device cuda --shapes 1x64x64 --tokens 1 2>&1 >/dev/null); then
    why_no_device=${why_no_device##*$'\n'}
    : "${why_no_device:=qdelta cannot use one}"
  else
    why_no_device=""
  fi
fi

ended=() ran=false failed=false
for stage in "${stages[@]}"; do
  skip=$why_no_device failures=0 commands=0 begin=$SECONDS
  deadline=$((SECONDS + 60 * ${limit:-$((3 * minutes[$stage]))}))
  echo "$stage: ${what[$stage]}"
  if [[ -z $skip ]]; then
    $dry || : >"$out/$stage.txt"
    "stage_$stage"
  fi
  took=$((SECONDS - begin))
  if [[ $skip ]]; then
    echo "  skipped: $skip"
    ended+=("$(printf '%-9s skipped: %s' "$stage" "$skip")")
    continue
  fi
  ran=true
  if ((failures)); then failed=true; result="FAILED, $failures of its commands"; else result=ok; fi
  ended+=("$(printf '%-9s %s, %d:%02d minutes, %s' "$stage" "$result" $((took / 60)) $((took % 60)) "$stage.txt")")
done
if $dry; then exit 0; fi

{
  echo
  echo "How the stages ended:"
  printf '  %s\n' "${ended[@]}"
} | tee -a "$summary"
echo "The tables: $summary"
if $failed; then exit 1; fi
if ! $ran; then exit 77; fi
