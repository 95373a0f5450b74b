// SPDX-License-Identifier: MIT
#include "io/formats/parquet.h"

#include "base/this_process.h"

namespace dalle2 {

ReadParquetTexts* load_parquet_module() {
  const ModuleFunction found = function_of_module(kParquetModule, kReadParquetTexts);
  if (found.function == nullptr) throw NoParquetModule(found.fault);
  return reinterpret_cast<ReadParquetTexts*>(found.function);
}

}  // namespace dalle2
