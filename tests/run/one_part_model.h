// SPDX-License-Identifier: MIT
#pragma once

#include <torch/torch.h>
#include <memory>
#include <string>
#include <utility>

namespace dalle2::test {

/// A model of one network.
template <class Network>
struct OnePartModel : torch::nn::Module {
  OnePartModel(std::string part, std::shared_ptr<Network> made)
      : network(register_module(std::move(part), std::move(made))) {}

  std::shared_ptr<Network> network;
};

}  // namespace dalle2::test
