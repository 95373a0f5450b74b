// SPDX-License-Identifier: MIT
#include "data/shards/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "data/pictures/picture_listing.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/new_shards.h"
#include "io/formats/npy.h"
#include "io/formats/tar.h"
#include "io/formats/webdataset.h"
#include "io/pictures/image.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

using Members = std::vector<std::pair<std::string, std::string>>;  // field, content

/// Writes the shards as they were dealt, and counts them. The place of a sample without members stays
/// empty, and a shard of such samples alone is not written.
/// @param members_of a sample, by its number @return the names of the shards
std::vector<std::string> write_shards(const std::vector<std::vector<size_t>>& dealt,
                                      const std::string& out,
                                      int64_t index_width,
                                      const PackProgress& progress,
                                      const std::function<Members(size_t)>& members_of,
                                      PackReport& report) {
  std::vector<std::string> files;
  int64_t done = 0, total = 0;
  for (const auto& shard : dealt) total += std::ssize(shard);
  for (size_t shard = 0; shard < dealt.size(); ++shard) {
    const std::string number = fmt::format("{:0{}}", shard, kShardWidth);
    std::optional<TarWriter> tar;
    for (size_t i = 0; i < dealt[shard].size(); ++i) {
      report.stopped = stop_requested() != 0;
      if (report.stopped) return {};
      if (progress) progress(++done, total);
      const Members members = members_of(dealt[shard][i]);
      if (members.empty()) continue;
      if (!tar) tar.emplace(NewShards::folder(out) + "/" + number + ".tar");
      for (const auto& [field, content] : members)
        tar->add(fmt::format("{}{:0{}}.{}", number, i, index_width, field), content);
      ++report.packed;
    }
    if (!tar) continue;
    tar->commit();
    files.push_back(number + ".tar");
  }
  report.shards = std::ssize(files);
  return files;
}

/// Caption files by name, without a picture of their name, be it of a kind that is read or not.
std::vector<std::string> lonely_captions(const PictureListing& listing) {
  std::set<std::string> named;
  const auto stem = [](const std::string& source) {
    return fs::path(source).replace_extension().string();
  };
  for (const FolderPicture& picture : listing.pictures) named.insert(stem(picture.source));
  for (const std::string& other : listing.others) {
    if (is_unread_extension(lower_extension(other))) named.insert(stem(other));
  }
  std::vector<std::string> lonely;
  for (const std::string& other : listing.others) {
    const std::string extension = lower_extension(other);
    const bool is_read = is_caption_name(other) && named.contains(stem(other));
    if ((extension == ".txt" || extension == ".caption") && !is_read) lonely.push_back(other);
  }
  std::ranges::sort(lonely);
  return lonely;
}

/// Without a file of it, there is no fault either.
CaptionText read_caption(const FolderPicture& picture,
                         const FolderCaptions& captions,
                         const CaptionReadConfig& read) {
  CaptionText caption;
  try {
    if (const auto bytes = captions.of(picture.path, picture.source, read.caption_encoding))
      caption = caption_text(*bytes, read.caption_encoding);
  } catch (const DataError& error) {
    caption = {.fault = error.what(), .is_unread = true};
  }
  caption.text = chosen_lines(std::move(caption.text), read.caption_lines, [] { return 0U; });
  return caption;
}

/// Picture and notes. The report counts the facts of the picture.
Members picture_members(const FolderPicture& picture,
                        const std::optional<Rgb>& ground,
                        PackReport& report) {
  std::string content = read_file(picture.path.string());
  const size_t bytes = content.size();
  auto field = picture_field(content);
  if (!field) throw DataError("neither JPEG, PNG nor WebP by content");
  PictureFacts facts = look_at_picture(content, picture.source);
  const bool is_laid = ground && facts.transparent;
  if (is_laid) {  // the new file carries no EXIF, so it is turned too
    content =
        encode_png(decode_image(content, picture.source, {.apply_exif = true, .ground = ground}));
    field = "png";
    facts = {};
    ++report.grounded;
  }
  report.pictures.add(facts);
  return {{*field, std::move(content)},
          {"json",
           json_line({{"source", picture.source},
                      {"bytes", bytes},
                      {"ground", is_laid ? Json(*ground) : Json()}})}};
}

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
  size_t place = 0;
  for (ListedSample& listed : group_places(list.places)) {
    StoredSample& sample = samples.emplace_back();
    sample = {shard, place, std::move(listed.key), fmt::format("{:08}/{:08}", shard, place), {}};
    sample.members = std::move(listed.members);
    ++place;
    for (const auto& [field, offset] : sample.members) {
      if (field != "json") continue;
      const auto source = source_of(read_tar_member(shards[shard], offset).content);
      if (source) sample.path = *source;
    }
  }
}

/// A file of one row a sample.
struct RowFile {
  std::string path;
  NpyLayout layout;
  size_t row_bytes = 0;

