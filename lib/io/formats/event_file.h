// SPDX-License-Identifier: MIT
// TensorBoard event files: scalars, pictures and texts by step.
//
// A file is a sequence of TFRecords (length, masked CRC-32C of it, bytes, masked CRC-32C of them)
// of which each holds one protobuf message `tensorflow.Event`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/files/disk_io.h"

namespace dalle2 {

/// CRC-32C (Castagnoli, RFC 3720, appendix B.4): 0xE3069283 for "123456789".
uint32_t crc32c(std::string_view bytes);

/// What is shown together at one step: the bytes of a `tensorflow.Summary`.
class EventSummary {
 public:
  /// Stored as float32, as TensorBoard has it.
  void add_scalar(const std::string& tag, double value);
  /// @param png a whole PNG file. @throws DataError if it is none
  void add_image(const std::string& tag, std::string_view png);
  /// @param markdown shown formatted
  void add_text(const std::string& tag, const std::string& markdown);

  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// A new file in a folder of events; TensorBoard shows all files of a folder as one run. Nothing is
/// ever appended to an older file: its end may be torn, and a reader stops there.
class EventFile {
 public:
  /// Makes the folder and `events.out.tfevents.<seconds>.<host>.<pid>.<n>` in it, which comes after all
  /// others there by its name. It begins with a mark at which TensorBoard forgets what older files hold
  /// of `first_step` and later.
  /// @throws ConfigError if it cannot be written
  EventFile(const std::string& folder, std::optional<int64_t> first_step);
  /// Hands one event to the system, whole: a kill of the process loses nothing of it.
  /// @param wall_time seconds since 1970. @throws ResourceError if it cannot be written
  void write(const EventSummary& summary, int64_t step, double wall_time);

  const std::string& path() const { return file_.path(); }

 private:
  void append(const std::string& event);

  RecordFile file_;
};

double wall_time_seconds();

}  // namespace dalle2
