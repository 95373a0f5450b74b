// SPDX-License-Identifier: MIT
#include "fuzz/harness.h"

DALLE2_FUZZ(read_clip_merges)
