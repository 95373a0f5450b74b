// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <system_error>

#include "base/public_url.h"

namespace dalle2 {

Error::Error(ExitCode code, const std::string& message)
    : std::runtime_error(public_text(message)), code_(code) {}

void broken_invariant(const char* file, int line, const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: {}", file, line, message));
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace dalle2
