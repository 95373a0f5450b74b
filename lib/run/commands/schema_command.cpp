// SPDX-License-Identifier: MIT
#include <cstdio>

#include "config/kinds.h"
#include "run/commands.h"

namespace dalle2 {

void run_schema(const std::string& kind) {
  std::printf("%s\n", config_schema(kind).c_str());
}

}  // namespace dalle2
