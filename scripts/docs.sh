#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the documentation as a site that needs no network: build/site/index.html. A broken link is an error.
#
#   scripts/docs.sh              builds the site
#   scripts/docs.sh --commands   writes docs/commands.md from the --help texts of build/bin/dalle2-train
#   scripts/docs.sh --architecture   draws docs/images/architecture.svg from the code, and quotes it in docs/architecture.md
#
#   DALLE2_DEPS=/path            where MkDocs is installed at first use (default ~/.cache/dalle2-train)
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  "") ;;
  --commands) exec python3 scripts/docs/command_pages.py build/bin/dalle2-train docs/commands.md ;;
  --architecture) exec python3 scripts/docs/architecture.py docs/images/architecture.svg docs/architecture.md ;;
  *) echo "docs.sh: unknown option $1 (known: --commands --architecture)" >&2; exit 2 ;;
esac
requirements=scripts/requirements/docs.txt
environment=${DALLE2_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/dalle2-train}/docs
if ! cmp -s "$requirements" "$environment/complete"; then
  echo "[docs] installing $requirements into $environment (once)" >&2
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" >&2
  cp "$requirements" "$environment/complete"
fi
# Not --quiet: MkDocs then drops its warnings before --strict counts them.
said=$(NO_MKDOCS_2_WARNING=1 "$environment/bin/mkdocs" build --strict --config-file scripts/docs/mkdocs.yml 2>&1) || {
  printf '%s\n' "$said" >&2
  exit 1
}
echo "[docs] build/site/index.html"
