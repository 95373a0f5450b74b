// SPDX-License-Identifier: MIT
#include "trainer/decoder_lora.h"

#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_state.h"
#include "trainer/decoder_trainer_state.h"

namespace dalle2 {
namespace {

bool is_trained(const DecoderTrainConfig& config, int64_t unet_number) {
  const auto& mask = config.unet_training_mask;
  return !mask || mask->at(static_cast<size_t>(unet_number - 1));
}

/// The weights without those of stages that this decoder has not.
StateDict without_other_stages(const StateDict& weights, Decoder& decoder) {
  StateDict kept;
  for (const auto& entry : weights) {
    bool dropped = false;
    for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
      dropped |=
          !decoder->unet(unet) && entry.first.starts_with(fmt::format("unets.{}.", unet - 1));
    }
    if (!dropped) kept.push_back(entry);
  }
  return kept;
}

}  // namespace

std::vector<std::shared_ptr<LoraDropout>> add_adapters(Decoder& decoder,
                                                       const DecoderTrainConfig& config) {
  std::vector<std::shared_ptr<LoraDropout>> dropouts(static_cast<size_t>(decoder->num_unets()));
  if (config.lora.rank == 0) return dropouts;
  std::vector<const torch::nn::Module*> networks;
  for (int64_t number = 1; number <= decoder->num_unets(); ++number) {
    const auto unet = decoder->unet(number);
    if (unet && is_trained(config, number)) networks.push_back(unet.get());
  }
  check_lora_targets(networks, config.lora.targets);
  for (int64_t number = 1; number <= decoder->num_unets(); ++number) {
    const auto unet = decoder->unet(number);
    if (!unet || !is_trained(config, number)) continue;
    dropouts[static_cast<size_t>(number - 1)] =
        add_adapters(*unet, config.lora, config.frozen_dtype, config.trainable_dtype);
  }
  return dropouts;
}

ParameterBytes parameter_bytes(const torch::nn::Module& module) {
  ParameterBytes bytes;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto size = static_cast<int64_t>(parameter.nbytes());
    bytes.all += size;
    bytes.trained += parameter.requires_grad() ? size : 0;
  }
  return bytes;
}

bool DecoderTrainer::uses_lora() const {
  return state_->lora.has_value();
}

std::optional<LoraFile> DecoderTrainer::lora_state() const {
  if (!state_->lora) return std::nullopt;
  const torch::NoGradGuard no_grad;
  state_->settle_all();
  LoraFile file;
  file.info = *state_->lora;
  const AveragesInPlace averages(state_->decoder, state_->unets);
  const StateDict all = state_dict(*state_->decoder);
  for (size_t i = 0; i < state_->unets.size(); ++i) {
    if (!state_->unets[i]) continue;
    for (const std::string& name : state_->unets[i]->parameters.names()) {
      const std::string key = fmt::format("unets.{}.{}", i, name);
      file.tensors.emplace_back(key, *find_tensor(all, key));
    }
  }
  return file;
}

void DecoderTrainer::load_base(const StateDict& weights, const std::string& file) {
  D2_CHECK(state_->lora.has_value(), "a base is what adapters stand on");
  const torch::NoGradGuard no_grad;
  StateDict all = without_other_stages(weights, state_->decoder);
  for (auto& adapter : lora_state_dict(*state_->decoder)) all.push_back(std::move(adapter));
  load_state_dict(*state_->decoder, all, "", /*strict=*/true, file);
  size_t adapters = 0;
  for (const auto& unet : state_->unets) {
    if (!unet) continue;
    adapters += count_lora_adapters(*unet->unet);
    if (unet->average) unet->average->begin_anew();
    if (unet->post_hoc) unet->post_hoc->begin_anew();
  }
  log_info("ckpt",
           "{}: the weights of the network, without adapters: the {} adapters of /train/lora start "
           "afresh, and so does the run",
           file,
           adapters);
}

}  // namespace dalle2
