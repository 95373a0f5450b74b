// SPDX-License-Identifier: MIT
// `init`: a first config that fits the data.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/untrusted_text.h"
#include "config/kinds.h"
#include "io/files/atomic_file.h"
#include "run/commands.h"
#include "run/init/first_config.h"
#include "run/kinds.h"

namespace dalle2 {
namespace {

/// The kind that a folder's files are for, if none is asked for.
std::string kind_of_data(const std::string& data) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(data, ignored)) {
    throw ConfigError(
        "DATA {}: expected a folder of shards, embeddings or pictures, relative to {}",
        data,
        std::filesystem::current_path().string());
  }
  if (holds_files(data, {".tar"}, /*below=*/false)) return "decoder";
  if (holds_files(data, kPictureEndings, /*below=*/true)) return "decoder";
  if (holds_files(data, {".npy"}, /*below=*/true)) return "prior";
  throw DataError(
      "{}: found no shard (.tar), embedding (.npy) or picture (.jpg, .png, .webp) in the folder\n  "
      "`dalle2-train shards make --from PICTURES --out {}` makes shards.",
      data,
      data);
}

/// How many updates fit into `command.minutes`, by a run of a few in a folder of its own.
/// @throws StoppedError
int64_t updates_that_fit(const RunKind& kind, InitCommand command) {
  namespace fs = std::filesystem;
  constexpr int64_t kUpdates = 6, kTimed = 3;  // the first ones are slow
  command.updates = kUpdates;
  command.processes = 1;
  const FirstConfig first = kind.first_config(command);
  const fs::path folder = command.out_path + ".trial", config = folder / "trial.json";
  if (!fs::create_directory(folder)) {
    throw ConfigError(
        "{}: exists\n  Remove what an earlier trial has left there, or choose another --out.",
        printable(folder.string()));
  }
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  });
  write_file_atomically(config.string(), first.text);
  const std::string run = (folder / "run").string();
  const TrainCommand trial{
      .config_path = config.string(),
      .overrides = {"/tracker/data_path=" + json_text(run),
                    "/tracker/load=null",
                    R"(/tracker/save={"save_to": "local", "save_latest_to": )" +
                        json_text(run + "/latest.pth") + "}",
                    "/train/log_every_n_updates=1"},
      .quiet = true};
  if (run_train(trial) == ExitCode::kStopped) throw_stopped();
  std::vector<double> rates;  // samples per second
  std::ifstream log(folder / "run" / "log.jsonl");
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    for (const char* key : {"Samples per second", "samples_per_second", "tracking/samples-sec"}) {
      if (record.contains(key)) rates.push_back(record[key].get<double>());
    }
  }
  if (std::ssize(rates) < kTimed)
    throw DataError("{}: too few samples to time an update", command.data);
  std::sort(rates.end() - kTimed, rates.end());
  const double updates_per_second =
      *(rates.end() - (kTimed + 1) / 2) / static_cast<double>(first.recipe.batch_size);
  constexpr double kTraining = 0.8;  // of the time; the rest goes to validation, pictures and saves
  constexpr double kMinute = 60;
  return std::max(std::llround(*command.minutes * kMinute * kTraining * updates_per_second), 1LL);
}

}  // namespace

void run_init(const InitCommand& asked) {
  InitCommand command = asked;
  const std::string key = command.kind.value_or(kind_of_data(command.data));
  const RunKind& kind = run_kind_of(key);
  if (!kind.first_config) throw ConfigError("--kind {}: `init` knows no first config of it", key);
  if (command.out_path.empty()) command.out_path = key + ".json";
  constexpr int64_t kSideUnit = 8;  // what every first network can halve, or cut into patches
  if (command.image_size && *command.image_size % kSideUnit != 0) {
    throw ConfigError(
        "--image-size: expected a multiple of {}, got {}", kSideUnit, *command.image_size);
  }
  if (std::filesystem::path(command.out_path).extension() != ".json") {
    throw ConfigError(
        "--out: expected the name of a config, such as {}.json, got {}", key, command.out_path);
  }
  check_out_folder("--out", command.out_path);
  check_new_file("--out", command.out_path, command.overwrite);
  if (command.minutes) command.updates = updates_that_fit(kind, command);
  const FirstConfig first = kind.first_config(command);
  config_kind_of(key).fill_in(first.text, {});  // throws if it is wrong
  write_file_atomically(command.out_path, first.text);
  for (const std::string& line : first.found) std::printf("found: %s\n", line.c_str());
  for (const std::string& line : describe(first.recipe)) std::printf("the run: %s\n", line.c_str());
  const std::string processes =
      command.processes > 1 ? fmt::format(" --nproc-per-node {}", command.processes) : "";
  std::printf(
      "written: %s, a first config of a %s\n"
      "next: dalle2-train --config %s%s --dry-run    # sizes, steps, memory; writes nothing\n"
      "      dalle2-train --config %s%s              # trains\n",
      command.out_path.c_str(),
      key.c_str(),
      command.out_path.c_str(),
      processes.c_str(),
      command.out_path.c_str(),
      processes.c_str());
}

}  // namespace dalle2
