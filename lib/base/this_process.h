// SPDX-License-Identifier: MIT
// This program and its process: version, libraries, modules, machine, memory.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace dalle2
