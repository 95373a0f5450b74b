// SPDX-License-Identifier: MIT
// The manual page and the shells' completions, made from the declared options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dalle2 {

/// The exit codes as the two lines below `--help`.
std::string exit_code_lines();

/// dalle2-train(1) as roff for man.
std::string man_page(const CLI::App& app);

/// A script that completes subcommands, options, their values and files.
/// @param shell bash, zsh or fish
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace dalle2
