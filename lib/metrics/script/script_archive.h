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

namespace c10 {
struct IValue;
}

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
/// @throws ConfigError if the file is not there, damaged, or no TorchScript: then it says what it is
/// instead
ScriptArchive open_script_archive(const std::string& path,
                                  const std::string& where,
                                  const std::string& how_to_make_one,
                                  const at::Device& device);

/// A network's answer as float32. @throws std::runtime_error that says what it is instead
at::Tensor floats_of(const c10::IValue& answer);

/// What an operation of a network said last, without the trace of its Python.
std::string last_message(const std::exception& error);

/// Pictures to try a network with before it is used: noise, the same every time. [n, 3, side, side]
/// uint8
at::Tensor trial_pictures(int64_t count, int64_t side);

/// Shows a network a bounded number of rows at once, in inference mode and without TF32.
/// @param part is given `count` rows from `begin` @throws StoppedError after a stop signal
void for_parts(int64_t rows,
               int64_t at_once,
               const std::function<void(int64_t begin, int64_t count)>& part);
/// The same where a part has one result. @return the results joined
at::Tensor in_parts(int64_t rows,
                    int64_t at_once,
                    const std::function<at::Tensor(int64_t begin, int64_t count)>& of_rows);

/// Lets a frozen network compute its convolutions by convolution() (kernels/convolution.h), with filters that lie
/// channels-last. Before its first pass; on a device without CPU algorithms the network stays as it is.
/// @return how many convolutions were replaced
int64_t use_own_convolutions(torch::jit::Module& network, const at::Device& device);

}  // namespace dalle2
