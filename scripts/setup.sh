#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what the build needs, unless it is there: packages of Debian or Ubuntu (on other systems it prints what to install),
# and LibTorch from the pinned PyPI wheel in a private Python environment. Writes build/torch_dir and build/variant,
# which the other scripts read.
#
#   scripts/setup.sh [--cpu | --cuda] [--parquet]
#
#   --parquet                  also Arrow, with which the build reads captions from .parquet files (build/arrow_dir)
#   TORCH_DIR=/path/to/torch   take this LibTorch instead of installing one
#   ARROW_DIR=/path/pyarrow    take this Arrow instead of installing one
#   DALLE2_DEPS=/path          where the private environment goes (default ~/.cache/dalle2-train)
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.11.0
# A bar stands between names for the same thing, of which one will do; the first is installed.
packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates python3 python3-venv
  libcli11-dev nlohmann-json3-dev catch2 libfmt-dev libopencv-imgproc-dev
  libcurl4-openssl-dev libssl-dev libarchive-dev libdeflate-dev "libjpeg-dev|libjpeg62-turbo-dev|libjpeg-turbo8-dev"
  libpng-dev libwebp-dev libicu-dev zlib1g-dev libgoogle-perftools-dev libprotozero-dev libgloo-dev)
# The same by the names of Fedora and of conda-forge.
fedora_packages="gcc-c++ cmake ninja-build ccache pkgconf-pkg-config git ca-certificates python3 cli11-devel json-devel catch-devel
  fmt-devel opencv-devel libcurl-devel openssl-devel libarchive-devel libdeflate-devel libjpeg-turbo-devel libpng-devel
  libwebp-devel libicu-devel zlib-devel gperftools-devel protozero-devel gloo-devel"
conda_packages="cxx-compiler cmake ninja ccache pkg-config git ca-certificates python=3.12 cli11 nlohmann_json catch2 fmt libopencv
  libcurl openssl libarchive libdeflate libjpeg-turbo libpng libwebp icu zlib gperftools protozero"

usage() { sed -n '3,12s/^# \{0,1\}//p' "$0"; }

variant=auto
parquet=${ARROW_DIR:+yes}
for argument in "$@"; do
  case "$argument" in
    --cpu) variant=cpu ;;
    --cuda) variant=cuda ;;
    --parquet) parquet=yes ;;
    --help | -h) usage; exit 0 ;;
    *) echo "setup.sh: unknown option $argument (known: --cpu --cuda --parquet --help)" >&2; exit 2 ;;
  esac
done
if [ "$variant" = auto ]; then
  if command -v nvcc >/dev/null || nvidia-smi >/dev/null 2>&1; then variant=cuda; else variant=cpu; fi
fi

say() { printf '[setup] %s\n' "$*"; }

has_package() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

install_packages() {
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here, so nothing is installed; if the build finds something missing:"
    say "  Fedora:" dnf install $fedora_packages
    say "  conda: " conda install -c conda-forge $conda_packages
    return
  fi
  local missing=() names
  for package in "${packages[@]}"; do
    IFS='|' read -ra names <<< "$package"
    for name in "${names[@]}"; do if has_package "$name"; then continue 2; fi; done
    missing+=("${names[0]}")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "packages: all there"
    return
  fi
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup.sh: these packages are missing and there is neither root nor sudo to install them:" >&2
      echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    sudo=(sudo)
  fi
  say "installing with apt-get (about 700 MB on a bare system): ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The wheel's libraries are LibTorch. Without CUDA a program needs of it libtorch_cpu alone, which
# asks for libcudart and libcupti only: 1.3 GB instead of 4.7 GB.
install_torch() {
  local deps=${DALLE2_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/dalle2-train}
  local environment=$deps/torch-$torch_version-$variant wanted
  wanted=$(cat scripts/requirements/torch-cpu.txt; [ "$variant" = cpu ] || cat scripts/requirements/torch-cuda.txt)
  if [ ! -f "$environment/complete" ]; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    if [ "$variant" = cuda ]; then
      say "installing torch $torch_version with CUDA from PyPI (2.5 GB to fetch, 4.4 GB on disk) into $environment"
    else
      say "installing torch $torch_version for the CPU from PyPI (0.5 GB to fetch, 1.3 GB on disk) into $environment"
    fi
  fi
  # A list that has changed since adds what is new.
  if [ "$(cat "$environment/complete" 2>/dev/null)" != "$wanted" ]; then
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
      -r "scripts/requirements/torch-$variant.txt"
    printf '%s\n' "$wanted" > "$environment/complete"
  fi
  torch_dir=$(echo "$environment"/lib/python3*/site-packages/torch)
}

# Of the wheel the build uses the headers, libarrow and libparquet alone.
install_arrow() {
  local environment=${DALLE2_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/dalle2-train}/arrow wanted
  wanted=$(cat scripts/requirements/parquet.txt)
  if [ "$(cat "$environment/complete" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    say "installing Arrow (pyarrow) from PyPI (50 MB to fetch, 150 MB on disk) into $environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r scripts/requirements/parquet.txt
    printf '%s\n' "$wanted" > "$environment/complete"
  fi
  arrow_dir=$(echo "$environment"/lib/python3*/site-packages/pyarrow)
}

install_packages
if [ -n "${TORCH_DIR:-}" ]; then
  torch_dir=$TORCH_DIR
  if [ ! -f "$torch_dir/lib/libtorch_cpu.so" ]; then
    echo "setup.sh: TORCH_DIR=$torch_dir holds no lib/libtorch_cpu.so: give the torch folder of a wheel or an unpacked LibTorch" >&2
    exit 2
  fi
  if [ "$variant" = cuda ] && [ ! -f "$torch_dir/lib/libtorch_cuda.so" ]; then
    say "TORCH_DIR has no libtorch_cuda.so: building for the CPU"
    variant=cpu
  fi
else
  install_torch
fi
mkdir -p build
echo "$torch_dir" > build/torch_dir
echo "$variant" > build/variant
say "LibTorch: $torch_dir ($variant build)"
if [ -n "$parquet" ]; then
  arrow_dir=${ARROW_DIR:-}
  [ -n "$arrow_dir" ] || install_arrow
  echo "$arrow_dir" > build/arrow_dir
  say "Arrow: $arrow_dir"
fi
