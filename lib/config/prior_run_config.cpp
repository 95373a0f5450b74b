// SPDX-License-Identifier: MIT
#include "config/prior_run_config.h"

#include <fmt/format.h>

#include "base/error.h"
#include "config/reader.h"
#include "config/root_json.h"
#include "config/writer.h"

namespace dalle2 {
namespace {

void check_sources(const TrainPriorConfig& config, Faults& faults) {
  const PriorDataConfig& data = config.data;
  if (!data.text_url) {
    faults.error("/data/text_url",
                 "must be given: the folder of the text embeddings that belong to image_url, row "
                 "by row (captions alone need a CLIP model, which is not available yet)");
  }
  const bool wanted = config.prior.condition_on_text_encodings;
  if (wanted && !data.text_encodings_url) {
    faults.error("/data/text_encodings_url",
                 "must be given: the prior is conditioned on text encodings; set "
                 "prior.condition_on_text_encodings to false to train without");
  }
  if (!wanted && data.text_encodings_url) {
    faults.error("/data/text_encodings_url",
                 "text encodings are being loaded, but not conditioned on: remove it, or set "
                 "prior.condition_on_text_encodings to true");
  }
  if (data.meta_url) {
    faults.warn("/data/meta_url", "has no effect: the embeddings of the texts are read");
  }
  if (data.splits.train + data.splits.val >= 1) {
    faults.error("/data/splits",
                 fmt::format("train and val must leave something for test: {} + {} is not below 1",
                             data.splits.train,
                             data.splits.val));
  }
  if (data.splits.train == 0) {
    faults.error("/data/splits/train", "must be above 0: there is nothing to train on");
  }
}

void check_train(const TrainPriorConfig& config, Faults& faults) {
  const int64_t least = std::max<int64_t>(2, config.prior.sample_timesteps.value_or(2));
  for (size_t i = 0; i < config.train.eval_timesteps.size(); ++i) {
    const int64_t steps = config.train.eval_timesteps[i];
    if (steps >= least && steps <= config.prior.timesteps) continue;
    faults.error(
        fmt::format("/train/eval_timesteps/{}", i),
        fmt::format("must be between prior.sample_timesteps ({}) and prior.timesteps ({}), got {}",
                    least,
                    config.prior.timesteps,
                    steps));
  }
  const PriorTrainConfig& train = config.train;
  if (train.ema.kind == EmaKind::diffusers && train.update_model_with_ema_every) {
    faults.error("/train/update_model_with_ema_every",
                 "needs ema.kind \"ema_pytorch\": averages of diffusers never go back into the "
                 "weights");
  }
  if (train.frozen_dtype != FrozenDtype::fp32 && train.lora.rank == 0) {
    faults.error("/train/frozen_dtype",
                 "needs lora.rank above 0: without adapters nothing is frozen");
  }
}

void check_savers(const TrainPriorConfig& config, Faults& faults) {
  if (config.train.lora.rank > 0) return;
  for (size_t i = 0; i < config.tracker.save.size(); ++i) {
    const SaveType type = std::visit([](const SaveTargets& targets) { return targets.save_type; },
                                     config.tracker.save[i]);
    if (type != SaveType::lora) continue;
    faults.error(
        "/tracker/save",
        fmt::format("saver {} has save_type \"lora\", but this run trains no adapters: set "
                    "train.lora.rank, or choose \"checkpoint\" or \"model\"",
                    i + 1));
  }
}

LoadedPriorConfig read_prior_config(const Json& root, ReadFindings& findings) {
  LoadedPriorConfig loaded;
  Reader(findings).read_struct(root, "", loaded.config, {"$schema"});
  Faults& faults = findings.faults;
  if (!faults.has_error_under("/prior") && !faults.has_error_under("/train")) {
    loaded.plan = plan_prior(loaded.config.prior, loaded.config.train.loss_plan(), faults);
    check_train(loaded.config, faults);
  }
  if (!faults.has_error_under("/data")) check_sources(loaded.config, faults);
  if (!faults.has_error_under("/tracker")) check_savers(loaded.config, faults);
  return loaded;
}

}  // namespace

LoadedPriorConfig parse_prior_config(const std::string& json,
                                     const std::string& origin,
                                     const ReadOptions& options) {
  ReadFindings findings;
  Json root = parse_root(json, origin, findings.faults);
  for (const std::string& assignment : options.overrides) apply_override(root, assignment);
  LoadedPriorConfig loaded = read_prior_config(root, findings);
  if (options.strict) findings.faults.promote_warnings();
  if (options.check_available) {
    for (const Fault& fault : findings.unavailable)
      findings.faults.error(fault.pointer, fault.text);
  }
  findings.faults.throw_if_any(origin);
  loaded.raw_json = json;
  loaded.full_json = to_json(loaded.config).dump(2) + "\n";
  for (const Fault& warning : findings.faults.warnings()) {
    loaded.warnings.push_back(fault_line(warning));
  }
  return loaded;
}

LoadedPriorConfig load_prior_config(const std::string& path, const ReadOptions& options) {
  return parse_prior_config(read_config_file(path), path, options);
}

bool is_prior_config(const std::string& path) {
  Faults ignored;  // reading the file reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
  return root.contains("prior") && !root.contains("decoder");
}

}  // namespace dalle2
