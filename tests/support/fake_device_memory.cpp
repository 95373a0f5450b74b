// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/fake_device_parts.h"

namespace dalle2::test {
namespace {

struct MemoryUse {
  int64_t bytes = 0;
  c10::StreamId home = 0;                  ///< where it was made
  c10::StreamId writer = 0;                ///< the last
  uint64_t written = 0;                    ///< number of that work
  std::set<c10::StreamId> used, recorded;  ///< by other streams than `home`
  uint64_t graph = 0;                      ///< taken while this one was recorded; 0: none was
};

struct Download {
  c10::StreamId stream;
  uint64_t work;
  at::Tensor from, to;
};

struct Everything {
  std::mutex mutex;
  FakeDeviceCounts counts;
  std::unordered_map<void*, MemoryUse> memory;
  std::map<uintptr_t, size_t> pinned;
  std::map<c10::StreamId, StreamClock> streams;
  StreamClock host;  ///< what the host has waited for: all that it starts comes after that
  std::vector<Download> downloads;
  uint64_t work = 0;
  int64_t bytes = 0, most_bytes = 0;  // of the device's memory
  c10::StreamId streams_made = 0;
};

/// Never destroyed: tensors of static duration outlive what main() leaves.
Everything& everything() {
  static auto* const all = new Everything;
  return *all;
}

/// All of it, while nobody else has it.
class Locked {
 public:
  Everything* operator->() const { return &everything(); }

 private:
  std::lock_guard<std::mutex> lock_{everything().mutex};
};

thread_local c10::StreamId stream_of_thread = 0;

// Bit 62 alone makes an address that no process has.
constexpr uintptr_t kDeviceBit = uintptr_t{1} << 62;

struct Owner {
  c10::DataPtr pointer;  // either
  c10::Storage storage;  // or
  void* address;
};

void free_memory(void* context) {
  const std::unique_ptr<Owner> owner(static_cast<Owner*>(context));
  const Locked all;
  const auto found = all->memory.find(owner->address);
  if (found == all->memory.end()) return;
  all->bytes -= found->second.bytes;
  for (const c10::StreamId user : found->second.used) {
    if (!found->second.recorded.contains(user)) ++all->counts.unsafe_frees;
  }
  all->memory.erase(found);
}

c10::DataPtr owned_by_device(std::unique_ptr<Owner> owner, void* host, size_t bytes) {
  owner->address = device_address(host);
  void* const address = owner->address;
  if (address != nullptr) {
    const uint64_t graph = recorded_graph();
    const Locked all;
    MemoryUse& memory = all->memory[address] = {};
    memory.graph = graph;
    memory.home = memory.writer = stream_of_thread;
    memory.bytes = static_cast<int64_t>(bytes);
    all->bytes += memory.bytes;
    all->most_bytes = std::max(all->most_bytes, all->bytes);
  }
  return {address, owner.release(), &free_memory, fake_device()};
}

class DeviceAllocator : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto owner = std::make_unique<Owner>();
    owner->pointer = c10::GetAllocator(at::kCPU)->allocate(bytes);
    void* const host = owner->pointer.get();
    if (bytes > 0) std::memset(host, 0xff, bytes);  // NaN: what was there before
    return owned_by_device(std::move(owner), host, bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(host_address(to), host_address(const_cast<void*>(from)), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    record_memory(memory.get(), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const Locked all;
    auto& bytes =
        stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = all->bytes;
    bytes.peak = all->most_bytes;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex /*index*/) override {}
};

void free_pinned(void* context) {
  const std::unique_ptr<Owner> owner(static_cast<Owner*>(context));
  const Locked all;
  all->pinned.erase(reinterpret_cast<uintptr_t>(owner->address));
}

class PinnedAllocator : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    refuse_while_recording("taking page-locked memory");
    auto owner = std::make_unique<Owner>();
    owner->pointer = c10::GetAllocator(at::kCPU)->allocate(bytes);
    owner->address = owner->pointer.get();
    const Locked all;
    all->pinned[reinterpret_cast<uintptr_t>(owner->address)] = bytes;
    all->counts.pinned_bytes += static_cast<int64_t>(std::bit_ceil(bytes));
    void* const address = owner->address;
    return {address, owner.release(), &free_pinned, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

bool is_done(const Download& download, const StreamClock& clock) {
  const auto known = clock.find(download.stream);
  return known != clock.end() && known->second >= download.work;
}

void merge(StreamClock& into, const StreamClock& clock) {
  for (const auto& [stream, work] : clock) into[stream] = std::max(into[stream], work);
}

uint64_t next_work(const Locked& all) {
  return all->streams[stream_of_thread][stream_of_thread] = ++all->work;
}

/// The host stands still until this stream has got here.
void host_catches_up() {
  const Locked all;
  merge(all->host, all->streams[stream_of_thread]);
}

/// Counts a copy. @return whether the host waits for it
bool waits_for_copy(const char* what,
                    int64_t FakeDeviceCounts::*all,
                    int64_t FakeDeviceCounts::*waiting,
                    const at::Tensor& of_host,
                    bool non_blocking) {
  const bool waits = !non_blocking || !is_pinned_address(of_host.const_data_ptr());
  count(all,
        std::string(what) + (waits ? " that waits, " : ", ") + c10::str(of_host.sizes()) +
            c10::toString(of_host.scalar_type()));
  if (waits) count(waiting, "");
  return waits;
}

/// Lets those arrive that are done by `clock`.
void arrive(const StreamClock& clock) {
  std::vector<Download> arrived;
  {
    const Locked all;
    const auto still_open = std::stable_partition(
        all->downloads.begin(), all->downloads.end(), [&](const Download& each) {
          return !is_done(each, clock);
        });
    arrived.assign(still_open, all->downloads.end());
    all->downloads.erase(still_open, all->downloads.end());
  }
  for (const Download& each : arrived) each.to.copy_(each.from);
}

}  // namespace

std::string FakeDeviceCounts::text() const {
  std::string lines;
  for (const auto& [name, times] : by_name) {
    if (name.starts_with("operation")) continue;
    lines += "\n  " + std::to_string(times) + " x " + name;
  }
  return std::to_string(operations) + " operations" + lines;
}

FakeDeviceCounts counts_of(const std::function<void()>& work) {
  Locked()->counts = {};
  work();
  return std::exchange(Locked()->counts, {});
}

void count(int64_t FakeDeviceCounts::*what, const std::string& name) {
  const Locked all;
  ++(all->counts.*what);
  if (!name.empty()) ++all->counts.by_name[name];
}

void* device_address(void* host) {
  return host == nullptr ? nullptr
                         : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) | kDeviceBit);
}

void* host_address(void* device) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(device) & ~kDeviceBit);
}

