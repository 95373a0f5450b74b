// SPDX-License-Identifier: MIT
// `shards encode` and `shards embed`: shards gone through once, with something made of each picture that is
// written beside it.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "config/reading/writer.h"
#include "config/shared/shard_data_config.h"
#include "data/embeddings/embeddings.h"
#include "data/loader/drop_log.h"
#include "data/loader/shard_dataset.h"
#include "data/pictures/preprocess.h"
#include "data/shards/captions.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "dist/process_group.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/new_shards.h"
#include "io/formats/npy.h"
#include "io/formats/tar.h"
#include "io/formats/webdataset.h"
#include "io/streams/url_source.h"
#include "model/resize.h"
#include "net/http_transfer.h"
#include "run/checkpoints/clip_weights.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/commands/several_processes.h"
#include "run/decoder/decoder_data.h"
#include "run/device/device.h"
#include "run/dry_run.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// What a command makes of the samples of a shard.
class ShardAddition {
 public:
  virtual ~ShardAddition() = default;
  virtual void begin_shard() = 0;
  /// Adds fields to samples. @param images [B, C, H, W] in [0, 1], their pictures
  virtual void add(std::vector<GroupedSample>& samples, const at::Tensor& images) = 0;
  /// The shard is complete, and is about to be committed. @param path of its file
  /// @return the files that were written beside it, by names in its folder
  virtual std::vector<std::string> end_shard(const std::string& path) = 0;
};

/// How shards are gone through, and where what is made of them goes.
struct ShardCopyPlan {
  const ShardDataConfig& data;
  std::string out_folder;
  std::string device;          ///< as asked for: check_same_config()
  bool overwrite = false;      ///< replace the shards that the folder holds
  const char* noun;            ///< what a sample gets: "latent"
  const char* manifest_name;   ///< of the file that says what the shards were made with
  std::string manifest;        ///< its text
  int64_t channels = 3;        ///< of the pictures
  bool need_captions = false;  ///< a sample without a caption is left out
};

struct ShardCopyCounts {
  int64_t samples = 0, left_out = 0, written = 0, lost = 0;
};

/// Why a shard could not be read to its end.
struct ShardFault {
  std::string text;
  bool is_unreachable = false;  ///< nobody answered
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

class ShardCopier {
 public:
  ShardCopier(const ShardCopyPlan& plan, ShardAddition& addition, ProcessGroup& group)
      : plan_(plan),
        addition_(addition),
        group_(group),
        preprocess_(plan.data.preprocessing,
                    decode_options(plan.data, plan.channels),
                    plan.data.max_transform_pixels) {}

  /// Writes the shards with what is made of them, as NewShards does, and prints how many. The ranks share the
  /// shards: each writes files of its own. What cannot be decoded is left out; of a shard that cannot be read
  /// to its end nothing is written: it is skipped, as in a training.
  /// @return kStopped after a signal to any rank, with a line: the folder is as it was
  /// @throws ConfigError (NewShards, the folder holds shards to read, two shards would get one name, the
  /// ranks would make different things), NetworkError (shard after shard is out of reach), DataError (not
  /// one can be read, no sample can be used)
  ExitCode run() {
    check_same_config(group_, plan_.manifest, plan_.device);
    std::optional<NewShards> made;   // of rank 0
    std::vector<std::string> found;  // a name and a url each
    bool is_stopped = false;
    {
      const ProcessGroup::BusyScope busy(group_, "looking at the shards");
      try {
        if (group_.is_main()) {
          const auto shards = shards_by_name(plan_.data);
          refuse_own_folder(plan_.out_folder, shards);
          std::vector<std::string> names;
          for (const auto& [name, url] : shards) {
            names.push_back(name);
            found.insert(found.end(), {name, url});
          }
          made.emplace(plan_.out_folder, plan_.overwrite, names);
        }
      } catch (const StoppedError&) {  // it waited for the network
        is_stopped = true;
      }
    }
    const auto stopped = [&] {
      if (group_.is_main()) print_line("stopped by a signal; no shard was written");
      return ExitCode::kStopped;
    };
    if (group_.any(is_stopped, "stop before the shards")) return stopped();
    found = split(group_.text_of_main(joined(found), "shards"));
    const int64_t all = std::ssize(found) / 2;
    CopyEnd end;
    {
      const ProcessGroup::BusyScope busy(group_, "its share of the shards");
      end = copy_share(found);
    }
    is_stopped = group_.any(end.is_stopped, "end of the shards");
    if (group_.is_main()) log_live("");
    if (is_stopped) return stopped();
    for (int64_t* count : {&counts_.samples, &counts_.left_out, &counts_.written, &counts_.lost})
      *count =
          std::llround(group_.sum({static_cast<double>(*count)}, "counts of the shards").front());
    if (counts_.lost == all) {
      const auto faults = group_.gather_texts(end.fault, "faults of the shards");
      throw DataError(
          "{}", *std::ranges::find_if(faults, [](const auto& fault) { return !fault.empty(); }));
    }
    if (counts_.samples == 0) {
      throw DataError("{}: expected at least one {}, got none: {} of {} left out{}",
                      printable(plan_.out_folder),
                      plan_.noun,
                      counted(counts_.left_out, "sample"),
                      counted(counts_.written, "shard"),
                      plan_.need_captions
                          ? "\n  If they have no captions, --no-captions embeds pictures alone."
                          : "");
    }
    const auto files = group_.gather_texts(joined(files_), "names of the shards");
    if (!group_.is_main()) return ExitCode::kDone;
    const fs::path part = NewShards::folder(plan_.out_folder);
    write_file_atomically((part / plan_.manifest_name).string(), plan_.manifest);
    std::vector<std::string> names;
    for (const std::string& of_rank : files) {
      for (std::string& name : split(of_rank)) names.push_back(std::move(name));
    }
    names.emplace_back(plan_.manifest_name);
    if (const auto removed = made->finish(names); !removed.empty())
      print_line("removed: {}", short_list(removed));
    print_counts();
    return ExitCode::kDone;
  }
  /// Of all ranks, after run().
  const ShardCopyCounts& counts() const { return counts_; }

