// SPDX-License-Identifier: MIT
#include "trainer/averages_state.h"

#include <torch/torch.h>

#include "base/error.h"
#include "checkpoint/module_state.h"
#include "trainer/averaged_network.h"

namespace dalle2 {
namespace {

EmaPytorchAverage& ema_pytorch_of(const TrainedUnet& unet) {
  return static_cast<EmaPytorchAverage&>(*unet.average);
}

DiffusersAverage& diffusers_of(const TrainedUnet& unet) {
  return static_cast<DiffusersAverage&>(*unet.average);
}

void append(StateDict& all, const std::string& prefix, const StateDict& part) {
  for (const auto& [name, tensor] : part) {
    all.emplace_back(prefix + name, tensor);
  }
}

}  // namespace

bool has_post_hoc_average(const std::string& name, const TrainedUnets& unets) {
  for (size_t i = 0; i < unets.size(); ++i) {
    const std::string prefix = "unets." + std::to_string(i) + ".";
    if (!unets[i] || !unets[i]->post_hoc || !name.starts_with(prefix)) {
      continue;
    }
    const FlatParameters& flat = unets[i]->parameters;
    for (const auto* entries : {&flat.parameters(), &flat.buffers()}) {
      for (const FlatEntry& entry : *entries) {
        if (name.compare(prefix.size(), std::string::npos, entry.name) == 0) {
          return true;
        }
      }
    }
  }
  return false;
}

Dict ema_pytorch_state(const TrainedUnets& unets) {
  StateDict all;
  for (size_t i = 0; i < unets.size(); ++i) {
    const std::string prefix = std::to_string(i) + ".";
    const bool initted = unets[i] && ema_pytorch_of(*unets[i]).ema.initted();
    const int64_t step = unets[i] ? ema_pytorch_of(*unets[i]).ema.step() : 0;
    all.emplace_back(prefix + "initted", at::full({}, initted, at::kBool));
    all.emplace_back(prefix + "step", at::full({}, step, at::kLong));
    if (unets[i]) {
      const FlatParameters& averaged = unets[i]->parameters;
      append(all, prefix + "online_model.", averaged_state(*unets[i]->unet, averaged));
      append(all, prefix + "ema_model.", averaged_state(*unets[i]->average->network(), averaged));
    }
  }
  return to_dict(all);
}
List diffusers_averages_state(const TrainedUnets& unets) {
  List all;
  for (const auto& unet : unets) {
    all.items.push_back(unet ? Value(diffusers_of(*unet).state()) : Value());
  }
  return all;
}

std::optional<List> post_hoc_averages_state(const TrainedUnets& unets) {
  List all;
  bool any = false;
  for (const auto& unet : unets) {
    any = any || (unet && unet->post_hoc);
    all.items.push_back(unet && unet->post_hoc ? Value(unet->post_hoc->state()) : Value());
  }
  return any ? std::optional(std::move(all)) : std::nullopt;
}

void load_ema_pytorch_state(const std::optional<Cursor>& saved, bool strict, TrainedUnets& unets) {
  const StateDict tensors = saved ? saved->as_state_dict() : StateDict();
  for (size_t i = 0; i < unets.size(); ++i) {
    if (!unets[i]) {
      continue;
    }
    EmaPytorchAverage& average = ema_pytorch_of(*unets[i]);
    if (tensors.empty()) {
      average.begin_anew();
      continue;
    }
    const std::string prefix = std::to_string(i) + ".";
    const std::string from = prefix + "ema_model.";
    load_averaged_state(*average.network(), unets[i]->parameters, tensors, from, strict, *saved);
    average.ema.set_counters(saved->at(prefix + "initted").as_double() != 0.0,
                             saved->at(prefix + "step").as_int());
  }
}

void load_diffusers_averages_state(const std::optional<Cursor>& saved, TrainedUnets& unets) {
  if (saved && saved->size() != unets.size()) {
    throw DataError("{}: expected the averages of {} unets, got {}",
                    saved->where(),
                    unets.size(),
                    saved->size());
  }
  for (size_t i = 0; i < unets.size(); ++i) {
    if (!unets[i]) {
      continue;
    }
    DiffusersAverage& average = diffusers_of(*unets[i]);
    if (saved && !saved->at(i).is_none()) {
      average.load_state(saved->at(i));
    } else {
      average.begin_anew();
    }
  }
}

void load_post_hoc_averages_state(const std::optional<Cursor>& saved, TrainedUnets& unets) {
  for (size_t i = 0; i < unets.size(); ++i) {
    if (!unets[i] || !unets[i]->post_hoc) {
      continue;
    }
    if (saved && i < saved->size() && !saved->at(i).is_none()) {
      unets[i]->post_hoc->load_state(saved->at(i));
    } else {
      unets[i]->post_hoc->begin_anew();
    }
  }
}

}  // namespace dalle2
