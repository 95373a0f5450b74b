// SPDX-License-Identifier: MIT
#include "optim/flat_parameters.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <ATen/ATen.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "base/error.h"
#include "kernels/convolution.h"
#include "kernels/flat_update.h"

namespace dalle2 {
namespace {

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

void check_tensor(const std::string& name, const at::Tensor& tensor, const at::Device& device) {
  D2_CHECK(tensor.scalar_type() == at::kFloat && tensor.device() == device,
           "'{}' is {} on {}; flat buffers hold float32 of one device ({})",
           name,
           c10::toString(tensor.scalar_type()),
           tensor.device().str(),
           device.str());
}

/// Gives `entries` their offsets from `cursor` on, one after the other.
int64_t place(const std::vector<FlatEntry*>& entries, int64_t cursor) {
  for (FlatEntry* entry : entries) {
    entry->offset = cursor;
    entry->numel = entry->tensor.numel();
    cursor += round_up(entry->numel, kFlatAlignment);
  }
  return cursor;
}

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
    return {place};
  }

 private:
  FlatGradients* gradients_;
  size_t number_;
};

}  // namespace

at::Tensor FlatEntry::of(const at::Tensor& flat) const {
  const at::Tensor own = flat.narrow(0, offset, numel);
  if (!channels_last) return own.view(tensor.sizes());
  return own.view({tensor.size(0), tensor.size(2), tensor.size(3), tensor.size(1)})
      .permute({0, 3, 1, 2});
}

at::Tensor FlatEntry::flattened(const at::Tensor& values) const {
  return channels_last ? values.permute({0, 2, 3, 1}).flatten() : values.flatten();
}

FlatParameters::FlatParameters(const torch::nn::Module& module,
                               const std::optional<std::vector<std::string>>& names) {
  std::unordered_set<std::string> members;
  if (names) members.insert(names->begin(), names->end());
  std::unordered_set<const void*> seen;
  std::optional<at::Device> device;
  for (const auto& item : module.named_parameters()) {
    if (names && !members.contains(item.key())) continue;
    if (!device) device = item.value().device();
    check_tensor(item.key(), item.value(), *device);
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters_.push_back({item.key(), item.value()});
      parameters_.back().channels_last = belongs_channels_last(item.value());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().is_floating_point() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      check_tensor(item.key(), item.value(), device.value_or(item.value().device()));
      buffers_.push_back({item.key(), item.value()});
    }
  }

  std::vector<FlatEntry*> decaying, others, buffers;
  for (FlatEntry& entry : parameters_)
    (entry.tensor.dim() >= 2 ? decaying : others).push_back(&entry);
  for (FlatEntry& entry : buffers_) buffers.push_back(&entry);
  parameter_span_ = round_up(place(others, place(decaying, 0)), kFlatRow);
  const int64_t total = place(buffers, parameter_span_);

  const torch::NoGradGuard no_grad;
  values_ = at::zeros({total}, at::device(device.value_or(at::kCPU)).dtype(at::kFloat));
  for (std::vector<FlatEntry>* entries : {&parameters_, &buffers_}) {
    for (FlatEntry& entry : *entries) {
      const at::Tensor view = entry.of(values_);
      view.copy_(entry.tensor);
      entry.tensor.set_data(view);
    }
  }
}

std::vector<FlatEntry> FlatParameters::entries() const {
  std::vector<FlatEntry> all = parameters_;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  return all;
}

std::vector<std::string> FlatParameters::names() const {
  std::vector<std::string> names;
  for (const FlatEntry& entry : parameters_) names.push_back(entry.name);
  return names;
}

std::vector<std::string> trained_parameters(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) names.push_back(item.key());
  }
  return names;
}

/// What a graph calls with the gradient of a parameter, in place of autograd's AccumulateGrad: that one would make a tensor for
/// `.grad` first. A graph may outlive the gradients.
class FlatGradients::Receiver : public torch::autograd::Node {
 public:
  /// As soon as a gradient is there, as AccumulateGrad does.
  Receiver(FlatGradients* owner, size_t parameter)
      : Node(/*sequence_nr=*/UINT64_MAX), owner_(owner), parameter_(parameter) {
    follow_stream();
  }
  void follow_stream() {  // the metadata have the stream of now
    clear_input_metadata();
    add_input_metadata(owner_->parameters_[parameter_]);
  }
  void forget_owner() { owner_ = nullptr; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (owner_ && gradients[0].defined()) owner_->receive(parameter_, gradients[0]);
    return {};
  }

  FlatGradients* owner_;
  size_t parameter_;
};

