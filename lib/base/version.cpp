// SPDX-License-Identifier: MIT
#include "base/version.h"

namespace dalle2 {

std::string program_version() {
  return DALLE2_VERSION;
}

}  // namespace dalle2
