// SPDX-License-Identifier: MIT
#include "run/commands/sample_command.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/convert.h"
#include "config/decoder/decoder_run_config.h"
#include "io/files/folder_names.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/kinds.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {

ModelSource source_of(const SampleCommand& command) {
  return {.checkpoint_path = command.checkpoint_path,
          .config_path = command.config_path,
          .use_ema = command.use_ema,
          .lora = {.files = command.lora_paths, .scales = command.lora_scale}};
}

void refuse_if(bool given, const char* option, const std::string& why) {
  if (given) throw ConfigError("{}: has no effect {}", option, why);
}

void check_one_or_each(const char* option,
                       size_t given,
                       size_t unets,
                       const std::string& checkpoint_path) {
  if (given <= 1 || given == unets) return;
  throw ConfigError("{}: expected one value, or one for each of the {} unets of {}, got {}",
                    option,
                    unets,
                    checkpoint_path,
                    given);
}

void warn_of_cut_encodings(const at::Tensor& encodings, const std::string& key, int64_t most) {
  if (!encodings.defined() || encodings.size(1) <= most) return;
  log_warning("sample",
              "{} is {}, and the text encodings have {}: the rest is cut",
              key,
              most,
              counted(encodings.size(1), "token"));
}

OneOrMany<std::optional<int64_t>> sampling_steps(const std::vector<int64_t>& timesteps) {
  if (timesteps.empty()) return std::nullopt;
  if (timesteps.size() == 1) return timesteps.front();
  return timesteps;
}

Autocast precision_of(const SampleCommand& command, const at::Device& device) {
  return {device.type(), command.precision == "bf16" ? MixedPrecision::bf16 : MixedPrecision::no};
}

void make_out_folder(const SampleCommand& command) {
  std::error_code error, ignored;
  std::filesystem::create_directories(command.out_folder, error);
  if (!std::filesystem::is_directory(command.out_folder, ignored)) {
    throw ConfigError("--out {}: this folder cannot be made: {}",
                      command.out_folder,
                      error ? error.message() : "a file of that name is there");
  }
  std::vector<std::string> names = names_in_folder(command.out_folder);
  std::erase_if(names,
                [](const std::string& n) { return n.starts_with('.') || n.ends_with(".part"); });
  if (names.empty() || command.overwrite) return;
  std::sort(names.begin(), names.end());
  throw ConfigError(
      "--out {}: expected a new or empty folder, but it holds {}\n  Choose another folder, or add "
      "--overwrite: files with the names of the output are replaced, and nothing is removed.",
      command.out_folder,
      short_list(names));
}

void check_finite(const at::Tensor& samples,
                  const SampleCommand& command,
                  const char* what,
                  int64_t begin) {
  if (at::isfinite(samples).all().item<bool>()) return;
  log_live("");
  throw NonFiniteError(
      "{} {}-{} hold values that are not finite: nothing was written\n"
      "  The weights of {} may be damaged or diverged, or --cond-scale is far too large.",
      what,
      begin,
      begin + samples.size(0) - 1,
      command.checkpoint_path);
}

void run_sample(const SampleCommand& asked) {
  const FetchedFile file(asked.checkpoint_path);
  SampleCommand command = asked;
  command.checkpoint_path = file.path();
  for (const double scale : command.cond_scale) {
    if (!std::isfinite(scale)) throw ConfigError("--cond-scale: expected a number, got {}", scale);
  }
  const at::Device device = choose_device(command.device, "--device", WithoutGpu::kError);
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const std::string found = checkpoint_kind(Cursor(checkpoint, command.checkpoint_path));
  // What names do not tell is taken for a decoder: its loading says what does not fit.
  const RunKind& kind = run_kind_of(found.empty() ? TrainDecoderConfig::kKind : found);
  if (!kind.sample) {
    std::vector<std::string> drawn_from;
    for (const RunKind& each : run_kinds()) {
      if (each.sample) drawn_from.push_back(each.key);
    }
    throw DataError("{}: expected a checkpoint of a {}, got one of a {}",
                    command.checkpoint_path,
                    fmt::join(drawn_from, " or "),
                    kind.key);
  }
  kind.sample(command, checkpoint, device);
}

}  // namespace dalle2
