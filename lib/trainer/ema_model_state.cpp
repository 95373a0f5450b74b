// SPDX-License-Identifier: MIT
#include "trainer/ema_model_state.h"

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/value_json.h"

namespace dalle2 {
namespace {

constexpr const char* kShadows = "shadow_params";

/// @throws DataError unless `good`
void check(bool good, const Cursor& place, const char* upstream_text) {
  if (!good) {
    throw DataError("{}: {}: got {}", place.where(), upstream_text, describe(place.value()));
  }
}

bool is_number(const Value& value) {
  return value.is_double() || value.is_int();
}

/// Reads `key` into `member`, where it is there.
template <class T, class Is>
void take(const Cursor& saved, const char* key, Is is, const char* upstream_text, T& member) {
  const auto entry = saved.find(key);
  if (!entry) {
    return;
  }
  check(is(entry->value()), *entry, upstream_text);
  if constexpr (std::is_same_v<T, bool>) {
    member = entry->as_bool();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    member = entry->as_int();
  } else {
    member = entry->as_double();
  }
}

std::vector<at::Tensor> shadows_of(const Cursor& saved, const std::vector<at::Tensor>& current) {
  check(saved.value().is_list(), saved, "shadow_params must be a list");
  std::vector<at::Tensor> shadows;
  for (size_t i = 0; i < saved.size(); ++i) {
    check(saved.at(i).value().is_tensor(), saved.at(i), "shadow_params must all be Tensors");
    shadows.push_back(saved.at(i).as_tensor());
  }
  if (shadows.size() != current.size()) {
    throw DataError("{}: expected the averages of {} parameters, got {}",
                    saved.where(),
                    current.size(),
                    shadows.size());
  }
  for (size_t i = 0; i < shadows.size(); ++i) {
    if (shadows[i].sizes() != current[i].sizes()) {
      throw DataError("{}: expected shape {}, got {}",
                      saved.at(i).where(),
                      c10::str(current[i].sizes()),
                      c10::str(shadows[i].sizes()));
    }
    shadows[i] = shadows[i].to(current[i].device());
  }
  return shadows;
}

}  // namespace

Dict ema_model_state(const EmaModel& average) {
  return ema_model_state(average, average.shadow_params());
}

Dict ema_model_state(const EmaModel& average, const std::vector<at::Tensor>& shadows) {
  const EmaModelOptions& options = average.options();
  Dict out;
  out.set("decay", options.decay);
  out.set("min_decay", options.min_decay);
  out.set("optimization_step", average.optimization_step());
  out.set("update_after_step", options.update_after_step);
  out.set("use_ema_warmup", options.use_ema_warmup);
  out.set("inv_gamma", options.inv_gamma);
  out.set("power", options.power);
  List list;
  for (const at::Tensor& shadow : shadows) {
    list.items.emplace_back(shadow);
  }
  out.set(kShadows, std::move(list));
  return out;
}

void load_ema_model_state(const Cursor& saved, EmaModel& average) {
  const auto is_int = [](const Value& value) { return value.is_int(); };
  const auto is_share = [](const Value& value) {
    return is_number(value) && value.as_double() >= 0.0 && value.as_double() <= 1.0;
  };
  EmaModelOptions options = average.options();
  int64_t step = average.optimization_step();
  take(saved, "decay", is_share, "Decay must be between 0 and 1", options.decay);
  take(
      saved,
      "min_decay",
      [](const Value& value) { return value.is_double(); },
      "Invalid min_decay",
      options.min_decay);
  take(saved, "optimization_step", is_int, "Invalid optimization_step", step);
  take(saved, "update_after_step", is_int, "Invalid update_after_step", options.update_after_step);
  take(
      saved,
      "use_ema_warmup",
      [](const Value& value) { return value.is_bool(); },
      "Invalid use_ema_warmup",
      options.use_ema_warmup);
  take(saved, "inv_gamma", is_number, "Invalid inv_gamma", options.inv_gamma);
  take(saved, "power", is_number, "Invalid power", options.power);
  std::optional<std::vector<at::Tensor>> shadows;
  if (const auto list = saved.find(kShadows); list && !list->is_none()) {
    shadows = shadows_of(*list, average.shadow_params());
  }
  average.set_state(options, step, shadows);
}

}  // namespace dalle2
