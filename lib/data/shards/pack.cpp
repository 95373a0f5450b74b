// SPDX-License-Identifier: MIT
#include "data/shards/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
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

/// A picture of the folder and its place in the shards.
struct Planned : FolderPicture {
  std::string key = "";
};

/// What a sample is stored as.
struct Sample {
  std::string field, picture, source_json;
  CaptionText caption;
  bool grounded = false;
  PictureFacts facts;
};

class Packer {
 public:
  Packer(const std::string& from, const std::string& out, const PackOptions& options)
      : from_(from), out_(out), options_(options) {
    check_caption_encoding(options.captions.caption_encoding, "--caption-encoding");
    find_pictures();
    if (options.need_captions) leave_out_without_captions();
    plan_shards();
  }

  PackReport run(const std::function<void(const PackProgress&)>& progress) {
    progress_ = progress;
    NewShards shards(out_, options_.overwrite);
    for (const Shard& shard : shards_) {
      write_shard(shard);
      if (report_.stopped) return std::move(report_);
    }
    report_.shards = std::ssize(written_);
    // They were counted before it was known that they are read.
    if (captions_.other_tables() > 0) report_.other_files[".jsonl"] -= captions_.other_tables();
    if (report_.shards > 0) report_.removed = shards.finish(written_);
    return std::move(report_);
  }

 private:
  /// Pictures begin .. end - 1 and their file.
  struct Shard {
    std::string name;
    size_t begin = 0, end = 0;
  };
  void find_pictures();
  void leave_out_without_captions();
  void plan_shards();
  void write_shard(const Shard& shard);
  CaptionText caption_of(const Planned& planned) const;
  Sample make_sample(const Planned& planned) const;
  std::optional<Sample> next_sample(const Shard& shard, size_t index);

  fs::path from_;
  std::string out_;
  PackOptions options_;
  std::vector<Planned> pictures_;
  FolderCaptions captions_;
  std::vector<Shard> shards_;
  std::vector<std::string> written_;  // names of shards
  PackReport report_;
  std::function<void(const PackProgress&)> progress_;
};

void Packer::find_pictures() {
  std::vector<std::string> captions;
  std::set<std::string> named;  // pictures, without extensions
  const auto without_extension = [](const std::string& source) {
    return fs::path(source).replace_extension().string();
  };
  PictureListing listing = list_pictures(from_, Tars::kPassOver);
  for (const std::string& source : listing.others) {
    const std::string extension = lower_extension(source);
    if (is_unread_extension(extension)) named.insert(without_extension(source));
    if (extension == ".txt" || is_caption_name(source)) {
      captions.push_back(source);
    } else {
      ++report_.other_files[extension.empty() ? "without extension" : extension];
    }
  }
  for (const std::string& link : listing.lost) {
    if (!is_picture_name(link)) continue;  // a caption: told of with its picture
    named.insert(without_extension(link));
    report_.skipped.push_back({link, "unreadable: a link that leads to no file"});
  }
  for (FolderPicture& picture : listing.pictures) {
    named.insert(without_extension(picture.source));
    pictures_.push_back({std::move(picture)});
  }
  std::erase_if(captions, [&](const std::string& source) {
    if (is_caption_name(source) && named.contains(without_extension(source))) return true;
    const std::string extension = lower_extension(source);
    if (extension == ".json") ++report_.other_files[extension];  // notes rather than a caption
    return extension != ".txt" && extension != ".caption";
  });
  std::sort(captions.begin(), captions.end());
  report_.lonely_captions = std::move(captions);
  report_.found = std::ssize(pictures_) + std::ssize(report_.skipped);
}

/// They have no place in a shard: its size is that of the samples it can hold.
void Packer::leave_out_without_captions() {
  std::erase_if(pictures_, [&](const Planned& picture) {
    const CaptionText caption = caption_of(picture);
    if (!caption.text.empty()) return false;
    report_.skipped.push_back(
        {picture.source, caption.fault.empty() ? "no caption" : caption.fault});
    return true;
  });
  if (pictures_.empty()) {
    throw DataError(
        "{}: none of {} has a caption, such as a .txt file of the same name with a text in it.\n"
        "  Write them, or pack the pictures without (leave --need-captions out).",
        from_.string(),
        counted(report_.found, "picture"));
  }
}

/// Without a file of it, there is no fault either.
CaptionText Packer::caption_of(const Planned& planned) const {
  CaptionText caption;
  try {
    const auto bytes =
        captions_.of(planned.path, planned.source, options_.captions.caption_encoding);
    if (bytes) {
      caption = caption_text(*bytes, options_.captions.caption_encoding);
    } else if (const auto file = caption_file(planned.path); file && is_lost_link(*file)) {
      caption.fault = "its caption is a link that leads to no file";
    }
  } catch (const DataError& error) {
    caption.fault = error.what();
  }
  caption.text =
      chosen_lines(std::move(caption.text), options_.captions.caption_lines, [] { return 0U; });
  return caption;
}

