// SPDX-License-Identifier: MIT
#include "fuzz/checkpoint_parsers.h"
#include "fuzz/harness.h"

DALLE2_FUZZ(read_script_file)
