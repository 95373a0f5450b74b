// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <system_error>

#include "base/public_url.h"

namespace dalle2 {

namespace {

/// What a user gave in the wrong place of a config may be a token.
std::string shown_message(ExitCode code, const std::string& message) {
  return code == ExitCode::kConfig ? without_tokens(public_text(message)) : public_text(message);
}

}  // namespace

Error::Error(ExitCode code, const std::string& message)
    : std::runtime_error(shown_message(code, message)), code_(code) {}

void broken_invariant(const char* file, int line, const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: {}", file, line, message));
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace dalle2
