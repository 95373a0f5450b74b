// SPDX-License-Identifier: MIT
#include "data/shards/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/pictures/lost_links.h"
#include "data/shards/captions.h"
#include "data/shards/deal.h"
#include "data/shards/picture_shards.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/formats/tar.h"
#include "io/formats/webdataset.h"
#include "io/pictures/image.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

std::map<std::string, std::string> fields_of(const Sample& sample) {
  std::map<std::string, std::string> fields = {{sample.field, sample.picture},
                                               {"json", sample.source_json}};
  if (!sample.caption.text.empty()) fields.emplace("txt", sample.caption.text);
  return fields;
}

/// Whether an earlier call made `stored` from the picture of `sample`, by its name, its size in bytes
/// (another folder may have pictures of the same names) and its ground, and nobody added to it.
bool is_made_from(const GroupedSample& stored, const Sample& sample) {
  const std::string* source = stored.find({"json"});
  if (source == nullptr || *source != sample.source_json) return false;
  return std::all_of(stored.fields.begin(), stored.fields.end(), [](const auto& field) {
    const std::string& name = field.first;
    return name == "jpg" || name == "png" || name == "webp" || name == "txt" || name == "json";
  });
}

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
    if (options_.hold_out) check_held_ = options_.hold_out();
    std::vector<std::string> spare = spare_shards();
    if (!look_at_shards()) return std::move(report_);
    if (!options_.overwrite) refuse_other_set(spare);
    refuse_stale_arrays(spare);
    for (const Shard& shard : shards_) {
      if (shard.found == Found::kCurrent) continue;
      if (stops()) return std::move(report_);
      PackReport of_shard;
      const bool is_written = write_shard(shard, of_shard);
      if (is_written) ++of_shard.shards_written;
      if (shard.found != Found::kNothing) {
        (is_written ? of_shard.replaced : of_shard.removed).push_back(shard.name);
      }
      add(std::move(of_shard));
    }
    if (report_.packed == 0 && report_.shards_kept == 0)
      spare.clear();  // they are all that there is
    if (!spare.empty()) check_held_();
    for (const std::string& name : spare) remove_file((fs::path(out_) / name).string());
    report_.removed.insert(report_.removed.end(), spare.begin(), spare.end());
    std::sort(report_.removed.begin(), report_.removed.end());
    return std::move(report_);
  }

 private:
  void find_pictures();
  void leave_out_without_captions();
  /// What lies where a shard is to be.
  enum class Found {
    kNothing,
    kCurrent,  ///< what would be written
    kEarlier,  ///< no sample but of this call: an earlier one wrote it, or it is torn
    kOther,
  };
  /// Pictures begin .. end - 1 and their file.
  struct Shard {
    std::string name, path;
    size_t begin = 0, end = 0;
    Found found = Found::kNothing;
  };
  void plan_shards();
  bool look_at_shards();
  std::vector<std::string> spare_shards() const;
  void refuse_other_set(std::vector<std::string> others) const;
  void refuse_stale_arrays(const std::vector<std::string>& spare) const;
  bool stops();
  Found look_at(const Shard& shard, PackReport& report) const;
  bool write_shard(const Shard& shard, PackReport& report) const;
  int64_t places() const { return static_cast<int64_t>(pictures_.size()); }
  CaptionText caption_of(const Planned& planned) const;
  std::optional<Sample> make_sample(const Planned& planned, std::string& reason) const;
  std::optional<Sample> next_sample(const Shard& shard, size_t index, PackReport& report) const;
  void add(PackReport of_shard);

  fs::path from_;
  std::string out_;
  PackOptions options_;
  std::vector<Planned> pictures_;
  FolderCaptions captions_;
  std::vector<Shard> shards_;
  PackReport report_;
  std::function<void(const PackProgress&)> progress_;
  std::function<void()> check_held_ = [] {};
};

