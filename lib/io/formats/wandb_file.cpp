// SPDX-License-Identifier: MIT
#include "io/formats/wandb_file.h"

#include <zlib.h>

#include <cmath>
#include <protozero/pbf_builder.hpp>

#include "base/little_endian.h"
#include "base/this_process.h"

namespace dalle2 {
namespace {

// Field numbers of wandb/proto/wandb_internal.proto (wandb 0.31).
enum class RecordField : protozero::pbf_tag_type {
  kNumber = 1,
  kHistory = 2,
  kSummary = 3,
  kFiles = 6,
  kStats = 7,
  kMetric = 12,
  kOutput = 13,
  kRun = 17,
  kExit = 18,
  kHeader = 21,
  kPreempting = 23
};
enum class RunField : protozero::pbf_tag_type {
  kRunId = 1,
  kEntity = 2,
  kProject = 3,
  kConfig = 4,
  kGroup = 6,
  kJobType = 7,
  kName = 8,
  kNotes = 9,
  kTag = 10,
  kHost = 13,
  kStartTime = 17,
  kResume = 24
};
/// Of a config, a history row and a summary alike.
enum class ItemsField : protozero::pbf_tag_type { kItem = 1, kStep = 2 };
enum class ItemField : protozero::pbf_tag_type { kKey = 1, kValueJson = 16 };
enum class StepField : protozero::pbf_tag_type { kNumber = 1 };
enum class TimeField : protozero::pbf_tag_type { kSeconds = 1, kNanoseconds = 2 };
enum class MetricField : protozero::pbf_tag_type { kName = 1, kStepMetric = 4, kOptions = 6 };
enum class OptionsField : protozero::pbf_tag_type { kDefined = 3 };
enum class FilesField : protozero::pbf_tag_type { kFile = 1 };
enum class FileField : protozero::pbf_tag_type { kPath = 1, kPolicy = 2, kType = 3 };
enum class StatsField : protozero::pbf_tag_type { kTime = 2, kItem = 3 };
enum class OutputField : protozero::pbf_tag_type { kType = 1, kTime = 2, kLine = 3 };
enum class ExitField : protozero::pbf_tag_type { kCode = 1, kRuntime = 2 };
enum class HeaderField : protozero::pbf_tag_type { kVersion = 1 };
enum class VersionField : protozero::pbf_tag_type { kProducer = 1 };

template <class Field>
using Message = protozero::pbf_builder<Field>;

constexpr int32_t kStderr = 0, kStdout = 1;          // of OutputRawRecord
constexpr int32_t kNow = 0, kOther = 0, kMedia = 2;  // of FilesItem

constexpr int64_t kBlock = 32'768;
constexpr int64_t kChunkHeader = 7;
constexpr char kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4;
constexpr std::string_view kFirstMark = ":W&B";
constexpr uint64_t kSecondMark = 0xBEE1;

template <class Parent, class Tag>
void add_items(Message<Parent>& parent, Tag tag, const WandbItems& items) {
  for (const auto& [key, json] : items) {
    Message<ItemField> item(parent, tag);
    item.add_string(ItemField::kKey, key);
    item.add_string(ItemField::kValueJson, json);
  }
}

template <class Parent, class Tag>
void add_time(Message<Parent>& parent, Tag tag, double unix_seconds) {
  const double whole = std::floor(unix_seconds);
  Message<TimeField> time(parent, tag);
  time.add_int64(TimeField::kSeconds, static_cast<int64_t>(whole));
  time.add_int32(TimeField::kNanoseconds, static_cast<int32_t>((unix_seconds - whole) * 1e9));
}

template <class Parent, class Tag>
void add_text(Message<Parent>& parent, Tag tag, const std::string& text) {
  if (!text.empty()) parent.add_string(tag, text);
}

/// The bytes of a record. @param fill writes its content
template <class Field, class Fill>
std::string record(RecordField kind, const Fill& fill) {
  std::string bytes;
  Message<RecordField> whole(bytes);
  {
    Message<Field> content(whole, kind);
    fill(content);
  }
  return bytes;
}

}  // namespace

WandbFile::WandbFile(std::string path) : file_(std::move(path)) {
  std::string bytes(kFirstMark);
  append_little_endian(bytes, kSecondMark, 2);
  append_little_endian(bytes, 0, 1);  // version
  file_.append(bytes);
  append(record<HeaderField>(RecordField::kHeader, [](auto& content) {
    Message<VersionField> version(content, HeaderField::kVersion);
    version.add_string(VersionField::kProducer, "dalle2-train " + program_version());
  }));
}

void WandbFile::write_run(const WandbRun& run) {
  append(record<RunField>(RecordField::kRun, [&](auto& content) {
    add_text(content, RunField::kRunId, run.info.path.run_id);
    add_text(content, RunField::kEntity, run.info.path.entity);
    add_text(content, RunField::kProject, run.info.path.project);
    {
      Message<ItemsField> config(content, RunField::kConfig);
      add_items(config, ItemsField::kItem, run.config);
    }
    add_text(content, RunField::kGroup, run.info.group);
    add_text(content, RunField::kJobType, run.info.job_type);
    add_text(content, RunField::kName, run.info.name);
    add_text(content, RunField::kNotes, run.info.notes);
    for (const std::string& tag : run.info.tags) content.add_string(RunField::kTag, tag);
    add_text(content, RunField::kHost, run.info.host);
    add_time(content, RunField::kStartTime, run.start_unix_seconds);
    content.add_bool(RunField::kResume, run.resumed);
  }));
}

void WandbFile::write_history(const WandbItems& row, int64_t step) {
  append(record<ItemsField>(RecordField::kHistory, [&](auto& content) {
    add_items(content, ItemsField::kItem, row);
    Message<StepField>(content, ItemsField::kStep).add_int64(StepField::kNumber, step);
  }));
}

void WandbFile::write_summary(const WandbItems& values) {
  if (values.empty()) return;  // protozero writes no empty message, and a record needs one
  append(record<ItemsField>(RecordField::kSummary,
                            [&](auto& content) { add_items(content, ItemsField::kItem, values); }));
}

void WandbFile::write_metric(const std::string& name, const std::string& axis) {
  append(record<MetricField>(RecordField::kMetric, [&](auto& content) {
    content.add_string(MetricField::kName, name);
    add_text(content, MetricField::kStepMetric, axis);
    Message<OptionsField>(content, MetricField::kOptions).add_bool(OptionsField::kDefined, true);
  }));
}

void WandbFile::write_file(const std::string& name, bool media) {
  append(record<FilesField>(RecordField::kFiles, [&](auto& content) {
    Message<FileField> file(content, FilesField::kFile);
    file.add_string(FileField::kPath, name);
    file.add_enum(FileField::kPolicy, kNow);
    file.add_enum(FileField::kType, media ? kMedia : kOther);
  }));
}

void WandbFile::write_stats(const WandbItems& values, double unix_seconds) {
  append(record<StatsField>(RecordField::kStats, [&](auto& content) {
    add_time(content, StatsField::kTime, unix_seconds);
    add_items(content, StatsField::kItem, values);
  }));
}

void WandbFile::write_console(const std::string& line, bool is_error, double unix_seconds) {
  append(record<OutputField>(RecordField::kOutput, [&](auto& content) {
    content.add_enum(OutputField::kType, is_error ? kStderr : kStdout);
    add_time(content, OutputField::kTime, unix_seconds);
    content.add_string(OutputField::kLine, line + "\n");
  }));
}

void WandbFile::write_preempting() {
  std::string bytes;
  Message<RecordField>(bytes).add_message(RecordField::kPreempting, std::string());
  append(bytes);
}

void WandbFile::write_exit(int exit_code, int64_t runtime_seconds) {
  append(record<ExitField>(RecordField::kExit, [&](auto& content) {
    content.add_int32(ExitField::kCode, exit_code);
    content.add_int32(ExitField::kRuntime, static_cast<int32_t>(runtime_seconds));
  }));
}

/// A record in chunks that do not cross the end of a block; the file's first bytes are of the first one.
void WandbFile::append(std::string_view body) {
  std::string record;
  Message<RecordField>(record).add_int64(RecordField::kNumber, ++records_);
  record += body;  // the fields of a message in pieces are those of the whole
  std::string bytes;
  std::string_view rest = record;
  for (bool first = true; first || !rest.empty(); first = false) {
    const int64_t at = file_.size() + static_cast<int64_t>(bytes.size());
    int64_t left = kBlock - at % kBlock;
    if (left < kChunkHeader) {
      bytes.append(static_cast<size_t>(left), '\0');
      left = kBlock;
    }
    const std::string_view piece = rest.substr(0, static_cast<size_t>(left - kChunkHeader));
    rest.remove_prefix(piece.size());
    const char type = first ? (rest.empty() ? kFull : kFirst) : (rest.empty() ? kLast : kMiddle);
    std::string checked(1, type);
    checked += piece;
    const auto* data = reinterpret_cast<const unsigned char*>(checked.data());
    append_little_endian(bytes, crc32_z(0, data, checked.size()), 4);
    append_little_endian(bytes, piece.size(), 2);
    bytes += checked;
  }
  file_.append(bytes);
}

}  // namespace dalle2
