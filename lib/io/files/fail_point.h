// SPDX-License-Identifier: MIT
// Test hook: DALLE2_FAIL_AT="<call>:<n>:<abort|eio|enospc>", the call being open, write, fsync,
// rename, mkdir, dirsync, link, unlink, flock or readdir (one step of a listing),
// makes the n-th such call of the process (from 1) fail with that errno, or ends the process at
// that moment as kill -9 would (exit status 137; a write is torn in the middle). Calls are counted
// from the moment the variable takes its value.
#pragma once

#include <string_view>

namespace dalle2 {

/// To be asked at the beginning of each call of the kind `operation`: true if the call is to fail
/// now, with errno set. Does not return for `abort`.
bool fails_here(std::string_view operation);

}  // namespace dalle2
