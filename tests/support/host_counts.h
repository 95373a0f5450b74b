// SPDX-License-Identifier: MIT
// What a piece of work asks of LibTorch on the CPU, without a clock: the same on every machine.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace dalle2::test {

struct HostCounts {
  int64_t operations = 0;   ///< calls of the dispatcher, views and calls within others among them
  int64_t allocations = 0;  ///< of tensors' memory
  /// The same but for those within a convolution of ATen's, whose number depends on the processor.
  int64_t own_operations = 0, own_allocations = 0;
  int64_t peak_bytes = 0;  ///< tensors that the work makes and that live at the same time, at most
  int64_t left_bytes = 0;  ///< tensors that it leaves behind, less those of before that it frees
  std::map<std::string, int64_t> by_name;  ///< calls of each operation
};

namespace host_counts {

inline std::mutex mutex;  ///< of what lanes share: all but `convolutions`
inline HostCounts* current = nullptr;
inline thread_local int64_t convolutions = 0;  ///< that are open

class Memory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/,
                         int64_t bytes,
                         size_t /*allocated*/,
                         size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const std::lock_guard lock(mutex);
    live += bytes;
    peak = std::max(peak, live);
    if (bytes <= 0) return;
    ++current->allocations;
    if (convolutions == 0) ++current->own_allocations;
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t peak = 0, live = 0;
};

struct Convolution : at::ObserverContext {};

inline std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
  const std::string name = call.name();
  const std::lock_guard lock(mutex);
  ++current->operations;
  ++current->by_name[name];
  if (convolutions == 0) ++current->own_operations;
  if (name != "aten::convolution" && name != "aten::convolution_backward") return nullptr;
  ++convolutions;
  return std::make_unique<Convolution>();
}

inline void on_end(const at::RecordFunction& /*call*/, at::ObserverContext* context) {
  if (context != nullptr) --convolutions;
}

}  // namespace host_counts

/// What `work` does on this thread and its lanes; backward passes on the CPU run on the thread that asks for them.
inline HostCounts host_counts_of(const std::function<void()>& work) {
  HostCounts counts;
  host_counts::current = &counts;
  const auto memory = std::make_shared<host_counts::Memory>();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&host_counts::on_call, &host_counts::on_end)
          .scopes({at::RecordScope::FUNCTION}));
  {
    const c10::DebugInfoGuard reports(c10::DebugInfoKind::PROFILER_STATE, memory);
    work();
  }
  at::removeCallback(handle);
  counts.peak_bytes = memory->peak;
  counts.left_bytes = memory->live;
  return counts;
}

}  // namespace dalle2::test
