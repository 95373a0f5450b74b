// SPDX-License-Identifier: MIT
// Low-rank adapters (Hu et al. 2021): y = base(x) + alpha / rank * up(down(dropout(x))), the base
// frozen. An adapter is a child "lora" of its layer, so its weights are `{layer}.lora.down.weight`
// and `{layer}.lora.up.weight`, as in diffusers.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/reading/reflect.h"
#include "model/random.h"

namespace dalle2 {

struct LoraOptions {
  int64_t rank = 4;
  double alpha = 4;
  double dropout = 0;
  LoraInit init = LoraInit::gaussian;
};

class LoraAdapterImpl : public torch::nn::Module {
 public:
  /// Weights drawn from torch's default generator, `up` zero; float32, on the device of `weight`.
  /// @param weight of the layer: [out, in], or [out, in, 1, 1] of a convolution
  /// @param number among the adapters of a network, for the masks
  LoraAdapterImpl(const at::Tensor& weight,
                  const LoraOptions& options,
                  std::shared_ptr<const DropoutSeed> dropout,
                  int64_t number);
  /// What is added to the layer's output. @param x [B, ..., in] @return [B, ..., out]
  at::Tensor forward(const at::Tensor& x);
  /// The same as a correction of the layer's weight, [out, in]; dropout has no part in it.
  at::Tensor weight() const;
  /// Whether forward() drops inputs now; if not it is x weight()^T.
  bool drops() const { return options_.dropout > 0 && is_training(); }

  double scale() const { return options_.alpha / static_cast<double>(options_.rank); }

  at::Tensor down;  ///< [rank, in] or [rank, in, 1, 1]
  at::Tensor up;    ///< [out, rank] or [out, rank, 1, 1]

 private:
  at::Tensor mask(const at::Tensor& x) const;

  LoraOptions options_;
  std::shared_ptr<const DropoutSeed> dropout_;
  int64_t number_;
};

/// A layer that can take an adapter. Its class is a torch::nn::Module too, with a `weight`.
class LoraHost {
 public:
  virtual ~LoraHost() = default;
  /// @throws std::logic_error if there is one already
  void attach(const LoraOptions& options,
              std::shared_ptr<const DropoutSeed> dropout,
              int64_t number);
  /// Null without an adapter.
  const std::shared_ptr<LoraAdapterImpl>& adapter() const { return adapter_; }
  /// Whether an adapter drops inputs of the layer now: it cannot be folded into others then.
  bool drops() const { return adapter_ && adapter_->drops(); }

 private:
  std::shared_ptr<LoraAdapterImpl> adapter_;
};

/// @throws ConfigError for a target in which no layer's name of any network ends (the message lists
/// the ends there are), and for a network none of whose layers would get an adapter
void check_lora_targets(const std::vector<const torch::nn::Module*>& networks,
                        const std::vector<std::string>& targets);

/// Gives each layer whose name is one of `targets`, or ends in "." and one of them, an adapter.
/// @return what decides their dropout, to be set before each pass
std::shared_ptr<DropoutSeed> attach_lora(torch::nn::Module& network,
                                         const std::vector<std::string>& targets,
                                         const LoraOptions& options);

/// Adapters in the network.
size_t count_lora_adapters(const torch::nn::Module& network);

/// From now on only adapters, and all biases with `train_bias`, need gradients.
void freeze_base(torch::nn::Module& network, bool train_bias);

/// Holds the weights of linear layers and convolutions that need no gradient in `dtype`; each use
/// casts them. Norms, biases and embeddings, a few in a thousand, stay as they are.
void hold_frozen_weights_as(torch::nn::Module& network, at::ScalarType dtype);

/// `{layer}.lora.down.weight` and `{layer}.lora.up.weight` of each adapter; empty if there are
/// none. The tensors are the adapters' own.
std::vector<std::pair<std::string, at::Tensor>> lora_state_dict(const torch::nn::Module& network);

}  // namespace dalle2
