// SPDX-License-Identifier: MIT
#include "kernels/gpu/kernel_launcher.h"

#include <kernel_texts.h>  // made of the sources beside this file

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
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

bool has_kernels(const at::Device& device,
                 const KernelProgram& program,
                 const std::string& what,
                 const std::function<bool()>& agrees) {
  using Key =
      std::tuple<KernelLauncher*, c10::DeviceIndex, std::string, at::ScalarType, at::ScalarType>;
  static std::mutex mutex;
  static std::map<Key, bool> known;
  KernelLauncher* const launcher = kernel_launcher(device.type());
  if (launcher == nullptr) return false;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(
      {launcher, device.index(), program.name, program.element, program.result}, false);
  if (!is_new) return found->second;
  std::string fault = "the results differ from those of LibTorch's operations";
  try {
    const c10::InferenceMode inference(false);  // the pass that asks may be one without gradients
    const at::AutoGradMode with_grad(true);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    found->second = agrees();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  if (!found->second) {
    log_warning(
        "train",
        "the kernels of {} are not used for {} on {}: {}\n  LibTorch's operations are used instead, "
        "which take longer.",
        what,
        c10::toString(program.element),
        device.str(),
        fault);
  }
  return found->second;
}

std::string kernel_source(const std::string& program) {
  if (program == "group_norm_silu") return std::string(kElementText) + kGroupNormSiluText;
  if (program == "dropout_mask")
    return std::string(kElementText) + kDropoutBitsText + kDropoutMaskText;
  D2_CHECK(false, "no program of kernels named {}", program);
  return {};
}

}  // namespace dalle2
