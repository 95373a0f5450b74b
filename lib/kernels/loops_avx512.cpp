// SPDX-License-Identifier: MIT
#include "kernels/loops_body.h"

namespace dalle2::loops {

const Table& avx512() {
  return kTable;
}

}  // namespace dalle2::loops
