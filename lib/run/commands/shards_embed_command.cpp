// SPDX-License-Identifier: MIT
// `shards embed`: shards again, with the embeddings that a CLIP makes of their pictures and captions.
#include <torch/types.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/public_url.h"
#include "base/untrusted_text.h"
#include "config/reading/writer.h"
#include "data/embeddings/embeddings.h"
#include "data/pictures/preprocess.h"
#include "data/shards/shard_check.h"
#include "data/shards/url_patterns.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "io/streams/url_source.h"
#include "run/checkpoints/clip_weights.h"
#include "run/clip/clip_data.h"
#include "run/commands.h"
#include "run/commands/several_processes.h"
#include "run/commands/shard_copies.h"
#include "run/decoder/decoder_data.h"
#include "run/device/device.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

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
    for (const GroupedSample& sample : samples) {
      const std::string* const picture = sample.picture();
      if (picture != nullptr) small_pictures_.look_at(*picture, "the picture of " + sample.key);
    }
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

/// The shards, and pictures as open_clip's transform for inference makes them.
ShardDataConfig data_of(const ShardsEmbedCommand& command, const ClipPreprocessing& clip) {
  ShardDataConfig data;
  std::error_code ignored;  // a list of urls may be longer than a path
  if (fs::is_directory(local_path(command.url), ignored)) {
    data.webdataset_base_url = OneOrMany<std::string>(shards_in_folder(local_path(command.url)));
  } else {
    const bool is_path = is_local_url(command.url) && !has_url_placeholder(command.url);
    if (is_path && !fs::exists(local_path(command.url), ignored)) {
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
  data.preprocessing = clip_preprocessing(clip);
  data.apply_exif = command.apply_exif;
  data.range = command.range;
  if (command.ground) {
    const Rgb ground = rgb_from_text("--ground", *command.ground);
    data.ground = Colour{{ground[0], ground[1], ground[2]}};
  }
  return data;
}

ExitCode embed(const ShardsEmbedCommand& command, ProcessGroup& group) {
  if (has_url_placeholder(command.url) &&
      (command.url.starts_with("http://") || command.url.starts_with("https://"))) {
    throw ConfigError(
        "SHARDS {}: a web server does not list what {{}} stands for\n  Give the numbers in "
        "braces, such as {{000000..000099}}.",
        public_url(command.url));
  }
  LoadedClip clip = load_clip_file(command.clip_path, {.config_path = command.clip_config_path});
  const ShardDataConfig data = data_of(command, clip.clip->preprocessing());
  ClipEmbeddings embeddings(command, group.world(), public_url(command.url), std::move(clip), data);
  ShardCopyCounts counts;
  const ExitCode code = copy_shards({.data = data,
                                     .out_folder = command.out_folder,
                                     .device = command.device,
                                     .overwrite = command.overwrite,
                                     .noun = "embedding",
                                     .manifest_name = kEmbeddingsManifest,
                                     .manifest = embeddings.manifest(),
                                     .need_captions = command.captions},
                                    embeddings,
                                    group,
                                    counts);
  if (!group.is_main() || code == ExitCode::kStopped) return code;
  const std::string out = printable(command.out_folder);
  std::printf(
      "a decoder reads \"webdataset_base_url\": \"%s/{}.tar\" with \"embeddings_in_tar\": true,\n"
      "a prior \"image_url\": \"%s/img_emb\"",
      out.c_str(),
      out.c_str());
  if (command.captions) std::printf(" and \"text_url\": \"%s/text_emb\"", out.c_str());
  std::printf("\n");
  return code;
}

}  // namespace

ExitCode run_shards_embed(const ShardsEmbedCommand& command) {
  if (command.processes > 1) return launch(command.processes);
  return as_one_of_several(command.device,
                           [&](ProcessGroup& group) { return embed(command, group); });
}

}  // namespace dalle2
