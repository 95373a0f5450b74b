// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace dalle2 {

/// What the headers of one response say.
struct HttpResponse {
  long status = 0;
  std::string etag, bucket_region;
  std::optional<int64_t> content_length, range_start, range_total;
  std::optional<double> retry_after;           ///< seconds
  std::map<std::string, std::string> headers;  ///< names in small letters

  std::optional<int64_t> total() const { return status == 206 ? range_total : content_length; }
  /// The header of that name (small letters); empty if there is none.
  std::string header(const std::string& name) const;
  /// A line as it came; a status line forgets the response before it (a redirect, a proxy).
  void take_header(std::string_view line);

 private:
  void take_retry_after(const std::string& value);
};

}  // namespace dalle2
