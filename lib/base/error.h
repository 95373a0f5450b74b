// SPDX-License-Identifier: MIT
// The errors of the program. What a library throws becomes an exit code in apps/, nowhere else.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace dalle2 {

/// Exit codes of the process (docs/resuming.md).
enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kConfig = 2,     ///< usage or configuration
  kData = 3,       ///< unreadable checkpoint, no usable sample
  kNonFinite = 4,  ///< the loss is NaN or infinite
  kResource = 5,   ///< out of memory or disk
  kNetwork = 6,    ///< peer or network
  kStopped = 75,   ///< stopped by a signal after saving; run it again to continue
};

/// An error as a repair note: what happened and where, what was expected and found, what to do.
/// The secrets of urls are taken out of the message (base/public_url.h).
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message);
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// An error of one kind, from a fmt message.
template <ExitCode kCode>
class ErrorOfKind : public Error {
 public:
  template <class... Args>
  explicit ErrorOfKind(fmt::format_string<Args...> text, Args&&... args)
      : Error(kCode, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// Wrong command line or configuration (exit 2).
using ConfigError = ErrorOfKind<ExitCode::kConfig>;
/// Data that cannot be used: a damaged checkpoint, a shard without samples (exit 3).
using DataError = ErrorOfKind<ExitCode::kData>;
/// A loss, gradient or weight that is NaN or infinite (exit 4).
using NonFiniteError = ErrorOfKind<ExitCode::kNonFinite>;
/// Out of memory or disk (exit 5).
using ResourceError = ErrorOfKind<ExitCode::kResource>;
/// No space is left for a file (exit 5); there may be some later.
class DiskFullError : public ResourceError {
 public:
  using ResourceError::ResourceError;
};
/// A service or peer that cannot be reached or refuses (exit 6).
using NetworkError = ErrorOfKind<ExitCode::kNetwork>;
/// A wait was ended by a stop signal (exit 75).
using StoppedError = ErrorOfKind<ExitCode::kStopped>;

/// The end of messages about files that are cut off or damaged.
inline constexpr const char* kDamagedAdvice = "\n  Copy or download the file again.";

/// Throws std::logic_error for a broken promise between our own units (never for a user's input).
[[noreturn]] void broken_invariant(const char* file, int line, const std::string& message);

/// errno as text, e.g. "No such file or directory".
std::string errno_text(int error_number);

}  // namespace dalle2

/// Our own invariant: what a caller inside the program must guarantee. `...` is a fmt message.
#define D2_CHECK(condition, ...)                                                \
  do {                                                                          \
    if (!(condition)) {                                                         \
      ::dalle2::broken_invariant(__FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
    }                                                                           \
  } while (false)
