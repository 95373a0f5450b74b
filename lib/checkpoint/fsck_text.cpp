// SPDX-License-Identifier: MIT
// What fsck found, for people and for programs.
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/fsck.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <optional>

namespace dalle2 {
namespace {

const char* name_of(FileState state) {
  constexpr std::array kNames = {"whole", "damaged", "unfinished"};
  return kNames[static_cast<size_t>(state)];
}

const char* name_of(Resume resume) {
  constexpr std::array kNames = {"exact", "by samples", "no"};
  return kNames[static_cast<size_t>(resume)];
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + one_line(word);
  return text;
}

std::string position_text(const CheckedFile& file) {
  std::string text;
  if (file.epoch) text += fmt::format(" of epoch {}", *file.epoch);
  if (file.samples_seen) text += fmt::format(", {} samples seen", with_commas(*file.samples_seen));
  std::string steps;
  for (const int64_t count : file.steps) {
    steps += (steps.empty() ? "" : " and ") + with_commas(count);
  }
  if (!steps.empty()) text += fmt::format(", {} steps", steps);
  return text;
}

std::string resume_text(const CheckedFile& file) {
  if (file.resume == Resume::kExact) return "a run can resume from it";
  if (file.resume == Resume::kBySamples) {
    return fmt::format("a run can resume from it, in its epoch by the count of samples (no {})",
                       join(file.missing));
  }
  if (file.kind == kProgramKind) return "no checkpoint: no run can resume from it";
  return file.kind == "checkpoint" || file.kind.empty()
             ? fmt::format("no run can resume from it: it lacks {}", join(file.missing))
             : "weights to draw with, no run can resume from it";
}

std::string file_text(const CheckedFile& file) {
  std::string text =
      fmt::format("{}: {}, {}", one_line(file.path), name_of(file.state), human_bytes(file.bytes));
  if (file.state == FileState::kUnfinished) {
    return text + ": a save in progress, or an interrupted one; the run's next start removes it\n";
  }
  if (file.kind == kProgramKind) {
    text += "; a " + file.kind;
  } else if (!file.kind.empty()) {
    text += fmt::format("; {}{}, {} tensors{}",
                        one_line(file.kind),
                        position_text(file),
                        with_commas(static_cast<int64_t>(file.tensor_count)),
                        file.has_checksums ? "" : ", no checksums in this format");
  }
  text += '\n';
  for (const std::string& fault : file.faults) text += fmt::format("  {}\n", printable(fault));
  if (file.state == FileState::kWhole) text += fmt::format("  {}\n", resume_text(file));
  return text;
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

std::string fsck_text(const std::string& path, const std::vector<CheckedFile>& files) {
  std::string text;
  std::array<int64_t, 3> counts = {};
  int64_t resumable = 0;
  for (const CheckedFile& file : files) {
    text += file_text(file);
    ++counts[static_cast<size_t>(file.state)];
    resumable += file.resume != Resume::kNo ? 1 : 0;
  }
  return text + fmt::format("{}: {} whole ({} to resume from), {} damaged, {} unfinished\n",
                            one_line(path),
                            counts[static_cast<size_t>(FileState::kWhole)],
                            resumable,
                            counts[static_cast<size_t>(FileState::kDamaged)],
                            counts[static_cast<size_t>(FileState::kUnfinished)]);
}

std::string fsck_json(const std::string& path, const std::vector<CheckedFile>& files) {
  Json list = Json::array();
  for (const CheckedFile& file : files) {
    list.push_back({{"file", file.path},
                    {"state", name_of(file.state)},
                    {"bytes", file.bytes},
                    {"kind", file.kind.empty() ? Json() : Json(file.kind)},
                    {"checksums", file.has_checksums},
                    {"tensors", file.tensor_count},
                    {"faults", file.faults},
                    {"resume", name_of(file.resume)},
                    {"missing", file.missing},
                    {"epoch", or_null(file.epoch)},
                    {"samples_seen", or_null(file.samples_seen)},
                    {"steps", file.steps}});
  }
  const Json json = {{"path", path}, {"whole", all_whole(files)}, {"files", std::move(list)}};
  return escaped_json(json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace dalle2
