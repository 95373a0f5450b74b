// SPDX-License-Identifier: MIT
#include "kernels/gpu/kernel_launcher.h"

#include <kernel_texts.h>  // made of the sources beside this file

#include <map>
#include <mutex>

#include "base/error.h"
#include "kernels/gpu/nvrtc_launcher.h"

namespace dalle2 {
namespace {

std::mutex launchers_mutex;
std::map<at::DeviceType, KernelLauncher*> launchers;

}  // namespace

void set_kernel_launcher(at::DeviceType type, KernelLauncher* launcher) {
  const std::lock_guard lock(launchers_mutex);
  launchers[type] = launcher;
}

KernelLauncher* kernel_launcher(at::DeviceType type) {
  const std::lock_guard lock(launchers_mutex);
  const auto found = launchers.find(type);
  if (found != launchers.end()) return found->second;
  return type == at::kCUDA ? nvrtc_launcher() : nullptr;
}

std::string kernel_source(const std::string& program) {
  if (program == "group_norm_silu") return std::string(kElementText) + kGroupNormSiluText;
  if (program == "dropout_mask")
    return std::string(kElementText) + kDropoutBitsText + kDropoutMaskText;
  D2_CHECK(false, "no program of kernels named {}", program);
  return {};
}

}  // namespace dalle2
