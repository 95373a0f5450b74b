// SPDX-License-Identifier: MIT
// Networks of others as TorchScript: what a file is, and one message for each way it can be wrong.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "base/untrusted_json.h"

namespace torch::jit {
struct Module;
}

namespace dalle2 {

struct ScriptArchive {
  std::string path;
  std::string sha256;  ///< of the file, in hexadecimal
  Json about;          ///< what scripts/export_*.py say of it; null for an archive of others
  std::shared_ptr<torch::jit::Module> module;  ///< for evaluation
};

/// @param where the config key, for messages @param how_to_make_one the advice where it is no archive
/// @param device where the network is to be: one that is frozen cannot be moved later
/// @throws ConfigError if the file is not there or no TorchScript: then it says what it is instead
ScriptArchive open_script_archive(const std::string& path,
                                  const std::string& where,
                                  const std::string& how_to_make_one,
                                  const at::Device& device);

/// What an operation of a network said last, without the trace of its Python.
std::string last_message(const std::exception& error);

/// A network sees a bounded number of rows at once. @param of_rows gives the result for `count` rows
/// from `begin` @return the results joined, in inference mode
at::Tensor in_parts(int64_t rows,
                    int64_t at_once,
                    const std::function<at::Tensor(int64_t begin, int64_t count)>& of_rows);

}  // namespace dalle2
