// SPDX-License-Identifier: MIT
// dalle2-train evaluate: metrics of a checkpoint as one JSON object.
#include <torch/types.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/convert.h"
#include "optim/random.h"
#include "run/commands.h"
#include "run/device.h"
#include "run/model_weights.h"
#include "run/prior_similarities.h"

namespace dalle2 {
namespace {

/// Weights belong to the model that they were trained as: another value would be passed over.
void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const std::string pointer = text.substr(0, text.find('='));
    if (pointer != "/prior" && !pointer.starts_with("/prior/")) continue;
    throw ConfigError(
        "--set {}: would make the checkpoint's model another one than its weights were trained for\n"
        "  Leave it away. /train/eval_timesteps are the sampling steps of an evaluation.",
        text);
  }
}

/// The five similarities of /train/eval_timesteps, of the split's first batch, as a run logs them.
nlohmann::ordered_json evaluate_prior(const EvaluateCommand& command,
                                      const LoadedPriorConfig& loaded,
                                      const Value& checkpoint,
                                      const at::Device& device) {
  const TrainPriorConfig& config = loaded.config;
  DiffusionPrior prior =
      load_prior({command.checkpoint_path, command.config_path, command.use_ema}, checkpoint);
  prior->to(device);
  const PriorDataset data(config.data, config.prior);
  const auto batch = data.batch(command.split, 0, config.data.batch_size);
  if (!batch || batch->size() == 0) {
    throw DataError("--split {}: has no usable row (/data/splits)", command.split);
  }
  nlohmann::ordered_json metrics;
  metrics["rows"] = batch->size();
  PriorSampleOptions options;
  for (const int64_t steps : config.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator = make_generator({config.seed, "similarities", /*epoch=*/0, steps}, device);
    const auto similarities =
        prior_similarities(*batch, options, device, [&](const auto& of_batch) {
          return prior->p_sample_loop(of_batch);
        });
    for (const auto& [name, value] : similarities)
      metrics[fmt::format("{} [steps={}]", name, steps)] = value;
  }
  return metrics;
}

}  // namespace

void run_evaluate(const EvaluateCommand& command) {
  if (config_kind(command.config_path) != "prior") {
    throw ConfigError(
        "{}: evaluate is not available for decoders yet: FID, IS, KID and LPIPS are a later part. "
        "It gives the similarities of a prior.",
        command.config_path);
  }
  check_overrides(command.overrides);
  log_to_stderr();
  const LoadedPriorConfig loaded =
      load_prior_config(command.config_path, {.overrides = command.overrides});
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  const at::Device device =
      choose_device(loaded.config.train.device, "/train/device", WithoutGpu::kWarn);
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  std::printf("%s\n", evaluate_prior(command, loaded, checkpoint, device).dump(2).c_str());
}

}  // namespace dalle2
