// SPDX-License-Identifier: MIT
// `--help` as wide as the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dalle2 {

/// CLI11's layout, each text wrapped at the terminal's width (terminal_columns()).
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  std::string two_columns(const std::string& name, const std::string& text) const;

  int columns_;
};

}  // namespace dalle2
