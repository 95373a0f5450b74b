// SPDX-License-Identifier: MIT
// NCCL lives in the CUDA half of LibTorch, which not every machine has. What needs its symbols is a
// shared object beside the program, loaded by ranks that compute on GPUs.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dalle2 {

inline constexpr const char* kNcclModule = "libdalle2_nccl.so";
inline constexpr const char* kMakeNcclGroup = "dalle2_make_nccl_group";
inline constexpr const char* kFaultOfNccl = "dalle2_fault_of_nccl";

/// Connects this rank with the others. `made` is set unless it throws.
/// @throws c10::Error, among others if this machine has no GPU
using MakeNcclGroup = void(const c10::intrusive_ptr<c10d::Store>& store,
                           int rank,
                           int size,
                           std::chrono::milliseconds timeout,
                           c10::intrusive_ptr<c10d::Backend>& made);

/// `fault` becomes why the module cannot be used with this LibTorch; it stays empty if it can.
using FaultOfNccl = void(std::string& fault);

/// Sets LibTorch's variables for NCCL groups that are made from now on. Otherwise, LibTorch's watchdog ends the process before ours has
/// said which rank is gone, or what the GPU's fault is. Its report of a failure also stays in the store that torchrun keeps, and then
/// ends every rank of later attempts. Blocking waits would keep the host from queueing work.
void leave_failures_to_our_watch();

/// Loads the module, and with it the CUDA half of LibTorch.
/// @throws ConfigError if it is absent or does not fit
MakeNcclGroup* load_nccl_module();

}  // namespace dalle2