 private:
  /// Every n-th shard, of n ranks. @param shards of all ranks: a name and a url each
  CopyEnd copy_share(const std::vector<std::string>& shards) {
    CopyEnd end;
    const int64_t all = std::ssize(shards) / 2;
    const int64_t most_unreachable = std::min<int64_t>(kMostUnreachable, all);
    int64_t unreachable_in_a_row = 0;
    for (auto i = static_cast<size_t>(group_.rank()); 2 * i < shards.size();
         i += static_cast<size_t>(group_.size())) {
      const std::string &name = shards[2 * i], &url = shards[2 * i + 1];
      std::optional<ShardFault> fault;
      try {
        fault = copy(url, name);
      } catch (const StoppedError&) {
        return {.is_stopped = true};
      }
      if (!fault) {
        unreachable_in_a_row = 0;
        continue;
      }
      ++counts_.lost;
      end.fault = fault->text;
      unreachable_in_a_row = fault->is_unreachable ? unreachable_in_a_row + 1 : 0;
      if (unreachable_in_a_row == most_unreachable) throw NetworkError("{}", fault->text);
      if (counts_.lost == all) break;  // it is an error
      log_warning(
          "data", "{}\n  The shard is skipped: its {}s are not written.", fault->text, plan_.noun);
    }
    return end;
  }

  /// Of a shard that cannot be read to its end nothing is written. @throws StoppedError
  std::optional<ShardFault> copy(const std::string& url, const std::string& name) {
    std::optional<ShardFault> fault;
    std::unique_ptr<SampleReader> reader;
    const auto next = [&]() -> std::optional<GroupedSample> {
      try {
        if (!reader)
          reader = open_shard(
              url, {}, {.allow_pipe = plan_.data.allow_pipe}, plan_.data.caption_encoding);
        return reader->next();
      } catch (const NetworkError& error) {
        fault = ShardFault{error.what(), dynamic_cast<const HttpStatusError*>(&error) == nullptr};
      } catch (const DataError& error) {
        fault = ShardFault{error.what()};
      }
      return std::nullopt;
    };
    const std::string path = (fs::path(NewShards::folder(plan_.out_folder)) / name).string();
    TarWriter tar(path);
    addition_.begin_shard();
    of_shard_ = {};
    std::vector<GroupedSample> waiting;
    while (std::optional<GroupedSample> sample = next()) {
      if (stop_requested() != 0) throw_stopped();
      waiting.push_back(*std::move(sample));
      if (std::ssize(waiting) == plan_.data.batch_size) write(waiting, url, tar);
    }
    if (fault) return fault;
    write(waiting, url, tar);
    for (std::string& array : addition_.end_shard(path)) files_.push_back(std::move(array));
    tar.commit();
    files_.push_back(name);
    ++counts_.written;
    counts_.samples += of_shard_.samples;
    counts_.left_out += of_shard_.left_out;
    return std::nullopt;
  }

