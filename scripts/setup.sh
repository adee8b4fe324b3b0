#!/usr/bin/env bash
# Installs the Debian packages that are missing, and only those. With nothing missing it says nothing and takes no time.
#
#   scripts/setup.sh [build] [lint] [sanitize] [dist] [wheel] [cache]     default: build
#
# QDELTA_NO_SETUP=1 skips it: on a system without apt, have the things listed in docs/building.md and set this.
set -euo pipefail

# ocl-icd-opencl-dev: the CMake package of libdnnl-dev asks for it, though the package itself does not.
build=(g++ cmake ninja-build make pkg-config ocl-icd-opencl-dev
  libfmt-dev nlohmann-json3-dev libcli11-dev libdnnl-dev libdlpack-dev libhwy-dev libgtest-dev
  libsentencepiece-dev libonig-dev libicu-dev zlib1g-dev liblzma-dev libzstd-dev libxxhash-dev libboost-dev libboost-context-dev libedit-dev
  libeigen3-dev
  # Found at run time: PNG pictures, training on several processes.
  librsvg2-2 openmpi-bin
  # For the tests of the Python package, the part without PyTorch.
  python3-numpy python3-pytest)
lint=("${build[@]}" clang clang-format clang-tidy libomp-dev shellcheck python3)
sanitize=("${build[@]}" clang libomp-dev llvm)
dist=("${build[@]}" patchelf)
wheel=("${build[@]}" python3 python3-venv)

[[ ${QDELTA_NO_SETUP:-0} == 1 ]] && exit 0

wanted=()
compiler_runtime=false
for set in "${@:-build}"; do
  case $set in
    build) wanted+=("${build[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    sanitize) wanted+=("${sanitize[@]}"); compiler_runtime=true ;;
    dist) wanted+=("${dist[@]}") ;;
    wheel) wanted+=("${wheel[@]}") ;;
    cache) wanted+=(ccache) ;;
    *) echo "setup: there is no set '$set'; choose from: build lint sanitize dist wheel cache" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  cat >&2 <<TEXT
setup: this is not Debian or Ubuntu, so nothing can be installed from here.
       Have these, under the names your system gives them: ${wanted[*]}
       and then run make with QDELTA_NO_SETUP=1 in the environment.
TEXT
  exit 1
fi

missing_of() {
  local present package
  present=$(dpkg-query -W -f '${Package}=${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    if [[ $'\n'$present$'\n' != *$'\n'"$package=installed"$'\n'* ]]; then echo "$package"; fi
  done
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "setup: missing packages: $packages" >&2
    echo "       Installing them takes root: run as root 'apt-get install $packages', then try again." >&2
    exit 1
  fi
}

updated=false
install() {
  packages="$*"
  echo "setup: installing $packages"
  if ! $updated; then as_root apt-get update -q -o DPkg::Lock::Timeout=300 >/dev/null; updated=true; fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >/dev/null || {
    echo "setup: apt-get could not install: $packages" >&2
    echo "       The lines above say why. Debian 12 has all of these; older systems may lack some." >&2
    exit 1
  }
}

missing=$(missing_of "${wanted[@]}" | sort -u)
# shellcheck disable=SC2086  # one word for each package
if [[ $missing ]]; then install $missing; fi

# The sanitizers' runtime is a package of its own, named after the version that 'clang' stands for.
if $compiler_runtime; then
  version=$(dpkg-query -W -f '${Depends}' clang | sed -n 's/.*clang-\([0-9]\+\).*/\1/p')
  runtime=libclang-rt-$version-dev
  if [[ $(missing_of "$runtime") ]] && apt-cache show "$runtime" >/dev/null 2>&1; then install "$runtime"; fi
fi
