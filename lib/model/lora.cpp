// SPDX-License-Identifier: MIT
#include "model/lora.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "model/layers.h"

namespace dalle2 {
namespace {

/// The layers that can take an adapter, in the order of files.
std::vector<std::pair<std::string, LoraHost*>> hosts_of(const torch::nn::Module& network) {
  std::vector<std::pair<std::string, LoraHost*>> hosts;
  for (const auto& item : network.named_modules("", /*include_self=*/false)) {
    if (auto* host = dynamic_cast<LoraHost*>(item.value().get())) {
      hosts.emplace_back(item.key(), host);
    }
  }
  return hosts;
}

bool is_target(const std::string& layer, const std::vector<std::string>& targets) {
  return std::ranges::any_of(targets, [&](const std::string& target) {
    return layer == target || layer.ends_with("." + target);
  });
}

/// The part of a layer's name that tells it from others: the last part, with the one before it if
/// the last is a number. "downs.0.1.to_out.0" -> "to_out.0"
std::string end_of(const std::string& layer) {
  size_t dot = layer.rfind('.');
  const bool number = layer.find_first_not_of("0123456789", dot + 1) == std::string::npos;
  if (dot != std::string::npos && dot > 0 && number) dot = layer.rfind('.', dot - 1);
  return dot == std::string::npos ? layer : layer.substr(dot + 1);
}

std::string quoted_list(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "\"" : ", \"") + word + "\"";
  return text.empty() ? "none" : text;
}

std::shared_ptr<torch::nn::Module> add_weight(torch::nn::Module& parent,
                                              const std::string& name,
                                              const at::Tensor& weight) {
  const auto child = add_group(parent, name);
  child->register_parameter("weight", weight);
  return child;
}

}  // namespace

LoraAdapterImpl::LoraAdapterImpl(const at::Tensor& weight,
                                 const LoraOptions& options,
                                 std::shared_ptr<const DropoutSeed> dropout,
                                 int64_t number)
    : options_(options), dropout_(std::move(dropout)), number_(number) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> down_sizes = weight.sizes().vec();  // [rank, in, ...]
  std::vector<int64_t> up_sizes = weight.sizes().vec();    // [out, rank, ...]
  down_sizes[0] = up_sizes[1] = options.rank;
  // Drawn on the CPU: the same seed gives the same adapters on every device.
  at::Tensor first = at::empty(down_sizes, at::kFloat);
  if (options.init == LoraInit::gaussian) {
    first.normal_(0.0, 1.0 / static_cast<double>(options.rank));
  } else {
    torch::nn::init::kaiming_uniform_(first, std::sqrt(5.0));
  }
  add_weight(*this, "down", first.to(weight.device()));
  add_weight(*this, "up", at::zeros(up_sizes, at::device(weight.device()).dtype(at::kFloat)));
  down = named_parameters()["down.weight"];
  up = named_parameters()["up.weight"];
}

// Kept inputs are scaled up by what is dropped. [B, ..., in] like x
at::Tensor LoraAdapterImpl::mask(const at::Tensor& x) const {
  return dropout_mask(x, options_.dropout, *dropout_, number_);
}

at::Tensor LoraAdapterImpl::forward(const at::Tensor& x) {
  const at::Tensor input = x.to(down.scalar_type());
  const at::Tensor kept = drops() ? input * mask(input) : input;
  const at::Tensor product = at::linear(at::linear(kept, down.flatten(1)), up.flatten(1));
  return (product * scale()).to(x.scalar_type());
}

at::Tensor LoraAdapterImpl::weight() const {
  return at::matmul(up.flatten(1), down.flatten(1)) * scale();
}

void LoraHost::attach(const LoraOptions& options,
                      std::shared_ptr<const DropoutSeed> dropout,
                      int64_t number) {
  auto& layer = dynamic_cast<torch::nn::Module&>(*this);
  const at::Tensor weight = layer.named_parameters(/*recurse=*/false)["weight"];
  adapter_ = layer.register_module(
      "lora", std::make_shared<LoraAdapterImpl>(weight, options, std::move(dropout), number));
  adapter_->train(layer.is_training());
}

void check_lora_targets(const std::vector<const torch::nn::Module*>& networks,
                        const std::vector<std::string>& targets) {
  std::set<std::string> ends;
  std::set<std::string> missing(targets.begin(), targets.end());
  for (size_t i = 0; i < networks.size(); ++i) {
    size_t adapters = 0;
    for (const auto& [layer, host] : hosts_of(*networks[i])) {
      ends.insert(end_of(layer));
      for (const std::string& target : targets) {
        if (!is_target(layer, {target})) continue;
        missing.erase(target);
        ++adapters;
      }
    }
    if (adapters == 0 && missing.size() < targets.size()) {
      throw ConfigError(
          "/train/lora/targets: network {} of {} that are trained has none of these layers; add "
          "one that it has: {}",
          i + 1,
          networks.size(),
          quoted_list(ends));
    }
  }
  if (!missing.empty()) {
    throw ConfigError(
        "/train/lora/targets: no layer's name ends in {}; the layers that can take an adapter end "
        "in {}",
        quoted_list(missing),
        quoted_list(ends));
  }
}

std::shared_ptr<DropoutSeed> attach_lora(torch::nn::Module& network,
                                         const std::vector<std::string>& targets,
                                         const LoraOptions& options) {
  auto dropout = std::make_shared<DropoutSeed>();
  int64_t number = 0;
  for (const auto& [layer, host] : hosts_of(network)) {
    if (is_target(layer, targets)) host->attach(options, dropout, number++);
  }
  return dropout;
}

size_t count_lora_adapters(const torch::nn::Module& network) {
  return lora_state_dict(network).size() / 2;
}

void freeze_base(torch::nn::Module& network, bool train_bias) {
  for (auto& item : network.named_parameters()) {
    const bool is_bias = item.key() == "bias" || item.key().ends_with(".bias");
    item.value().set_requires_grad(train_bias && is_bias);
  }
  for (const auto& [layer, host] : hosts_of(network)) {
    if (!host->adapter()) continue;
    for (at::Tensor& parameter : host->adapter()->parameters()) parameter.set_requires_grad(true);
  }
}

void hold_frozen_weights_as(torch::nn::Module& network, at::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : network.modules(/*include_self=*/false)) {
    at::Tensor weight;
    if (const auto* layer = dynamic_cast<LinearLayerImpl*>(module.get())) weight = layer->weight;
    if (const auto* layer = dynamic_cast<ConvLayerImpl*>(module.get())) weight = layer->weight;
    if (weight.defined() && !weight.requires_grad()) weight.set_data(weight.to(dtype));
  }
}

std::vector<std::pair<std::string, at::Tensor>> lora_state_dict(const torch::nn::Module& network) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [layer, host] : hosts_of(network)) {
    if (!host->adapter()) continue;
    tensors.emplace_back(layer + ".lora.down.weight", host->adapter()->down.detach());
    tensors.emplace_back(layer + ".lora.up.weight", host->adapter()->up.detach());
  }
  return tensors;
}

}  // namespace dalle2
