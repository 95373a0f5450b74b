// SPDX-License-Identifier: MIT
#include "run/commands/sample_record.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/disk_io.h"

namespace dalle2 {
namespace {

constexpr const char* kRecord = "sampled.jsonl";

std::pair<uint64_t, uint32_t> content_of(const std::string& path) {
  uint64_t bytes = 0;
  uint32_t crc = 0;
  read_from_disk(path, [&](const char* data, size_t size) {
    crc = crc32_of(crc, data, size);
    bytes += size;
  });
  return {bytes, crc};
}

}  // namespace

SampleRecord::SampleRecord(std::string folder, std::string kind)
    : folder_(std::move(folder)), kind_(std::move(kind)) {
  std::error_code ignored;
  if (!std::filesystem::exists(path_of(kRecord), ignored)) return;
  is_foreign_ = !std::filesystem::is_regular_file(path_of(kRecord), ignored);
  if (is_foreign_) return;
  std::ifstream lines(path_of(kRecord));
  for (std::string line; std::getline(lines, line);) {
    const bool is_torn = lines.eof();  // by a kill, within the last line
    try {
      const auto saved = parse_untrusted_object(line);
      const auto name = saved.at("file").get<std::string>();
      Entry entry{saved.at("kind").get<std::string>(), std::nullopt};
      if (saved.contains("bytes"))
        entry.bytes_and_crc = {saved.at("bytes").get<uint64_t>(),
                               saved.at("crc32").get<uint32_t>()};
      // Only of the folder itself, whatever the file says.
      if (name.find('/') == std::string::npos && name != "..") files_[name] = entry;
    } catch (const std::exception&) {
      is_foreign_ = is_foreign_ || !is_torn;
    }
  }
  is_foreign_ = is_foreign_ || files_.empty();
  if (is_foreign_) files_.clear();
}

std::string SampleRecord::path_of(const std::string& name) const {
  return (std::filesystem::path(folder_) / name).string();
}

bool SampleRecord::is_ours(const std::string& name) const {
  const auto found = files_.find(name);
  std::error_code ignored;
  if (found == files_.end() || found->second.kind != kind_ ||
      !std::filesystem::is_regular_file(path_of(name), ignored)) {
    return false;
  }
  const auto& expected = found->second.bytes_and_crc;
  if (!expected) return true;
  // Its size first, which costs nothing.
  return std::filesystem::file_size(path_of(name), ignored) == expected->first &&
         content_of(path_of(name)) == *expected;
}

std::vector<std::string> SampleRecord::others_among(const std::vector<std::string>& names) const {
  std::vector<std::string> others;
  std::error_code ignored;
  std::copy_if(
      names.begin(), names.end(), std::back_inserter(others), [&](const std::string& name) {
        return std::filesystem::exists(path_of(name), ignored) && !is_ours(name);
      });
  if (is_foreign_) others.emplace_back(kRecord);
  return others;
}

void SampleRecord::writing(const std::string& name) {
  files_[name] = {kind_, std::nullopt};
  if (is_open_) return append(name);
  write();
  is_open_ = true;
}

void SampleRecord::wrote(const std::string& name) {
  files_[name] = {kind_, content_of(path_of(name))};
  append(name);
}

void SampleRecord::finish(const std::vector<std::string>& names) {
  for (auto file = files_.begin(); file != files_.end();) {
    const auto& [name, entry] = *file;
    const bool is_kept =
        entry.kind != kind_ || std::find(names.begin(), names.end(), name) != names.end();
    if (is_kept) {
      ++file;
      continue;
    }
    try {
      if (is_ours(name)) remove_file(path_of(name));
    } catch (const Error& error) {  // the new files are there, and that is what was asked for
      log_warning("sample", "an earlier output file was not removed: {}", error.what());
    }
    file = files_.erase(file);
  }
  write();
}

std::string SampleRecord::line_of(const std::string& name, const Entry& entry) const {
  nlohmann::ordered_json line = {{"file", name}, {"kind", entry.kind}};
  if (entry.bytes_and_crc) {
    line["bytes"] = entry.bytes_and_crc->first;
    line["crc32"] = entry.bytes_and_crc->second;
  }
  return line.dump() + "\n";
}

void SampleRecord::write() const {
  std::string text;
  for (const auto& [name, entry] : files_) text += line_of(name, entry);
  write_file_atomically(path_of(kRecord), text);
}

void SampleRecord::append(const std::string& name) {
  std::ofstream record(path_of(kRecord), std::ios::app);
  record << line_of(name, files_.at(name)) << std::flush;
  if (!record) throw ResourceError("{}: cannot be written", path_of(kRecord));
}

}  // namespace dalle2
