// SPDX-License-Identifier: MIT
// Saving and loading of a PriorTrainer.
#include <torch/torch.h>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "checkpoint/lora_weights.h"
#include "checkpoint/module_state.h"
#include "trainer/averaged_network.h"
#include "trainer/optimizer_state.h"
#include "trainer/prior_trainer_state.h"
#include "trainer/scaler_state.h"

namespace dalle2 {
namespace {

using Extras = std::vector<std::pair<std::string, Value>>;

constexpr const char* kNet = "net.";

/// The one list of what a checkpoint holds, in the order of the reference. Writer and Reader go
/// through it.
template <class Visitor>
void visit_state(PriorTrainerState& state, Visitor& visitor) {
  visitor.optimizer("optimizer");
  visitor.schedule("scheduler");
  visitor.warmup("warmup_scheduler");
  visitor.model("model");
  visitor.version("version");
  visitor.steps("step");
  visitor.extras();
  if (state.config.use_ema && state.config.ema.kind == EmaKind::ema_pytorch) {
    visitor.average("ema", "ema_model");
  }
  if (state.config.use_ema && state.config.ema.kind == EmaKind::diffusers) {
    visitor.diffusers_average("ema_diffusers");
  }
  if (state.lora) visitor.lora("lora");
  visitor.scaler("scaler");
  visitor.skipped("skipped_updates");
}

EmaPytorchAverage& ema_pytorch_of(const PriorTrainerState& state) {
  return static_cast<EmaPytorchAverage&>(*state.trained->average);
}

DiffusersAverage& diffusers_of(const PriorTrainerState& state) {
  return static_cast<DiffusersAverage&>(*state.trained->average);
}

/// The prior's state dict with `network` as its network, names below `prefix`; with adapters only
/// what of it is averaged.
StateDict prior_with(const PriorTrainerState& state,
                     const torch::nn::Module& network,
                     const std::string& prefix) {
  StateDict all;
  if (!state.lora) {
    for (const auto& [name, tensor] : state_dict(*state.prior)) {
      if (!name.starts_with(kNet)) all.emplace_back(prefix + name, tensor);
    }
  }
  for (const auto& [name, tensor] : averaged_state(network, state.trained->parameters)) {
    all.emplace_back(prefix + kNet + name, tensor);
  }
  return all;
}

class Writer {
 public:
  Writer(const PriorTrainerState& state, const Extras& extras) : state_(state), extras_(extras) {}

  void optimizer(const char* key) {
    out.set(key, optimizer_state(trained().optimizer, trained().schedule, state_.steps));
  }
  void schedule(const char* key) {
    const size_t groups = trained().optimizer.groups().size();
    out.set(key, schedule_state(trained().schedule, groups, state_.steps));
  }
  /// A note for people: the rate follows from the step count.
  void warmup(const char* key) {
    if (!state_.config.warmup_steps) return out.set(key, Value());
    Dict warmup;
    warmup.set("warmup_period", *state_.config.warmup_steps);
    warmup.set("last_step", state_.steps);
    out.set(key, std::move(warmup));
  }
  void model(const char* key) { out.set(key, to_dict(state_dict(*state_.prior))); }
  void version(const char* key) { out.set(key, kCheckpointLayoutVersion); }
  void steps(const char* key) { out.set(key, at::full({1}, state_.steps, at::kLong)); }
  void extras() {
    for (const auto& [key, value] : extras_) out.set(key, value);
  }
  void average(const char* key, const char* model_key) {
    const EmaPytorchAverage& average = ema_pytorch_of(state_);
    StateDict all = {{"initted", at::full({}, average.ema.initted(), at::kBool)},
                     {"step", at::full({}, average.ema.step(), at::kLong)}};
    for (const auto& part : {prior_with(state_, *state_.prior->net(), "online_model."),
                             prior_with(state_, *average.network(), "ema_model.")}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    out.set(key, to_dict(all));
    out.set(model_key, to_dict(prior_with(state_, *average.network(), "")));
  }
  void diffusers_average(const char* key) { out.set(key, diffusers_of(state_).state()); }
  void lora(const char* key) { out.set(key, to_dict(*state_.lora)); }
  void scaler(const char* key) {
    if (trained().scaler) out.set(key, scaler_state(*trained().scaler));
  }
  /// [2] int64: in all and in a row; left out where no update was skipped.
  void skipped(const char* key) {
    const SkippedUpdates& skipped = trained().skipped;
    if (skipped == SkippedUpdates{}) return;
    out.set(key, at::tensor({skipped.total, skipped.in_a_row}, at::kLong));
  }

  Dict out;

 private:
  const TrainedNetwork& trained() const { return *state_.trained; }

  const PriorTrainerState& state_;
  const Extras& extras_;
};

class Reader {
 public:
  Reader(PriorTrainerState& state, const Cursor& root, bool only_model, bool strict)
      : state_(state), root_(root), only_model_(only_model), strict_(strict) {}

  void optimizer(const char* key) {
    if (only_model_) return;
    load_optimizer_state(
        root_.at(key), trained().parameters, trained().schedule, trained().optimizer);
  }
  // The rate is a function of the step count and the config: nothing to take up.
  void schedule(const char* /*key*/) {}
  void warmup(const char* /*key*/) {}

