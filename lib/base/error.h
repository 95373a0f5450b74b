// SPDX-License-Identifier: MIT
// The errors of the program. What a library throws becomes an exit code in apps/, nowhere else.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace dalle2 {

/// Exit codes of the process (docs/training.md, "Stopping and going on").
enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kConfig = 2,     ///< usage or configuration
  kData = 3,       ///< unreadable checkpoint, no usable sample
  kNonFinite = 4,  ///< the loss is NaN or infinite
  kResource = 5,   ///< out of memory or disk
  kNetwork = 6,    ///< peer or network
  kStopped = 75,   ///< stopped by a signal after saving; run it again to go on
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

/// Wrong command line or configuration (exit 2).
class ConfigError : public Error {
 public:
  template <class... Args>
  explicit ConfigError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kConfig, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// Data that cannot be used: a damaged checkpoint, a shard without samples (exit 3).
class DataError : public Error {
 public:
  template <class... Args>
  explicit DataError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kData, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// A loss, gradient or weight that is NaN or infinite (exit 4).
class NonFiniteError : public Error {
 public:
  template <class... Args>
  explicit NonFiniteError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kNonFinite, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// Out of memory or disk (exit 5).
class ResourceError : public Error {
 public:
  template <class... Args>
  explicit ResourceError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kResource, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// A service or peer that cannot be reached or refuses (exit 6).
class NetworkError : public Error {
 public:
  template <class... Args>
  explicit NetworkError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kNetwork, fmt::format(text, std::forward<Args>(args)...)) {}
};

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
