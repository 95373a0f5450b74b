// SPDX-License-Identifier: MIT
#include "run/step_record.h"

#include <torch/types.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

#include "base/process_memory.h"

namespace dalle2 {
namespace {

double mebibytes(double bytes) {
  return bytes / (1024.0 * 1024.0);
}

}  // namespace

void add_part_values(LogRecord& record,
                     const Trainer& trainer,
                     const std::vector<PartMetricNames>& names,
                     const std::vector<LossAverage>& losses) {
  const std::vector<int64_t> parts = trainer.trained_parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartMetricNames& name = names.at(static_cast<size_t>(parts[i] - 1));
    if (std::isfinite(losses[i].mean)) record.emplace_back(name.loss, losses[i].mean);
    if (losses[i].left_out > 0) record.emplace_back(name.losses_not_finite, losses[i].left_out);
    if (const auto decay = trainer.ema_decay(parts[i])) record.emplace_back(name.ema_decay, *decay);
    record.emplace_back(name.learning_rate, trainer.learning_rate(parts[i]));
    if (const at::Tensor norm = trainer.last_grad_norm(parts[i]); norm.defined())
      record.emplace_back(name.grad_norm, norm.item<double>());
    const SkippedUpdates skipped = trainer.skipped_updates(parts[i]);
    const std::optional<double> loss_scale = trainer.loss_scale(parts[i]);
    if (skipped.total > 0 || loss_scale) record.emplace_back(name.skipped_updates, skipped.total);
    if (loss_scale) record.emplace_back(name.loss_scale, *loss_scale);
  }
}

void add_process_values(LogRecord& record, StepTimes& times, const c10::Device& device) {
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
}

}  // namespace dalle2
