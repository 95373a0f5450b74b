// SPDX-License-Identifier: MIT
#include "run/commands/sample_record.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/disk_io.h"

namespace dalle2 {
namespace {

constexpr const char* kRecord = "sampled.json";

}  // namespace

SampleRecord::SampleRecord(std::string folder) : folder_(std::move(folder)) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path_of(kRecord), ignored)) return;
  try {
    const auto record = parse_untrusted_object(read_file(path_of(kRecord)));
    for (const auto& [name, entry] : record.at("files").items()) {
      // Only of the folder itself, whatever the file says.
      if (name.find('/') != std::string::npos || name == "..") continue;
      files_[name] = entry.is_null() ? std::nullopt
                                     : std::optional(Entry{entry.at("bytes").get<uint64_t>(),
                                                           entry.at("crc32").get<uint32_t>()});
    }
  } catch (const std::exception&) {
    files_.clear();
    is_foreign_ = true;
  }
}

std::string SampleRecord::path_of(const std::string& name) const {
  return (std::filesystem::path(folder_) / name).string();
}

std::optional<SampleRecord::Entry> SampleRecord::entry_of(const std::string& name) const {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path_of(name), ignored)) return std::nullopt;
  const std::string content = read_file(path_of(name));
  return Entry{content.size(), crc32_of(0, content.data(), content.size())};
}

bool SampleRecord::wrote(const std::string& name) const {
  const auto found = files_.find(name);
  if (found == files_.end()) return false;
  const std::optional<Entry> now = entry_of(name);
  return now && (!found->second || found->second == now);
}

std::vector<std::string> SampleRecord::others_among(const std::vector<std::string>& names) const {
  std::vector<std::string> others;
  std::error_code ignored;
  std::copy_if(
      names.begin(), names.end(), std::back_inserter(others), [&](const std::string& name) {
        return std::filesystem::exists(path_of(name), ignored) && !wrote(name);
      });
  if (is_foreign_) others.emplace_back(kRecord);
  return others;
}

void SampleRecord::begin(const std::vector<std::string>& names) {
  for (const auto& [name, entry] : files_) {
    const bool is_kept = std::find(names.begin(), names.end(), name) != names.end();
    if (!is_kept && wrote(name)) remove_file(path_of(name));
  }
  files_.clear();
  for (const std::string& name : names) files_[name] = std::nullopt;
  write();
}

void SampleRecord::finish() {
  for (auto& [name, entry] : files_) entry = entry_of(name);
  write();
}

void SampleRecord::write() const {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, entry] : files_) {
    files[name] = nullptr;
    if (entry) files[name] = {{"bytes", entry->bytes}, {"crc32", entry->crc32}};
  }
  const nlohmann::ordered_json record = {
      {"about", "files that `dalle2-train sample` wrote, and may replace"}, {"files", files}};
  write_file_atomically(path_of(kRecord), record.dump(1) + "\n");
}

}  // namespace dalle2
