// SPDX-License-Identifier: MIT
// What the fake device consists of: memory and streams (fake_device_memory.cpp), what LibTorch asks a
// device for (fake_device.cpp), its operations (fake_device_kernels.cpp, fake_device_autocast.cpp).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/fake_device.h"

namespace dalle2::test {

/// How much of each stream's work is known to be done, by number of the work.
using StreamClock = std::map<c10::StreamId, uint64_t>;

// ---- Counts

void count(int64_t FakeDeviceCounts::*what, const std::string& name);

// ---- Memory

/// An address of the device, at which the host has nothing to read, and back.
void* device_address(void* host);
void* host_address(void* device);
c10::Allocator* device_allocator();
/// Memory of the host becomes the device's.
c10::Storage device_storage(const c10::Storage& host);
c10::DataPtr device_pointer(const c10::Storage& host);

c10::Allocator* pinned_allocator();
bool is_pinned_address(const void* address);

// ---- Streams

c10::Stream current_stream();
void set_current_stream(c10::Stream stream);
c10::Stream new_stream();
/// Work on the current stream reads or writes memory of the device.
/// @throws c10::Error if another stream writes it and has not been waited for
void use_memory(void* device_memory, bool writes, const std::string& by);
/// Memory stays until the stream's work so far has been done.
void record_memory(void* device_memory, c10::Stream stream);
/// What the stream knows to be done once its work so far is.
StreamClock clock_of(c10::Stream stream);
void wait_in_stream(c10::Stream stream, const StreamClock& clock);
/// The host waits: downloads of that time arrive.
void wait_on_host(const StreamClock& clock, const std::string& what);
void wait_for_all();

// ---- Copies

/// From one memory to the other, both given as tensors of the host. Copies to pinned memory that need
/// not wait arrive later; until then nothing sensible is there.
void download(const at::Tensor& to, const at::Tensor& from, bool non_blocking);
void upload(const at::Tensor& to, const at::Tensor& from, bool non_blocking);

// ---- Graphs (fake_device_graph.cpp)

/// Whether work on this thread's current stream is being recorded.
bool is_recording();
/// For what no graph can hold. @throws c10::Error while work is recorded
void refuse_while_recording(const std::string& what);

/// An operation that is recorded: as on a GPU, its effects come with a replay alone.
struct RecordedWork {
  std::string name;
  std::vector<c10::Storage> reads, writes;  ///< on the device
  std::function<void()> again;
};
/// To be called before the operation runs: what it writes outside the graph's memory is put back at the end of the recording.
void before_recorded_writes(const std::vector<c10::Storage>& writes);
void record_work(RecordedWork work);

/// Hands memory to a stream, as if it were new.
void adopt_memory(void* device_memory, c10::Stream stream);
/// The number of the graph that was being recorded when this memory was taken; 0: none was.
uint64_t graph_of_memory(void* device_memory);
/// The graph that is being recorded on this thread's current stream; 0: none.
uint64_t recorded_graph();

// ---- Random numbers

/// The CPU's generator inside one of the device.
at::Generator host_generator_in(const at::Generator& generator);

}  // namespace dalle2::test
