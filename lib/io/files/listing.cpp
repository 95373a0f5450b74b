// SPDX-License-Identifier: MIT
#include "io/files/listing.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "io/files/folder_names.h"
#include "io/files/walk_folder.h"
#include "io/streams/url_source.h"
#include "net/hub/hub_api.h"
#include "net/s3/s3.h"
#include "net/url.h"

namespace dalle2 {
namespace {

[[noreturn]] void throw_unreadable(const std::string& folder, const std::error_code& error) {
  throw DataError("the folder \"{}\" cannot be read: {}", folder, error.message());
}

std::vector<ListedFile> list_local(const std::string& folder) {
  std::vector<ListedFile> files;
  for (const std::string& path : files_in_folder(folder)) {
    files.push_back({std::filesystem::path(path).filename().string(), path});
  }
  return files;
}

std::string with_slash(const std::string& folder) {
  return folder.ends_with('/') ? folder : folder + "/";
}

std::vector<ListedFile> list_s3(const std::string& folder, const HttpOptions& http) {
  const std::string base = with_slash(folder);
  std::vector<ListedFile> files;
  for (const std::string& name : s3_list(base, http)) files.push_back({name, base + name});
  return files;
}

std::vector<ListedFile> list_hub(const std::string& folder, const HttpOptions& http) {
  std::vector<ListedFile> files;
  for (const HubUrl& file : hub_list(folder, http)) {
    files.push_back({file.path.substr(file.path.rfind('/') + 1), file.text()});
  }
  return files;
}

/// The value of the href that begins at `at`; empty without quotes.
std::string quoted(const std::string& html, size_t at) {
  at = html.find_first_not_of(" \t\r\n", at);
  if (at == std::string::npos || (html[at] != '"' && html[at] != '\'')) return "";
  const size_t end = html.find(html[at], at + 1);
  return end == std::string::npos ? "" : without_entities(html.substr(at + 1, end - at - 1));
}

/// Whether `name` has the number after that of `before`, and is the same besides.
bool follows(const std::string& name, const std::string& before) {
  if (name.size() != before.size()) return false;
  size_t end = before.find_last_of("0123456789");
  if (end == std::string::npos) return false;
  std::string next = before;
  while (next[end] == '9') {
    next[end] = '0';
    if (end == 0 || next[end - 1] < '0' || next[end - 1] > '9') return false;
    --end;
  }
  ++next[end];
  return name == next;
}

std::vector<ListedFile> all_in_folder(const std::string& folder, const HttpOptions& http) {
  if (is_local_url(folder)) return list_local(local_path(folder));
  if (folder.starts_with("s3://")) return list_s3(folder, http);
  if (is_hub_url(folder)) return list_hub(folder, http);
  if (!folder.starts_with("http://") && !folder.starts_with("https://")) {
    throw ConfigError(
        "{}: a folder is a path, s3://BUCKET/FOLDER, hf://OWNER/NAME/FOLDER or the url of a web "
        "page.\n  For other places give one file's url with {{}} for the shard number.",
        public_url(folder));
  }
  const size_t query = std::min(folder.find('?'), folder.size());
  const bool is_page = folder.substr(0, query).ends_with(".html");
  const std::string page =
      is_page ? folder : with_slash(folder.substr(0, query)) + folder.substr(query);
  return links_of_page(
      read_source(open_source(page, {.http = http}), public_url(page), kMostPageBytes), page);
}

}  // namespace

std::vector<ListedFile> links_of_page(const std::string& html, const std::string& base) {
  const size_t query = std::min(base.find('?'), base.size());
  const std::string folder = base.substr(0, base.rfind('/', query) + 1), tail = base.substr(query);
  const size_t host = folder.find("://") + 3;
  const std::string path = folder.substr(std::min(folder.find('/', host), folder.size()));
  std::vector<ListedFile> files;
  std::set<std::string> seen;
  const std::string lower = lower_case(html);
  for (size_t at = 0; (at = lower.find("href=", at)) != std::string::npos; at += 5) {
    std::string link = quoted(html, at + 5);
    link = link.substr(0, link.find_first_of("?#"));
    for (const std::string& prefix : {folder, path, std::string("./")}) {
      if (link.starts_with(prefix)) {
        link.erase(0, prefix.size());
        break;
      }
    }
    const bool here = !link.empty() && link.find_first_of("/:") == std::string::npos;
    if (!here || !seen.insert(link).second) continue;
    if (link.size() > kMostNameBytes || files.size() >= kMostListedFiles) {
      throw NetworkError(
          "{}: the page has {}; at most {} are allowed.\n  Give one file's url with {{}} for the "
          "shard number.",
          public_url(base),
          link.size() > kMostNameBytes ? fmt::format("a name of {} bytes", link.size())
                                       : "more names of files",
          link.size() > kMostNameBytes ? kMostNameBytes : kMostListedFiles);
    }
    files.push_back({uri_decode(link), folder + link + tail});
  }
  return files;
}

std::string lower_extension(const std::filesystem::path& path) {
  return lower_case(path.extension().string());
}

bool is_picture_name(const std::filesystem::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jpg" || extension == ".jpeg" || extension == ".jpe" ||
         extension == ".jfif" || extension == ".png" || extension == ".webp";
}

bool is_unread_extension(const std::string& extension) {
  constexpr std::array kUnread = {
      ".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".tif", ".tiff"};
  return std::ranges::find(kUnread, extension) != kUnread.end();
}

bool is_data_extension(const std::string& extension) {
  constexpr std::array kOfData = {
      ".caption", ".csv", ".json", ".jsonl", ".npy", ".parquet", ".tar", ".txt"};
  return std::ranges::find(kOfData, extension) != kOfData.end();
}

bool path_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::filesystem::path canonical_folder(const std::filesystem::path& folder) {
  std::error_code error;
  // Links first: `link/..` is the folder above the one that the link leads to.
  const std::filesystem::path real =
      std::filesystem::weakly_canonical(std::filesystem::absolute(folder, error), error)
          .lexically_normal();
  return real.has_filename() || !real.has_relative_path() ? real : real.parent_path();
}

bool is_in_folder(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return !folder.empty() &&
         std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
             folder.end();
}

std::vector<std::string> names_in_folder(const std::string& folder) {
  std::vector<std::string> names;
  const WalkEnd end =
      walk_folder(folder.empty() ? "." : folder, Below::kNothing, [&](const auto& entry) {
        names.push_back(entry.path().filename().string());
      });
  if (end.opened && end.error) throw_unreadable(folder, end.error);
  return names;
}

std::vector<std::string> names_ending(const std::string& folder, const std::string& ending) {
  std::vector<std::string> names;
  const WalkEnd end = walk_folder(folder, Below::kNothing, [&](const auto& entry) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(ending)) names.push_back(name);
  });
  if (end.error && end.error != std::errc::no_such_file_or_directory) {
    throw DataError("{}: the folder cannot be read: {}", folder, end.error.message());
  }
  std::ranges::sort(names);
  return names;
}

