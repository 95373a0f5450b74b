// SPDX-License-Identifier: MIT
#include "io/formats/parquet.h"

#include <dlfcn.h>

namespace dalle2 {

ReadParquetTexts* load_parquet_module() {
  // Without a slash in its name it is looked for along the program's RPATH.
  void* const module = dlopen(kParquetModule, RTLD_LAZY | RTLD_LOCAL);
  void* const read = module == nullptr ? nullptr : dlsym(module, kReadParquetTexts);
  if (read == nullptr) {
    const char* const fault = dlerror();
    throw NoParquetModule(fault == nullptr ? kParquetModule : fault);
  }
  return reinterpret_cast<ReadParquetTexts*>(read);
}

}  // namespace dalle2
