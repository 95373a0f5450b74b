// SPDX-License-Identifier: MIT
// What a wrong command line is answered with.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dalle2 {

/// What is wrong, what may have been meant, and where help is: for CLI::App::failure_message().
std::string usage_error_text(const CLI::App* root, const CLI::Error& error);

}  // namespace dalle2
