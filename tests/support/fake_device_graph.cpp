// SPDX-License-Identifier: MIT
// Graphs of the fake device. As strict as a GPU's, and more: what is recorded is not done, memory outside the graph has to be where it
// was, and the graph's own memory holds nothing at the beginning of a replay.
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/device_graph.h"
#include "support/fake_device_parts.h"

namespace dalle2::test {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Memory that a work uses: the graph's own is kept, other has to be there still.
struct UsedMemory {
  WeakStorage weak;
  c10::Storage kept;
  void* address;
  size_t bytes;
  bool is_written;
};

struct Step {
  std::string name;
  std::vector<UsedMemory> memory;
  std::function<void()> again;
};

struct Recording {
  uint64_t number = 0;
  std::vector<Step> steps;
  std::map<void*, std::vector<char>> contents;  ///< of other memory, before the recording
  bool is_invalid = false;                      ///< something was refused
};

std::mutex recordings_mutex;
std::map<c10::StreamId, std::shared_ptr<Recording>> recordings;
std::atomic<uint64_t> graphs_made = 0;

std::shared_ptr<Recording> recording() {
  const std::lock_guard lock(recordings_mutex);
  const auto found = recordings.find(current_stream().id());
  return found == recordings.end() ? nullptr : found->second;
}

class FakeGraph final : public DeviceGraph {
 public:
  void begin_capture() override {
    const c10::Stream stream = current_stream();
    TORCH_CHECK(stream.id() != 0, "work on the default stream cannot be recorded");
    const std::lock_guard lock(recordings_mutex);
    TORCH_CHECK(!recordings.contains(stream.id()), "the stream is being recorded already");
    record_ = std::make_shared<Recording>();
    record_->number = ++graphs_made;
    recordings[stream.id()] = record_;
  }

  void end_capture() override {
    {
      const std::lock_guard lock(recordings_mutex);
      TORCH_CHECK(recordings.erase(current_stream().id()) == 1, "the stream is not recorded");
    }
    for (const auto& [address, bytes] : record_->contents) {
      std::memcpy(host_address(address), bytes.data(), bytes.size());
    }
    record_->contents.clear();
    forget_values();
    TORCH_CHECK(!record_->is_invalid, "the recording has become invalid");
    TORCH_CHECK(!record_->steps.empty(), "nothing was recorded");
  }

  void replay() override {
    count(&FakeDeviceCounts::operations, "operation graph");
    forget_values();
    for (const Step& step : record_->steps) {
      for (const UsedMemory& memory : step.memory) {
        if (memory.kept) continue;
        TORCH_CHECK(!memory.weak.expired(), step.name, ": a graph uses memory that was freed");
        const c10::Storage there(memory.weak.lock());
        TORCH_CHECK(there.mutable_data() == memory.address,
                    step.name,
                    ": a graph uses memory that has moved");
        use_memory(memory.address, memory.is_written, step.name);
      }
      step.again();
    }
  }

 private:
  /// All bits of its own memory are set: NaN.
  void forget_values() {
    for (const Step& step : record_->steps) {
      for (const UsedMemory& memory : step.memory) {
        if (!memory.kept || memory.bytes == 0) continue;
        std::memset(host_address(memory.address), 0xff, memory.bytes);
        adopt_memory(memory.address, current_stream());
      }
    }
  }

  std::shared_ptr<Recording> record_;
};

const bool is_registered = [] {
  set_graph_maker(at::kPrivateUse1,
                  [](DeviceGraph* /*neighbour*/) { return std::make_shared<FakeGraph>(); });
  return true;
}();

UsedMemory used(const Recording& record, const c10::Storage& storage, bool is_written) {
  void* const address = storage.mutable_data();
  UsedMemory memory{storage.getWeakStorageImpl(), {}, address, storage.nbytes(), is_written};
  if (address != nullptr && graph_of_memory(address) == record.number) memory.kept = storage;
  return memory;
}

}  // namespace

bool is_recording() {
  return recording() != nullptr;
}

uint64_t recorded_graph() {
  const auto record = recording();
  return record == nullptr ? 0 : record->number;
}

void refuse_while_recording(const std::string& what) {
  const auto record = recording();
  if (record != nullptr) record->is_invalid = true;
  TORCH_CHECK(record == nullptr, what, ": a graph cannot hold it");
}

void before_recorded_writes(const std::vector<c10::Storage>& writes) {
  const auto record = recording();
  for (const c10::Storage& storage : writes) {
    void* const address = storage.mutable_data();
    if (address == nullptr || graph_of_memory(address) == record->number) continue;
    if (record->contents.contains(address)) continue;
    const char* const host = static_cast<const char*>(host_address(address));
    record->contents[address].assign(host, host + storage.nbytes());
  }
}

void record_work(RecordedWork work) {
  const auto record = recording();
  Step step{std::move(work.name), {}, std::move(work.again)};
  for (const c10::Storage& storage : work.reads)
    step.memory.push_back(used(*record, storage, false));
  for (const c10::Storage& storage : work.writes)
    step.memory.push_back(used(*record, storage, true));
  record->steps.push_back(std::move(step));
}

}  // namespace dalle2::test
