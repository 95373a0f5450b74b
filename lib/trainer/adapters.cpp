// SPDX-License-Identifier: MIT
#include "trainer/adapters.h"

#include <torch/torch.h>

#include <array>

namespace dalle2 {
namespace {

at::ScalarType scalar_type(FrozenDtype dtype) {
  constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
  return kTypes[static_cast<size_t>(dtype)];
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
  }
  return dropouts;
}

}  // namespace dalle2
