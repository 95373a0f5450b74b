// SPDX-License-Identifier: MIT
// The manual page and the shells' completions, made from the declared options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dalle2 {

/// dalle2-train(1) as roff for man: the help text of every command.
std::string man_page(const CLI::App& app);

/// A script that completes subcommands, options, their values and files.
/// @param shell bash, zsh or fish
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace dalle2
