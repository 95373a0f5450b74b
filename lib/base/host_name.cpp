// SPDX-License-Identifier: MIT
#include "base/host_name.h"

#include <unistd.h>

#include <array>

namespace dalle2 {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace dalle2
