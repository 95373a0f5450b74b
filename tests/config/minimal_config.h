// SPDX-License-Identifier: MIT
// The smallest config that trains, and what becomes of it when something in it is changed.
#pragma once

#include <catch2/catch.hpp>
#include <initializer_list>

#include "base/error.h"
#include "config/decoder/decoder_run_config.h"
#include "config/reading/json_text.h"

namespace dalle2 {

inline const std::string kMinimalConfig = R"({
  "decoder": {
    "unets": [{"dim": 16, "dim_mults": [1, 2], "image_embed_dim": 8}],
    "image_sizes": [16]
  },
  "data": {
    "webdataset_base_url": "shards/{}.tar",
    "img_embeddings_url": "embeddings",
    "splits": {}
  },
  "train": {},
  "evaluate": {},
  "tracker": {"log": {}, "save": {"save_to": "local", "save_latest_to": "latest.pth"}}
})";

/// A second unet of 32 pixels, as assignments before others.
inline std::vector<std::string> cascade(std::vector<std::string> assignments) {
  assignments.insert(
      assignments.begin(),
      {R"(/decoder/unets/1={"dim": 16, "dim_mults": [1, 2]})", "/decoder/image_sizes=[16, 32]"});
  return assignments;
}

/// The text of a file with some values written into it (`/pointer=value`).
inline std::string file_with(const std::string& text, const std::vector<std::string>& assignments) {
  Json file = Json::parse(text);
  for (const std::string& assignment : assignments) apply_override(file, assignment);
  return file.dump();
}

/// Reads the minimal config with some values overridden as by `--set` (`/pointer=value`).
inline LoadedDecoderConfig read_with(const std::vector<std::string>& assignments,
                                     bool strict = false,
                                     bool check_available = true) {
  ReadOptions options;
  options.overrides = assignments;
  options.strict = strict;
  options.check_available = check_available;
  return parse_decoder_config(kMinimalConfig, "test.json", options);
}

/// The message of the ConfigError that `action` throws; "no error" if it throws none.
template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// Checks that a config with some values assigned (`/pointer=value`) has one problem: `text`, at the
/// place of the last assignment unless it begins with another.
class Rejects {
 public:
  using Assignments = std::vector<std::string>;

  /// @param file as messages name it
  Rejects(std::string file, std::function<void(const Assignments&)> read)
      : file_(std::move(file)), read_(std::move(read)) {}

  void operator()(const std::string& assignment, const std::string& text) const {
    (*this)(Assignments{assignment}, text);
  }
  void operator()(std::initializer_list<std::string> assignments, const std::string& text) const {
    (*this)(Assignments(assignments), text);
  }
  void operator()(const Assignments& assignments, const std::string& text) const {
    const std::string& last = assignments.back();
    const std::string place = text.starts_with("/") ? "" : last.substr(0, last.find('=')) + ": ";
    CHECK(message_of([&] { read_(assignments); }) == file_ + ": 1 problem\n  " + place + text);
  }

 private:
  std::string file_;
  std::function<void(const Assignments&)> read_;
};

inline const Rejects rejects("test.json", [](const auto& assignments) { read_with(assignments); });

/// Checks the whole message for a config with some values assigned; warnings come last.
inline void expect_problems(const std::vector<std::string>& assignments,
                            const std::vector<std::string>& lines) {
  const auto problems = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return !line.starts_with("warning: ");
  });
  std::string expected =
      "test.json: " + std::to_string(problems) + " problem" + (problems == 1 ? "" : "s");
  for (const std::string& line : lines) expected += "\n  " + line;
  CHECK(message_of([&] { read_with(assignments); }) == expected);
}

}  // namespace dalle2
