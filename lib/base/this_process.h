// SPDX-License-Identifier: MIT
// This program and its process: version, libraries, modules, machine, memory, signs of life.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/stop_signal.h"

namespace dalle2 {

/// Version of this program, e.g. "0.1.0".
std::string program_version();

/// Version of dalle2-pytorch whose checkpoint layout we write; our files hold it under `version`.
inline constexpr const char* kCheckpointLayoutVersion = "1.15.6";

/// The libraries that this layer is linked with, or whose headers it is compiled with: "fmt 9.1.0, ...".
std::string base_library_versions();

/// A function of a module: a shared object beside the program, with what needs libraries that not every machine has.
struct ModuleFunction {
  void* function = nullptr;  ///< null: it cannot be had
  std::string fault;         ///< why, in the words of the loader
};
/// Loads a module and looks up one of its functions. @param file name of the module, without a folder
ModuleFunction function_of_module(const char* file, const char* function);

/// Whether the message of a library's exception says that memory ran out: of the machine, or of a GPU. Not all are a
/// c10::OutOfMemoryError: cuBLAS and cuDNN have their own, and LibTorch fails an assertion if it cannot ask the driver who uses the memory.
bool says_out_of_memory(const std::string& message);

/// Of this machine; "localhost" if it has none.
std::string host_name();

/// Memory of this process in bytes, by a name of /proc/self/status: "VmRSS" resident now, "VmHWM"
/// the peak so far. 0 where there is no such file or name.
uint64_t process_memory(const std::string& field);

/// Memory in bytes that the processes of this machine share: its RAM, or less where a control group
/// of this process has a limit. 0 where it is not known.
uint64_t machine_memory();

/// Pieces of work that take long and get on, done so far in this process: a save to a slow disk is not
/// taken for a hang.
inline std::atomic<uint64_t> signs_of_life_so_far{0};

/// A piece of such work is done. Any thread, at any rate.
inline void sign_of_life() {
  signs_of_life_so_far.fetch_add(1, std::memory_order_relaxed);
}
inline uint64_t signs_of_life() {
  return signs_of_life_so_far.load(std::memory_order_relaxed);
}

/// To be called between two pieces, of seconds at most, of what may take minutes: a sign of life for the
/// ranks that wait. @throws StoppedError after a stop signal
inline void still_working() {
  sign_of_life();
  if (stop_requested() != 0) throw_stopped();
}

}  // namespace dalle2
