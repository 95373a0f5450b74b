#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Formats the C++ sources by .clang-format (version 14, that of Debian 12).
#
#   scripts/format.sh            formats all sources
#   scripts/format.sh --check    only checks; exit code 1 if a source is not formatted
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$formatter" ] || ! "$formatter" --version | grep -q 'version 14\.'; then
  echo "format.sh: clang-format 14 is needed (apt-get install clang-format-14)" >&2
  exit 2
fi
mapfile -t sources < <(git ls-files 'apps/*.cpp' 'apps/*.h' 'lib/*.cpp' 'lib/*.h' 'tests/*.cpp' 'tests/*.h')
if [ "${#sources[@]}" -lt 200 ]; then
  echo "format.sh: only ${#sources[@]} sources found: run it in a git checkout" >&2
  exit 2
fi
case "${1:-}" in
  "") "$formatter" -i "${sources[@]}" ;;
  --check) "$formatter" --dry-run -Werror "${sources[@]}" && echo "${#sources[@]} sources are in form" ;;
  *) echo "format.sh: unknown option $1 (known: --check)" >&2; exit 2 ;;
esac