FlatGradients::FlatGradients(const FlatParameters& parameters)
    : flat_(at::zeros({parameters.parameter_span()}, parameters.values().options())),
      received_(parameters.parameters().size()),
      filled_(received_) {
  forget_places();
  for (const FlatEntry& entry : parameters.parameters()) {
    const size_t i = parameters_.size();
    parameters_.push_back(entry.tensor);
    views_.push_back(entry.of(flat_));
    if (!entry.tensor.requires_grad()) continue;
    receivers_.push_back(std::make_shared<Receiver>(this, i));
    torch::autograd::impl::set_grad_accumulator(entry.tensor, receivers_.back());
  }
}

FlatGradients::~FlatGradients() {
  for (const std::shared_ptr<Receiver>& receiver : receivers_) receiver->forget_owner();
}

void FlatGradients::follow_stream() {
  for (const std::shared_ptr<Receiver>& receiver : receivers_) receiver->follow_stream();
}

void FlatGradients::receive(size_t i, const at::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  at::Tensor& grad = parameters_[i].mutable_grad();
  const at::Tensor& place = views_[i];
  if (grad.defined()) {
    place.add_(gradient);
  } else if (gradient.const_data_ptr() != place.const_data_ptr()) {
    D2_CHECK(placed_[i].expired(), "a gradient came while another one was on its way");
    place.copy_(gradient);
  }
  grad = place;
  received_[i] = filled_[i] = true;
  if (listener_) listener_(i);
}

const at::Tensor& FlatGradients::values() {
  for (size_t i = 0; i < views_.size(); ++i) {
    if (filled_[i] && !received_[i]) {
      views_[i].zero_();
      filled_[i] = false;
    }
  }
  return flat_;
}

void FlatGradients::add(size_t parameter, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  const torch::NoGradGuard no_grad;
  const at::Tensor& place = views_[parameter];
  at::Tensor& own = parameters_[parameter].mutable_grad();
  if (own.defined()) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
    own = place;
  }
}

void FlatGradients::tell_received() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) continue;
    received_[i] = filled_[i] = true;
    if (listener_) listener_(i);
  }
}

void FlatGradients::set_received(const std::vector<bool>& received) {
  for (size_t i = 0; i < received.size(); ++i) {
    if (received[i]) received_[i] = filled_[i] = true;
  }
}

void FlatGradients::restore_account(const std::vector<bool>& received) {
  for (size_t i = 0; i < received.size(); ++i) {
    at::Tensor& grad = parameters_[i].mutable_grad();
    grad = received[i] ? views_[i] : at::Tensor();
    if (received[i]) filled_[i] = true;
  }
  received_ = received;
  forget_places();
}

void FlatGradients::zero_grad() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  received_.assign(received_.size(), false);
  forget_places();
}

void FlatGradients::forget_places() {
  placed_.assign(received_.size(), WeakTensor(at::Tensor().getIntrusivePtr()));
}

at::Tensor FlatGradients::place_of(size_t parameter) {
  if (received_[parameter] || !placed_[parameter].expired()) return {};
  at::Tensor place = views_[parameter].variable_data();
  placed_[parameter] = WeakTensor(place.getIntrusivePtr());
  filled_[parameter] = true;
  return place;
}

FlatSlice FlatSlice::overlap(const FlatSlice& other) const {
  const int64_t first = std::max(begin, other.begin);
  return {first, std::max(first, std::min(end, other.end))};
}

std::vector<FlatSlice> split_flat(int64_t numel, int64_t count) {
  const int64_t share = numel / kFlatRow / count * kFlatRow;
  std::vector<FlatSlice> slices;
  for (int64_t owner = 0; owner < count; ++owner) {
    slices.push_back({owner * share, (owner + 1) * share});
  }
  slices.back().end = numel;
  return slices;
}

void copy_into_slice(const at::Tensor& own,
                     const FlatSlice& slice,
                     int64_t offset,
                     const at::Tensor& tensor) {
  const FlatSlice common = slice.overlap({offset, offset + tensor.numel()});
  if (common.length() == 0) return;
  own.narrow(0, common.begin - slice.begin, common.length())
      .copy_(tensor.flatten().narrow(0, common.begin - offset, common.length()));
}

bool all_finite(at::TensorList tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> largest;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    // The largest magnitude is NaN if any entry is, and takes no copy of the buffer.
    largest.push_back(at::linalg_vector_norm(tensor, std::numeric_limits<double>::infinity()));
  }
  return largest.empty() || at::stack(largest).isfinite().all().item<bool>();
}

at::Tensor row_norms(const at::Tensor& flat) {
  return at::linalg_vector_norm(flat.view({-1, kFlatRow}), 2, at::IntArrayRef{1});
}

at::Tensor norm_of_rows(const at::Tensor& norms) {
  return at::linalg_vector_norm(norms, 2);
}

at::Tensor grad_norm(const at::Tensor& flat) {
  return norm_of_rows(row_norms(flat));
}

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).div_(max_norm).clamp_min_(1.0);
}

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
