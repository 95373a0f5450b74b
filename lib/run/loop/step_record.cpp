// SPDX-License-Identifier: MIT
#include "run/loop/step_record.h"

#include <torch/types.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/log.h"
#include "base/this_process.h"

namespace dalle2 {
namespace {

double mebibytes(double bytes) {
  return bytes / (1024.0 * 1024.0);
}

}  // namespace

std::string PartMetricNames::of(const std::string& words) const {
  std::string name = prefix;
  bool begins_word = true;
  for (const char c : words) {
    const auto letter = static_cast<unsigned char>(c);
    if (style == NameStyle::kTitle) {
      name += begins_word ? static_cast<char>(std::toupper(letter)) : c;
    } else {
      const char joint = style == NameStyle::kHyphen ? '-' : '_';
      name += c == ' ' ? joint : static_cast<char>(std::tolower(letter));
    }
    begins_word = c == ' ';
  }
  return name;
}

std::vector<PartValues> part_values(const Trainer& trainer,
                                    const std::vector<LossAverage>& losses) {
  const std::vector<int64_t> parts = trainer.trained_parts();
  std::vector<PartValues> values;
  for (size_t i = 0; i < parts.size(); ++i) {
    PartValues& of_part = values.emplace_back();
    of_part.part = parts[i];
    of_part.loss = losses[i];
    of_part.ema_decay = trainer.ema_decay(parts[i]);
    of_part.learning_rate = trainer.learning_rate(parts[i]);
    if (const at::Tensor norm = trainer.last_grad_norm(parts[i]); norm.defined())
      of_part.grad_norm = norm.item<double>();
    of_part.skipped_updates = trainer.skipped_updates(parts[i]).total;
    of_part.loss_scale = trainer.loss_scale(parts[i]);
  }
  return values;
}

void add_part_values(LogRecord& record,
                     const std::vector<PartValues>& parts,
                     const std::vector<PartMetricNames>& names) {
  for (const PartValues& part : parts) {
    const PartMetricNames& name = names.at(static_cast<size_t>(part.part - 1));
    if (std::isfinite(part.loss.mean)) record.emplace_back(name.of(name.loss), part.loss.mean);
    if (part.loss.left_out > 0)
      record.emplace_back(name.of("losses not finite"), part.loss.left_out);
    if (part.ema_decay) record.emplace_back(name.of("EMA decay"), *part.ema_decay);
    record.emplace_back(name.of("learning rate"), part.learning_rate);
    if (part.grad_norm) record.emplace_back(name.of("grad norm"), *part.grad_norm);
    if (part.skipped_updates > 0 || part.loss_scale)
      record.emplace_back(name.of("skipped updates"), part.skipped_updates);
    if (part.loss_scale) record.emplace_back(name.of("loss scale"), *part.loss_scale);
  }
}

ShownRecord shown_step(const std::vector<PartValues>& parts, double samples_per_second) {
  constexpr int kRateDigits = 3;
  ShownValue loss{.label = "loss"}, rate{.label = "lr"}, grad{.label = "grad"};
  int64_t skipped = 0;
  for (const PartValues& part : parts) {
    const bool had_no_step = std::isnan(part.loss.mean) && part.loss.left_out == 0 &&
                             part.skipped_updates == 0;  // a discriminator that begins later
    if (!had_no_step || parts.size() == 1) loss.values.emplace_back(part.loss.mean);
    rate.values.emplace_back(part.learning_rate);
    if (part.grad_norm) grad.values.emplace_back(*part.grad_norm);
    skipped += part.skipped_updates;
  }
  const bool one_rate = std::all_of(rate.values.begin(), rate.values.end(), [&](const auto& value) {
    return value == rate.values.front();
  });
  if (one_rate && !rate.values.empty()) rate.values.resize(1);
  ShownRecord shown = {loss, rate};
  if (!grad.values.empty()) shown.push_back(grad);
  shown.push_back({.values = {samples_per_second}, .unit = "samples/s", .digits = kRateDigits});
  if (skipped > 0) shown.push_back({.values = {skipped}, .unit = "skipped"});
  return shown;
}

void add_process_values(LogRecord& record, StepTimes& times, const c10::Device& device) {
  for (const auto& [phase, seconds] : times.take())
    record.emplace_back("Seconds " + phase, seconds);
  record.emplace_back("Memory peak MiB", mebibytes(static_cast<double>(process_memory("VmHWM"))));
  if (!device.is_cpu()) {
    const c10::Device one =
        device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
    const auto stats = c10::getDeviceAllocator(one.type())->getDeviceStats(one.index());
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    record.emplace_back("CUDA memory peak MiB",
                        mebibytes(static_cast<double>(stats.allocated_bytes[all].peak)));
  }
}

void report_drops(Tracker& tracker,
                  int64_t steps,
                  const std::string& split,
                  const DropCounts& dropped) {
  if (dropped.empty()) return;
  log_warning("data", "{} in this epoch: {}", split, describe_drops(dropped));
  LogRecord record;
  for (const auto& [reason, count] : dropped)
    record.emplace_back(fmt::format("Dropped {}: {}", split, reason), count);
  tracker.log(record, steps, ShownRecord{});
}

}  // namespace dalle2
