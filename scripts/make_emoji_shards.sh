#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A real data set with captions from what Debian ships: the 136x128 bitmaps of Noto Color Emoji, captioned
# with their Unicode names, on white, as shards for configs/emoji.json.
#
#   scripts/make_emoji_shards.sh [folder for the shards (runs/emoji/shards) [--overwrite]]
#
# Needs build/bin/dalle2-train (or DALLE2_TRAIN) and
#   apt-get install --no-install-recommends fonts-noto-color-emoji unicode-data python3-fonttools
set -euo pipefail
case "${1:-}" in
  --help | -h) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "make_emoji_shards.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../runs/emoji/shards}
program=${DALLE2_TRAIN:-$here/../build/bin/dalle2-train}
font=${DALLE2_EMOJI_FONT:-/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf}
names=${DALLE2_EMOJI_NAMES:-/usr/share/unicode/emoji/emoji-test.txt}

# Debian's fontTools belongs to Debian's Python, whatever other one comes first in PATH.
python=
for candidate in /usr/bin/python3 python3; do
  if "$candidate" -c 'import fontTools' 2>/dev/null; then python=$candidate; break; fi
done
missing=()
[ -f "$font" ] || missing+=(fonts-noto-color-emoji)
[ -f "$names" ] || missing+=(unicode-data)
[ -n "$python" ] || missing+=(python3-fonttools)
if [ ${#missing[@]} -gt 0 ]; then
  echo "make_emoji_shards.sh: these Debian packages are missing; install them with" >&2
  echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 2
fi
[ -x "$program" ] || { echo "make_emoji_shards.sh: $program is not there; run scripts/build.sh first" >&2; exit 2; }

pictures=$(mktemp -d)
trap 'rm -rf "$pictures"' EXIT
"$python" "$here/emoji_pictures.py" --font "$font" --names "$names" --out "$pictures"
"$program" shards make --from "$pictures" --out "$out" --ground white "${@:2}"
