// SPDX-License-Identifier: MIT
#include "optim/half_weights.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <utility>

#include "kernels/flat_update.h"

namespace dalle2 {
namespace {

/// From a copy in half precision to its weight.
class FromHalf : public torch::autograd::Node {
 public:
  FromHalf(FlatGradients* gradients, size_t number) : gradients_(gradients), number_(number) {}
  std::string name() const override { return "dalle2::FromHalf"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const at::Tensor& grad = grads[0];
    if (!grad.defined()) return {at::Tensor()};
    if (at::GradMode::is_enabled()) return {grad.to(at::kFloat)};  // it will be derived again
    at::Tensor place = gradients_ == nullptr ? at::Tensor() : gradients_->place_of(number_);
    if (!place.defined()) return {grad.to(at::kFloat)};
    copy_from_half_(place, grad);
    torch::autograd::variable_list found;
    found.push_back(std::move(place));  // the only reference, so that nobody copies it
    return found;
  }

 private:
  FlatGradients* gradients_;
  size_t number_;
};

}  // namespace

HalfWeights::HalfWeights(const FlatParameters& parameters, at::ScalarType dtype)
    : values_(parameters.values().narrow(0, 0, parameters.parameter_span())),
      halves_(at::empty({parameters.parameter_span()}, values_.options().dtype(dtype))) {
  for (const FlatEntry& entry : parameters.parameters()) {
    number_of_.emplace(entry.tensor.unsafeGetTensorImpl(), weights_.size());
    weights_.push_back(entry.tensor);
    copies_.push_back(entry.of(halves_).variable_data());
  }
}

/// Rises with every operation on the weights, through the buffer or through a parameter.
int64_t HalfWeights::version() const {
  auto sum = static_cast<int64_t>(values_._version());
  for (const at::Tensor& weight : weights_) sum += static_cast<int64_t>(weight._version());
  return sum;
}

void HalfWeights::refresh() {
  if (is_fresh()) return;
  const torch::NoGradGuard no_grad;
  halves_.copy_(values_);
  are_fresh();
}

HalfWeights::Pass::Pass(const HalfWeights& weights, FlatGradients* gradients)
    : weights_(weights), gradients_(gradients), in_graph_(weights.weights_.size()), scope_(*this) {}

at::Tensor HalfWeights::Pass::half_of(const at::Tensor& weight) {
  const auto found = weights_.number_of_.find(weight.unsafeGetTensorImpl());
  if (found == weights_.number_of_.end()) return {};
  const size_t number = found->second;
  if (!weight.requires_grad() || !at::GradMode::is_enabled()) return weights_.copies_[number];
  at::Tensor& half = in_graph_[number];
  if (!half.defined()) {
    const auto node =
        std::shared_ptr<FromHalf>(new FromHalf(gradients_, number), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(weight));
    half = weights_.copies_[number].variable_data();
    torch::autograd::set_history(half, node);
  }
  return half;
}

}  // namespace dalle2
