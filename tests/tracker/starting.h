// SPDX-License-Identifier: MIT
// A tracker as a run starts it, and the files around it.
#pragma once

#include <regex>

#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "tracker/tracker.h"

namespace dalle2::test {

/// Names that a run offers to the targets of its savers.
inline const FormatFields& placeholders() {
  static const FormatFields fields = {{"epoch", int64_t{0}},
                                      {"sample", int64_t{0}},
                                      {"next_task", std::string("train")},
                                      {"validation_losses", std::vector<double>{0.5}},
                                      {"samples_seen", int64_t{0}}};
  return fields;
}

/// What the files of these tests say of themselves: "run=ID samples=N [lines=N] [amid]".
inline std::optional<SavedFacts> read_facts(const std::string& path) {
  std::ifstream file(path);
  std::optional<SavedFacts> facts;
  for (std::string word; file >> word;) {
    const std::string value = word.substr(word.find('=') + 1);
    if (word.starts_with("run=")) facts = SavedFacts{.run_id = value};
    if (!facts) continue;
    if (word.starts_with("samples=")) facts->samples_seen = std::stoll(value);
    if (word.starts_with("lines=")) facts->log_lines = std::stoll(value);
    if (word == "amid") facts->amid_skips = true;
  }
  return facts;
}

/// Positions of a run that saves after every 10 samples, each a step.
inline SnapshotPosition at(int64_t samples_seen) {
  return {.samples_seen = samples_seen, .step = samples_seen / 10, .epoch = samples_seen / 100};
}

/// The state of a file, as a run that has loaded it describes it.
inline LoadedState loaded(const std::string& path) {
  const SavedFacts facts = read_facts(path).value_or(SavedFacts{});
  return {.path = path, .position = at(facts.samples_seen), .log_lines = facts.log_lines};
}

/// What a run does with a tracker that was made: the first file is loaded if there is one.
inline void begin(Tracker& tracker) {
  const StartPlan& plan = tracker.open();
  tracker.begin(plan.files.empty() ? LoadedState{} : loaded(plan.files.front()));
}

inline std::unique_ptr<Tracker> start(const TrackerConfig& config,
                                      bool dummy = false,
                                      const StartOptions& options = {}) {
  auto tracker = std::make_unique<Tracker>(config, placeholders(), dummy, read_facts, options);
  begin(*tracker);
  return tracker;
}

/// Saves as a run that has seen so many samples.
inline void save(Tracker& tracker, int64_t samples, bool is_best = false, bool amid_skips = false) {
  const auto write = [&](const std::string& path) {
    write_file_atomically(path,
                          fmt::format("run={} samples={} lines={}{}",
                                      tracker.run_id(),
                                      samples,
                                      tracker.log_lines(),
                                      amid_skips ? " amid" : ""));
  };
  tracker.save({.is_best = is_best,
                .is_latest = true,
                .amid_skips = amid_skips,
                .position = at(samples),
                .placeholders = placeholders(),
                .write_checkpoint = write,
                .write_model = write});
}

/// A run in an empty working directory; data_path is "data", the latest goes to latest.pth.
struct Run {
  TempDir folder;
  WorkingDirectory inside{folder.path()};
  CapturedLog log;
  TrackerConfig config;

  Run() {
    config.data_path = "data";
    save_latest_to("latest.pth");
  }
  void save_latest_to(const std::string& target) {
    LocalSaveConfig local;
    local.save_latest_to = target;
    config.save = {local};
  }
  void auto_resume(bool on) {
    ConsoleLogConfig console;
    console.auto_resume = on;
    config.log = LogConfig(console);
  }
  void load(const std::string& path, bool only_auto_resume) {
    LocalLoadConfig local;
    local.file_path = path;
    local.only_auto_resume = only_auto_resume;
    config.load = local;
  }
  std::unique_ptr<Tracker> start(bool dummy = false, const StartOptions& options = {}) const {
    return test::start(config, dummy, options);
  }
};

/// A run that resumes by itself and saves to latest.pth.
struct ResumingRun : Run {
  ResumingRun() { auto_resume(true); }
  /// A start that saves after 10, 20, ... samples.
  void saved(int64_t samples) {
    const auto tracker = start();
    for (int64_t seen = 10; seen <= samples; seen += 10) save(*tracker, seen);
  }
};

/// run.json of a folder.
inline nlohmann::json record_of(const std::string& folder = "data") {
  return nlohmann::json::parse(read_file(folder + "/run.json"));
}

/// A log without its times.
inline std::string without_times(const std::string& log) {
  static const std::regex time(R"re(, "time": [0-9.]+)re");
  return std::regex_replace(log, time, "");
}

/// log.jsonl without times and the line that names the run.
inline std::string log_text() {
  const std::string text = without_times(read_file("data/log.jsonl"));
  return text.starts_with("{\"run_id\": ") ? text.substr(text.find('\n') + 1) : text;
}

/// The content of a file.
inline std::string file(const std::string& path) {
  return read_file(path);
}

/// Writes a file, with the folders above it.
inline void put(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::absolute(path).parent_path());
  std::ofstream(path) << content;
}

}  // namespace dalle2::test
