// SPDX-License-Identifier: MIT
#include "run/loop/run_session.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/this_process.h"
#include "model/random.h"
#include "run/device/device.h"

namespace dalle2 {

namespace {

/// Of several processes each has chosen its device when it met the others.
at::Device device_of(const SharedTrainConfig& train, const ProcessGroup* group) {
  if (group == nullptr) return prepare_device(train);
  return group->is_alone() ? prepare_device(train, group->world()) : group->device();
}

}  // namespace

at::Device prepare_device(const SharedTrainConfig& train, const World& world) {
  // Nobody reads the warning of a batch job, which would spend a day on the CPU.
  const bool is_attended =
      (world.launcher == Launcher::kNone || world.launcher == Launcher::kOurs) &&
      std::getenv("SLURM_JOB_ID") == nullptr;
  const at::Device device = device_of_rank(train.device,
                                           "/train/device",
                                           !is_attended      ? WithoutGpu::kError
                                           : world.is_main() ? WithoutGpu::kWarn
                                                             : WithoutGpu::kQuiet,
                                           world);
  if (train.deterministic) {
    use_deterministic_algorithms();
  } else if (!device.is_cpu()) {
    search_for_algorithms();
  }
  if (!device.is_cpu()) use_tf32(train.tf32);
  return device;
}

std::string of_each_rank(const ProcessGroup& group) {
  return group.is_alone() ? "" : fmt::format(" on each of {} ranks", group.size());
}

RunSession::RunSession(const SessionOptions& options, RunPosition& position)
    : device_(device_of(options.train, options.process.group)),
      seed_(options.seed),
      group_(options.process.group ? options.process.group : &alone_),
      quiet_(options.process.quiet),
      tracker_(options.tracker,
               position_placeholders(position),
               /*dummy=*/!group_->is_main(),
               read_saved_facts,
               options.process.start),
      progress_({.quiet = quiet_ || !group_->is_main(),
                 .terminal = log_is_terminal(),
                 .beside_records = tracker_.prints_records()}),
      times_(device_) {
  log_info("train",
           "dalle2-train {} on {}, {}{}{}",
           program_version(),
           device_.str(),
           counted(at::get_num_threads(), "thread"),
           device_.is_cpu() ? "" : ", ",
           tf32_text(options.train.tf32, device_));
}

at::Generator RunSession::generator(std::string_view purpose, int64_t epoch, int64_t step) const {
  // Generators of a GPU draw other numbers: to compare a run on one with a run on the CPU.
  static const bool on_cpu = std::getenv("DALLE2_DRAW_ON_CPU") != nullptr;
  return make_generator({seed_, purpose, epoch, step}, on_cpu ? at::Device(at::kCPU) : device_);
}

void RunSession::check_same_data(const std::string& names, const char* what, const char* key) {
  const auto of_ranks = group_->gather_texts(names, fmt::format("names of the {}", what));
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank] == of_ranks.front()) continue;
    throw DataError(
        "rank {0} finds other {1} than rank 0\n  All ranks must read the same {1}: look at the file "
        "system of that machine ({2}).",
        rank,
        what,
        key);
  }
}

void RunSession::end_quiet() const {
  if (quiet_ && group_->is_main()) set_least_log_level(LogLevel::kInfo);
}

bool RunSession::stop_asked() {
  if (stopped_) return true;
  const int64_t signal = group_->heard_stop();
  if (signal == 0) return false;
  stopped_ = true;
  progress_.finish();
  end_quiet();
  log_info("train",
           "{}: saving and stopping; {}",
           signal_name(static_cast<int>(signal)),
           tracker_.resumes_by_itself()
               ? "run the same command again to resume"
               : "to resume, set /tracker/log/auto_resume to true and run the same command again");
  return true;
}

void RunSession::throw_if_signalled() const {
  group_->still_busy();
  if (stop_requested() != 0) throw_stopped();
}

void RunSession::together(const std::string& what,
                          const std::function<void()>& part,
                          Together how) {
  bool stopped = false;
  std::optional<OutsideFault> fault;
  {
    const ProcessGroup::BusyScope busy(*group_, what);
    try {
      if (!how.on_main || group_->is_main()) part();
    } catch (const StoppedError&) {
      stopped = true;
    } catch (const OutsideFault& outside) {
      fault = outside;
    } catch (const PeerError&) {
      throw;
    } catch (const Error&) {
      if (!how.from_outside) throw;
      fault = OutsideFault{std::current_exception()};
    }
  }
  const bool ends = group_->any(stopped || fault, what);
  if (fault) throw *fault;
  if (ends) throw StoppedError("{}: stopped by a signal, or by the fault of a rank", what);
}

void RunSession::throw_if_stop_asked() {
  if (stop_asked()) throw_stopped();
}

bool RunSession::is_due(double since, int64_t seconds) const {
  return group_->heard_seconds() - since > static_cast<double>(seconds);
}

}  // namespace dalle2
