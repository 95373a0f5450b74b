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

}  // namespace

std::vector<std::shared_ptr<DropoutSeed>> add_adapters(
    const std::vector<std::shared_ptr<torch::nn::Module>>& networks, const AdaptersConfig& config) {
  std::vector<std::shared_ptr<DropoutSeed>> dropouts(networks.size());
  const LoraConfig& lora = config.lora;
  if (lora.rank == 0) return dropouts;
  std::vector<const torch::nn::Module*> trained;
  for (const auto& network : networks) {
    if (network) trained.push_back(network.get());
  }
  check_lora_targets(trained, lora.targets);
  for (size_t i = 0; i < networks.size(); ++i) {
    if (!networks[i]) continue;
    dropouts[i] = attach_lora(
        *networks[i],
        lora.targets,
        {.rank = lora.rank, .alpha = lora.strength(), .dropout = lora.dropout, .init = lora.init});
    freeze_base(*networks[i], lora.train_bias);
    hold_frozen_weights_as(*networks[i], scalar_type(config.frozen_dtype));
    cast_training_params(*networks[i]);  // fp32, the one value of trainable_dtype
  }
  return dropouts;
}

}  // namespace dalle2
