// SPDX-License-Identifier: MIT
// The state of a Trainer, out and in.
#include <torch/torch.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/module_state.h"
#include "model/clip/clip_encoder.h"
#include "model/lora.h"
#include "trainer/trainer.h"

namespace dalle2 {

void Trainer::list_state(TrainState& state) const {
  state.model("model");
  state.version("version");
  state.steps("steps");
  state.lora("lora");
  state.extras();
  state.optimizer("optimizer", 0);
  state.schedule("scheduler", 0);
  state.averages({.many_parts = false,
                  .network_prefix = contents_.plan.parts.front().prefix,
                  .model_key = "ema_model"});
  state.post_hoc_averages("post_hoc_ema");
  state.scaler("scaler", 0);
  state.skipped("skipped_updates", /*flat=*/true);
}

Extras Trainer::companions() const {
  const std::string& known = clip_identity_.empty() ? clip_identity_of_file_ : clip_identity_;
  if (known.empty()) return {};
  return {{kClipIdentityKey, known}};
}

void Trainer::take_companions(const Cursor& root) {
  clip_identity_of_file_ = clip_identity_in(root);
  if (clip_identity_.empty() || clip_identity_of_file_.empty()) return;
  if (clip_identity_of_file_ == clip_identity_ || std::exchange(told_of_other_clip_, true)) return;
  log_warning(
      "ckpt",
      "{0}: was trained with the embeddings of another CLIP: its identity, a SHA-256, is {1:.16}, and that of "
      "this run's is {2:.16}\n  Expect a higher loss until the {3} has learned the new embeddings.",
      root.where(),
      clip_identity_of_file_,
      clip_identity_,
      contents_.plan.model_name);
}

Extras Trainer::with_companions(const Extras& extras) const {
  Extras all = extras;
  for (auto& each : companions()) all.push_back(std::move(each));
  return all;
}

Dict Trainer::state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  const HeldAverages held = hold_averages();
  TrainState writer(contents_, with_companions(extras));
  list_state(writer);
  return writer.take();
}

Dict Trainer::model_state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  Dict out;
  out.set("version", contents_.plan.version);
  for (const auto& [key, value] : with_companions(extras)) out.set(key, value);
  const HeldAverages held = hold_averages();
  const AveragesInPlace averages = averages_in_place();
  StateDict weights = state_dict(*contents_.plan.model);
  if (contents_.lora)
    weights = merged_lora(weights, contents_.lora->alpha, "the " + contents_.plan.model_name);
  out.set("model", to_dict(contents_.with_carried(std::move(weights))));
  return out;
}

Dict Trainer::post_hoc_state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  settle_all();
  TrainState writer(contents_, with_companions(extras));
  writer.version("version");
  writer.lora("lora");
  writer.extras();
  writer.post_hoc_averages("post_hoc_ema");
  std::set<std::string> averaged;
  for (const auto& part : contents_.parts) {
    if (!part || !part->post_hoc) continue;
    for (const FlatEntry& entry : part->parameters.entries())
      averaged.insert(part->plan.prefix + entry.name);
  }
  StateDict rest;
  for (const auto& [name, tensor] : state_dict(*contents_.plan.model)) {
    if (!is_of_frozen_clip(name) && !averaged.contains(name)) rest.emplace_back(name, tensor);
  }
  Dict out = writer.take();
  out.set("model", to_dict(contents_.with_carried(std::move(rest))));
  return out;
}

void Trainer::load_state(const Value& checkpoint,
                         bool only_model,
                         bool strict,
                         const std::string& file) {
  const torch::NoGradGuard no_grad;
  settle_all();
  forget_graphs();
  const Cursor root(checkpoint, file);
  if (!contents_.lora && has_lora(root)) {
    throw DataError(
        "{}holds adapters, and this run has none: set /train/lora as in the run that made the "
        "file, or make plain weights of it: dalle2-train convert --merge-lora IN OUT",
        file.empty() ? "" : file + ": ");
  }
  TrainState reader(contents_, root, only_model, strict);
  list_state(reader);
  reader.take_rest();
  take_companions(root);
}

void Trainer::load_base(const StateDict& weights, const std::string& file) {
  const torch::NoGradGuard no_grad;
  forget_graphs();
  StateDict all = weights;
  std::erase_if(all, [&](const auto& entry) { return has(entry.first, /*trained=*/false); });
  keep_own_clip(all, *contents_.plan.model);
  for (auto& adapter : lora_state_dict(*contents_.plan.model)) all.push_back(std::move(adapter));
  load_state_dict(*contents_.plan.model, all, "", /*strict=*/true, file);
  size_t adapters = 0;
  for (const auto& part : contents_.parts) {
    if (!part) continue;
    adapters += count_lora_adapters(*part->plan.network);
    part->begin_averages_anew();
  }
  if (!uses_lora()) {
    log_info("ckpt", "{}: weights only: optimizers, averages and the run start from zero", file);
    return;
  }
  log_info(
      "ckpt",
      "{}: the weights of the network, without adapters: the {} adapters of /train/lora start from "
      "zero, and so does the run",
      file,
      adapters);
}

std::vector<std::string> Trainer::carry(const StateDict& weights, const std::string& file) {
  const torch::NoGradGuard no_grad;
  std::vector<std::string> taken;
  StateDict carried;
  for (size_t i = 0; i < contents_.parts.size(); ++i) {
    const PartPlan& plan = contents_.plan.parts[i];
    const StateDict given = strip_prefix(weights, plan.prefix);
    if (contents_.parts[i] || given.empty()) continue;
    const std::string where = fmt::format("{}: {}", file, plan.name);
    const auto network = plan.make_network();
    load_state_dict(*network, given, "", /*strict=*/true, where);
    check_finite(*network, where);
    for (const auto& [name, tensor] : state_dict(*network))
      carried.emplace_back(plan.prefix + name, tensor);
    taken.push_back(plan.name);
  }
  contents_.carried = std::move(carried);
  return taken;
}

std::optional<LoraFile> Trainer::lora_state() const {
  if (!contents_.lora) return std::nullopt;
  const torch::NoGradGuard no_grad;
  LoraFile file;
  file.info = *contents_.lora;
  const HeldAverages held = hold_averages();
  const AveragesInPlace averages = averages_in_place();
  const StateDict all = state_dict(*contents_.plan.model);
  for (const auto& part : contents_.parts) {
    if (!part) continue;
    for (const std::string& name : part->parameters.names()) {
      const std::string of_model = part->plan.prefix + name;
      file.tensors.emplace_back(of_model, *find_tensor(all, of_model));
    }
  }
  return file;
}

}  // namespace dalle2
