// SPDX-License-Identifier: MIT
#include "trainer/state/train_state.h"

#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_state.h"
#include "model/clip/clip_encoder.h"
#include "trainer/state/optimizer_state.h"

namespace dalle2 {

bool TrainerContents::is_untrained(const std::string& name) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i] && name.starts_with(prefixes[i])) return true;
  }
  return false;
}

StateDict TrainerContents::with_carried(StateDict of_model) const {
  if (carried.empty()) return of_model;
  StateDict all = carried;
  for (auto& entry : of_model) all.push_back(std::move(entry));
  const auto place = [this](const auto& entry) {
    size_t i = 0;
    while (i < prefixes.size() && !entry.first.starts_with(prefixes[i])) ++i;
    return i;
  };
  std::stable_sort(
      all.begin(), all.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return all;
}

void TrainStateWriter::model(const std::string& key) {
  out_.set(key, to_dict(from_.with_carried(state_dict(*from_.model))));
}

void TrainStateWriter::version(const std::string& key) {
  out_.set(key, from_.version);
}

void TrainStateWriter::steps(const std::string& key) {
  out_.set(key, at::tensor(from_.steps, at::kLong));
}

void TrainStateWriter::lora(const std::string& key) {
  if (from_.lora) out_.set(key, to_dict(*from_.lora));
}

void TrainStateWriter::extras() {
  for (const auto& [key, value] : extras_) out_.set(key, value);
}

void TrainStateWriter::optimizer(const std::string& key, size_t i) {
  const auto& part = from_.parts[i];
  if (!part) return out_.set(key, Value());
  const FlatMoments moments = part->whole_moments();
  if (!moments.exp_avg.defined()) return out_.set(key, Value());  // rank 0 has them
  out_.set(key,
           optimizer_state(
               part->optimizer, moments, part->schedule, from_.steps[i], part->numbered_before));
}

void TrainStateWriter::schedule(const std::string& key, size_t i) {
  const auto& part = from_.parts[i];
  if (!part) return out_.set(key, Value());
  out_.set(key, schedule_state(part->schedule, part->optimizer.groups().size(), from_.steps[i]));
}

void TrainStateWriter::note(const std::string& key, Value value) {
  out_.set(key, std::move(value));
}

void TrainStateWriter::averages(const AverageLayout& layout) {
  if (!from_.averages) return;
  Value all = WeightAverage::empty_state(*from_.averages, layout);
  for (size_t i = 0; i < from_.parts.size(); ++i) {
    if (const auto& part = from_.parts[i]) {
      part->average->write(all, i, layout);
    } else {
      WeightAverage::write_untrained(*from_.averages, all, i, layout);
    }
  }
  out_.set(layout.key(*from_.averages), std::move(all));
  if (layout.model_key != nullptr && *from_.averages == EmaKind::ema_pytorch) {
    out_.set(layout.model_key, to_dict(from_.parts.front()->average->averaged_model(layout)));
  }
}

void TrainStateWriter::post_hoc_averages(const std::string& key) {
  List all;
  bool any = false;
  for (const auto& part : from_.parts) {
    const bool has = part && part->post_hoc;
    any = any || has;
    all.items.push_back(has ? Value(part->post_hoc->state(part->prefix)) : Value());
  }
  if (any) out_.set(key, std::move(all));
}

void TrainStateWriter::scaler(const std::string& key, size_t i) {
  const auto& part = from_.parts[i];
  if (part && part->scaler) out_.set(key, scaler_state(*part->scaler));
}

void TrainStateWriter::skipped(const std::string& key, bool flat) {
  std::vector<int64_t> counts;
  for (const auto& part : from_.parts) {
    const SkippedUpdates skipped = part ? part->skipped : SkippedUpdates{};
    counts.insert(counts.end(), {skipped.total, skipped.in_a_row});
  }
  if (std::all_of(counts.begin(), counts.end(), [](int64_t n) { return n == 0; })) return;
  const at::Tensor all = at::tensor(counts, at::kLong);
  out_.set(key, flat ? all : all.view({-1, 2}));
}

void keep_own_clip(StateDict& weights, const torch::nn::Module& model) {
  const auto is_of_clip = [](const auto& entry) { return is_of_frozen_clip(entry.first); };
  std::erase_if(weights, is_of_clip);
  for (auto& entry : state_dict(model)) {
    if (is_of_clip(entry)) weights.push_back(std::move(entry));
  }
}

void TrainStateReader::model(const std::string& key) {
  const Cursor saved = root_.at(key);
  StateDict weights = saved.as_state_dict();
  std::erase_if(weights, [&](const auto& entry) { return to_.is_untrained(entry.first); });
  keep_own_clip(weights, *to_.model);
  warn_of_rest(load_state_dict(*to_.model, weights, "", strict_, saved.where()), saved.where());
}

void TrainStateReader::version(const std::string& key) {
  const auto version = root_.find(key);
  const std::string theirs =
      version && version->value().is_string() ? version->as_string() : "unknown";
  if (theirs == to_.version) return;
  log_info("ckpt",
           "loading a {} saved at version {}; the layout here is that of version {}",
           to_.model_name,
           theirs,
           to_.version);
}

void TrainStateReader::steps(const std::string& key) {
  const Cursor entry = root_.at(key);
  const at::Tensor saved = entry.as_tensor().to(at::kCPU, at::kLong).flatten();
  if (saved.numel() != static_cast<int64_t>(to_.steps.size())) {
    throw DataError("{}: expected {}, got {}",
                    entry.where(),
                    to_.steps.size() == 1
                        ? "one step count"
                        : fmt::format("step counts of {} {}s", to_.steps.size(), to_.part_noun),
                    saved.numel());
  }
  for (size_t i = 0; i < to_.steps.size(); ++i) {
    to_.steps[i] = saved[static_cast<int64_t>(i)].item<int64_t>();
  }
}

void TrainStateReader::lora(const std::string& key) {
  if (!to_.lora) return;
  const LoraInfo saved = lora_info_of(root_.at(key));
  if (saved.alpha == to_.lora->alpha) return;
  log_info("ckpt",
           "{}: saved with an alpha of {}; this run uses its own /train/lora/alpha = {}",
           root_.at(key).where(),
           saved.alpha,
           to_.lora->alpha);
}

void TrainStateReader::optimizer(const std::string& key, size_t i) {
  if (!only_model_ && to_.parts[i]) optimizers_.emplace_back(key, i);
}

void TrainStateReader::finish() {
  for (const auto& [key, part] : optimizers_) read_optimizer(key, *to_.parts[part]);
}

void TrainStateReader::read_optimizer(const std::string& key, TrainedPart& part) {
  const auto saved = root_.find(key);
  if (!saved) {
    throw DataError(
        "{}: no entry '{}': the optimizer's state is missing, without which training cannot "
        "continue as before. Expected a checkpoint (`save_type` checkpoint), not a file of weights",
        root_.where(),
        key);
  }
  if (saved->is_none()) {
    throw DataError(
        "{}: this stage was not trained when the checkpoint was made, but is now; continue with "
        "the same /train/unet_training_mask, or load only the weights",
        saved->where());
  }
  // If the checkpoint holds its config, whoever compares configs reports all that has changed.
  const auto config = root_.find("config");
  const bool mention = !config || !config->value().is_dict();
  load_optimizer_state(
      *saved, part.parameters, part.schedule, part.optimizer, part.numbered_before, mention);
}

void TrainStateReader::averages(const AverageLayout& layout) {
  if (!to_.averages) return;
  const std::string key = layout.key(*to_.averages);
  auto saved = only_model_ ? std::nullopt : root_.find(key);
  if (!saved && !only_model_) {
    log_warning("ckpt",
                "{}: no averaged weights '{}' (it was made with use_ema false or another "
                "ema.kind): they begin as copies of the weights",
                root_.where(),
                key);
  }
  if (saved && saved->size() == 0) saved.reset();
  if (saved && layout.many_parts && *to_.averages == EmaKind::diffusers &&
      saved->size() != to_.parts.size()) {
    throw DataError("{}: expected the averages of {} {}s, got {}",
                    saved->where(),
                    to_.parts.size(),
                    to_.part_noun,
                    saved->size());
  }
  for (size_t i = 0; i < to_.parts.size(); ++i) {
    if (!to_.parts[i]) continue;
    WeightAverage& average = *to_.parts[i]->average;
    if (saved) {
      average.read(*saved, i, layout, strict_);
    } else {
      average.begin_anew();
    }
  }
}

void TrainStateReader::post_hoc_averages(const std::string& key) {
  const auto saved = only_model_ ? std::nullopt : root_.find(key);
  for (size_t i = 0; i < to_.parts.size(); ++i) {
    if (!to_.parts[i] || !to_.parts[i]->post_hoc) continue;
    if (saved && i < saved->size() && !saved->at(i).is_none()) {
      to_.parts[i]->post_hoc->load_state(saved->at(i));
    } else {
      to_.parts[i]->post_hoc->begin_anew();
    }
  }
}

void TrainStateReader::scaler(const std::string& key, size_t i) {
  const auto& part = to_.parts[i];
  if (only_model_ || !part || !part->scaler) return;
  if (const auto saved = root_.find(key)) return load_scaler_state(*saved, *part->scaler);
  const double initial = part->scaler->options().init_scale;
  log_info("ckpt",
           "{}: no loss scale '{}' (it was not made with fp16): it begins with {}",
           root_.where(),
           key,
           initial);
  part->scaler->set_state(initial, 0);
}

void TrainStateReader::skipped(const std::string& key, bool /*flat: both forms are read*/) {
  if (only_model_) return;
  const auto saved = root_.find(key);
  const auto count = static_cast<int64_t>(to_.parts.size());
  const at::Tensor counts = saved ? saved->as_tensor().to(at::kCPU, at::kLong).flatten()
                                  : at::zeros({count * 2}, at::kLong);
  if (counts.numel() != count * 2) {
    throw DataError("{}: expected the skipped updates of {} {}s, [{}, 2], got {}",
                    saved->where(),
                    count,
                    to_.part_noun,
                    count,
                    c10::str(saved->as_tensor().sizes()));
  }
  for (int64_t i = 0; i < count; ++i) {
    if (const auto& part = to_.parts[static_cast<size_t>(i)]) {
      part->skipped = {counts[2 * i].item<int64_t>(), counts[2 * i + 1].item<int64_t>()};
    }
  }
}

}  // namespace dalle2