std::optional<int64_t> number_of_array(const std::string& path) {
  constexpr size_t kMostDigits = 17;
  const std::filesystem::path file = path;
  const std::string stem = file.stem().string();
  const std::string digits = stem.substr(stem.rfind('_') + 1);  // all of it without one
  if (file.extension() != ".npy" || digits.size() > kMostDigits) return std::nullopt;
  return number_of_digits(digits);
}

std::vector<std::string> numbered_arrays(const std::string& folder) {
  std::vector<std::string> arrays;
  const std::filesystem::path top = folder.empty() ? "." : folder;
  const auto folders_in = [](const std::filesystem::path& path) {
    std::vector<std::filesystem::path> found;
    walk_folder(path, Below::kNothing, [&](const std::filesystem::directory_entry& entry) {
      std::error_code ignored;
      if (entry.is_directory(ignored)) found.push_back(entry.path());
    });
    return found;
  };
  const auto look_into = [&](const std::filesystem::path& path) {
    for (const std::string& name : names_ending(path.string(), ".npy")) {
      if (number_of_array(name)) arrays.push_back((path / name).lexically_relative(top).string());
    }
  };
  for (const std::filesystem::path& one_down : folders_in(top)) {
    if (!names_ending(one_down.string(), ".tar").empty()) continue;  // arrays of its own shards
    look_into(one_down);
    for (const std::filesystem::path& two_down : folders_in(one_down)) look_into(two_down);
  }
  std::ranges::sort(arrays);
  return arrays;
}

std::string short_list(const std::vector<std::string>& names) {
  constexpr size_t kMostParts = 8;
  std::string text;
  size_t parts = 0;
  for (size_t begin = 0, end = 0; begin < names.size(); begin = end) {
    if (++parts > kMostParts) {
      return text + " and " + with_commas(static_cast<int64_t>(names.size() - begin)) + " more";
    }
    for (end = begin + 1; end < names.size() && follows(names[end], names[end - 1]);) ++end;
    if (!text.empty()) text += ", ";
    text += one_line(names[begin]);
    if (end - begin > 1) text += " to " + one_line(names[end - 1]);
  }
  return text;
}

std::vector<std::string> files_in_folder(const std::string& folder) {
  std::vector<std::string> files;
  const WalkEnd end =
      walk_folder(folder.empty() ? "." : folder, Below::kNothing, [&](const auto& entry) {
        std::error_code ignored;
        if (!entry.is_directory(ignored)) files.push_back(entry.path().string());
      });
  if (end.error) throw_unreadable(folder, end.error);
  std::ranges::sort(files);
  return files;
}

std::vector<ListedFile> list_folder(const std::string& folder, const HttpOptions& http) {
  std::vector<ListedFile> files = all_in_folder(folder, http);
  // Copies and notes of other programs.
  std::erase_if(files, [](const ListedFile& file) { return file.name.starts_with('.'); });
  return files;
}

}  // namespace dalle2
