// SPDX-License-Identifier: MIT
// auto_resume.json: the mark by which a restarted run knows that it resumes an older one.
#pragma once

#include <string>

#include "tracker/log/loggers.h"

namespace dalle2 {

/// The name of the mark in data_path.
inline constexpr const char* kAutoResumeFile = "auto_resume.json";

/// What the mark says.
struct AutoResumeMark {
  bool resumes = false;     ///< the run may resume the one that left the mark
  std::string run_id = {};  ///< of that run; empty in marks of the reference and of older versions
};

/// Looks at `path` and says what it means for this run: absent, a first run; present with
/// auto_resume off, it means nothing (Tracker takes it away); present with auto_resume on, the run
/// may resume, and the attributes in the file take the place of the loggers' own, as in the
/// reference. A logger that the file does not know starts over. Changes no file.
/// @param tells whether to log what it means
/// @throws ConfigError the file is of a logger that the run has not, or unreadable
AutoResumeMark read_auto_resume(const std::string& path, const Loggers& loggers, bool tells);

/// Writes `path`, whole or not at all: of one logger as the reference does, of several a list.
void write_auto_resume(const std::string& path, const Loggers& loggers, const std::string& run_id);

}  // namespace dalle2
