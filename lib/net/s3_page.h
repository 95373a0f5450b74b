// SPDX-License-Identifier: MIT
// What a store of S3 answers, which is XML.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

/// The text of the first <name> element, unescaped; none without, or without its end.
std::optional<std::string> xml_element(std::string_view xml, const std::string& name);

/// One page of ListObjectsV2.
struct S3Page {
  std::vector<std::string> keys;
  bool is_last = true;
  std::string next_token;  ///< for the next page
};

S3Page parse_s3_page(std::string_view xml);

}  // namespace dalle2
