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

enum class FailAction { kNone, kAbort, kEio, kEnospc };

/// DALLE2_FAIL_AT, counted over the whole process.
class FailPoint {
 public:
  /// To be asked at the beginning of each call of the kind `operation`.
  FailAction next(std::string_view operation) {
    const char* text = std::getenv("DALLE2_FAIL_AT");
    if (text == nullptr) {
      return FailAction::kNone;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spec_ != text) {
      parse(text);
    }
    if (action_ == FailAction::kNone || operation != operation_ || ++calls_ != at_) {
      return FailAction::kNone;
    }
    return action_;
  }

 private:
  void parse(const char* text) {
    spec_ = text;
    calls_ = 0;
    action_ = FailAction::kNone;
    const size_t first = spec_.find(':');
    const size_t second = first == std::string::npos ? first : spec_.find(':', first + 1);
    if (second == std::string::npos) {
      return;
    }
    operation_ = spec_.substr(0, first);
    at_ = 0;
    std::from_chars(spec_.data() + first + 1, spec_.data() + second, at_);
    const std::string action = spec_.substr(second + 1);
    action_ = action == "abort"    ? FailAction::kAbort
              : action == "eio"    ? FailAction::kEio
              : action == "enospc" ? FailAction::kEnospc
                                   : FailAction::kNone;
  }

  std::mutex mutex_;
  std::string spec_, operation_;
  int64_t at_ = 0, calls_ = 0;
  FailAction action_ = FailAction::kNone;
};

}  // namespace

bool fails_here(std::string_view operation) {
  static FailPoint fail_point;
  switch (fail_point.next(operation)) {
    case FailAction::kNone:
      return false;
    case FailAction::kAbort:
      _exit(kKilledStatus);
    case FailAction::kEio:
      errno = EIO;
      return true;
    case FailAction::kEnospc:
      errno = ENOSPC;
      return true;
  }
  return false;
}

}  // namespace dalle2