  explicit RowFile(std::string name) : path(std::move(name)) {
    std::string begin(kMostNpyHeader, '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    begin.resize(static_cast<size_t>(file.gcount()));
    layout = parse_npy_layout(begin, fs::file_size(path), path);
    row_bytes = npy_item_size(layout.type);
    for (size_t i = 1; i < layout.shape.size(); ++i)
      row_bytes *= static_cast<size_t>(layout.shape[i]);
  }

  /// Whether rows of the two can be in one file.
  bool fits(const RowFile& other) const {
    const auto& shape = layout.shape;
    return !shape.empty() && !(layout.fortran_order && shape.size() > 1) &&
           layout.type == other.layout.type &&
           std::equal(shape.begin() + 1,
                      shape.end(),
                      other.layout.shape.begin() + 1,
                      other.layout.shape.end());
  }

  /// @param key of the sample, for messages @throws DataError for a row that is not in the file
  void check_row(int64_t index, const std::string& key) const {
    if (index < 0 || index >= layout.shape.front()) {
      throw DataError(
          "{}: holds {} rows, and the sample {} has the row {} by the digits at the end of its key\n  Give "
          "their number with --index-width, or move these files away.",
          printable(path),
          layout.shape.front(),
          printable(key),
          index);
    }
  }

  std::string row(int64_t index) const {
    std::string bytes(row_bytes, '\0');
    std::ifstream file(path, std::ios::binary);
    file.seekg(
        static_cast<std::streamoff>(layout.data_begin + static_cast<uint64_t>(index) * row_bytes));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
      throw DataError("{}: row {} cannot be read", printable(path), index);
    return bytes;
  }
};

/// Files of rows by what stands before the number ("img_emb/img_emb_"), and by the number of the shard.
std::map<std::string, std::map<int64_t, RowFile>> row_files_of(const std::string& folder) {
  std::map<std::string, std::map<int64_t, RowFile>> families;
  for (const std::string& array : numbered_arrays(folder)) {
    const std::string stem = array.substr(0, array.size() - std::string(".npy").size());
    auto& family = families[stem.substr(0, stem.find_last_not_of("0123456789") + 1)];
    const RowFile file((fs::path(folder) / array).string());
    family.emplace(*number_of_array(array), file);
    if (!file.fits(family.begin()->second)) {
      throw DataError(
          "{}: expected rows like those of the other files, in C order\n  Remove the file, or make "
          "it again.",
          printable(file.path));
    }
  }
  return families;
}

}  // namespace

PackReport pack_folder(const std::string& from,
                       const std::string& out,
                       const PackOptions& options,
                       const PackProgress& progress) {
  check_caption_encoding(options.captions.caption_encoding, "--caption-encoding");
  PictureListing listing = list_pictures(from, Tars::kPassOver);
  std::vector<FolderPicture>& pictures = listing.pictures;
  PackReport report{.found = std::ssize(pictures), .lonely_captions = lonely_captions(listing)};
  const FolderCaptions captions;
  const auto caption_of = [&](const FolderPicture& picture) {
    return read_caption(picture, captions, options.captions);
  };
  // They have no place in a shard: its size is that of the samples it can hold.
  std::erase_if(pictures, [&](const FolderPicture& picture) {
    if (!options.need_captions) return false;
    const CaptionText caption = caption_of(picture);
    if (caption.text.empty())
      report.skipped.push_back(
          {picture.source, caption.fault.empty() ? "no caption" : caption.fault});
    return caption.text.empty();
  });
  if (pictures.empty()) {
    throw DataError(
        "{}: none of {} has a caption, such as a .txt file of the same name with a text in it.\n"
        "  Write them, or pack the pictures without (leave --need-captions out).",
        from,
        counted(report.found, "picture"));
  }
  std::vector<std::string> paths;
  for (const FolderPicture& picture : pictures) paths.push_back(picture.source);
  const auto dealt = deal(paths, options.deal);
  NewShards shards(out, options.overwrite);
  const auto members_of = [&](size_t number) {
    const FolderPicture& picture = pictures[number];
    Members members;
    try {
      members = picture_members(picture, options.ground, report);
    } catch (const DataError& error) {
      report.skipped.push_back({picture.source, error.what()});
      return members;
    }
    CaptionText caption = caption_of(picture);
    note_caption(caption, options.captions, picture.source, report.captions);
    if (caption.text.empty()) {
      ++report.without_caption;
    } else {
      members.insert(members.begin() + 1, {"txt", std::move(caption.text)});
    }
    return members;
  };
  const std::vector<std::string> files =
      write_shards(dealt, out, options.deal.index_width, progress, members_of, report);
  if (!files.empty()) report.removed = shards.finish(files);
  return report;
}

