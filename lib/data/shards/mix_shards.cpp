// SPDX-License-Identifier: MIT
#include "data/shards/mix_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "data/shards/captions.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/new_shards.h"
#include "io/formats/npy.h"
#include "io/formats/tar.h"
#include "io/formats/webdataset.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Where the members of a sample lie.
struct StoredSample {
  size_t shard = 0, place = 0;  // of the old ones
  std::string key, path;
  std::vector<std::pair<std::string, uint64_t>> members;  // field as stored, offset
};

/// The `source` that `shards make` writes beside `bytes`, which names the folder of a picture. That of other
/// programs is no path.
std::optional<std::string> source_of(const std::string& json) {
  const Json notes = parse_untrusted_object(json);
  const std::string source = text_member(notes, "source");
  constexpr size_t kMostPath = 4096;
  const bool is_path = !source.empty() && notes.contains("bytes") && source.size() <= kMostPath;
  return is_path ? std::optional(source) : std::nullopt;
}

void list_samples(const std::vector<std::string>& shards,
                  size_t shard,
                  std::vector<StoredSample>& samples) {
  const TarList list = list_tar(shards[shard]);
  if (const std::string& fault = list.fault.empty() ? list.unread : list.fault; !fault.empty()) {
    throw DataError("{}: {}\n  Mend or remove this shard, or unpack it if it is compressed.",
                    printable(shards[shard]),
                    printable(fault));
  }
  const size_t before = samples.size();
  for (const TarPlace& place : list.places) {
    const auto name = split_member_name(place.name);
    if (!name || is_meta_member(place.name)) continue;
    if (samples.size() == before || samples.back().key != name->first) {
      samples.push_back({.shard = shard,
                         .place = samples.size() - before,
                         .key = name->first,
                         .path = {},
                         .members = {}});
    }
    samples.back().members.emplace_back(name->second, place.offset);
  }
  for (size_t i = before; i < samples.size(); ++i) {
    StoredSample& sample = samples[i];
    sample.path = fmt::format("{:08}/{:08}", shard, i - before);
    for (const auto& [field, offset] : sample.members) {
      if (field != "json") continue;
      const auto source = source_of(read_tar_member(shards[shard], offset).content);
      if (source) sample.path = *source;
    }
  }
}

/// Files of rows with one name but for the number of the shard.
class ArrayFamily {
 public:
  void add(int64_t shard, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string begin(kMostNpyHeader, '\0');
    file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    begin.resize(static_cast<size_t>(file.gcount()));
    const NpyLayout layout = parse_npy_layout(begin, fs::file_size(path), path);
    const std::vector<int64_t> row(layout.shape.begin() + (layout.shape.empty() ? 0 : 1),
                                   layout.shape.end());
    if (layout.shape.empty() || (layout.fortran_order && layout.shape.size() > 1) ||
        (!files_.empty() && (row != row_shape_ || layout.type != type_))) {
      throw DataError(
          "{}: expected rows like those of the other files, in C order\n  Remove the file, or make "
          "it again.",
          printable(path));
    }
    type_ = layout.type;
    row_shape_ = row;
    row_bytes_ = npy_item_size(type_);
    for (const int64_t size : row) row_bytes_ *= static_cast<size_t>(size);
    files_[shard] = {path, layout.data_begin, layout.shape.front()};
  }
  /// @return none if the shard has no file. @throws DataError for a row that is not in the file
  std::string row(int64_t shard, int64_t index, const std::string& key) const {
    const auto found = files_.find(shard);
    if (found == files_.end()) return {};
    const File& of_shard = found->second;
    if (index < 0 || index >= of_shard.rows) {
      throw DataError(
          "{}: holds {} rows, and the sample {} has the row {} by the digits at the end of its key\n  Give "
          "their number with --index-width, or move these files away.",
          printable(of_shard.path),
          of_shard.rows,
          printable(key),
          index);
    }
    std::string bytes(row_bytes_, '\0');
    std::ifstream file(of_shard.path, std::ios::binary);
    file.seekg(
        static_cast<std::streamoff>(of_shard.begin + static_cast<uint64_t>(index) * row_bytes_));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      throw DataError("{}: row {} cannot be read", printable(of_shard.path), index);
    }
    return bytes;
  }
  size_t row_bytes() const { return row_bytes_; }
  std::string file_of(int64_t rows, const std::string& bytes) const {
    std::vector<int64_t> shape = {rows};
    shape.insert(shape.end(), row_shape_.begin(), row_shape_.end());
    return format_npy(type_, shape, bytes);
  }

 private:
  struct File {
    std::string path;
    uint64_t begin = 0;
    int64_t rows = 0;
  };
  NpyType type_ = NpyType::kFloat32;
  std::vector<int64_t> row_shape_;
  size_t row_bytes_ = 0;
  std::map<int64_t, File> files_;
};

