#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Puts the vocabulary of OpenAI's CLIP, bpe_simple_vocab_16e6.txt.gz (1.4 MB), where dalle2-train looks for it. The
# file comes from the Python package clip-anytorch.
#
#   XDG_CACHE_HOME=/path   the cache folder (default ~/.cache); the file goes into its dalle2-train
set -euo pipefail
version=2.6.0
sha256=924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a
name=bpe_simple_vocab_16e6.txt.gz
folder=${XDG_CACHE_HOME:-$HOME/.cache}/dalle2-train

is_right() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if ! is_right "$folder/$name"; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  echo "[vocabulary] taking $name out of clip-anytorch $version" >&2
  python3 -m venv "$scratch/python"
  "$scratch/python/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$scratch" "clip-anytorch==$version" >&2
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(f"clip/{sys.argv[2]}", sys.argv[3])' \
    "$scratch"/clip_anytorch-*.whl "$name" "$scratch"
  if ! is_right "$scratch/clip/$name"; then
    echo "clip_vocabulary.sh: clip-anytorch $version holds another $name: expected the sha256 $sha256" >&2
    exit 1
  fi
  mkdir -p "$folder"
  mv "$scratch/clip/$name" "$folder/$name.part"
  mv "$folder/$name.part" "$folder/$name"
fi
echo "$folder/$name"
