// SPDX-License-Identifier: MIT
#include "run/device/device_copy.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dalle2 {
namespace {

/// The same for the whole run.
c10::Stream copy_stream(const at::Device& device) {
  static const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return stream;
}

}  // namespace

void copy_to_device(const at::Device& device, const std::vector<at::Tensor*>& tensors) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  const c10::Stream compute = streams.getStream(device), copies = copy_stream(device);
  {
    const c10::StreamGuard on_copies(copies);
    for (at::Tensor* tensor : tensors) {
      // What a loader has pinned stays as it is. Pinned memory is used again only after the copy.
      const at::Tensor pinned = tensor->is_cpu() ? tensor->pin_memory() : *tensor;
      *tensor = pinned.to(device, /*non_blocking=*/true);
      // Their memory is not used again before the step has finished.
      tensor->record_stream(compute);
    }
  }
  c10::Event copied(device.type());
  copied.record(copies);
  copied.block(compute);
}

}  // namespace dalle2
