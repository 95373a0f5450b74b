// SPDX-License-Identifier: MIT
// What `--help` and a wrong command line are answered with.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace dalle2 {

/// CLI11's layout as wide as the terminal.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// What is wrong, what may have been meant, and where help is: for CLI::App::failure_message().
std::string usage_error_text(const CLI::App* root, const CLI::Error& error);

}  // namespace dalle2
