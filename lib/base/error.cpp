// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <system_error>

namespace dalle2 {

void broken_invariant(const char* file, int line, const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: {}", file, line, message));
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace dalle2
