// SPDX-License-Identifier: MIT
// Saving and loading of a DecoderTrainer.
#include <torch/torch.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "checkpoint/lora_weights.h"
#include "checkpoint/module_state.h"
#include "trainer/averaged_network.h"
#include "trainer/averages_state.h"
#include "trainer/decoder_trainer_state.h"
#include "trainer/optimizer_state.h"
#include "trainer/scaler_state.h"

namespace dalle2 {
namespace {

using Extras = std::vector<std::pair<std::string, Value>>;

/// The one list of what a checkpoint holds, in the order of the reference. Writer and Reader go
/// through it.
template <class Visitor>
void visit_state(DecoderTrainerState& state, Visitor& visitor) {
  visitor.model("model", state.decoder);
  visitor.version("version");
  visitor.steps("steps", state.steps);
  if (state.lora) visitor.lora("lora", *state.lora);
  visitor.extras();
  for (size_t i = 0; i < state.unets.size(); ++i) {
    visitor.optimizer("optim" + std::to_string(i), state.unets[i].get(), state.steps[i]);
    visitor.schedule("sched" + std::to_string(i), state.unets[i].get(), state.steps[i]);
  }
  if (state.use_ema && state.ema_kind == EmaKind::ema_pytorch) {
    visitor.averages("ema", state.unets);
  }
  if (state.use_ema && state.ema_kind == EmaKind::diffusers) {
    visitor.diffusers_averages("ema_diffusers", state.unets);
  }
  visitor.post_hoc_averages("post_hoc_ema", state.unets);
  for (size_t i = 0; i < state.unets.size(); ++i) {
    visitor.scaler("scaler" + std::to_string(i), state.unets[i].get());
  }
  visitor.skipped("skipped_updates", state.unets);
}

class Writer {
 public:
  explicit Writer(const Extras& extras) : extras_(extras) {}

  void model(const char* key, Decoder& decoder) { out.set(key, to_dict(state_dict(*decoder))); }
  void lora(const char* key, const LoraInfo& info) { out.set(key, to_dict(info)); }
  void version(const char* key) { out.set(key, kCheckpointLayoutVersion); }
  void steps(const char* key, const std::vector<int64_t>& steps) {
    out.set(key, at::tensor(steps, at::kLong));
  }
  void extras() {
    for (const auto& [key, value] : extras_) {
      out.set(key, value);
    }
  }
  void optimizer(const std::string& key, const TrainedUnet* unet, int64_t steps) {
    out.set(key, unet ? Value(optimizer_state(unet->optimizer, unet->schedule, steps)) : Value());
  }
  void schedule(const std::string& key, const TrainedUnet* unet, int64_t steps) {
    out.set(key,
            unet ? Value(schedule_state(unet->schedule, unet->optimizer.groups().size(), steps))
                 : Value());
  }
  void averages(const char* key, const TrainedUnets& unets) {
    out.set(key, ema_pytorch_state(unets));
  }
  void diffusers_averages(const char* key, const TrainedUnets& unets) {
    out.set(key, diffusers_averages_state(unets));
  }
  /// No entry where no unet has any.
  void post_hoc_averages(const char* key, const TrainedUnets& unets) {
    if (std::optional<List> all = post_hoc_averages_state(unets)) out.set(key, std::move(*all));
  }
  void scaler(const std::string& key, const TrainedUnet* unet) {
    if (unet && unet->scaler) out.set(key, scaler_state(*unet->scaler));
  }
  /// [unets, 2] int64: in all and in a row; left out where no update was skipped.
  void skipped(const char* key, const TrainedUnets& unets) {
    std::vector<int64_t> counts;
    for (const auto& unet : unets) {
      const SkippedUpdates skipped = unet ? unet->skipped : SkippedUpdates{};
      counts.insert(counts.end(), {skipped.total, skipped.in_a_row});
    }
    if (std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n != 0; })) {
      out.set(key, at::tensor(counts, at::kLong).view({-1, 2}));
    }
  }

  Dict out;

 private:
  const Extras& extras_;
};

class Reader {
 public:
  Reader(const Cursor& root, bool only_model, bool strict)
      : root_(root), only_model_(only_model), strict_(strict) {}

  void model(const char* key, Decoder& decoder) {
    warn_of_rest(load_state_dict(*decoder, root_.at(key), "", strict_), root_.at(key).where());
  }

  void lora(const char* key, const LoraInfo& info) {
    const LoraInfo saved = lora_info_of(root_.at(key));
    if (saved.alpha == info.alpha) return;
    log_info("ckpt",
             "{}: saved with an alpha of {}; this run goes on with its own /train/lora/alpha = {}",
             root_.at(key).where(),
             saved.alpha,
             info.alpha);
  }

  void version(const char* key) {
    const auto version = root_.find(key);
    const std::string theirs =
        version && version->value().is_string() ? version->as_string() : "unknown";
    if (theirs != kCheckpointLayoutVersion) {
      log_info("ckpt",
               "loading a decoder saved at version {}; the layout here is that of version {}",
               theirs,
               kCheckpointLayoutVersion);
    }
  }

