// SPDX-License-Identifier: MIT
#include "io/files/new_shards.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/untrusted_text.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

bool is_numbered(const std::string& tar) {
  const size_t digits = tar.size() - std::string(".tar").size();
  return digits > 0 && tar.find_first_not_of("0123456789") == digits;
}

/// What a set of shards has in a folder: those with a number and those of `names`, arrays, manifests.
std::vector<std::string> set_in(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<std::string> found = names_ending(folder, ".tar");
  std::erase_if(found, [&](const std::string& tar) {
    return !is_numbered(tar) && std::ranges::find(names, tar) == names.end();
  });
  for (std::string& array : numbered_arrays(folder)) found.push_back(std::move(array));
  for (const char* manifest : {kEmbeddingsManifest, kLatentsManifest}) {
    if (path_exists(fs::path(folder) / manifest)) found.emplace_back(manifest);
  }
  return found;
}

}  // namespace

std::string NewShards::folder(const std::string& out) {
  return (fs::path(out) / "shards.part").string();
}

NewShards::NewShards(std::string out, bool overwrite, const std::vector<std::string>& names)
    : out_(std::move(out)), overwrite_(overwrite), earlier_(set_in(out_, names)) {
  if (!overwrite_ && !earlier_.empty()) {
    throw ConfigError(
        "--out {}: expected a folder without shards, found {}\n  Give another folder, or add --overwrite, "
        "which removes them and makes all shards again.",
        printable(out_),
        short_list(earlier_));
  }
  const std::string part = folder(out_);
  std::error_code error;
  made_out_ = fs::create_directories(out_, error);
  if (!error) fs::create_directory(part, error);
  if (error) {
    throw ConfigError(
        "--out {}: {} cannot be made: {}", printable(out_), printable(part), error.message());
  }
  descriptor_ = ::open(part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some network file systems lock no folders.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw ConfigError(
        "--out {}: another process makes shards there\n  Wait for its end, or give another folder.",
        printable(out_));
  }
  for (const std::string& name : names_in_folder(part)) fs::remove_all(fs::path(part) / name);
}

NewShards::~NewShards() {
  std::error_code ignored;
  if (!is_stuck_) fs::remove_all(folder(out_), ignored);
  if (made_out_) fs::remove(out_, ignored);  // if it is empty
  ::close(descriptor_);
}

std::vector<std::string> NewShards::finish(const std::vector<std::string>& names) {
  const fs::path part = folder(out_), out = out_;
  for (const std::string& name : names) {
    if (overwrite_ || !fs::exists(out / name)) continue;
    throw ConfigError(
        "--out {}: holds {}, which this command makes too\n  Give another folder, or add --overwrite.",
        printable(out_),
        printable(name));
  }
  try {
    for (const std::string& name : names) {
      fs::create_directories((out / name).parent_path());
      fs::rename(part / name, out / name);
    }
  } catch (const fs::filesystem_error& error) {
    is_stuck_ = true;
    throw DataError(
        "--out {}: the finished shards cannot be moved there from {}: {}\n  Move them by hand.",
        printable(out_),
        printable(part.string()),
        error.code().message());
  }
  for (const std::string& name : earlier_) {
    if (std::ranges::find(names, name) == names.end()) remove_file((out / name).string());
  }
  return std::move(earlier_);
}

}  // namespace dalle2
