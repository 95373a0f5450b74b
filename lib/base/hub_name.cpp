// SPDX-License-Identifier: MIT
#include "base/hub_name.h"

namespace dalle2 {

bool is_hub_repo(std::string_view repo) {
  constexpr const char* kNameChars =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._";
  const size_t slash = repo.find('/');
  return slash != std::string_view::npos && slash > 0 && slash + 1 < repo.size() &&
         repo.find_first_not_of(kNameChars) == slash &&
         repo.find_first_not_of(kNameChars, slash + 1) == std::string_view::npos &&
         repo.find("..") == std::string_view::npos;
}

}  // namespace dalle2
