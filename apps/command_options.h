// SPDX-License-Identifier: MIT
// What the subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "run/commands.h"

namespace dalle2 {

/// A subcommand: its options live in the closure until they are parsed, then it is called.
using Runner = std::function<ExitCode()>;

template <class T>
std::shared_ptr<T> options_of() {
  return std::make_shared<T>();
}

/// A count: from 1 to `most`.
CLI::Validator whole_number(int64_t most = 1'000'000'000);

/// Anything but nothing. @param what is expected, with its article
CLI::Validator non_empty(const std::string& what);

/// --overwrite, of a command that writes into a folder.
void add_overwrite(CLI::App& app, bool& overwrite, const char* text);

/// --nproc-per-node, of a command that several processes can do together.
void add_processes(CLI::App& app, int64_t& processes, const std::string& what_they_do);

/// `shards demo|make|check|order|score|encode`.
void add_shards_commands(
    const std::function<void(const char* name, const char* text, Runner (*add)(CLI::App&))>& add);

}  // namespace dalle2