  void write(std::vector<GroupedSample>& waiting, const std::string& url, TarWriter& tar) {
    const std::vector<at::Tensor> pictures = decode(waiting, url);
    for (const GroupedSample& sample : waiting) {
      if (is_looking_) is_looking_ = looks_.look_at(*sample.picture());
    }
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

  void print_counts() const {
    print_pictures(looks_, decode_options(plan_.data, plan_.channels));
    print_line("{} in {}{}{}",
               counted(counts_.samples, plan_.noun),
               counted(counts_.written, "shard"),
               counts_.left_out > 0 ? ", " + counted(counts_.left_out, "sample") + " left out" : "",
               counts_.lost > 0 ? ", " + counted(counts_.lost, "shard") + " skipped" : "");
  }

  const ShardCopyPlan& plan_;
  ShardAddition& addition_;
  ProcessGroup& group_;
  ShardCopyCounts counts_, of_shard_;
  std::vector<std::string> files_;  // that were written, by names in the folder
  DropCounts told_;                 // of all shards
  Preprocess preprocess_;
  PictureTally looks_;  // of the first pictures
  bool is_looking_ = true;
};

class Latents : public ShardAddition {
 public:
  Latents(const LoadedDecoderConfig& loaded, const std::string& device, const World& world)
      : stage_(loaded.plan.stages.front()),
        device_(device_of_rank(device, "--device", WithoutGpu::kError, world)),
        vae_(load_latent_vae(*stage_.latent)),
        data_(nlohmann::ordered_json::parse(loaded.full_json)["data"]) {
    vae_->to(device_);
    vae_->eval();
  }

  /// What makes these latents what they are. @param base_url of the shards, as it may be shown
  std::string manifest(const nlohmann::ordered_json& base_url) const {
    nlohmann::ordered_json made_with;
    made_with[kVaeOfLatents] = weights_sha256(*vae_);
    made_with["image_size"] = stage_.image_size;
    made_with["preprocessing"] = data_["preprocessing"];
    add_reading(made_with, data_);
    made_with["webdataset_base_url"] = base_url;
    return made_with.dump(2) + "\n";
  }
  /// Mean and standard deviation of the latents of whole shards, of all ranks.
  std::pair<double, double> spread(ProcessGroup& group) const {
    const std::vector<double> all = group.sum(sums_, "spread of the latents");
    const double mean = all[1] / all[0];
    return {mean, std::sqrt(std::max(0.0, all[2] / all[0] - mean * mean))};
  }

  void begin_shard() override { of_shard_ = std::vector<double>(sums_.size()); }
  void add(std::vector<GroupedSample>& samples, const at::Tensor& images) override {
    const at::Tensor latents = encode(images);
    const at::Tensor values = latents.to(at::kDouble);
    of_shard_[0] += static_cast<double>(values.numel());
    of_shard_[1] += values.sum().item<double>();
    of_shard_[2] += values.square().sum().item<double>();
    for (size_t i = 0; i < samples.size(); ++i) {
      const at::Tensor latent = latents[static_cast<int64_t>(i)].contiguous();
      samples[i].fields["latent.npy"] =
          format_npy_float32(latent.sizes().vec(), latent.const_data_ptr<float>());
    }
  }
  std::vector<std::string> end_shard(const std::string& /*path*/) override {
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += of_shard_[i];
    return {};
  }

 private:
  /// @return [B, D, h, w] on the CPU, not scaled
  at::Tensor encode(const at::Tensor& images) {
    const torch::NoGradGuard no_grad;
    const at::Tensor all =
        resize_image_to(images.to(device_), stage_.image_size, std::nullopt, /*nearest=*/true);
    return vae_->encode_unquantized(all).cpu();
  }

