// SPDX-License-Identifier: MIT
// auto_resume.json: where the loggers of a run log to, for a resume. It decides nothing else.
#pragma once

#include <string>

#include "tracker/log/loggers.h"

namespace dalle2 {

/// Reads `path`, if it is there: the attributes in it take the place of the loggers' own, so that a
/// resumed run logs where the run before it did, as in the reference. A logger that the file does not
/// know starts over. Changes no file.
/// @throws ConfigError the file is of a logger that the run has not, or unreadable
void read_auto_resume(const std::string& path, const Loggers& loggers);

/// Writes `path`, whole or not at all: of one logger as the reference does, of several a list.
void write_auto_resume(const std::string& path, const Loggers& loggers);

}  // namespace dalle2
