// SPDX-License-Identifier: MIT
#include "trainer/weight_arrival.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace dalle2 {
namespace {

/// Weights that are coming to this thread, and the observer of its operators meanwhile.
struct Arrivals {
  std::vector<WeightArrival*> begun;
  at::CallbackHandle observer = 0;
};

thread_local Arrivals arrivals;

void wait_for(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  for (WeightArrival* arrival : arrivals.begun) arrival->wait_for(tensor);
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& called) {
  for (const c10::IValue& input : called.inputs()) {
    if (input.isTensor()) {
      wait_for(input.toTensor());
    } else if (input.isTensorList() || input.isOptionalTensorList()) {
      for (const c10::IValue& each : input.toListRef()) {
        if (each.isTensor()) wait_for(each.toTensor());
      }
    }
  }
  return nullptr;
}

void note_begun(WeightArrival* arrival) {
  if (arrivals.begun.empty()) {
    arrivals.observer = at::addThreadLocalCallback(at::RecordFunctionCallback(before_operator)
                                                       .needsInputs(true)
                                                       .scopes({at::RecordScope::FUNCTION}));
  }
  arrivals.begun.push_back(arrival);
}

void note_ended(WeightArrival* arrival) {
  std::erase(arrivals.begun, arrival);
  if (arrivals.begun.empty()) at::removeCallback(arrivals.observer);
}

/// Elements of its storage that a tensor may read.
FlatSlice reach_of(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {tensor.storage_offset(), tensor.numel() == 0 ? tensor.storage_offset() : last + 1};
}

}  // namespace

WeightArrival::~WeightArrival() {
  if (is_begun_) note_ended(this);
}

void WeightArrival::begin(const at::Tensor& whole, std::vector<ComingSlice> coming) {
  D2_CHECK(!is_begun_, "weights come while others are coming");
  whole_ = whole;
  coming_ = std::move(coming);
  is_begun_ = true;
  note_begun(this);
}

void WeightArrival::wait_for(const at::Tensor& tensor) noexcept {
  if (coming_.empty() || !tensor.storage().is_alias_of(whole_.storage())) return;
  const FlatSlice reach = reach_of(tensor);
  // A wait may call operators: what it waits for is no longer among those that are coming.
  for (size_t i = 0; i < coming_.size();) {
    if (coming_[i].slice.overlap(reach).length() == 0) {
      ++i;
      continue;
    }
    PendingCollective arrival = std::move(coming_[i].arrival);
    coming_.erase(coming_.begin() + static_cast<int64_t>(i));
    try {
      arrival.wait();
    } catch (...) {
      fault_ = std::current_exception();
      coming_.clear();
    }
  }
}

void WeightArrival::finish() {
  if (!is_begun_) return;
  wait_for(whole_);
  is_begun_ = false;
  note_ended(this);
  whole_.reset();
  if (const std::exception_ptr fault = std::exchange(fault_, nullptr))
    std::rethrow_exception(fault);
}

void await_weights() {
  while (!arrivals.begun.empty()) arrivals.begun.back()->finish();
}

}  // namespace dalle2