  const UnetPlan& stage_;
  at::Device device_;
  VqganVae vae_;
  nlohmann::ordered_json data_;                      // of the config
  std::vector<double> sums_ = {0, 0, 0}, of_shard_;  // count, sum and sum of squares of values
};

LoadedDecoderConfig load_latent_config(const ShardsEncodeCommand& command) {
  // Whether the config already asks for latents in its shards does not matter here.
  LoadedDecoderConfig loaded =
      load_decoder_config(command.config_path, with_checkpoints({.overrides = command.overrides}));
  if (!loaded.plan.stages.front().latent) {
    throw ConfigError("{}: /decoder/vae: expected a VAE before the first unet, found none",
                      printable(command.config_path));
  }
  for (const TransformConfig& transform : loaded.config.data.preprocessing) {
    if (!transform.is_random()) continue;
    throw ConfigError(
        "{}: /data/preprocessing/{}: gives a different picture each time, so there is no single "
        "latent\n  Leave the transform out, or encode while training (no data.latents_in_tar).",
        printable(command.config_path),
        enum_names<TransformKind>[static_cast<size_t>(transform.kind)]);
  }
  return loaded;
}

ExitCode encode(const ShardsEncodeCommand& command,
                const LoadedDecoderConfig& loaded,
                ProcessGroup& group) {
  Latents latents(loaded, command.device, group.world());
  const auto shown = nlohmann::ordered_json::parse(public_config(loaded.full_json));
  const ShardCopyPlan plan = {
      .data = loaded.config.data,
      .out_folder = command.out_folder,
      .device = command.device,
      .overwrite = command.overwrite,
      .noun = "latent",
      .manifest_name = kLatentsManifest,
      .manifest = latents.manifest(
          shown["data"][loaded.config.data.folder ? "folder" : "webdataset_base_url"]),
      .channels = loaded.config.decoder.channels};
  ShardCopier copier(plan, latents, group);
  const ExitCode code = copier.run();
  if (code == ExitCode::kStopped) return code;
  const auto [mean, deviation] = latents.spread(group);
  if (!group.is_main()) return code;
  if (copier.counts().samples > 0) {
    print_line("mean {}, standard deviation {}: /decoder/vae/0/scale {} brings them to 1",
               short_number(mean),
               short_number(deviation),
               short_number(1 / deviation));
  }
  print_line("train with \"webdataset_base_url\": \"{}\" and \"latents_in_tar\": true",
             printable((fs::path(command.out_folder) / "{}.tar").string()));
  return code;
}

/// Embeddings of a shard's samples, in their order: what a prior reads.
struct EmbeddingArray {
  const char* name;  ///< of its folder: "img_emb"
  std::vector<at::Tensor> rows = {};
};

class ClipEmbeddings : public ShardAddition {
 public:
  ClipEmbeddings(const ShardsEmbedCommand& command,
                 const World& world,
                 const std::string& shown_url,
                 LoadedClip clip,
                 const ShardDataConfig& data)
      : command_(command),
        device_(device_of_rank(command.device, "--device", WithoutGpu::kError, world)),
        clip_(std::move(clip)),
        shown_url_(shown_url),
        data_(data) {
    clip_.clip->to(device_);
  }

  std::string manifest() const {
    nlohmann::ordered_json made_with;
    made_with[kClipOfEmbeddings] = clip_sha256(*clip_.clip);
    made_with["text_encodings"] = command_.text_encodings;
    add_reading(made_with, to_json(data_));
    made_with["webdataset_base_url"] = shown_url_;
    return made_with.dump(2) + "\n";
  }

  void begin_shard() override {
    for (EmbeddingArray* array : arrays()) array->rows.clear();
  }
  void add(std::vector<GroupedSample>& samples, const at::Tensor& images) override {
    const torch::NoGradGuard no_grad;
    for (const GroupedSample& sample : samples)
      small_pictures_.look_at(*sample.picture(), "the picture of " + sample.key);
    const at::Tensor pictures = clip_.clip->embed_image(images.to(device_)).cpu();
    images_.rows.push_back(pictures);
    if (command_.captions) add_texts(samples);
    for (size_t i = 0; i < samples.size(); ++i) {
      put(samples[i], "img_emb.npy", pictures[static_cast<int64_t>(i)]);
      if (command_.text_encodings)
        put(samples[i], "text_emb.npy", encodings_.rows.back()[static_cast<int64_t>(i)]);
    }
  }
  std::vector<std::string> end_shard(const std::string& path) override {
    const fs::path shard = path;
    std::vector<std::string> files;
    for (EmbeddingArray* array : arrays()) {
      if (array->rows.empty()) continue;
      const at::Tensor all = at::cat(array->rows).contiguous();
      files.push_back(fmt::format("{}/{}.npy", array->name, shard.stem().string()));
      write_npy_float32((shard.parent_path() / files.back()).string(),
                        all.sizes().vec(),
                        all.const_data_ptr<float>());
    }
    return files;
  }

 private:
  void add_texts(const std::vector<GroupedSample>& samples) {
    std::vector<std::string> captions;
    for (const GroupedSample& sample : samples) captions.push_back(*sample.find({"txt"}));
    const at::Tensor tokens = clip_.tokens_of(captions, &long_captions_);
    const ClipTexts texts = clip_.clip->embed_text(tokens.to(device_));
    texts_.rows.push_back(texts.embed.cpu());
    if (command_.text_encodings) encodings_.rows.push_back(texts.encodings.cpu());
  }
  std::vector<EmbeddingArray*> arrays() { return {&images_, &texts_, &encodings_}; }
  static void put(GroupedSample& sample, const char* field, const at::Tensor& values) {
    const at::Tensor row = values.contiguous();
    sample.fields[field] = format_npy_float32(row.sizes().vec(), row.const_data_ptr<float>());
  }

