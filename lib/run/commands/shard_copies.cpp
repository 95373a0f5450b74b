// SPDX-License-Identifier: MIT
#include "run/commands/shard_copies.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/loader/drop_log.h"
#include "data/pictures/planes.h"
#include "data/shards/captions.h"
#include "data/shards/shard_walk.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/new_shards.h"
#include "io/formats/tar.h"
#include "net/http_transfer.h"
#include "run/commands/several_processes.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// The samples of a shard to its end, or to where it cannot be read.
class WholeShard {
 public:
  WholeShard(const std::string& url, const ShardDataConfig& data) : url_(url), data_(data) {}

  /// @throws StoppedError
  std::optional<GroupedSample> next() {
    try {
      if (!reader_)
        reader_ = open_shard(url_, {}, {.allow_pipe = data_.allow_pipe}, data_.caption_encoding);
      return reader_->next();
    } catch (const NetworkError& error) {
      fault_ = error.what();
      is_unreachable_ = dynamic_cast<const HttpStatusError*>(&error) == nullptr;
    } catch (const DataError& error) {
      fault_ = error.what();
    }
    return std::nullopt;
  }
  /// Empty if all could be read.
  const std::string& fault() const { return fault_; }
  /// Nobody answered.
  bool is_unreachable() const { return is_unreachable_; }

 private:
  std::string url_, fault_;
  const ShardDataConfig& data_;
  bool is_unreachable_ = false;
  std::unique_ptr<SampleReader> reader_;
};

/// Goes through one shard after the other.
class ShardCopier {
 public:
  ShardCopier(const ShardCopyPlan& plan,
              ShardAddition& addition,
              ProcessGroup& group,
              ShardCopyCounts& counts)
      : plan_(plan),
        addition_(addition),
        group_(group),
        counts_(counts),
        preprocess_(plan.data.preprocessing,
                    decode_options(plan.data, plan.channels),
                    plan.data.max_transform_pixels) {}

  /// Of a shard that cannot be read to its end nothing is written. @throws StoppedError
  void copy(const std::string& url, const std::string& name, WholeShard& shard) {
    const std::string path = (fs::path(NewShards::folder(plan_.out_folder)) / name).string();
    TarWriter tar(path);
    addition_.begin_shard();
    of_shard_ = {};
    std::vector<GroupedSample> waiting;
    while (std::optional<GroupedSample> sample = shard.next()) {
      if (stop_requested() != 0) throw_stopped();
      waiting.push_back(*std::move(sample));
      if (std::ssize(waiting) == plan_.data.batch_size) write(waiting, url, tar);
    }
    if (!shard.fault().empty()) return;
    write(waiting, url, tar);
    for (std::string& array : addition_.end_shard(path)) files_.push_back(std::move(array));
    tar.commit();
    files_.push_back(name);
    ++counts_.written;
    counts_.samples += of_shard_.samples;
    counts_.left_out += of_shard_.left_out;
  }

  /// What was written, by names in the folder.
  const std::vector<std::string>& files() const { return files_; }

 private:
  void write(std::vector<GroupedSample>& waiting, const std::string& url, TarWriter& tar) {
    const std::vector<at::Tensor> pictures = decode(waiting, url);
    if (!pictures.empty()) {
      addition_.add(waiting, at::stack(pictures));
      for (const GroupedSample& sample : waiting) {
        for (const auto& [field, content] : sample.fields)
          tar.add(sample.key + "." + field, content);
      }
      of_shard_.samples += std::ssize(waiting);
    }
    waiting.clear();
    group_.still_busy();
    if (!group_.is_main()) return;
    log_live(fmt::format(
        "{}: {}{}",
        public_url(url),
        counted(counts_.samples + of_shard_.samples, plan_.noun),
        group_.is_alone() ? "" : fmt::format(" of one of {} processes", group_.size())));
  }