void Packer::find_pictures() {
  std::vector<std::string> captions;
  std::set<std::string> named;  // pictures, without extensions
  const auto without_extension = [](const std::string& source) {
    return fs::path(source).replace_extension().string();
  };
  const auto pictures = list_pictures(
      from_,
      [&](const std::string& source) {
        if (is_unread_extension(lower_extension(source))) named.insert(without_extension(source));
        const std::string extension = lower_extension(source);
        if (extension == ".txt" || is_caption_name(source)) {
          captions.push_back(source);
          return;
        }
        ++report_.other_files[extension.empty() ? "without extension" : extension];
      },
      [&](const std::string& link) {
        if (!is_picture_name(link)) return;  // a caption: told of with its picture
        named.insert(without_extension(link));
        report_.skipped.push_back({link, "unreadable: a link that leads to no file"});
      });
  for (const FolderPicture& picture : pictures) {
    pictures_.push_back({picture});
    named.insert(without_extension(picture.source));
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
    const auto bytes = captions_.of(planned.path, planned.source);
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

/// @param reason set if there is no sample
std::optional<Sample> Packer::make_sample(const Planned& planned, std::string& reason) const {
  try {
    Sample sample;
    sample.picture = read_file(planned.path.string());
    const size_t bytes = sample.picture.size();
    const auto field = picture_field(sample.picture);
    if (!field) {
      reason = "neither JPEG, PNG nor WebP by content";
      return std::nullopt;
    }
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
    Json source;
    source["source"] = planned.source;
    source["bytes"] = bytes;
    source["ground"] = sample.grounded ? Json(*options_.ground) : Json();
    sample.source_json = source.dump(-1, ' ', false, Json::error_handler_t::replace);
    return sample;
  } catch (const DataError& error) {
    reason = error.what();
    return std::nullopt;
  }
}

/// Deals the pictures and numbers them.
void Packer::plan_shards() {
  std::vector<std::string> paths;
  for (const Planned& picture : pictures_) paths.push_back(picture.source);
  const auto dealt = deal(paths,
                          {.order = options_.order,
                           .seed = options_.seed,
                           .per_shard = options_.samples_per_shard,
                           .index_width = options_.index_width});
  std::vector<Planned> planned;
  for (size_t shard = 0; shard < dealt.size(); ++shard) {
    const std::string number = fmt::format("{:0{}}", shard, options_.shard_width);
    const std::string name = number + ".tar";
    const size_t begin = planned.size();
    for (const size_t picture : dealt[shard]) {
      planned.push_back(std::move(pictures_[picture]));
      planned.back().key =
          fmt::format("{}{:0{}}", number, planned.size() - 1 - begin, options_.index_width);
    }
    shards_.push_back({name, out_ + "/" + name, begin, planned.size()});
  }
  pictures_ = std::move(planned);
}

/// The numbered shards of the folder that are none of this call's.
std::vector<std::string> Packer::spare_shards() const {
  std::vector<std::string> names = names_ending(out_, ".tar");
  std::erase_if(names, [this](const std::string& name) {
    return name.find_first_not_of("0123456789") != name.size() - 4 ||
           std::any_of(shards_.begin(), shards_.end(), [&](const Shard& shard) {
             return shard.name == name;
           });
  });
  return names;
}

/// @return false if a signal stopped it
bool Packer::look_at_shards() {
  for (Shard& shard : shards_) {
    if (stops()) return false;
    PackReport of_shard;
    shard.found = look_at(shard, of_shard);
    if (shard.found != Found::kCurrent) continue;
    ++of_shard.shards_kept;
    add(std::move(of_shard));
  }
  return true;
}

/// @param others names of shards that are none of this call's
void Packer::refuse_other_set(std::vector<std::string> others) const {
  for (const Shard& shard : shards_) {
    if (shard.found == Found::kOther) others.push_back(shard.name);
  }
  if (others.empty()) return;
  std::sort(others.begin(), others.end());
  throw ConfigError(
      "--out {}: expected only shards that this call makes, found others: {}\n  They were made "
      "from other pictures or with other options, or cannot be read. Choose another folder, or "
      "replace them with --overwrite.",
      out_,
      short_list(others));
}

/// Embeddings belong to the samples of a shard by their order: those of a shard that is replaced would
/// be paired with other pictures. They lie one or two folders below, named after the number of the shard.
/// @param spare shards that would be removed
void Packer::refuse_stale_arrays(const std::vector<std::string>& spare) const {
  std::set<int64_t> numbers;
  const auto add = [&](const std::string& shard) { numbers.insert(std::stoll(shard)); };
  for (const Shard& shard : shards_) {
    if (shard.found != Found::kCurrent) add(shard.name);
  }
  std::for_each(spare.begin(), spare.end(), add);
  if (numbers.empty()) return;
  std::vector<std::string> arrays = numbered_arrays(out_);
  std::erase_if(arrays, [&](const std::string& array) {
    return !numbers.contains(number_of_array(array).value_or(-1));
  });
  if (arrays.empty()) return;
  throw ConfigError(
      "--out {}: expected no embeddings of shards that are to be written, found {}\n  They would be "
      "paired with other pictures. Choose another folder, or remove these embeddings.",
      out_,
      short_list(arrays));
}

/// Whether a signal asks for a stop, which the report then says.
bool Packer::stops() {
  report_.stopped = stop_requested() != 0;
  return report_.stopped;
}

void Packer::add(PackReport of_shard) {
  const auto append = [](auto& to, auto& from) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  report_.packed += of_shard.packed;
  report_.without_caption += of_shard.without_caption;
  report_.captions.merge(std::move(of_shard.captions));
  report_.grounded += of_shard.grounded;
  report_.pictures.add(of_shard.pictures);
  report_.shards_written += of_shard.shards_written;
  report_.shards_kept += of_shard.shards_kept;
  append(report_.skipped, of_shard.skipped);
  append(report_.replaced, of_shard.replaced);
  append(report_.removed, of_shard.removed);
}

/// The sample of a picture, counted; none if it is left out.
std::optional<Sample> Packer::next_sample(const Shard& shard,
                                          size_t index,
                                          PackReport& report) const {
  std::string reason;
  auto sample = make_sample(pictures_[index], reason);
  if (progress_) progress_({static_cast<int64_t>(index) + 1, places(), shard.path});
  if (!sample) {
    report.skipped.push_back({pictures_[index].source, reason});
    return std::nullopt;
  }
  ++report.packed;
  if (sample->caption.text.empty()) ++report.without_caption;
  note_caption(sample->caption, options_.captions, pictures_[index].source, report.captions);
  if (sample->grounded) ++report.grounded;
  report.pictures.add(sample->facts);
  return sample;
}

/// Compares the file of a shard, if there is one, with what write_shard() would write.
Packer::Found Packer::look_at(const Shard& shard, PackReport& report) const {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(shard.path, error))) return Found::kNothing;
  size_t next = shard.begin;
  bool is_same = true;
  const auto pass_over = [&](const std::string* until) {
    for (; next < shard.end && (until == nullptr || pictures_[next].key != *until); ++next) {
      if (next_sample(shard, next, report)) is_same = false;
    }
  };
  bool has_samples = false;
  try {
    SampleReader reader(shard.path);
    while (const auto stored = reader.next()) {
      pass_over(&stored->key);
      if (next == shard.end) return Found::kOther;
      const auto sample = next_sample(shard, next++, report);
      if (!sample || !is_made_from(*stored, *sample)) return Found::kOther;
      is_same = is_same && stored->fields == fields_of(*sample);
      has_samples = true;
    }
    pass_over(nullptr);
  } catch (const DataError&) {
    is_same = false;
  }
  if (!has_samples) return Found::kOther;
  return is_same ? Found::kCurrent : Found::kEarlier;
}

/// @return false if it would be empty: all its pictures are broken, and there is no file of it
bool Packer::write_shard(const Shard& shard, PackReport& report) const {
  std::optional<TarWriter> tar;
  for (size_t i = shard.begin; i < shard.end; ++i) {
    const auto sample = next_sample(shard, i, report);
    if (!sample) continue;
    const std::string& key = pictures_[i].key;
    if (!tar) tar.emplace(shard.path);
    tar->add(key + "." + sample->field, sample->picture);
    if (!sample->caption.text.empty()) tar->add(key + ".txt", sample->caption.text);
    tar->add(key + ".json", sample->source_json);
  }
  check_held_();
  if (!tar) {
    remove_file(shard.path);
    return false;
  }
  tar->commit();
  return true;
}

}  // namespace

PackReport pack_folder(const std::string& from,
                       const std::string& out,
                       const PackOptions& options,
                       const std::function<void(const PackProgress&)>& progress) {
  return Packer(from, out, options).run(progress);
}

}  // namespace dalle2
