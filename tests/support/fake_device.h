// SPDX-License-Identifier: MIT
// A device that is not the CPU, for machines without a GPU: main memory behind LibTorch's device type
// PrivateUse1. Its kernels are the CPU's, so that numbers are equal bit for bit; all else is as strict
// as on a GPU. The host cannot read its addresses, operations take no tensors of the CPU but numbers, what is
// copied to the host without waiting arrives when the host waits, and streams know nothing of each
// other until an event joins them. It counts what costs time on a GPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace dalle2::test {

struct FakeDeviceCounts {
  int64_t operations = 0;  ///< kernels; a view is none
  int64_t host_reads = 0;  ///< the host needs a value to go on: item, nonzero, a mask as an index
  int64_t host_waits = 0;  ///< for an event, a stream or the device
  int64_t uploads = 0;     ///< copies from the host, those that wait among them
  int64_t waiting_uploads =
      0;                  ///< from memory that is not pinned, or not asked to be in the background
  int64_t downloads = 0;  ///< copies to the host, those that wait among them
  int64_t waiting_downloads = 0;
  /// Memory that another stream than its own has used, was freed and could be used again too early.
  int64_t unsafe_frees = 0;
  /// Page-locked memory that was taken, in bytes, as LibTorch takes it: rounded up to a power of two.
  int64_t pinned_bytes = 0;
  std::map<std::string, int64_t> by_name;  ///< all of these

  /// Times the host stands still until the device has caught up, apart from host_waits.
  int64_t stalls() const { return host_reads + waiting_uploads + waiting_downloads; }
  /// By name, for the message of a test; what has no effect on the host is left out.
  std::string text() const;
};

/// The device; it is registered before main().
c10::Device fake_device();

/// Whether this thread has made it the current device. On a machine with several GPUs a thread that has not
/// uses the first, whichever is its process's.
bool thread_has_chosen_device();

/// What `work` does on it, in all threads.
FakeDeviceCounts counts_of(const std::function<void()>& work);

}  // namespace dalle2::test