  /// Takes the samples out that cannot be used. @return the pictures of the others, [C, H, W]
  std::vector<at::Tensor> decode(std::vector<GroupedSample>& samples, const std::string& url) {
    std::vector<at::Tensor> pictures(samples.size());
    std::vector<std::string> faults(samples.size());
    std::vector<const char*> reasons(samples.size(), drop::kBrokenPicture);
    std::vector<DropLog> notes(samples.size());
    at::parallel_for(0, std::ssize(samples), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        try {
          pictures[i] = picture_of(samples[i], reasons[i], notes[i]);
        } catch (const DataError& error) {
          faults[i] = error.what();
        }
      }
    });
    DropLog drops;
    std::vector<GroupedSample> usable;
    std::vector<at::Tensor> of_usable;
    for (size_t i = 0; i < samples.size(); ++i) {
      drops.merge(std::move(notes[i]));
      if (faults[i].empty()) {
        usable.push_back(std::move(samples[i]));
        of_usable.push_back(pictures[i]);
      } else {
        ++of_shard_.left_out;
        drops.add(reasons[i], fmt::format("{}: {}", public_url(url), faults[i]));
      }
    }
    DropCounts of_batch;
    drops.report(plan_.noun, told_, of_batch);
    samples = std::move(usable);
    return of_usable;
  }

  /// Puts the caption as text in the place of its bytes. @param reason set if it throws
  /// @return [C, H, W] in [0, 1]
  at::Tensor picture_of(GroupedSample& sample, const char*& reason, DropLog& notes) const {
    const std::string* content = sample.picture();
    if (content == nullptr) {
      reason = drop::kNoPicture;
      throw DataError("sample {}: {}", printable(sample.key), no_field_text(sample));
    }
    if (plan_.need_captions) {
      CaptionText caption = caption_of(sample, plan_.data.caption_encoding);
      if (caption.text.empty()) {
        reason = drop::kNoCaption;
        throw DataError("sample {}: {}", printable(sample.key), caption.fault);
      }
      note_caption(caption, plan_.data, "sample " + printable(sample.key), notes);
      sample.fields["txt"] = std::move(caption.text);
    }
    const Image picture = preprocess_.apply(*content, sample.key, [] { return 0U; });
    at::Tensor planes = at::empty({1, plan_.channels, picture.height, picture.width}, at::kFloat);
    write_picture(picture, planes, 0);
    return planes[0];
  }

  const ShardCopyPlan& plan_;
  ShardAddition& addition_;
  ProcessGroup& group_;
  ShardCopyCounts& counts_;
  ShardCopyCounts of_shard_;
  std::vector<std::string> files_;
  DropCounts told_;  // of all shards
  Preprocess preprocess_;
};

/// The shards that are there, each with the name that it gets. @throws ConfigError for two of one name
std::map<std::string, std::string> shards_by_name(const ShardDataConfig& data) {
  const ShardList list(data);
  std::vector<uint32_t> positions(static_cast<size_t>(list.size()));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<uint32_t>(i);
  std::map<std::string, std::string> shards;
  for (const uint32_t position : list.existing(positions)) {
    const std::string url = list.url(position);
    const int64_t number = shard_number(url);
    const std::string name = number < 0 ? fs::path(url).filename().string()
                                        : fmt::format("{:0{}}.tar", number, data.shard_width);
    if (const auto [other, is_new] = shards.emplace(name, url); !is_new) {
      throw ConfigError(
          "/data/webdataset_base_url: the shards {} and {} have the same number, and would be the "
          "same file\n  Process them one after the other, into two folders.",
          public_url(other->second),
          public_url(url));
    }
  }
  if (shards.empty()) throw DataError("/data/webdataset_base_url: none of the shards exists");
  return shards;
}

/// The output would replace the shards that it is made from.
void refuse_own_folder(const std::string& out, const std::map<std::string, std::string>& shards) {
  for (const auto& [name, url] : shards) {
    std::error_code ignored;
    if (!is_local_url(url) ||
        !fs::equivalent(fs::path(local_path(url)).parent_path(), out, ignored))
      continue;
    throw ConfigError(
        "--out {}: holds {}, which is one of the shards to read\n  Choose another folder.",
        printable(out),
        public_url(url));
  }
}

/// For other ranks, who may see an older state of a shared folder. No part has a zero byte.
std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + '\0';
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(in, part, '\0');) parts.push_back(part);
  return parts;
}

/// How a rank came through its shards.
struct CopyEnd {
  bool is_stopped = false;  ///< by a signal
  std::string fault = {};   ///< of the last shard that was skipped
};

/// Every n-th shard, of n ranks. @param shards of all ranks: a name and a url each
CopyEnd copy_share(const ShardCopyPlan& plan,
                   const std::vector<std::string>& shards,
                   const ProcessGroup& group,
                   ShardCopier& copier,
                   ShardCopyCounts& counts) {
  CopyEnd end;
  const int64_t all = std::ssize(shards) / 2;
  const int64_t most_unreachable = std::min<int64_t>(kMostUnreachable, all);
  int64_t unreachable_in_a_row = 0;
  for (auto i = static_cast<size_t>(group.rank()); 2 * i < shards.size();
       i += static_cast<size_t>(group.size())) {
    const std::string &name = shards[2 * i], &url = shards[2 * i + 1];
    WholeShard shard(url, plan.data);
    try {
      copier.copy(url, name, shard);
    } catch (const StoppedError&) {
      return {.is_stopped = true};
    }
    if (shard.fault().empty()) {
      unreachable_in_a_row = 0;
      continue;
    }
    ++counts.lost;
    end.fault = shard.fault();
    unreachable_in_a_row = shard.is_unreachable() ? unreachable_in_a_row + 1 : 0;
    if (unreachable_in_a_row == most_unreachable) throw NetworkError("{}", shard.fault());
    if (counts.lost == all) break;  // it is an error
    log_warning(
        "data", "{}\n  The shard is skipped: its {}s are not written.", shard.fault(), plan.noun);
  }
  return end;
}