c10::Allocator* device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

c10::DataPtr device_pointer(const c10::Storage& host) {
  auto owner = std::make_unique<Owner>();
  owner->storage = host;
  return owned_by_device(std::move(owner), host.mutable_data(), host.nbytes());
}

c10::Storage device_storage(const c10::Storage& host) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               host.nbytes(),
                                               device_pointer(host),
                                               device_allocator(),
                                               /*resizable=*/true);
}

c10::Allocator* pinned_allocator() {
  static auto* const allocator = [] {
    auto* const made = new PinnedAllocator;
    at::setHostAllocator(at::kPrivateUse1, made);
    return made;
  }();
  return allocator;
}

bool is_pinned_address(const void* address) {
  const Locked all;
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto behind = all->pinned.upper_bound(at);
  if (behind == all->pinned.begin()) return false;
  --behind;
  return at < behind->first + behind->second;
}

c10::Stream current_stream() {
  return c10::Stream(c10::Stream::UNSAFE, fake_device(), stream_of_thread);
}

void set_current_stream(c10::Stream stream) {
  stream_of_thread = stream.id();
}

c10::Stream new_stream() {
  return c10::Stream(c10::Stream::UNSAFE, fake_device(), ++Locked()->streams_made);
}

void use_memory(void* device_memory, bool writes, const std::string& by) {
  if (is_recording()) return;  // it is used by the replays
  const Locked all;
  const auto found = all->memory.find(device_memory);
  if (found == all->memory.end()) return;  // empty
  MemoryUse& memory = found->second;
  const c10::StreamId stream = stream_of_thread;
  const uint64_t known = memory.writer == stream ? memory.written
                                                 : std::max(all->streams[stream][memory.writer],
                                                            all->host[memory.writer]);
  TORCH_CHECK(known >= memory.written,
              by,
              " on stream ",
              stream,
              " uses memory that stream ",
              memory.writer,
              " writes; no event comes between them");
  if (stream != memory.home) memory.used.insert(stream);
  const uint64_t work = next_work(all);
  if (writes) {
    memory.writer = stream;
    memory.written = work;
  }
}

void record_memory(void* device_memory, c10::Stream stream) {
  const Locked all;
  const auto found = all->memory.find(device_memory);
  if (found != all->memory.end()) found->second.recorded.insert(stream.id());
}

void adopt_memory(void* device_memory, c10::Stream stream) {
  const Locked all;
  const auto found = all->memory.find(device_memory);
  if (found == all->memory.end()) return;
  MemoryUse& memory = found->second;
  memory.home = memory.writer = stream.id();
  memory.written = 0;
  memory.used.clear();
  memory.recorded.clear();
}

uint64_t graph_of_memory(void* device_memory) {
  const Locked all;
  const auto found = all->memory.find(device_memory);
  return found == all->memory.end() ? 0 : found->second.graph;
}

StreamClock clock_of(c10::Stream stream) {
  return Locked()->streams[stream.id()];
}

void wait_in_stream(c10::Stream stream, const StreamClock& clock) {
  merge(Locked()->streams[stream.id()], clock);
}

void wait_on_host(const StreamClock& clock, const std::string& what) {
  refuse_while_recording("waiting for " + what);
  count(&FakeDeviceCounts::host_waits, "wait for " + what);
  merge(Locked()->host, clock);
  arrive(clock);
}

void wait_for_all() {
  StreamClock clock;
  {
    const Locked all;
    for (const auto& [stream, own] : all->streams) clock[stream] = all->work;
  }
  wait_on_host(clock, "the device");
}

void download(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  refuse_while_recording("a copy to the host");
  if (waits_for_copy("download",
                     &FakeDeviceCounts::downloads,
                     &FakeDeviceCounts::waiting_downloads,
                     to,
                     non_blocking)) {
    to.copy_(from);
    host_catches_up();
    return;
  }
  const at::Tensor now = from.clone();
  if (to.is_floating_point()) {
    to.fill_(std::nan(""));
  } else {
    to.fill_(1);
  }
  const Locked all;
  all->downloads.push_back({stream_of_thread, next_work(all), now, to});
}

void upload(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  refuse_while_recording("a copy from the host");
  const bool waits = waits_for_copy(
      "upload", &FakeDeviceCounts::uploads, &FakeDeviceCounts::waiting_uploads, from, non_blocking);
  arrive(clock_of(current_stream()));  // what the stream has copied there before, it reads
  to.copy_(from);
  if (waits) host_catches_up();
}

}  // namespace dalle2::test
