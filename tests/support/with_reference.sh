#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a Python program of the tests with the Python that has the reference; without one says so and ends with 77, which
# ctest lists as skipped.
#
#   with_reference.sh PROGRAM.py [arguments]
set -euo pipefail
if [ -z "${DALLE2_REFERENCE_PYTHON:-}" ]; then
  echo "skipped: needs DALLE2_REFERENCE_PYTHON, a Python with tests/parity/requirements.txt; ./scripts/test.sh --reference installs one"
  exit 77
fi
exec "$DALLE2_REFERENCE_PYTHON" "$@"