/// Of all ranks.
void add_up(ShardCopyCounts& counts, ProcessGroup& group) {
  const auto rows = group.exchange({counts.samples, counts.left_out, counts.written, counts.lost},
                                   "counts of the shards");
  counts.samples = counts.left_out = counts.written = counts.lost = 0;
  for (const auto& row : rows) {
    counts.samples += row[0];
    counts.left_out += row[1];
    counts.written += row[2];
    counts.lost += row[3];
  }
}

void print_counts(const ShardCopyPlan& plan, const ShardCopyCounts& counts) {
  std::printf("%s in %s",
              counted(counts.samples, plan.noun).c_str(),
              counted(counts.written, "shard").c_str());
  if (counts.left_out > 0) std::printf(", %s left out", counted(counts.left_out, "sample").c_str());
  if (counts.lost > 0) std::printf(", %s skipped", counted(counts.lost, "shard").c_str());
  std::printf("\n");
}

}  // namespace

ExitCode copy_shards(const ShardCopyPlan& plan,
                     ShardAddition& addition,
                     ProcessGroup& group,
                     ShardCopyCounts& counts) {
  check_same_config(group, plan.manifest, plan.device);
  std::optional<NewShards> made;   // of rank 0
  std::vector<std::string> found;  // a name and a url each
  bool is_stopped = false;
  {
    const ProcessGroup::BusyScope busy(group, "looking at the shards");
    try {
      if (group.is_main()) {
        const auto shards = shards_by_name(plan.data);
        refuse_own_folder(plan.out_folder, shards);
        std::vector<std::string> names;
        for (const auto& [name, url] : shards) {
          names.push_back(name);
          found.insert(found.end(), {name, url});
        }
        made.emplace(plan.out_folder, plan.overwrite, names);
      }
    } catch (const StoppedError&) {  // it waited for the network
      is_stopped = true;
    }
  }
  const auto stopped = [&] {
    if (group.is_main()) std::printf("stopped by a signal; no shard was written\n");
    return ExitCode::kStopped;
  };
  if (group.any(is_stopped, "stop before the shards")) return stopped();
  found = split(group.text_of_main(joined(found), "shards"));
  const int64_t all = std::ssize(found) / 2;
  ShardCopier copier(plan, addition, group, counts);
  CopyEnd end;
  {
    const ProcessGroup::BusyScope busy(group, "its share of the shards");
    end = copy_share(plan, found, group, copier, counts);
  }
  is_stopped = group.any(end.is_stopped, "end of the shards");
  if (group.is_main()) log_live("");
  if (is_stopped) return stopped();
  add_up(counts, group);
  if (counts.lost == all) {
    const auto faults = group.gather_texts(end.fault, "faults of the shards");
    throw DataError("{}", *std::find_if(faults.begin(), faults.end(), [](const auto& fault) {
                      return !fault.empty();
                    }));
  }
  if (counts.samples == 0) {
    throw DataError("{}: expected at least one {}, got none: {} of {} left out{}",
                    printable(plan.out_folder),
                    plan.noun,
                    counted(counts.left_out, "sample"),
                    counted(counts.written, "shard"),
                    plan.need_captions
                        ? "\n  If they have no captions, --no-captions embeds pictures alone."
                        : "");
  }
  const auto files = group.gather_texts(joined(copier.files()), "names of the shards");
  if (!group.is_main()) return ExitCode::kDone;
  const fs::path part = NewShards::folder(plan.out_folder);
  write_file_atomically((part / plan.manifest_name).string(), plan.manifest);
  std::vector<std::string> names;
  for (const std::string& of_rank : files) {
    for (std::string& name : split(of_rank)) names.push_back(std::move(name));
  }
  names.emplace_back(plan.manifest_name);
  if (const auto removed = made->finish(names); !removed.empty())
    std::printf("removed: %s\n", short_list(removed).c_str());
  print_counts(plan, counts);
  return ExitCode::kDone;
}

}  // namespace dalle2
