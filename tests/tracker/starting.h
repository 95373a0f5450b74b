// SPDX-License-Identifier: MIT
// A tracker as a run starts it, and the files around it.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

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

/// What the files of these tests say of themselves: "run=ID samples=N [amid] [back=N]...".
inline std::optional<SavedFacts> read_facts(const std::string& path) {
  std::ifstream file(path);
  std::optional<SavedFacts> facts;
  for (std::string word; file >> word;) {
    const std::string value = word.substr(word.find('=') + 1);
    if (word.starts_with("run=")) facts = SavedFacts{.run_id = value};
    if (!facts) continue;
    if (word.starts_with("samples=")) facts->samples_seen = std::stoll(value);
    if (word.starts_with("back=")) facts->went_back_to.push_back(std::stoll(value));
    if (word == "amid") facts->amid_skips = true;
  }
  return facts;
}

/// What a run does with a tracker that was made: the first candidate is taken up if there is one.
inline void begin(Tracker& tracker) {
  tracker.init();
  if (tracker.can_recall()) {
    const std::vector<std::string> candidates = tracker.recall_candidates();
    if (!candidates.empty()) return tracker.go_on(candidates.front());
  }
  tracker.begin_anew();
}

inline Tracker start(const TrackerConfig& config, bool dummy = false) {
  Tracker tracker(config, placeholders(), dummy, read_facts);
  begin(tracker);
  return tracker;
}

/// A run in an empty working directory; data_path is "data", the latest goes to latest.pth.
struct Run {
  TempDir folder;
  WorkingDirectory inside{folder.path()};
  CapturedLog log;
  TrackerConfig config;

  Run() {
    config.data_path = "data";
    LocalSaveConfig save;
    save.save_latest_to = "latest.pth";
    config.save = {save};
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
  Tracker start(bool dummy = false) const { return test::start(config, dummy); }
};

/// log.jsonl without the line that names the run.
inline std::string log_text() {
  const std::string text = read_file("data/log.jsonl");
  return text.starts_with("{\"run_id\": ") ? text.substr(text.find('\n') + 1) : text;
}

/// The mark of auto-resume without the id of the run.
inline std::string mark_text() {
  nlohmann::json mark = nlohmann::json::parse(read_file("data/auto_resume.json"));
  mark.erase("dalle2_train_run_id");
  return mark.dump();
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
