// SPDX-License-Identifier: MIT
// EMAModel of diffusers as its Python users have it: averages of a list of tensors, which are lent
// to the parameters, and folders of save_pretrained(). The program has averages of flat buffers
// (trainer/averages/weight_average.h); here they are made one tensor at a time.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/atomic_file.h"
#include "optim/average_rule.h"

namespace dalle2::test {

class EmaModel {
 public:
  using Tensors = std::vector<at::Tensor>;

  EmaModel(const Tensors& parameters, const EmaConfig& config) : rule_(config) {
    for (const at::Tensor& tensor : parameters) shadows_.push_back(tensor.detach().clone());
  }

  void step(const Tensors& parameters) {
    const torch::NoGradGuard no_grad;
    const double taken = 1.0 - rule_.decay_of(++step_);
    for (size_t i = 0; i < shadows_.size(); ++i) {
      if (parameters[i].requires_grad()) {
        shadows_[i].sub_((shadows_[i] - parameters[i]) * taken);
      } else {
        shadows_[i].copy_(parameters[i]);
      }
    }
  }
  double get_decay(int64_t step) const { return rule_.decay_of(step); }
  const Tensors& shadow_params() const { return shadows_; }

  void copy_to(const Tensors& parameters) const { copy(shadows_, parameters); }
  void store(const Tensors& parameters) {
    stored_.emplace();
    for (const at::Tensor& parameter : parameters) stored_->push_back(parameter.detach().clone());
  }
  void restore(const Tensors& parameters) {
    if (!stored_) {
      throw Error(ExitCode::kFailed,
                  "This ExponentialMovingAverage has no `store()`ed weights to `restore()`");
    }
    copy(*stored_, parameters);
    stored_.reset();
  }

 private:
  static void copy(const Tensors& from, const Tensors& to) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from.at(i));
  }

  DiffusersRule rule_;
  int64_t step_ = 0;
  Tensors shadows_;
  std::optional<Tensors> stored_;
};

/// What EMAModel.save_pretrained() leaves in a folder: config.json and the averaged weights in
/// diffusion_pytorch_model.safetensors.
struct PretrainedFolder {
  Dict config;
  StateDict weights;
};

/// @param state of the average, of which the scalars go into the config
/// @throws ConfigError with upstream's text for a null model or a config that is None
inline void save_pretrained(const std::string& folder,
                            const torch::nn::Module* averaged,
                            const Value& model_config,
                            const Dict& state) {
  if (averaged == nullptr) {
    throw ConfigError("`save_pretrained` can only be used if `model_cls` was defined at __init__.");
  }
  if (!model_config.is_dict()) {
    throw ConfigError(
        "`save_pretrained` can only be used if `model_config` was defined at __init__.");
  }
  Dict config = model_config.as_dict();
  for (const auto& [key, value] : state.items) {
    if (!value.is_list()) config.set(key.as_string(), value);
  }
  write_safetensors(
      folder + "/diffusion_pytorch_model.safetensors", state_dict(*averaged), {{"format", "pt"}});
  write_file_atomically(folder + "/config.json", json_of_value(config, 2) + "\n");
}

inline PretrainedFolder read_pretrained(const std::string& folder) {
  return {value_of_json(read_file(folder + "/config.json")).as_dict(),
          read_safetensors(folder + "/diffusion_pytorch_model.safetensors").tensors};
}

}  // namespace dalle2::test
