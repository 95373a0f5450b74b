// SPDX-License-Identifier: MIT
#include "run/step_record.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/process_memory.h"

namespace dalle2 {
namespace {

double mebibytes(double bytes) {
  return bytes / (1024.0 * 1024.0);
}

}  // namespace

LogRecord step_record(StepTimes& times, const c10::Device& device) {
  LogRecord record;
  for (const auto& [phase, seconds] : times.take())
    record.emplace_back("Seconds " + phase, seconds);
  record.emplace_back("Memory peak MiB", mebibytes(static_cast<double>(process_memory("VmHWM"))));
  if (device.is_cuda()) {
    const c10::Device one =
        device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
    const auto stats = c10::getDeviceAllocator(one.type())->getDeviceStats(one.index());
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    record.emplace_back("CUDA memory peak MiB",
                        mebibytes(static_cast<double>(stats.allocated_bytes[all].peak)));
  }
  return record;
}

}  // namespace dalle2
