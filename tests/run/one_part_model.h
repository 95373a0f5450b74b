// SPDX-License-Identifier: MIT
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>

namespace dalle2::test {

/// A model of one network, which can be exchanged for its average.
template <class Network>
struct OnePartModel : torch::nn::Module {
  OnePartModel(std::string part, std::shared_ptr<Network> made)
      : network(register_module(part, std::move(made))), part_(std::move(part)) {}

  /// What Trainer::swap_network() asks.
  std::shared_ptr<torch::nn::Module> swap(const std::shared_ptr<torch::nn::Module>& other) {
    return std::exchange(network, replace_module(part_, std::static_pointer_cast<Network>(other)));
  }

  std::shared_ptr<Network> network;

 private:
  std::string part_;
};

}  // namespace dalle2::test
