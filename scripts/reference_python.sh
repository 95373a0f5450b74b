#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prints the path of a Python that has the reference, the other packages of tests/parity/requirements.txt, and the clients
# of services (tests/parity/service_clients.txt). Installs them (a few GB) into a separate environment at first use, and
# again when the first file has changed.
#
#   DALLE2_REFERENCE_PYTHON=/path/to/python   take this Python instead of installing one
#   DALLE2_DEPS=/path                         where the environment goes (default ~/.cache/dalle2-train)
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${DALLE2_REFERENCE_PYTHON:-}" ]; then
  if ! "$DALLE2_REFERENCE_PYTHON" -c 'import torch, dalle2_pytorch' 2>/dev/null; then
    echo "reference_python.sh: DALLE2_REFERENCE_PYTHON=$DALLE2_REFERENCE_PYTHON cannot import torch and dalle2_pytorch:" \
      "install tests/parity/requirements.txt there, or unset it to have an environment made" >&2
    exit 2
  fi
  echo "$DALLE2_REFERENCE_PYTHON"
  exit 0
fi
requirements=tests/parity/requirements.txt
environment=${DALLE2_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/dalle2-train}/reference
if ! cmp -s "$requirements" "$environment/complete"; then
  echo "[reference] installing $requirements into $environment (some GB, once)" >&2
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" >&2
  cp "$requirements" "$environment/complete"
fi
clients=tests/parity/service_clients.txt
if ! cmp -s "$clients" "$environment/clients"; then
  echo "[reference] installing $clients into $environment" >&2
  "$environment/bin/pip" install --quiet --disable-pip-version-check -c "$requirements" -r "$clients" >&2
  cp "$clients" "$environment/clients"
fi
echo "$environment/bin/python"
