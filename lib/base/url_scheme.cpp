// SPDX-License-Identifier: MIT
#include "base/url_scheme.h"

#include <string_view>

#include "base/text.h"

namespace dalle2 {

std::string with_small_schemes(std::string url) {
  constexpr std::string_view kBetween = "::";
  for (size_t begin = 0;;) {
    for (const std::string_view scheme : {"http://", "https://", "s3://", "hf://", "file:"}) {
      if (lower_case(std::string_view(url).substr(begin, scheme.size())) == scheme) {
        url.replace(begin, scheme.size(), scheme);
      }
    }
    begin = url.find(kBetween, begin);
    if (begin == std::string::npos) return url;
    begin += kBetween.size();
  }
}

}  // namespace dalle2
