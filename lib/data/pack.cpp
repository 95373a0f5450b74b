// SPDX-License-Identifier: MIT
#include "data/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/one_line.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/atomic_file.h"
#include "io/image.h"
#include "io/tar.h"
#include "io/walk_folder.h"
#include "io/webdataset.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return extension;
}

/// The field that a picture's first bytes ask for; none if they are of no kind we read.
std::optional<std::string> field_of(const std::string& content) {
  if (content.starts_with("\xff\xd8")) return "jpg";
  if (content.starts_with("\x89PNG")) return "png";
  if (content.starts_with("RIFF") && content.size() > 12 && content.compare(8, 4, "WEBP") == 0) {
    return "webp";
  }
  return std::nullopt;
}

/// A picture of the folder and its place in the shards.
struct Planned {
  fs::path path;
  std::string source;  // path below the folder
  std::string key;
};

/// What a sample is stored as.
struct Sample {
  std::string field, picture, source_json;
  std::optional<std::string> caption;
  bool whitened = false;
};

class Packer {
 public:
  Packer(const std::string& from, const std::string& out, const PackOptions& options)
      : from_(from), out_(out), options_(options) {
    find_pictures();
    if (options.need_captions) leave_out_without_captions();
    per_shard_ = options.samples_per_shard;
    if (per_shard_ == 0) per_shard_ = std::clamp<int64_t>((places() + 9) / 10, 1, 1000);
    int64_t most = 1;
    for (int64_t i = 0; i < options.index_width && most < 1000000000; ++i) most *= 10;
    if (per_shard_ < 1 || per_shard_ > most || options.shard_width < 1) {
      throw ConfigError("{} samples a shard: expected 1 to {}, which {} digits of index can count.",
                        per_shard_,
                        most,
                        options.index_width);
    }
    for (size_t i = 0; i < pictures_.size(); ++i) {
      const int64_t place = static_cast<int64_t>(i);
      pictures_[i].key = fmt::format("{:0{}}{:0{}}",
                                     place / per_shard_,
                                     options.shard_width,
                                     place % per_shard_,
                                     options.index_width);
    }
  }

  PackReport run(const std::function<void(const PackProgress&)>& progress) {
    progress_ = progress;
    find_older_shards();
    const size_t step = static_cast<size_t>(per_shard_);
    for (size_t begin = 0; begin < pictures_.size(); begin += step) {
      if (stop_requested() != 0) {
        report_.stopped = true;
        break;
      }
      const Shard shard{fmt::format("{}/{:0{}}.tar", out_, begin / step, options_.shard_width),
                        begin,
                        std::min(begin + step, pictures_.size())};
      PackReport of_shard;
      if (is_current(shard, of_shard)) {
        ++of_shard.shards_kept;
      } else {
        of_shard = PackReport{};
        if (write_shard(shard, of_shard)) ++of_shard.shards_written;
      }
      add(of_shard);
    }
    return std::move(report_);
  }

 private:
  void find_pictures();
  void leave_out_without_captions();
  void find_older_shards();
  /// Pictures begin .. end - 1 and their file.
  struct Shard {
    std::string path;
    size_t begin = 0, end = 0;
  };
  bool is_current(const Shard& shard, PackReport& report) const;
  bool write_shard(const Shard& shard, PackReport& report) const;
  int64_t places() const { return static_cast<int64_t>(pictures_.size()); }
  bool holds(const GroupedSample& stored, const Planned& planned, const Sample& sample) const;
  std::optional<std::string> caption_of(const Planned& planned) const;
  std::optional<Sample> make_sample(const Planned& planned, std::string& reason) const;
  std::optional<Sample> next_sample(const Shard& shard, size_t index, PackReport& report) const;
  void add(const PackReport& of_shard);

  fs::path from_;
  std::string out_;
  PackOptions options_;
  int64_t per_shard_ = 0;
  std::vector<Planned> pictures_;
  PackReport report_;
  std::function<void(const PackProgress&)> progress_;
};

/// @throws DataError if the folder cannot be read to its end
void each_entry_of(const fs::path& folder,
                   Below below,
                   const std::function<void(const fs::directory_entry&)>& take) {
  const WalkEnd end = walk_folder(folder, below, take);
  if (end.error) {
    throw DataError("{}: the folder cannot be read: {}.", folder.string(), end.error.message());
  }
}

void Packer::find_pictures() {
  each_entry_of(from_, Below::kReadable, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (!entry.is_regular_file(ignored)) return;
    const std::string extension = lower_extension(entry.path());
    if (extension == ".jpg" || extension == ".jpeg" || extension == ".png" ||
        extension == ".webp") {
      pictures_.push_back({entry.path(), entry.path().lexically_relative(from_).string(), ""});
    } else if (extension != ".txt") {
      ++report_.other_files[extension.empty() ? "without extension" : extension];
    }
  });
  if (pictures_.empty()) {
    throw DataError("{}: no jpg, jpeg, png or webp file is in the folder or below it.",
                    from_.string());
  }
  std::sort(pictures_.begin(), pictures_.end(), [](const Planned& a, const Planned& b) {
    return a.source < b.source;
  });
  report_.found = static_cast<int64_t>(pictures_.size());
}

/// They have no place in a shard: its size is that of the samples it can hold.
void Packer::leave_out_without_captions() {
  std::erase_if(pictures_, [&](const Planned& picture) {
    try {
      if (caption_of(picture)) return false;
    } catch (const DataError&) {
      return false;  // one that cannot be read is told with its picture
    }
    report_.skipped.push_back({picture.source, "no caption"});
    return true;
  });
  if (pictures_.empty()) {
    throw DataError(
        "{}: none of {} has a caption, a .txt file of the same name with a text in it.\n"
        "  Write them, or pack the pictures without (leave --need-captions out).",
        from_.string(),
        counted(report_.found, "picture"));
  }
}

