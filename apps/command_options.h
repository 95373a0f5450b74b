// SPDX-License-Identifier: MIT
// What the sources of the command line share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/stop_signal.h"
#include "run/commands.h"

namespace dalle2 {

/// Parses the arguments and runs the command they name.
/// @return the process's exit code; usage errors print what was wrong and give kConfig
int run_command_line(int argc, char** argv);

/// A subcommand: its options live in the closure until they are parsed, then it is called.
using Runner = std::function<ExitCode()>;

/// What calls a command's function with its options.
/// @param ends_by_itself after a signal; else the signal kills the process
template <class Command, class Result>
Runner runner_of(const std::shared_ptr<Command>& options,
                 Result (*run)(const Command&),
                 bool ends_by_itself = false) {
  return [options, run, ends_by_itself] {
    if (ends_by_itself) install_stop_signals();
    if constexpr (std::is_void_v<Result>) {
      run(*options);
      return ExitCode::kDone;
    } else {
      return run(*options);
    }
  };
}

/// A count: from 1 to `most`.
CLI::Validator whole_number(int64_t most = 1'000'000'000);

/// Anything but nothing. @param what is expected, with its article
CLI::Validator non_empty(const std::string& what);

/// An option with a value; of a list one at a time. @param name with the type of the value: "--clip FILE"
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& name, T& value) {
  const size_t space = name.rfind(' ');
  CLI::Option* const option = app.add_option(name.substr(0, space), value);
  if constexpr (std::is_same_v<T, std::vector<std::string>>) option->allow_extra_args(false);
  return option->type_name(name.substr(space + 1));
}
/// A count, whose default is shown unless `value` may be empty. @param most that it may be
template <class T>
CLI::Option* add_count(CLI::App& app, const char* name, T& value, int64_t most = 1'000'000'000) {
  CLI::Option* const option = app.add_option(name, value);
  if constexpr (std::is_same_v<T, int64_t>) option->capture_default_str();
  return option->type_name("N")->check(whole_number(most));
}

/// The options of a command that are given, after the parsing.
OptionFacts given_options(const CLI::App& app);
/// Checks what is given against option_rules() of the command, which the help of its options then tells.
void add_rules(CLI::App& app);

// Options that several commands have.
/// --set
void add_overrides(CLI::App& app,
                   std::vector<std::string>& overrides,
                   const char* text = "Override a key of the file (repeatable)");
/// --device
void add_device(CLI::App& app, std::string& device);
/// A folder that has to be given.
void add_folder(CLI::App& app, const char* name, std::string& path, const char* text);
/// How many digits a number has.
void add_digits(CLI::App& app, const char* name, int64_t& digits, const char* text);
/// --caption-encoding
void add_caption_encoding(CLI::App& app, std::string& encoding);
/// --overwrite, of a command that writes into a folder.
void add_overwrite(CLI::App& app, bool& overwrite, const char* text);

/// --nproc-per-node, of a command that several processes can do together.
void add_processes(CLI::App& app, int64_t& processes, const std::string& what_they_do);

/// `shards demo|make|check|order|score|encode`.
void add_shards_commands(
    const std::function<void(const char* name, const char* text, Runner (*add)(CLI::App&))>& add);

// What `--help`, a wrong command line, `completion` and `man-page` are answered with: usage.cpp.
/// CLI11's layout as wide as the terminal.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// What is wrong, what may have been meant, and where help is: for CLI::App::failure_message().
std::string usage_error_text(const CLI::App* root, const CLI::Error& error);

/// dalle2-train(1) as roff for man: the help text of every command.
std::string man_page(const CLI::App& app);

/// A script that completes subcommands, options, their values and files.
/// @param shell bash, zsh or fish
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace dalle2