PackReport mix_shards(const std::string& from,
                      const std::string& out,
                      const DealOptions& options,
                      bool overwrite,
                      const PackProgress& progress) {
  const std::vector<std::string> shards = shards_in_folder(from);
  std::vector<StoredSample> samples;
  for (size_t i = 0; i < shards.size(); ++i) list_samples(shards, i, samples);
  // deal() takes sorted paths.
  std::ranges::sort(samples, {}, [](const auto& each) { return std::tie(each.path, each.shard); });
  std::vector<std::string> paths;
  for (const StoredSample& sample : samples) paths.push_back(sample.path);
  const auto dealt = deal(paths, options);
  const auto families = row_files_of(from);
  // Rows of `shards embed` follow one another as the samples do, whatever their keys are.
  const bool follows_samples = fs::exists(fs::path(from) / kEmbeddingsManifest);
  const auto row_of = [&](const StoredSample& sample) {
    return follows_samples ? static_cast<int64_t>(sample.place)
                           : row_of_key(sample.key, options.index_width).value_or(-1);
  };
  // Before anything is written: a wrong number of digits is wrong for all.
  for (const auto& [prefix, family] : families) {
    for (const StoredSample& sample : samples) {
      const auto file = family.find(shard_number(shards[sample.shard]));
      if (file != family.end()) file->second.check_row(row_of(sample), sample.key);
    }
  }

  NewShards made(out, overwrite);
  PackReport report{.unit = "sample", .found = std::ssize(samples)};
  const auto members_of = [&](size_t number) {
    Members members;
    for (const auto& [field, offset] : samples[number].members)
      members.emplace_back(field, read_tar_member(shards[samples[number].shard], offset).content);
    return members;
  };
  std::vector<std::string> files =
      write_shards(dealt, out, options.index_width, progress, members_of, report);
  if (report.stopped || report.packed == 0) return report;
  const std::string part = NewShards::folder(out) + "/";
  for (const auto& [prefix, family] : families) {
    const RowFile& like = family.begin()->second;
    for (size_t shard = 0; shard < dealt.size(); ++shard) {
      report.stopped = stop_requested() != 0;
      if (report.stopped) return report;
      std::string rows;
      for (const size_t number : dealt[shard]) {
        const StoredSample& sample = samples[number];
        const auto file = family.find(shard_number(shards[sample.shard]));
        report.absent_rows += file == family.end() ? 1 : 0;
        rows += file == family.end() ? std::string(like.row_bytes, '\0')
                                     : file->second.row(row_of(sample));
      }
      std::vector<int64_t> shape = like.layout.shape;
      shape.front() = std::ssize(dealt[shard]);
      files.push_back(fmt::format("{}{:0{}}.npy", prefix, shard, kShardWidth));
      write_file_atomically(part + files.back(), format_npy(like.layout.type, shape, rows));
      ++report.arrays;
    }
  }
  for (const std::string& name : names_ending(from, ".json")) {
    copy_file_atomically((fs::path(from) / name).string(), part + name);
    files.push_back(name);
  }
  report.removed = made.finish(files);
  return report;
}

std::vector<std::string> describe_pack(const PackReport& report) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} of {} in {}",
                              with_commas(report.packed),
                              counted(report.found, report.unit),
                              counted(report.shards, "shard")));
  if (!report.removed.empty()) lines.push_back("removed: " + short_list(report.removed));
  if (report.arrays > 0) {
    lines.push_back(fmt::format("{}, {} absent",
                                counted(report.arrays, "file of rows", "files of rows"),
                                counted(report.absent_rows, "row")));
  }
  if (report.grounded > 0) {
    lines.push_back(counted(report.grounded,
                            "transparent picture was laid on the ground",
                            "transparent pictures were laid on the ground"));
  }
  for (std::string& line : report.pictures.describe()) lines.push_back(std::move(line));
  if (report.without_caption > 0)
    lines.push_back(counted(report.without_caption, "has no caption", "have no caption"));
  if (!report.captions.empty()) lines.push_back(report.captions.report_all("captions"));
  if (!report.lonely_captions.empty()) {
    lines.push_back(fmt::format("{} of its name: {}",
                                counted(std::ssize(report.lonely_captions),
                                        "caption file was skipped, without a picture",
                                        "caption files were skipped, each without a picture"),
                                printable(short_list(report.lonely_captions))));
  }
  constexpr size_t kMostLines = 20;
  for (size_t i = 0; i < std::min(report.skipped.size(), kMostLines); ++i) {
    lines.push_back(fmt::format("left out: {} ({})",
                                one_line(report.skipped[i].path),
                                printable(report.skipped[i].reason)));
  }
  if (report.skipped.size() > kMostLines) {
    lines.push_back(
        fmt::format("left out: {} more",
                    with_commas(std::ssize(report.skipped) - static_cast<int64_t>(kMostLines))));
  }
  return lines;
}

}  // namespace dalle2
