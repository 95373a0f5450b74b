// SPDX-License-Identifier: MIT
// The state of a Trainer, out and in.
#include <torch/torch.h>

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
namespace {

/// The model's tensor `name` has a post-hoc average.
bool has_post_hoc_average(const std::string& name, const TrainedParts& parts) {
  for (const auto& part : parts) {
    if (part && part->post_hoc && name.starts_with(part->prefix) &&
        part->post_hoc->has(name.substr(part->prefix.size()))) {
      return true;
    }
  }
  return false;
}

}  // namespace

void Trainer::list_state(TrainState& state) const {
  state.model("model");
  state.version("version");
  state.steps("steps");
  state.lora("lora");
  state.extras();
  state.optimizer("optimizer", 0);
  state.schedule("scheduler", 0);
  state.averages({.many_parts = false,
                  .network_prefix = contents_.prefixes.front(),
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
      "{0}: was trained with the embeddings of another CLIP: its identity, a SHA-256, is {1}, and that of "
      "this run's is {2}\n  Expect a higher loss until the {3} has learned the new embeddings.",
      root.where(),
      short_clip_identity(clip_identity_of_file_),
      short_clip_identity(clip_identity_),
      contents_.model_name);
}

Extras Trainer::with_companions(const Extras& extras) const {
  Extras all = extras;
  for (auto& each : companions()) all.push_back(std::move(each));
  return all;
}

Dict Trainer::state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  const HeldAverages held = hold_averages();
  const Extras all = with_companions(extras);
  TrainStateWriter writer(contents_, all);
  list_state(writer);
  return writer.take();
}

Dict Trainer::model_state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  Dict out;
  out.set("version", contents_.version);
  for (const auto& [key, value] : with_companions(extras)) out.set(key, value);
  const HeldAverages held = hold_averages();
  std::optional<AveragesInPlace> averages;
  put_averages_in_place(averages);
  StateDict weights = state_dict(*contents_.model);
  if (contents_.lora) {
    weights = merged_lora(weights, contents_.lora->alpha, "the " + contents_.model_name);
  }
  out.set("model", to_dict(contents_.with_carried(std::move(weights))));
  return out;
}

Dict Trainer::post_hoc_state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  settle_all();
  const Extras all = with_companions(extras);
  TrainStateWriter writer(contents_, all);
  writer.version("version");
  writer.lora("lora");
  writer.extras();
  writer.post_hoc_averages("post_hoc_ema");
  StateDict rest;
  for (const auto& [name, tensor] : state_dict(*contents_.model)) {
    if (!is_of_frozen_clip(name) && !has_post_hoc_average(name, contents_.parts))
      rest.emplace_back(name, tensor);
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
  TrainStateReader reader(contents_, root, only_model, strict);
  list_state(reader);
  reader.finish();
  take_companions(root);
}

void Trainer::load_base(const StateDict& weights, const std::string& file) {
  const torch::NoGradGuard no_grad;
  forget_graphs();
  StateDict all = weights;
  std::erase_if(all, [&](const auto& entry) { return is_of_untrained_part(entry.first); });
  keep_own_clip(all, *contents_.model);
  for (auto& adapter : lora_state_dict(*contents_.model)) all.push_back(std::move(adapter));
  load_state_dict(*contents_.model, all, "", /*strict=*/true, file);
  size_t adapters = 0;
  for (const auto& part : contents_.parts) {
    if (!part) continue;
    adapters += count_lora_adapters(*part->network);
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
    const std::string& prefix = contents_.prefixes[i];
    const StateDict given = strip_prefix(weights, prefix);
    if (contents_.parts[i] || given.empty()) continue;
    const std::string where = fmt::format("{}: {}", file, part_names_[i]);
    const auto network = makers_[i]();
    load_state_dict(*network, given, "", /*strict=*/true, where);
    check_finite(*network, where);
    for (const auto& [name, tensor] : state_dict(*network))
      carried.emplace_back(prefix + name, tensor);
    taken.push_back(part_names_[i]);
  }
  contents_.carried = std::move(carried);
  return taken;
}

bool Trainer::is_of_trained_part(const std::string& tensor_name) const {
  for (size_t i = 0; i < contents_.parts.size(); ++i) {
    if (contents_.parts[i] && tensor_name.starts_with(contents_.prefixes[i])) return true;
  }
  return false;
}

std::optional<LoraFile> Trainer::lora_state() const {
  if (!contents_.lora) return std::nullopt;
  const torch::NoGradGuard no_grad;
  LoraFile file;
  file.info = *contents_.lora;
  const HeldAverages held = hold_averages();
  std::optional<AveragesInPlace> averages;
  put_averages_in_place(averages);
  const StateDict all = state_dict(*contents_.model);
  for (const auto& part : contents_.parts) {
    if (!part) continue;
    for (const std::string& name : part->parameters.names()) {
      file.tensors.emplace_back(part->prefix + name, *find_tensor(all, part->prefix + name));
    }
  }
  return file;
}

}  // namespace dalle2
