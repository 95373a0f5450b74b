// SPDX-License-Identifier: MIT
#include <dlfcn.h>

#include "base/error.h"
#include "dist/nccl_module.h"

namespace dalle2 {

MakeNcclGroup* load_nccl_module() {
  // Without a slash in its name it is looked for along the program's RPATH.
  void* const module = dlopen(kNcclModule, RTLD_LAZY | RTLD_LOCAL);
  void* const made = module == nullptr ? nullptr : dlsym(module, kMakeNcclGroup);
  if (made == nullptr) {
    const char* const fault = dlerror();
    throw ConfigError(
        "several GPUs need NCCL, and the module for it cannot be loaded: {}\n"
        "  Programs built by scripts/build.sh --cuda have it, and so do wheels and archives made of "
        "such a build. DALLE2_GROUP=gloo trains without NCCL, more slowly.",
        fault == nullptr ? kNcclModule : fault);
  }
  return reinterpret_cast<MakeNcclGroup*>(made);
}

}  // namespace dalle2
