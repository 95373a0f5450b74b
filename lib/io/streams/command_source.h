// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "io/streams/stream.h"

namespace dalle2 {

/// The output of a shell command from a byte on. A command that fails is a DataError at the end of
/// its output (status 141, a closed pipe, is none); what is not read to the end is ended, with all
/// that it has started.
/// @param cancelled asked while waiting; true, or a stop signal (StoppedError), ends the read
/// @throws DataError (cannot be started), here and when read; NetworkError if cancelled
ByteSource command_source(const std::string& command,
                          uint64_t offset = 0,
                          std::function<bool()> cancelled = {});

}  // namespace dalle2