  void model(const char* key) {
    warn_of_rest(load_state_dict(*state_.prior, root_.at(key), "", strict_), root_.at(key).where());
  }
  void version(const char* key) {
    const auto version = root_.find(key);
    const std::string theirs =
        version && version->value().is_string() ? version->as_string() : "unknown";
    if (theirs == kCheckpointLayoutVersion) return;
    log_info("ckpt",
             "loading a prior saved at version {}; the layout here is that of version {}",
             theirs,
             kCheckpointLayoutVersion);
  }
  void steps(const char* key) {
    const at::Tensor saved = root_.at(key).as_tensor();
    if (saved.numel() != 1) {
      throw DataError("{}: expected one step count, got {}", root_.at(key).where(), saved.numel());
    }
    state_.steps = saved.item<int64_t>();
  }
  void extras() {}  // the caller's: the trainer has no use for them

  void average(const char* key, const char* /*model_key: the same weights again*/) {
    EmaPytorchAverage& average = ema_pytorch_of(state_);
    const auto saved = only_model_ ? std::nullopt : find_averages(root_, key);
    if (!saved) return average.begin_anew();
    load_averaged_state(*average.network(),
                        trained().parameters,
                        saved->as_state_dict(),
                        std::string("ema_model.") + kNet,
                        strict_,
                        *saved);
    average.ema.set_counters(saved->at("initted").as_double() != 0.0, saved->at("step").as_int());
  }
  void diffusers_average(const char* key) {
    DiffusersAverage& average = diffusers_of(state_);
    const auto saved = only_model_ ? std::nullopt : find_averages(root_, key);
    if (!saved) return average.begin_anew();
    average.load_state(*saved);
  }
  void lora(const char* key) {
    const LoraInfo saved = lora_info_of(root_.at(key));
    if (saved.alpha == state_.lora->alpha) return;
    log_info("ckpt",
             "{}: saved with an alpha of {}; this run goes on with its own /train/lora/alpha = {}",
             root_.at(key).where(),
             saved.alpha,
             state_.lora->alpha);
  }
  void scaler(const char* key) {
    if (only_model_ || !trained().scaler) return;
    GradScaler& scaler = *trained().scaler;
    if (const auto saved = root_.find(key)) return load_scaler_state(*saved, scaler);
    log_info("ckpt",
             "{}: no loss scale '{}' (it was not made with fp16): it begins with {}",
             root_.where(),
             key,
             scaler.options().init_scale);
    scaler.set_state(scaler.options().init_scale, 0);
  }
  void skipped(const char* key) {
    if (only_model_) return;
    trained().skipped = {};
    const auto saved = root_.find(key);
    if (!saved) return;
    const at::Tensor counts = saved->as_tensor().to(at::kCPU, at::kLong).flatten();
    if (counts.numel() != 2) {
      throw DataError("{}: expected two counts, got {}", saved->where(), counts.numel());
    }
    trained().skipped = {counts[0].item<int64_t>(), counts[1].item<int64_t>()};
  }

 private:
  TrainedNetwork& trained() { return *state_.trained; }

  PriorTrainerState& state_;
  Cursor root_;
  bool only_model_, strict_;
};

}  // namespace

Dict PriorTrainer::state(const Extras& extras) const {
  const torch::NoGradGuard no_grad;
  state_->settle();
  Writer writer(*state_, extras);
  visit_state(*state_, writer);
  return std::move(writer.out);
}

Dict PriorTrainer::model_state(const Extras& extras) const {
  Dict out;
  out.set("version", kCheckpointLayoutVersion);
  for (const auto& [key, value] : extras) out.set(key, value);
  state_->settle();
  const torch::NoGradGuard no_grad;
  const AverageInPlace average(*state_);
  StateDict weights = state_dict(*state_->prior);
  if (state_->lora) weights = merged_lora(weights, state_->lora->alpha, "the prior");
  out.set("model", to_dict(weights));
  return out;
}

void PriorTrainer::load_state(const Value& checkpoint,
                              bool only_model,
                              bool strict,
                              const std::string& file) {
  const torch::NoGradGuard no_grad;
  state_->settle();
  const Cursor root(checkpoint, file);
  if (!state_->lora && has_lora(root)) {
    throw DataError(
        "{}holds adapters, and this run has none: set /train/lora as the run had it that made the "
        "file, or make plain weights of it: dalle2-train convert --merge-lora IN OUT",
        file.empty() ? "" : file + ": ");
  }
  Reader reader(*state_, root, only_model, strict);
  visit_state(*state_, reader);
}

std::optional<LoraFile> PriorTrainer::lora_state() const {
  if (!state_->lora) return std::nullopt;
  const torch::NoGradGuard no_grad;
  state_->settle();
  LoraFile file;
  file.info = *state_->lora;
  const AverageInPlace average(*state_);
  const StateDict all = state_dict(*state_->prior);
  for (const std::string& name : state_->trained->parameters.names()) {
    file.tensors.emplace_back(kNet + name, *find_tensor(all, kNet + name));
  }
  return file;
}

void PriorTrainer::load_base(const StateDict& weights, const std::string& file) {
  D2_CHECK(state_->lora.has_value(), "a base is what adapters stand on");
  const torch::NoGradGuard no_grad;
  StateDict all = weights;
  for (auto& adapter : lora_state_dict(*state_->prior)) all.push_back(std::move(adapter));
  load_state_dict(*state_->prior, all, "", /*strict=*/true, file);
  if (state_->trained->average) state_->trained->average->begin_anew();
  log_info("ckpt",
           "{}: the weights of the network, without adapters: the {} adapters of /train/lora start "
           "afresh, and so does the run",
           file,
           count_lora_adapters(*state_->prior));
}

}  // namespace dalle2
