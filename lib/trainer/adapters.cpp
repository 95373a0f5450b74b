// SPDX-License-Identifier: MIT
#include "trainer/adapters.h"

#include <torch/torch.h>

#include "optim/trained_parameters.h"

namespace dalle2 {
namespace {

at::ScalarType scalar_type(FrozenDtype dtype) {
  switch (dtype) {
    case FrozenDtype::fp32:
      return at::kFloat;
    case FrozenDtype::bf16:
      return at::kBFloat16;
    case FrozenDtype::fp16:
      return at::kHalf;
  }
  return at::kFloat;
}

at::ScalarType scalar_type(TrainableDtype) {
  return at::kFloat;
}

}  // namespace

std::shared_ptr<LoraDropout> add_adapters(torch::nn::Module& network,
                                          const LoraConfig& config,
                                          FrozenDtype frozen,
                                          TrainableDtype trainable) {
  const auto dropout = attach_lora(network,
                                   config.targets,
                                   {.rank = config.rank,
                                    .alpha = config.strength(),
                                    .dropout = config.dropout,
                                    .init = config.init});
  freeze_base(network, config.train_bias);
  hold_frozen_weights_as(network, scalar_type(frozen));
  cast_training_params(network, scalar_type(trainable));
  return dropout;
}

LoraInfo lora_info(const LoraConfig& config) {
  return {.rank = config.rank, .alpha = config.strength(), .targets = config.targets};
}

}  // namespace dalle2