std::optional<std::string> Packer::caption_of(const Planned& planned) const {
  const fs::path path = fs::path(planned.path).replace_extension(".txt");
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::string caption = read_file(path.string());
  if (options_.first_line_only) caption.resize(std::min(caption.find('\n'), caption.size()));
  while (!caption.empty() && (caption.back() == '\n' || caption.back() == '\r')) caption.pop_back();
  return caption.empty() ? std::nullopt : std::optional(caption);
}

/// @param reason set if there is no sample
std::optional<Sample> Packer::make_sample(const Planned& planned, std::string& reason) const {
  try {
    Sample sample;
    sample.picture = read_file(planned.path.string());
    const size_t bytes = sample.picture.size();
    const auto field = field_of(sample.picture);
    if (!field) {
      reason = "neither JPEG, PNG nor WebP by content";
      return std::nullopt;
    }
    sample.field = *field;
    sample.caption = caption_of(planned);
    if (sample.caption && !is_utf8(*sample.caption)) {
      reason = "its caption is not UTF-8";
      return std::nullopt;
    }
    decode_image(sample.picture, planned.source);
    if (options_.white_ground && sample.field != "jpg") {
      if (const auto white = decode_onto_white(sample.picture, planned.source)) {
        sample.picture = encode_png(*white);
        sample.field = "png";
        sample.whitened = true;
      }
    }
    Json source;
    source["source"] = planned.source;
    source["bytes"] = bytes;
    source["white_ground"] = sample.whitened;
    sample.source_json = source.dump(-1, ' ', false, Json::error_handler_t::replace);
    return sample;
  } catch (const DataError& error) {
    reason = error.what();
    return std::nullopt;
  }
}

bool Packer::holds(const GroupedSample& stored,
                   const Planned& planned,
                   const Sample& sample) const {
  const auto equals = [&](const std::string& field, const std::string& content) {
    const auto found = stored.fields.find(field);
    return found != stored.fields.end() && found->second == content;
  };
  const bool caption =
      sample.caption ? equals("txt", *sample.caption) : !stored.fields.contains("txt");
  return stored.key == planned.key && caption && equals(sample.field, sample.picture) &&
         equals("json", sample.source_json);
}

/// Shards of the folder with numbers behind those of this run.
void Packer::find_older_shards() {
  const int64_t shards = (places() + per_shard_ - 1) / per_shard_;
  const size_t width = static_cast<size_t>(options_.shard_width);
  const WalkEnd end = walk_folder(out_, Below::kNothing, [&](const fs::directory_entry& entry) {
    const std::string number = entry.path().stem().string();
    if (entry.path().extension() == ".tar" && number.size() >= width && number.size() <= 18 &&
        number.find_first_not_of("0123456789") == std::string::npos &&
        std::stoll(number) >= shards) {
      report_.older_shards.push_back(entry.path().filename().string());
    }
  });
  if (end.error && end.error != std::errc::no_such_file_or_directory) {
    throw DataError("{}: the folder cannot be read: {}.", out_, end.error.message());
  }
  std::sort(report_.older_shards.begin(), report_.older_shards.end());
}

void Packer::add(const PackReport& of_shard) {
  report_.packed += of_shard.packed;
  report_.without_caption += of_shard.without_caption;
  report_.whitened += of_shard.whitened;
  report_.shards_written += of_shard.shards_written;
  report_.shards_kept += of_shard.shards_kept;
  report_.skipped.insert(report_.skipped.end(), of_shard.skipped.begin(), of_shard.skipped.end());
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
  if (!sample->caption) ++report.without_caption;
  if (sample->whitened) ++report.whitened;
  return sample;
}

/// True if the shard is there, whole, not empty, and holds what write_shard() would write.
bool Packer::is_current(const Shard& shard, PackReport& report) const {
  std::error_code error;
  if (!fs::exists(shard.path, error)) return false;
  try {
    SampleReader reader(shard.path);
    for (size_t i = shard.begin; i < shard.end; ++i) {
      const auto sample = next_sample(shard, i, report);
      if (!sample) continue;
      const auto stored = reader.next();
      if (!stored || !holds(*stored, pictures_[i], *sample)) return false;
    }
    return report.packed > 0 && !reader.next();
  } catch (const DataError&) {
    return false;  // damaged: it is written anew
  }
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
    if (sample->caption) tar->add(key + ".txt", *sample->caption);
    tar->add(key + ".json", sample->source_json);
  }
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

std::vector<std::string> describe_pack(const PackReport& report) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} of {} in {} ({} written, {} there already)",
                              with_commas(report.packed),
                              counted(report.found, "picture"),
                              counted(report.shards_written + report.shards_kept, "shard"),
                              with_commas(report.shards_written),
                              counted(report.shards_kept, "was", "were")));
  if (!report.older_shards.empty()) {
    const size_t count = report.older_shards.size();
    lines.push_back(fmt::format(
        "the folder has {} that this run did not write ({}{}): remove {}, or pictures come twice",
        counted(static_cast<int64_t>(count), "more shard"),
        report.older_shards.front(),
        count == 1 ? "" : " to " + report.older_shards.back(),
        count == 1 ? "it" : "them"));
  }
  if (report.stopped) lines.push_back("stopped by a signal; run it again to go on");
  if (report.whitened > 0) {
    lines.push_back(counted(report.whitened,
                            "with a transparent ground is on white",
                            "with a transparent ground are on white"));
  }
  if (report.without_caption > 0) {
    lines.push_back(counted(report.without_caption, "has no caption", "have no caption"));
  }
  for (const auto& [extension, count] : report.other_files) {
    lines.push_back(fmt::format("{} passed over: {}",
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

}  // namespace dalle2
