// SPDX-License-Identifier: MIT
#include "command_options.h"

#include <string>

namespace dalle2 {

CLI::Validator whole_number(int64_t most) {
  const auto check = [most](std::string& text) -> std::string {
    int64_t value = 0;
    const bool is_number = CLI::detail::lexical_cast(text, value);
    return is_number && value >= 1 && value <= most
               ? ""
               : "expected a whole number from 1 to " + std::to_string(most) + ", got " + text;
  };
  return CLI::Validator(check, "COUNT");
}

CLI::Validator non_empty(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) -> std::string {
        return text.empty() ? "expected " + what + ", got ''" : "";
      },
      "");
}

void add_overwrite(CLI::App& app, bool& overwrite, const char* text) {
  app.add_flag("--overwrite", overwrite, text);
}

}  // namespace dalle2
