// SPDX-License-Identifier: MIT
#include "io/formats/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <protozero/pbf_builder.hpp>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/this_process.h"
#include "io/pictures/image.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

// protozero (headers only) writes the messages: Google's library would want a code generator in the
// build and a shared library for these few.
// Field numbers of tensorflow/core/util/event.proto and framework/{summary,tensor,types}.proto.
enum class EventField : protozero::pbf_tag_type {
  kWallTime = 1,
  kStep = 2,
  kFileVersion = 3,
  kSummary = 5,
  kSessionLog = 7
};
enum class SessionLogField : protozero::pbf_tag_type { kStatus = 1 };
enum class SummaryField : protozero::pbf_tag_type { kValue = 1 };
enum class ValueField : protozero::pbf_tag_type {
  kTag = 1,
  kSimpleValue = 2,
  kImage = 4,
  kTensor = 8,
  kMetadata = 9
};
enum class ImageField : protozero::pbf_tag_type {
  kHeight = 1,
  kWidth = 2,
  kColorspace = 3,
  kEncoded = 4
};
enum class TensorField : protozero::pbf_tag_type { kDtype = 1, kShape = 2, kStringVal = 8 };
enum class ShapeField : protozero::pbf_tag_type { kDim = 2 };
enum class DimField : protozero::pbf_tag_type { kSize = 1 };
enum class MetadataField : protozero::pbf_tag_type { kPluginData = 1 };
enum class PluginField : protozero::pbf_tag_type { kName = 1 };

template <class Field>
using Message = protozero::pbf_builder<Field>;

constexpr const char* kFileVersion = "brain.Event:2";
constexpr int32_t kSessionStart = 1;  // SessionLog.START
constexpr int32_t kString = 7;        // DT_STRING

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82F63B78U : 0U);
    table[byte] = value;
  }
  return table;
}

/// A checksum that is beside what it covers is rotated and shifted, so that a checksum of both
/// does not degenerate.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

/// One record with its lengths and checksums.
std::string tfrecord(std::string_view bytes) {
  std::string record;
  append_little_endian(record, bytes.size(), 8);
  append_little_endian(record, masked_crc32c(record), 4);
  record += bytes;
  append_little_endian(record, masked_crc32c(bytes), 4);
  return record;
}

std::string version_event() {
  std::string bytes;
  Message<EventField> event(bytes);
  event.add_double(EventField::kWallTime, wall_time_seconds());
  event.add_string(EventField::kFileVersion, kFileVersion);
  return bytes;
}

std::string start_event(int64_t step) {
  std::string bytes;
  Message<EventField> event(bytes);
  event.add_double(EventField::kWallTime, wall_time_seconds());
  event.add_int64(EventField::kStep, step);
  Message<SessionLogField>(event, EventField::kSessionLog)
      .add_enum(SessionLogField::kStatus, kSessionStart);
  return bytes;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

/// For the name of a new file: seconds since 1970, but more than all files of the folder have, for
/// the clock may have been set back. TensorBoard reads them in the order of their names.
int64_t next_number(const std::string& folder) {
  auto number = static_cast<int64_t>(wall_time_seconds());
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const int64_t other = std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10);
    // Ten digits: names of more would come before those that are there.
    if (other < 9'999'999'999) number = std::max(number, other + 1);
  }
  return number;
}

std::string path_of_next(const std::string& folder) {
  static std::atomic<int> files_of_process{0};
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw ConfigError("{}: the folder cannot be made: {}", folder, error.message());
  const std::string name = fmt::format("{}{:010}.{}.{}.{}",
                                       kPrefix,
                                       next_number(folder),
                                       host_name(),
                                       ::getpid(),
                                       files_of_process++);
  return (fs::path(folder) / name).string();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

void EventSummary::add_scalar(const std::string& tag, double value) {
  Message<SummaryField> summary(bytes_);
  Message<ValueField> entry(summary, SummaryField::kValue);
  entry.add_string(ValueField::kTag, tag);
  entry.add_float(ValueField::kSimpleValue, static_cast<float>(value));
}

void EventSummary::add_image(const std::string& tag, std::string_view png) {
  const auto header = png_header(png);
  if (!header) {
    throw DataError(
        "picture '{}': expected a PNG file, got {} bytes of something else", tag, png.size());
  }
  Message<SummaryField> summary(bytes_);
  Message<ValueField> entry(summary, SummaryField::kValue);
  entry.add_string(ValueField::kTag, tag);
  Message<ImageField> image(entry, ValueField::kImage);
  image.add_int32(ImageField::kHeight, static_cast<int32_t>(header->height));
  image.add_int32(ImageField::kWidth, static_cast<int32_t>(header->width));
  image.add_int32(ImageField::kColorspace, header->channels);
  image.add_bytes(ImageField::kEncoded, png.data(), png.size());
}

void EventSummary::add_text(const std::string& tag, const std::string& markdown) {
  Message<SummaryField> summary(bytes_);
  Message<ValueField> entry(summary, SummaryField::kValue);
  entry.add_string(ValueField::kTag, tag);
  {
    Message<TensorField> tensor(entry, ValueField::kTensor);
    tensor.add_enum(TensorField::kDtype, kString);
    {
      Message<ShapeField> shape(tensor, TensorField::kShape);
      Message<DimField>(shape, ShapeField::kDim).add_int64(DimField::kSize, 1);
    }
    tensor.add_bytes(TensorField::kStringVal, markdown);
  }
  Message<MetadataField> metadata(entry, ValueField::kMetadata);
  Message<PluginField>(metadata, MetadataField::kPluginData).add_string(PluginField::kName, "text");
}

EventFile::EventFile(const std::string& folder, std::optional<int64_t> first_step)
    : file_(path_of_next(folder)) {
  try {
    append(version_event());
    if (first_step) append(start_event(*first_step));
  } catch (...) {
    ::unlink(path().c_str());
    throw;
  }
}

void EventFile::write(const EventSummary& summary, int64_t step, double wall_time) {
  std::string bytes;
  Message<EventField> event(bytes);
  event.add_double(EventField::kWallTime, wall_time);
  event.add_int64(EventField::kStep, step);
  event.add_message(EventField::kSummary, summary.bytes());
  append(bytes);
}

void EventFile::append(const std::string& event) {
  file_.append(tfrecord(event));
}

double wall_time_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace dalle2
