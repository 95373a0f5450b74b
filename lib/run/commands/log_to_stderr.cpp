// SPDX-License-Identifier: MIT
#include "run/commands/log_to_stderr.h"

#include <cstdio>

#include "base/log.h"
#include "base/untrusted_text.h"

namespace dalle2 {

void log_to_stderr() {
  set_log_sink([](LogLevel level, const std::string& tag, const std::string& text) {
    const char* prefix = level == LogLevel::kInfo ? "" : "warning: ";
    std::fprintf(stderr, "[%s] %s%s\n", tag.c_str(), prefix, printable(text).c_str());
  });
}

}  // namespace dalle2
