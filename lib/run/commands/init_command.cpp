// SPDX-License-Identifier: MIT
// `init`: a first config that fits the data.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "config/kinds.h"
#include "io/files/atomic_file.h"
#include "run/commands.h"
#include "run/commands/first_config.h"
#include "run/commands/out_folder.h"
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
  if (holds_files(data, {".jpg", ".jpeg", ".png", ".webp"}, /*below=*/true)) return "decoder";
  if (holds_files(data, {".npy"}, /*below=*/true)) return "prior";
  throw DataError(
      "{}: found no shard (.tar), embedding (.npy) or picture (.jpg, .png, .webp) in the folder\n  "
      "`dalle2-train shards make --from PICTURES --out {}` makes shards.",
      data,
      data);
}

}  // namespace

void run_init(InitCommand command) {
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
  const FirstConfig first = kind.first_config(command);
  config_kind_of(key).fill_in(first.text, {});  // throws if it is wrong
  write_file_atomically(command.out_path, first.text);
  for (const std::string& line : first.found) std::printf("found: %s\n", line.c_str());
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
