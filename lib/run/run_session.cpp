// SPDX-License-Identifier: MIT
#include "run/run_session.h"

#include <ATen/Parallel.h>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/version.h"
#include "optim/random.h"
#include "run/device.h"

namespace dalle2 {

at::Device prepare_device(const SharedTrainConfig& train) {
  const at::Device device = choose_device(train.device, "/train/device", /*allow_fallback=*/true);
  if (train.deterministic) use_deterministic_algorithms();
  return device;
}

RunSession::RunSession(const SessionOptions& options, RunPosition& position)
    : device_(prepare_device(options.train)),
      seed_(options.seed),
      rank_(options.rank),
      quiet_(options.quiet),
      tracker_(options.tracker, position_placeholders(position), /*dummy=*/options.rank != 0),
      progress_({.quiet = options.quiet,
                 .terminal = log_is_terminal(),
                 .beside_records = tracker_.prints_records()}),
      times_(device_) {
  log_info("train",
           "dalle2-train {} on {}, {}",
           program_version(),
           device_.str(),
           counted(at::get_num_threads(), "thread"));
}

at::Generator RunSession::generator(std::string_view purpose, int64_t epoch, int64_t step) const {
  return make_generator({seed_, purpose, epoch, step, rank_}, device_);
}

bool RunSession::stop_asked() {
  if (stop_requested() == 0 || stopped_) return stopped_;
  stopped_ = true;
  progress_.finish();
  log_info("train",
           "signal {}: saving and stopping; run the same command again to go on",
           stop_requested());
  return true;
}

void RunSession::throw_if_stop_asked() {
  if (stop_asked()) throw StoppedError("signal {}", stop_requested());
}

void RunSession::print_precision(const PrecisionChoice& precision) const {
  if (precision.reason.empty()) return;
  log_info("train",
           "mixed precision: {} ({})",
           enum_names<MixedPrecision>[static_cast<size_t>(precision.precision)],
           precision.reason);
}

}  // namespace dalle2
