// SPDX-License-Identifier: MIT
#include "trainer/update_outcome.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include "base/error.h"

namespace dalle2 {

void UpdateOutcome::post(const at::Tensor& found_inf) {
  pending_ = true;
  const at::Device device = found_inf.device();
  if (device.is_cpu()) {
    flag_ = found_inf;
    return;
  }
  if (!passed_) {
    flag_ = at::empty({}, at::dtype(at::kFloat).pinned_memory(true));
    passed_.emplace(device.type());
  }
  flag_.copy_(found_inf, /*non_blocking=*/true);
  passed_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool UpdateOutcome::take() {
  D2_CHECK(pending_, "an outcome was asked for before an update");
  if (passed_) {
    passed_->synchronize();
  }
  pending_ = false;
  return *flag_.const_data_ptr<float>() == 0.0F;
}

}  // namespace dalle2
