#!/usr/bin/env bash
# scripts/dist.sh [BUILD FOLDER] makes dist/qdelta-VERSION-linux-ARCH: the binary, the library and its header, and beside
# them every shared library they need but the C library's own and CUDA's; and a .tar.gz of it. Then checks that the
# folder stands alone.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh dist
build=${1:-build}
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build"/CMakeCache.txt)
name=qdelta-$version-linux-$(uname -m)
tests=()
if [[ $build == build-cuda ]]; then
  name+=-cuda
  tests=(cuda_tests ops_tests)
  echo "dist: for compute capabilities $(sed -n 's/^QDELTA_CUDA_ARCHITECTURES:STRING=//p' "$build"/CMakeCache.txt)"
fi
folder=dist/$name
archive=$folder.tar.gz

fresh=true
for file in "$build"/qdelta "$build"/libqdelta.so "$build"/qdeltaConfig.cmake README.md LICENSE scripts/dist.sh \
  scripts/gpu_figures.sh "${tests[@]/#/$build/}"; do
  if [[ $file -nt $archive ]]; then fresh=false; fi
done
if $fresh && [[ -d $folder ]]; then
  echo "dist: $archive is up to date"
  exit 0
fi

# Part of every Linux system, or tied to its kernel: never shipped.
is_the_systems() {
  case $1 in
    linux-vdso.* | ld-linux* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.*) ;;
    libcuda.so.* | libnvidia-* | libcublas*.so.*) ;;  # the driver's and the CUDA toolkit's
    *) return 1 ;;
  esac
}

# The shared libraries of the given files, as "name path"; the path is empty for one that is not found.
needs() { ldd "$@" | awk '$2 == "=>" { print $1, ($3 == "not" ? "" : $3) }' | sort -u; }

echo "dist: installing into $folder"
rm -rf "$folder" "$archive"
DESTDIR='' cmake --install "$build" --prefix "$PWD/$folder" --strip >/dev/null
library_folder=$(dirname "$(find "$folder" -name libqdelta.so)")
if [[ $library_folder != "$folder/lib" ]]; then  # a build that was configured for a system prefix
  mv "$library_folder"/* "$folder/lib/"
  rmdir "$library_folder"
fi
cp LICENSE README.md "$folder/"
# The header includes DLPack's.
dlpack=$(sed -n 's/^DLPACK_INCLUDE_DIR:PATH=//p' "$build"/CMakeCache.txt)
cp -r "$dlpack/dlpack" "$folder/include/"
mkdir -p "$folder/share/licenses"
if ((${#tests[@]})); then
  # Laid out as in the repository, so that the script and the tests find there what they find here.
  share=$folder/share/qdelta
  mkdir -p "$share/scripts" "$share/tests/data"
  cp scripts/gpu_figures.sh "$share/scripts/"
  cp -r configs "$share/"
  cp -r tests/golden "$share/tests/"
  cp -r tests/data/fixtures "$share/tests/data/"
  cp -r python "$share/"
  find "$share/python" -name __pycache__ -prune -exec rm -rf {} +
  for program in "${tests[@]}"; do strip -o "$folder/bin/$program" "$build/$program"; done
fi

while read -r library path; do
  if is_the_systems "$library"; then continue; fi
  if [[ ! $path ]]; then echo "dist: $library, which the binary needs, is not on this machine" >&2; exit 1; fi
  if [[ $path == "$PWD/"* ]]; then continue; fi  # ours, there already
  echo "dist: adding $library"
  cp -L "$path" "$folder/lib/$library"
  chmod 644 "$folder/lib/$library"
  # The licence goes with it. Packages may call /usr/lib by its old name, /lib.
  file=$(readlink -f "$path")
  package=$( (dpkg-query -S "$file" || dpkg-query -S "${file#/usr}") 2>/dev/null | sed 's/:.*//;q' || true)
  copyright=/usr/share/doc/$package/copyright
  if [[ $package && -f $copyright ]]; then cp -L "$copyright" "$folder/share/licenses/$package"; fi
done < <(needs "$folder"/bin/* "$folder/lib/libqdelta.so")

# Each file looks for its libraries beside itself.
for program in "$folder"/bin/*; do patchelf --set-rpath "\$ORIGIN/../lib" "$program"; done
for library in "$folder"/lib/*.so*; do
  if [[ ! -L $library ]]; then patchelf --set-rpath "\$ORIGIN" "$library"; fi
done

echo "dist: checking that it stands alone"
while read -r library path; do
  if is_the_systems "$library"; then continue; fi
  if [[ $(readlink -f "${path:-/}") != "$PWD/$folder/lib/"* ]]; then
    echo "dist: $library comes from ${path:-nowhere}, not from the folder" >&2
    exit 1
  fi
  echo "  $library => lib/${path##*/}"
done < <(LD_LIBRARY_PATH='' needs "$folder"/bin/* "$folder"/lib/*.so*) | sort -u
env -i "$folder/bin/qdelta" info >/dev/null
echo "  bin/qdelta info runs in an empty environment"

epoch=$(git log -1 --format=%ct 2>/dev/null || date +%s)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C dist -cf - "$name" | gzip -9n >"$archive"
echo "dist: $archive, $(du -h "$archive" | cut -f1)"
