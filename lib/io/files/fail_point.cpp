// SPDX-License-Identifier: MIT
#include "io/files/fail_point.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>

namespace dalle2 {
namespace {

constexpr int kKilledStatus = 137;  // what a shell reports after kill -9

/// DALLE2_FAIL_AT, counted over the whole process.
class FailPoint {
 public:
  /// The action that is due at this call of the kind `operation`; empty for none.
  std::string next(std::string_view operation) {
    const char* text = std::getenv("DALLE2_FAIL_AT");
    if (text == nullptr) return "";
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spec_ != text) parse(text);
    return operation == operation_ && ++calls_ == at_ ? action_ : "";
  }

 private:
  void parse(const char* text) {
    spec_ = text;
    operation_.clear();
    at_ = calls_ = 0;
    const size_t first = spec_.find(':');
    const size_t second = first == std::string::npos ? first : spec_.find(':', first + 1);
    if (second == std::string::npos) return;
    operation_ = spec_.substr(0, first);
    std::from_chars(spec_.data() + first + 1, spec_.data() + second, at_);
    action_ = spec_.substr(second + 1);
  }

  std::mutex mutex_;
  std::string spec_, operation_, action_;
  int64_t at_ = 0, calls_ = 0;
};

}  // namespace

bool fails_here(std::string_view operation) {
  static FailPoint fail_point;
  const std::string action = fail_point.next(operation);
  if (action == "abort") _exit(kKilledStatus);
  if (action != "eio" && action != "enospc") return false;
  errno = action == "eio" ? EIO : ENOSPC;
  return true;
}

}  // namespace dalle2
