// SPDX-License-Identifier: MIT
#include <cstdio>

#include "base/log.h"
#include "checkpoint/convert.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"

namespace dalle2 {
namespace {

ConvertReport convert(const ConvertCommand& command) {
  const Weights weights = command.ema ? Weights::kAveraged : Weights::kAll;
  if (command.lora_naming) {
    return convert_lora_names(command.in_path, command.out_path, *command.lora_naming);
  }
  if (command.merge_lora || command.lora_path) {
    return convert_merged(command.in_path, command.out_path, weights, command.lora_path);
  }
  return convert_checkpoint(command.in_path, command.out_path, weights);
}

}  // namespace

void run_convert(const ConvertCommand& command) {
  check_out_folder("OUT", command.out_path);
  const ConvertReport report = convert(command);
  for (const std::string& path : report.replaced) {
    log_warning("ckpt", "{}: an object of an unknown class, kept as text", path);
  }
  std::printf("%s -> %s, %zu tensors\n",
              command.in_path.c_str(),
              command.out_path.c_str(),
              report.tensor_count);
}

}  // namespace dalle2