/// @throws DataError for a picture that cannot be used
Sample Packer::make_sample(const Planned& planned) const {
  Sample sample;
  sample.picture = read_file(planned.path.string());
  const size_t bytes = sample.picture.size();
  const auto field = picture_field(sample.picture);
  if (!field) throw DataError("neither JPEG, PNG nor WebP by content");
  sample.field = *field;
  sample.caption = caption_of(planned);
  sample.facts = look_at_picture(sample.picture, planned.source);
  sample.grounded = options_.ground && sample.facts.transparent;
  if (sample.grounded) {  // the new file carries no EXIF, so it is turned too
    const DecodeOptions as_shown{.apply_exif = true, .ground = options_.ground};
    sample.picture = encode_png(decode_image(sample.picture, planned.source, as_shown));
    sample.field = "png";
    sample.facts = {};
  }
  sample.source_json = json_line({{"source", planned.source},
                                  {"bytes", bytes},
                                  {"ground", sample.grounded ? Json(*options_.ground) : Json()}});
  return sample;
}

/// Deals the pictures and numbers them.
void Packer::plan_shards() {
  std::vector<std::string> paths;
  for (const Planned& picture : pictures_) paths.push_back(picture.source);
  const auto dealt = deal(paths, options_.deal);
  std::vector<Planned> planned;
  for (size_t shard = 0; shard < dealt.size(); ++shard) {
    const std::string number = fmt::format("{:0{}}", shard, kShardWidth);
    const size_t begin = planned.size();
    for (const size_t picture : dealt[shard]) {
      planned.push_back(std::move(pictures_[picture]));
      planned.back().key =
          fmt::format("{}{:0{}}", number, planned.size() - 1 - begin, options_.deal.index_width);
    }
    shards_.push_back({number + ".tar", begin, planned.size()});
  }
  pictures_ = std::move(planned);
}

/// The sample of a picture, counted; none if it is left out.
std::optional<Sample> Packer::next_sample(const Shard& shard, size_t index) {
  if (progress_) {
    progress_({static_cast<int64_t>(index) + 1, std::ssize(pictures_), out_ + "/" + shard.name});
  }
  std::optional<Sample> sample;
  try {
    sample = make_sample(pictures_[index]);
  } catch (const DataError& error) {
    report_.skipped.push_back({pictures_[index].source, error.what()});
    return std::nullopt;
  }
  ++report_.packed;
  if (sample->caption.text.empty()) ++report_.without_caption;
  note_caption(sample->caption, options_.captions, pictures_[index].source, report_.captions);
  if (sample->grounded) ++report_.grounded;
  report_.pictures.add(sample->facts);
  return sample;
}

/// If all its pictures are broken, there is no file of it.
void Packer::write_shard(const Shard& shard) {
  std::optional<TarWriter> tar;
  for (size_t i = shard.begin; i < shard.end; ++i) {
    report_.stopped = stop_requested() != 0;
    if (report_.stopped) return;
    const auto sample = next_sample(shard, i);
    if (!sample) continue;
    const std::string& key = pictures_[i].key;
    if (!tar) tar.emplace(NewShards::folder(out_) + "/" + shard.name);
    tar->add(key + "." + sample->field, sample->picture);
    if (!sample->caption.text.empty()) tar->add(key + ".txt", sample->caption.text);
    tar->add(key + ".json", sample->source_json);
  }
  if (!tar) return;
  tar->commit();
  written_.push_back(shard.name);
}

}  // namespace

PackReport pack_folder(const std::string& from,
                       const std::string& out,
                       const PackOptions& options,
                       const std::function<void(const PackProgress&)>& progress) {
  return Packer(from, out, options).run(progress);
}

std::vector<std::string> describe_pack(const PackReport& report) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} of {} in {}",
                              with_commas(report.packed),
                              counted(report.found, "picture"),
                              counted(report.shards, "shard")));
  if (!report.removed.empty()) lines.push_back("removed: " + short_list(report.removed));
  if (report.grounded > 0) {
    lines.push_back(counted(report.grounded,
                            "transparent picture was laid on the ground",
                            "transparent pictures were laid on the ground"));
  }
  for (std::string& line : report.pictures.describe()) lines.push_back(std::move(line));
  if (report.without_caption > 0) {
    lines.push_back(counted(report.without_caption, "has no caption", "have no caption"));
  }
  if (!report.captions.empty()) lines.push_back(report.captions.report_all("captions"));
  if (!report.lonely_captions.empty()) {
    lines.push_back(fmt::format("{} of its name: {}",
                                counted(std::ssize(report.lonely_captions),
                                        "caption file was skipped, without a picture",
                                        "caption files were skipped, each without a picture"),
                                printable(short_list(report.lonely_captions))));
  }
  for (const auto& [extension, count] : report.other_files) {
    if (count == 0 || !is_data_extension(extension)) continue;  // list_pictures() has told of them
    lines.push_back(fmt::format("{} skipped: {}",
                                counted(count, "other file was", "other files were"),
                                one_line(extension)));
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
                    with_commas(static_cast<int64_t>(report.skipped.size() - kMostLines))));
  }
  return lines;
}

namespace {

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