/// By what stands before the number: "img_emb/img_emb_".
std::map<std::string, ArrayFamily> arrays_of(const std::string& folder) {
  std::map<std::string, ArrayFamily> families;
  for (const std::string& array : numbered_arrays(folder)) {
    const std::string stem = array.substr(0, array.size() - std::string(".npy").size());
    families[stem.substr(0, stem.find_last_not_of("0123456789") + 1)].add(
        *number_of_array(array), (fs::path(folder) / array).string());
  }
  return families;
}

}  // namespace

MixReport mix_shards(const std::string& from,
                     const std::string& out,
                     const DealOptions& options,
                     bool overwrite,
                     const std::function<void(int64_t done, int64_t total)>& progress) {
  const std::vector<std::string> shards = shards_in_folder(from);
  std::vector<StoredSample> samples;
  for (size_t i = 0; i < shards.size(); ++i) list_samples(shards, i, samples);
  // deal() takes sorted paths.
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) {
    return std::pair(a.path, a.shard) < std::pair(b.path, b.shard);
  });
  std::vector<std::string> paths;
  for (const StoredSample& sample : samples) paths.push_back(sample.path);
  const auto total = std::ssize(samples);
  const auto dealt = deal(paths, options);
  std::map<std::string, ArrayFamily> families = arrays_of(from);
  // Rows of `shards embed` follow one another as the samples do, whatever their keys are.
  const bool follows_samples = fs::exists(fs::path(from) / kEmbeddingsManifest);

  NewShards made(out, overwrite);
  const std::string part = NewShards::folder(out);
  std::vector<std::string> files;  // made
  MixReport report;
  for (size_t shard = 0; shard < dealt.size(); ++shard) {
    const std::string number = fmt::format("{:0{}}", shard, kShardWidth);
    files.push_back(number + ".tar");
    TarWriter tar(part + "/" + files.back());
    std::map<std::string, std::string> rows;
    for (size_t i = 0; i < dealt[shard].size(); ++i) {
      if (stop_requested() != 0) {
        report.stopped = true;
        return report;
      }
      const StoredSample& sample = samples[dealt[shard][i]];
      for (const auto& [field, offset] : sample.members) {
        tar.add(fmt::format("{}{:0{}}.{}", number, i, options.index_width, field),
                read_tar_member(shards[sample.shard], offset).content);
      }
      for (const auto& [prefix, family] : families) {
        const int64_t index = follows_samples
                                  ? static_cast<int64_t>(sample.place)
                                  : row_of_key(sample.key, options.index_width).value_or(-1);
        std::string row = family.row(shard_number(shards[sample.shard]), index, sample.key);
        report.absent_rows += row.empty() ? 1 : 0;
        row.resize(family.row_bytes());
        rows[prefix] += row;
      }
      ++report.samples;
      if (progress) progress(report.samples, total);
    }
    tar.commit();
    ++report.shards;
    for (const auto& [prefix, family] : families) {
      files.push_back(prefix + number + ".npy");
      write_file_atomically(part + "/" + files.back(),
                            family.file_of(std::ssize(dealt[shard]), rows[prefix]));
      ++report.arrays;
    }
  }
  for (const std::string& name : names_ending(from, ".json")) {
    copy_file_atomically((fs::path(from) / name).string(), part + "/" + name);
    files.push_back(name);
  }
  report.removed = made.finish(files);
  return report;
}

}  // namespace dalle2
