// SPDX-License-Identifier: MIT
#include "data/pictures/picture_listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/walk_folder.h"
#include "io/formats/tar.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// By extension.
using Counts = std::map<std::string, int64_t>;

/// "3 pictures", "2 .bmp, 1 .gif"
std::pair<std::string, std::string> texts_of(const Counts& counts, const std::string& one) {
  std::vector<std::string> kinds;
  int64_t all = 0;
  for (const auto& [extension, count] : counts) {
    kinds.push_back(with_commas(count) + " " + one_line(extension));
    all += count;
  }
  return {counted(all, one), fmt::format("{}", fmt::join(kinds, ", "))};
}

class Lister {
 public:
  Lister(const fs::path& folder, Tars tars) : folder_(folder), tars_(tars) {}

  PictureListing list() {
    walk_whole_folder(folder_, Below::kReadable, [&](const auto& entry) { see(entry); });
    const std::string name = printable(folder_.string());
    const std::vector<std::string> left_out = texts_of_left_out();
    if (listing_.pictures.empty()) {
      throw DataError("{}: found no jpg, jpeg, png or webp file{} in the folder or below it{}{}.",
                      name,
                      tars_ == Tars::kRead ? ", nor a tar of them," : "",
                      left_out.empty() ? "" : ", but ",
                      fmt::join(left_out, ", and "));
    }
    for (const std::string& text : left_out) log_warning("data", "{}: left out {}", name, text);
    if (!doubled_.empty()) {
      std::ranges::sort(doubled_);
      log_warning("data",
                  "{}: {} to files of the same folder, which count once more: {}",
                  name,
                  counted(std::ssize(doubled_), "picture is a link", "pictures are links"),
                  printable(short_list(doubled_)));
    }
    if (!passed_over_.empty()) {
      const auto [files, kinds] = texts_of(passed_over_, "file");
      log_info("data",
               "{}: passed over {} with names of no kind of data that is read ({})",
               name,
               files,
               kinds);
    }
    std::ranges::sort(
        listing_.pictures, {}, [](const auto& each) { return std::tie(each.source, each.offset); });
    return std::move(listing_);
  }

 private:
  void see(const fs::directory_entry& entry) {
    const fs::path& path = entry.path();
    const std::string source = path.lexically_relative(folder_).string();
    const std::string extension = lower_extension(path);
    std::error_code error;
    const bool is_link = fs::is_symlink(path, error);
    if (is_link && !fs::exists(path, error)) {
      lost_.push_back(source);
      return;
    }
    if (entry.is_directory(error) && ::access(path.c_str(), R_OK | X_OK) != 0) {
      log_warning("data",
                  "{}: the folder cannot be read ({}); its pictures are left out",
                  path.string(),
                  errno_text(errno));
    }
    const bool is_file = entry.is_regular_file(error);
    // All ranks, and a run that continues, must see the same pictures.
    if (error && error != std::errc::no_such_file_or_directory)
      throw DataError("{}: cannot be read: {}", path.string(), error.message());
    if (!is_file) return;
    count_unread(extension);
    if (is_picture_name(path)) {
      listing_.pictures.push_back({path, source});
      const fs::path target = is_link ? fs::weakly_canonical(path, error) : "";
      if (is_picture_name(target) && is_in_folder(target, real_folder_)) doubled_.push_back(source);
    } else if (extension == ".tar" && tars_ == Tars::kRead) {
      add_members(path, source);
    } else {
      listing_.others.push_back(source);
      // A tar is data, but here it is none that is read.
      if (!is_unread_extension(extension) && (!is_data_extension(extension) || extension == ".tar"))
        ++passed_over_[extension.empty() ? "without extension" : extension];
    }
  }

  void count_unread(const std::string& extension) {
    if (is_unread_extension(extension)) ++unread_[extension];
  }

  void add_members(const fs::path& path, const std::string& source) {
    const TarList list = list_tar(path.string());
    const size_t before = listing_.pictures.size();
    for (const TarPlace& place : list.places) {
      count_unread(lower_extension(place.name));
      if (!is_picture_name(place.name)) continue;
      listing_.pictures.push_back({path, (source / fs::path(place.name)).string(), place.offset});
    }
    if (!list.unread.empty()) log_warning("data", "{}: {}", printable(source), list.unread);
    if (list.fault.empty()) return;
    log_warning("data",
                "{}: {}: {} before that are used",
                printable(source),
                printable(list.fault),
                counted(static_cast<int64_t>(listing_.pictures.size() - before), "picture"));
  }

  std::vector<std::string> texts_of_left_out() {
    std::vector<std::string> texts;
    std::ranges::sort(lost_);
    if (!lost_.empty()) {
      texts.push_back(counted(std::ssize(lost_),
                              "link whose target does not exist or cannot be reached",
                              "links whose targets do not exist or cannot be reached") +
                      ": " + printable(short_list(lost_)));
    }
    if (!unread_.empty()) {
      const auto [pictures, kinds] = texts_of(unread_, "picture");
      texts.push_back(fmt::format("{} of kinds that are not read ({}): convert {} to PNG or JPEG",
                                  pictures,
                                  kinds,
                                  pictures == "1 picture" ? "it" : "them"));
    }
    const auto& others = listing_.others;
    const bool has_parquet = std::ranges::any_of(
        others, [](const auto& other) { return lower_extension(other) == ".parquet"; });
    if (has_parquet && listing_.pictures.empty())
      texts.push_back("Parquet files: docs/data.md says how to unpack them");
    return texts;
  }

  fs::path folder_, real_folder_ = canonical_folder(folder_);
  Tars tars_;
  PictureListing listing_;
  std::vector<std::string> lost_;     // links that lead nowhere
  std::vector<std::string> doubled_;  // links to files that are listed too
  Counts unread_, passed_over_;
};

}  // namespace

PictureListing list_pictures(const fs::path& folder, Tars tars) {
  return Lister(folder, tars).list();
}

std::string hash_of_names(const std::vector<FolderPicture>& pictures) {
  Fnv1a<uint32_t> hash;
  for (const FolderPicture& picture : pictures) hash.add_line(picture.source);
  return hash.hex();
}

std::string read_picture(const FolderPicture& picture) {
  if (!picture.offset) return read_file(picture.path.string());
  return read_tar_member(picture.path.string(), *picture.offset).content;
}

}  // namespace dalle2
