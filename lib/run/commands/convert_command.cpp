// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/log.h"
#include "base/public_url.h"
#include "checkpoint/convert.h"
#include "run/checkpoints/clip_weights.h"
#include "run/checkpoints/join_stages.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

/// Prints which file gave which stage.
ConvertReport join_files(const ConvertCommand& command) {
  is_safetensors_name(command.out_path);
  JoinedStages joined = join_stages(command.in_paths, command.config_path, command.ema);
  for (size_t i = 0; i < joined.givers.size(); ++i) {
    const std::string& giver = joined.givers[i];
    std::printf("unet %zu: %s\n", i + 1, giver.empty() ? "in none of the files" : giver.c_str());
  }
  return write_checkpoint(command.out_path, std::move(joined.checkpoint));
}

void check_convert_options(const ConvertCommand& command) {
  const size_t files = command.in_paths.size();
  if (command.merge && files < 2) {
    throw ConfigError("--merge: expected at least two files and OUT, got {} and OUT", files);
  }
  if (!command.merge && files > 1) {
    throw ConfigError(
        "expected IN and OUT, got {} files\n  --merge joins checkpoints of one cascade whose unets "
        "were trained apart.",
        files + 1);
  }
  if (command.config_path && !command.merge) {
    throw ConfigError("--config: has no effect without --merge\n  Leave the option out.");
  }
  if (!command.lora_scale.empty() && !command.merge_lora && command.lora_paths.empty()) {
    throw ConfigError(
        "--lora-scale: has no effect without adapters\n  Name a file of adapters with --lora, or "
        "take those of IN with --merge-lora.");
  }
}

/// What it writes has less than what it reads: the optimizer's state, the live weights, or both may be gone.
void check_other_file(const ConvertCommand& command) {
  for (const std::string& in : command.in_paths) {
    std::error_code absent;
    if (!std::filesystem::equivalent(in, command.out_path, absent)) continue;
    throw ConfigError(
        "OUT {}: is the file to convert\n  What is left out of it would be lost. Give another "
        "name, and rename the new file after you have checked it.",
        command.out_path);
  }
}

ConvertReport convert(const ConvertCommand& command) {
  if (command.merge) return join_files(command);
  const Weights weights = command.ema ? Weights::kAveraged : Weights::kAll;
  const std::string& in = command.in_paths.front();
  if (command.open_clip) return convert_to_open_clip(in, command.out_path);
  if (command.merge_lora || !command.lora_paths.empty()) {
    return convert_checkpoint(
        in, command.out_path, weights, LoraChoice{command.lora_paths, command.lora_scale});
  }
  return convert_checkpoint(in, command.out_path, weights);
}

}  // namespace

void run_convert(const ConvertCommand& command) {
  check_convert_options(command);
  check_out_folder("OUT", command.out_path);
  check_other_file(command);
  check_new_file("OUT", command.out_path, command.overwrite);
  ConvertCommand local = command;
  std::vector<std::unique_ptr<FetchedFile>> files;
  for (std::string& path : local.in_paths) {
    files.push_back(std::make_unique<FetchedFile>(path));
    path = files.back()->path();
  }
  const ConvertReport report = convert(local);
  for (const std::string& path : report.replaced) {
    log_warning("ckpt", "{}: an object of an unknown class, kept as text", path);
  }
  std::printf("%s -> %s, %zu tensors\n",
              public_text(fmt::format("{}", fmt::join(command.in_paths, " + "))).c_str(),
              command.out_path.c_str(),
              report.tensor_count);
}

}  // namespace dalle2