  void steps(const char* key, std::vector<int64_t>& steps) {
    const at::Tensor saved = root_.at(key).as_tensor().to(at::kCPU, at::kLong).flatten();
    if (saved.numel() != static_cast<int64_t>(steps.size())) {
      throw DataError("{}: expected step counts of {} unets, got {}",
                      root_.at(key).where(),
                      steps.size(),
                      saved.numel());
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i] = saved[static_cast<int64_t>(i)].item<int64_t>();
    }
  }

  void extras() {}  // the caller's: the trainer has no use for them

  void optimizer(const std::string& key, TrainedUnet* unet, int64_t /*steps*/) {
    if (only_model_ || !unet) {
      return;
    }
    const Cursor saved = root_.at(key);
    if (saved.is_none()) {
      throw DataError(
          "{}: this stage was not trained when the checkpoint was made, but is now; train it on "
          "with the same /train/unet_training_mask, or load the weights alone",
          saved.where());
    }
    load_optimizer_state(saved, unet->parameters, unet->schedule, unet->optimizer);
  }

  // A schedule is a function of the step count and the config: nothing to take up.
  void schedule(const std::string& /*key*/, TrainedUnet* /*unet*/, int64_t /*steps*/) {}

  void averages(const char* key, TrainedUnets& unets) {
    load_ema_pytorch_state(averages_at(key), strict_, unets);
  }

  void diffusers_averages(const char* key, TrainedUnets& unets) {
    load_diffusers_averages_state(averages_at(key), unets);
  }

  void post_hoc_averages(const char* key, TrainedUnets& unets) {
    load_post_hoc_averages_state(only_model_ ? std::nullopt : root_.find(key), unets);
  }

  void scaler(const std::string& key, TrainedUnet* unet) {
    if (only_model_ || !unet || !unet->scaler) {
      return;
    }
    if (const auto saved = root_.find(key)) {
      load_scaler_state(*saved, *unet->scaler);
    } else {
      log_info("ckpt",
               "{}: no loss scale '{}' (it was not made with fp16): it begins with {}",
               root_.where(),
               key,
               unet->scaler->options().init_scale);
      unet->scaler->set_state(unet->scaler->options().init_scale, 0);
    }
  }

  void skipped(const char* key, TrainedUnets& unets) {
    const auto saved = only_model_ ? std::nullopt : root_.find(key);
    const auto count = static_cast<int64_t>(unets.size());
    const at::Tensor counts =
        saved ? saved->as_tensor().to(at::kCPU, at::kLong) : at::zeros({count, 2}, at::kLong);
    if (counts.sizes() != at::IntArrayRef({count, 2})) {
      throw DataError("{}: expected the skipped updates of {} unets, [{}, 2], got {}",
                      saved->where(),
                      count,
                      count,
                      c10::str(counts.sizes()));
    }
    for (int64_t i = 0; i < count; ++i) {
      if (const auto& unet = unets[static_cast<size_t>(i)]) {
        unet->skipped = {counts[i][0].item<int64_t>(), counts[i][1].item<int64_t>()};
      }
    }
  }

 private:
  /// The entry of the averages; none where they are to begin anew.
  std::optional<Cursor> averages_at(const char* key) const {
    return only_model_ ? std::nullopt : find_averages(root_, key);
  }

  Cursor root_;
  bool only_model_, strict_;
};

}  // namespace

Dict DecoderTrainer::state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  state_->settle_all();
  Writer writer(extras);
  visit_state(*state_, writer);
  return std::move(writer.out);
}

Dict DecoderTrainer::model_state(const Extras& extras) const {
  Dict out;
  out.set("version", kCheckpointLayoutVersion);
  for (const auto& [key, value] : extras) {
    out.set(key, value);
  }
  state_->settle_all();
  const torch::NoGradGuard no_grad;
  const AveragesInPlace averages(state_->decoder, state_->unets);
  StateDict weights = state_dict(*state_->decoder);
  if (state_->lora) weights = merged_lora(weights, state_->lora->alpha, "the decoder");
  out.set("model", to_dict(weights));
  return out;
}

Dict DecoderTrainer::post_hoc_state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  state_->settle_all();
  Writer writer(extras);
  writer.version("version");
  if (state_->lora) writer.lora("lora", *state_->lora);
  writer.extras();
  writer.post_hoc_averages("post_hoc_ema", state_->unets);
  StateDict rest;
  for (const auto& [name, tensor] : state_dict(*state_->decoder)) {
    if (!has_post_hoc_average(name, state_->unets)) {
      rest.emplace_back(name, tensor);
    }
  }
  writer.out.set("model", to_dict(rest));
  return std::move(writer.out);
}

void DecoderTrainer::load_state(const Value& checkpoint,
                                bool only_model,
                                bool strict,
                                const std::string& file) {
  const torch::NoGradGuard no_grad;
  state_->settle_all();
  const Cursor root(checkpoint, file);
  if (!state_->lora && has_lora(root)) {
    throw DataError(
        "{}holds adapters, and this run has none: set /train/lora as the run had it that made the "
        "file, or make plain weights of it: dalle2-train convert --merge-lora IN OUT",
        file.empty() ? "" : file + ": ");
  }
  Reader reader(root, only_model, strict);
  visit_state(*state_, reader);
}

}  // namespace dalle2