  const ShardsEmbedCommand& command_;
  at::Device device_;
  LoadedClip clip_;
  LongCaptions long_captions_;
  SmallPictures small_pictures_{clip_.clip->preprocessing()};
  std::string shown_url_;
  const ShardDataConfig& data_;
  EmbeddingArray images_{"img_emb"}, texts_{"text_emb"}, encodings_{"text_encodings"};
};

/// The shards, and pictures as open_clip's transform for inference makes them. What the options leave open is as in
/// the CLIP's training.
ShardDataConfig data_of(const ShardsEmbedCommand& command, const LoadedClip& clip) {
  ShardDataConfig data;
  if (is_folder(local_path(command.url))) {
    data.webdataset_base_url = OneOrMany<std::string>(shards_in_folder(local_path(command.url)));
  } else {
    const bool is_path = is_local_url(command.url) && count_braces(command.url) == 0;
    if (is_path && !path_exists(local_path(command.url))) {
      throw ConfigError("SHARDS {}: there is no such folder, relative to {}",
                        printable(command.url),
                        fs::current_path().string());
    }
    data.webdataset_base_url = command.url;
  }
  if (const auto fault = shard_url_fault(data.webdataset_base_url))
    throw ConfigError("SHARDS: {}", *fault);
  data.batch_size = command.batch_size;
  data.shard_width = command.shard_width;
  data.preprocessing = clip_preprocessing(clip.clip->preprocessing());
  data.ground = clip.trained_on.ground;
  data.apply_exif = command.apply_exif || clip.trained_on.apply_exif.value_or(false);
  data.range = command.range ? command.range : clip.trained_on.range;
  if (command.ground) {
    const Rgb ground = rgb_from_text("--ground", *command.ground);
    data.ground = Colour{{ground[0], ground[1], ground[2]}};
  }
  return data;
}

ExitCode embed(const ShardsEmbedCommand& command, ProcessGroup& group) {
  if (count_braces(command.url) > 0 &&
      (command.url.starts_with("http://") || command.url.starts_with("https://"))) {
    throw ConfigError(
        "SHARDS {}: a web server does not list what {{}} stands for\n  Give the numbers in "
        "braces, such as {{000000..000099}}.",
        public_url(command.url));
  }
  LoadedClip clip = load_clip_file(command.clip_path, {.config_path = command.clip_config_path});
  const ShardDataConfig data = data_of(command, clip);
  ClipEmbeddings embeddings(command, group.world(), public_url(command.url), std::move(clip), data);
  const ShardCopyPlan plan = {.data = data,
                              .out_folder = command.out_folder,
                              .device = command.device,
                              .overwrite = command.overwrite,
                              .noun = "embedding",
                              .manifest_name = kEmbeddingsManifest,
                              .manifest = embeddings.manifest(),
                              .need_captions = command.captions};
  nlohmann::ordered_json reading;
  add_reading(reading, to_json(data));
  log_info("clip", "pictures are read with {}", reading.dump());
  const ExitCode code = ShardCopier(plan, embeddings, group).run();
  if (!group.is_main() || code == ExitCode::kStopped) return code;
  const std::string out = printable(command.out_folder);
  print_line(
      "a decoder reads \"webdataset_base_url\": \"{0}/{{}}.tar\" with \"embeddings_in_tar\": true,\n"
      "a prior \"image_url\": \"{0}/img_emb\"{1}",
      out,
      command.captions ? fmt::format(" and \"text_url\": \"{}/text_emb\"", out) : "");
  return code;
}

}  // namespace

ExitCode run_shards_encode(const ShardsEncodeCommand& command) {
  const LoadedDecoderConfig loaded = load_latent_config(command);
  if (command.processes > 1) return launch(command.processes);
  return as_one_of_several(meeting_of(command.device),
                           [&](ProcessGroup& group) { return encode(command, loaded, group); });
}

ExitCode run_shards_embed(const ShardsEmbedCommand& command) {
  if (command.processes > 1) return launch(command.processes);
  return as_one_of_several(meeting_of(command.device),
                           [&](ProcessGroup& group) { return embed(command, group); });
}

}  // namespace dalle2
