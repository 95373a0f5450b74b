// SPDX-License-Identifier: MIT
// A WeightAverage in a checkpoint: ema-pytorch's layout and diffusers'.
#include <torch/torch.h>

#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/value_json.h"
#include "trainer/averages/weight_average.h"

namespace dalle2 {
namespace {

constexpr const char* kShadows = "shadow_params";

void add_counters(Dict& all, const std::string& prefix, bool initted, int64_t step) {
  all.set(prefix + "initted", at::full({}, initted, at::kBool));
  all.set(prefix + "step", at::full({}, step, at::kLong));
}

void append(Dict& all, const StateDict& part) {
  for (const auto& [name, tensor] : part) all.items.emplace_back(Value(name), Value(tensor));
}

/// ema_pytorch keeps a bool; a file of other hands may have a number.
bool truth_of(const Cursor& entry) {
  const Value& value = entry.value();
  const bool is_bool =
      value.is_bool() || (value.is_tensor() && entry.as_tensor().scalar_type() == at::kBool);
  return is_bool ? entry.as_bool() : entry.as_double() != 0.0;
}

void check(bool good, const Cursor& place, const char* upstream_text) {
  if (!good)
    throw DataError("{}: {}: got {}", place.where(), upstream_text, describe(place.value()));
}

bool is_number(const Value& value) {
  return value.is_double() || value.is_int();
}

/// What EMAModel asks of an entry of its state.
struct EntryCheck {
  const char* key;
  bool (*fits)(const Value& value);
  const char* upstream_text;
};
constexpr const char* kStep = "optimization_step";
constexpr auto kIsInt = [](const Value& value) { return value.is_int(); };
constexpr std::array<EntryCheck, 7> kChecks = {{
    {"decay",
     [](const Value& value) {
       return is_number(value) && value.as_double() >= 0.0 && value.as_double() <= 1.0;
     },
     "Decay must be between 0 and 1"},
    {"min_decay", [](const Value& value) { return value.is_double(); }, "Invalid min_decay"},
    {kStep, kIsInt, "Invalid optimization_step"},
    {"update_after_step", kIsInt, "Invalid update_after_step"},
    {"use_ema_warmup",
     [](const Value& value) { return value.is_bool(); },
     "Invalid use_ema_warmup"},
    {"inv_gamma", is_number, "Invalid inv_gamma"},
    {"power", is_number, "Invalid power"},
}};

/// The entries of EMAModel's state before its averages.
Dict options_and_step(const EmaConfig& options, int64_t step) {
  Dict out;
  out.set("decay", options.decay);
  out.set("min_decay", options.min_decay);
  out.set(kStep, step);
  out.set("update_after_step", options.update_after_step);
  out.set("use_ema_warmup", options.use_ema_warmup);
  out.set("inv_gamma", options.inv_gamma);
  out.set("power", options.power);
  return out;
}

double number_of(const Value& value) {
  return value.is_bool() ? static_cast<double>(value.as_bool()) : value.as_double();
}

/// The saved averages, one a parameter; none if the state has none.
std::vector<at::Tensor> shadows_of(const Cursor& state, const std::vector<FlatEntry>& parameters) {
  const auto saved = state.find(kShadows);
  if (!saved || saved->is_none()) return {};
  check(saved->value().is_list(), *saved, "shadow_params must be a list");
  std::vector<at::Tensor> shadows;
  for (size_t i = 0; i < saved->size(); ++i) {
    check(saved->at(i).value().is_tensor(), saved->at(i), "shadow_params must all be Tensors");
    shadows.push_back(saved->at(i).as_tensor());
  }
  if (shadows.size() != parameters.size()) {
    throw DataError("{}: expected the averages of {} parameters, got {}",
                    saved->where(),
                    parameters.size(),
                    shadows.size());
  }
  for (size_t i = 0; i < shadows.size(); ++i) {
    if (shadows[i].sizes() == parameters[i].tensor.sizes()) continue;
    throw DataError("{}: expected shape {}, got {}",
                    saved->at(i).where(),
                    c10::str(parameters[i].tensor.sizes()),
                    c10::str(shadows[i].sizes()));
  }
  return shadows;
}

}  // namespace

void WeightAverage::write_untrained(Dict& all, const std::string& prefix) {
  add_counters(all, prefix, /*initted=*/false, /*step=*/0);
}

/// Names of the parameters that are not averaged: the frozen ones.
std::unordered_set<std::string> WeightAverage::frozen_names() const {
  std::unordered_set<const void*> averaged;
  for (const FlatEntry& entry : online_.parameters())
    averaged.insert(entry.tensor.unsafeGetTensorImpl());
  std::unordered_set<std::string> frozen;
  for (const auto& item : network_.named_parameters()) {
    if (!averaged.contains(item.value().unsafeGetTensorImpl())) frozen.insert(item.key());
  }
  return frozen;
}

/// The entries of the model below `prefix`: those of the network as it is now, without what is frozen
/// (the model has that already), and the rest of the model.
StateDict WeightAverage::model_with_network(const AverageLayout& layout,
                                            const std::string& prefix) const {
  StateDict all;
  if (layout.rest) {
    for (auto& [name, tensor] : layout.rest()) all.emplace_back(prefix + name, tensor);
  }
  const auto frozen = frozen_names();
  for (auto& [name, tensor] : state_dict(network_)) {
    if (!frozen.contains(name)) all.emplace_back(prefix + layout.network_prefix + name, tensor);
  }
  return all;
}

StateDict WeightAverage::averaged_model(const AverageLayout& layout) const {
  const InPlace in_place(*this);
  return model_with_network(layout, "");
}

void WeightAverage::write_ema_pytorch(Dict& all,
                                      const std::string& prefix,
                                      const AverageLayout& layout) const {
  add_counters(all, prefix, rule_->initted(), rule_->step());
  append(all, model_with_network(layout, prefix + "online_model."));
  const InPlace in_place(*this);
  append(all, model_with_network(layout, prefix + "ema_model."));
}

void WeightAverage::read_ema_pytorch(const Cursor& all,
                                     const std::string& prefix,
                                     const AverageLayout& layout,
                                     bool strict) {
  const torch::NoGradGuard no_grad;
  const std::string network_prefix = prefix + "ema_model." + layout.network_prefix;
  StateDict tensors = all.as_state_dict();
  const auto frozen = frozen_names();
  for (auto& [name, tensor] : state_dict(network_)) {
    if (frozen.contains(name)) tensors.emplace_back(network_prefix + name, tensor);
  }
  if (!is_resident()) set_whole(online_.values().clone());  // which the next line lets go again
  const InPlace in_place(*this);
  warn_of_rest(load_state_dict(network_, tensors, network_prefix, strict, all.where()),
               all.where());
  if (!is_resident()) average_.copy_(kept_.of(whole_));
  rule_->set_counters(truth_of(all.at(prefix + "initted")), all.at(prefix + "step").as_int());
}

Dict WeightAverage::diffusers_state() const {
  Dict out = options_and_step(config_.ema, rule_->step());
  const at::Tensor& values = shards_ == nullptr ? this->values() : checked_held().whole_;
  List shadows, names;
  for (const FlatEntry& entry : online_.parameters()) {
    shadows.items.emplace_back(entry.of(values));
    names.items.emplace_back(entry.name);
  }
  out.set(kShadows, std::move(shadows));
  out.set("parameter_names", std::move(names));
  return out;
}

void WeightAverage::read_diffusers(const Cursor& saved) {
  const torch::NoGradGuard no_grad;
  if (saved.is_none()) return begin_anew();
  const Dict ours = options_and_step(config_.ema, rule_->step());
  bool same_options = true;
  for (const EntryCheck& each : kChecks) {
    const auto entry = saved.find(each.key);
    if (!entry) continue;
    check(each.fits(entry->value()), *entry, each.upstream_text);
    if (std::string_view(each.key) != kStep)
      same_options &= number_of(entry->value()) == number_of(*ours.find(each.key));
  }
  const std::vector<at::Tensor> shadows = shadows_of(saved, online_.parameters());
  for (size_t i = 0; i < shadows.size(); ++i) {
    const FlatEntry& entry = online_.parameters()[i];
    copy_into_slice(values(), kept_, entry.offset, entry.flattened(shadows[i]));
  }
  if (const auto step = saved.find(kStep)) rule_->set_counters(/*initted=*/false, step->as_int());
  if (same_options) return;
  const auto decay = saved.find("decay");
  log_info("ckpt",
           "{}: averaged with other options (decay {}); continues with /train/ema (decay {})",
           saved.where(),
           decay ? decay->as_double() : config_.ema.decay,
           config_.ema.decay);
}

}  // namespace dalle2
