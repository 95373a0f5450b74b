// SPDX-License-Identifier: MIT
#include "help_formatter.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/terminal.h"

namespace dalle2 {
namespace {

constexpr int kNameColumns = 34;
constexpr int kLeastTextColumns = 30;  // on a terminal that is too narrow for two columns

std::string without(std::string text, const std::string& part) {
  const size_t at = text.find(part);
  return at == std::string::npos ? text : text.erase(at, part.size());
}

}  // namespace

HelpFormatter::HelpFormatter() : columns_(terminal_columns(STDOUT_FILENO)) {
  column_width(kNameColumns);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  // CLI11 marks a flag that sets false, and how many values an option takes at least.
  return two_columns(without(make_option_name(option, is_positional), "{false}") +
                         without(make_option_opts(option), " x 2"),
                     make_option_desc(option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return two_columns(command->get_display_name(true), command->get_description());
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return wrapped(Formatter::make_description(app), columns_);
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  return wrapped(without(Formatter::make_usage(app, std::move(name)), "(2x)"), columns_);
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return wrapped(Formatter::make_footer(app), columns_);
}

/// A name that is too long for its column has a line of its own.
std::string HelpFormatter::two_columns(const std::string& name, const std::string& text) const {
  const int text_columns = std::max(columns_ - kNameColumns, kLeastTextColumns);
  std::string out = wrapped("  " + name, columns_);
  const std::string indent(kNameColumns, ' ');
  if (out.size() >= indent.size()) {
    out += "\n" + indent;
  } else {
    out.resize(indent.size(), ' ');
  }
  for (const char c : wrapped(text, text_columns)) {
    out += c;
    if (c == '\n') out += indent;
  }
  return out + "\n";
}

}  // namespace dalle2
