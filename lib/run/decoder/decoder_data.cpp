// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_data.h"

#include <array>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/streams/url_source.h"
#include "metrics/image_metrics.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"

namespace dalle2 {
namespace {

/// Whether the shards hold, or folders beside them, what /decoder/clip would make.
bool has_image_embeds(const ShardDataConfig& data) {
  return data.img_embeddings_url || data.embeddings_in_tar;
}
bool has_text_encodings(const ShardDataConfig& data) {
  return data.text_embeddings_url || data.embeddings_in_tar;
}

void check_width(const std::string& pointer,
                 const char* what,
                 std::optional<int64_t> width,
                 int64_t of_clip,
                 const ClipEmbedder& clip) {
  if (width.value_or(of_clip) == of_clip) return;
  throw DataError("{}: expected {}, the width of the {} of {}, got {}",
                  pointer,
                  of_clip,
                  what,
                  clip.name(),
                  *width);
}

namespace fs = std::filesystem;

constexpr std::array kReadingKeys = {"ground", "apply_exif", "range"};

/// The manifests of that name beside the shards of this machine.
std::set<std::string> manifests_beside(const ShardDataConfig& data, const char* name) {
  std::set<std::string> paths;
  for (const std::string& url : data.webdataset_base_url.values()) {
    std::error_code ignored;
    const fs::path path = fs::path(local_path(url)).parent_path() / name;
    if (is_local_url(url) && fs::is_regular_file(path, ignored)) paths.insert(path.string());
  }
  return paths;
}

/// @param own what the run has, by pointers whose last part is a key of the manifest
/// @param what of the shards the manifest describes @param command that makes them again
void check_manifest(const std::string& path,
                    const Json& own,
                    const char* what,
                    const char* command) {
  Json manifest;
  try {
    manifest = parse_untrusted_object(read_file(path));
  } catch (const std::exception&) {  // it is there for people too
    return;
  }
  std::string faults;
  for (const auto& [pointer, value] : own.items()) {
    const std::string key = pointer.substr(pointer.rfind('/') + 1);
    if (!manifest.contains(key) || manifest[key] == value) continue;
    faults += fmt::format("\n  {}: the run has {}, the {} were made with {}",
                          pointer,
                          value.dump(),
                          what,
                          manifest[key].dump());
  }
  if (faults.empty()) return;
  throw DataError(
      "{}: the {} in the shards are not what the run would make of their pictures:{}\n  Give the run the "
      "values that they were made with, or make them again: dalle2-train shards {}",
      printable(path),
      what,
      printable(faults),
      command);
}

}  // namespace

void DecoderClip::check_pictures(const at::Tensor& images) const {
  if (!makes_image_embeds) return;
  const int64_t side = embedder->clip().image_size();
  if (images.size(-1) >= side && images.size(-1) == images.size(-2)) return;
  throw DataError(
      "/data/preprocessing: expected square pictures of at least {0} x {0} pixels, which {1} sees, got "
      "{2} x {3}\n  Make them of that size: the unets take them smaller by themselves.",
      side,
      embedder->name(),
      images.size(-1),
      images.size(-2));
}

DecoderClip open_decoder_clip(const TrainDecoderConfig& config, const DecoderPlan& plan) {
  DecoderClip clip{.embedder = open_clip_of(config.decoder.clip, "/decoder/clip")};
  if (!clip.embedder) return clip;
  clip.makes_image_embeds = !config.decoder.unconditional && !has_image_embeds(config.data);
  clip.makes_text_encodings = plan.text_conditioned() && !has_text_encodings(config.data);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const UnetConfig& unet = plan.stages[i].unet;
    const std::string pointer = fmt::format("/decoder/unets/{}/", i);
    if (clip.makes_image_embeds && i == 0)
      check_width(pointer + "image_embed_dim",
                  "embeddings",
                  unet.image_embed_dim,
                  clip.embedder->clip().embed_dim(),
                  *clip.embedder);
    if (clip.makes_text_encodings && unet.cond_on_text_encodings.value_or(false))
      check_width(pointer + "text_embed_dim",
                  "text encodings",
                  unet.text_embed_dim,
                  clip.embedder->clip().text_width(),
                  *clip.embedder);
  }
  return clip;
}

LoaderOptions decoder_needs(const TrainDecoderConfig& config, const DecoderPlan& plan) {
  LoaderOptions needs;
  const bool has_clip = config.decoder.clip.has_value();
  needs.need_image_embeds =
      !config.decoder.unconditional && !(has_clip && !has_image_embeds(config.data));
  const bool by_clip = has_clip && !has_text_encodings(config.data);
  needs.need_text_encodings = plan.text_conditioned() && !by_clip;
  needs.need_captions = plan.text_conditioned() && by_clip;
  const UnetPlan& first = plan.stages.front();
  if (!config.decoder.unconditional) needs.image_embed_dim = first.unet.image_embed_dim;
  for (const UnetPlan& stage : plan.stages) {
    if (stage.unet.cond_on_text_encodings.value_or(false))
      needs.text_embed_dim = stage.unet.text_embed_dim;
  }
  needs.need_latents = config.data.latents_in_tar;
  needs.channels = config.decoder.channels;
  if (needs.need_latents) needs.latent_side = first.map_side(first.image_size);
  return needs;
}

void check_sizes(const Batch& example, const DecoderTrainConfig& train, const DecoderPlan& plan) {
  const at::Tensor& images = example.images;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    if (train.unet_training_mask && !train.unet_training_mask->at(i)) continue;
    naming_sample(example, [&] { check_size(images, plan.stages[i].image_size); });
  }
  if (images.size(2) == images.size(3)) return;
  throw DataError(
      "/data/preprocessing: expected square pictures, which is what a decoder draws, got {} x {}\n"
      "  Let the transforms end in a square: \"CenterCrop\": {{\"size\": N}} before \"ToTensor\".",
      images.size(2),
      images.size(3));
}

DecoderInputs to_inputs(const Batch& batch, const at::Device& device, const DecoderClip& clip) {
  DecoderInputs inputs = copied_to(
      device, DecoderInputs{batch.images, batch.image_embeds, batch.text_encodings, batch.latents});
  if (clip.makes_image_embeds)
    inputs.image_embeds = clip.embedder->embed_images(with_three_channels(inputs.images));
  if (clip.makes_text_encodings)
    inputs.text_encodings = clip.embedder->embed_captions(batch.captions).encodings;
  return inputs;
}

std::string clip_identity(const TrainDecoderConfig& config, const DecoderClip& clip) {
  if (config.decoder.unconditional) return "";
  if (clip.makes_image_embeds) return clip_sha256(clip.embedder->clip());
  if (!config.data.embeddings_in_tar) return "";
  const std::set<std::string> manifests = manifests_beside(config.data, kEmbeddingsManifest);
  return manifests.empty() ? "" : clip_of_manifest(*manifests.begin());
}

void add_reading(Json& manifest, const Json& data) {
  for (const char* key : kReadingKeys) manifest[key] = data[key];
}

void check_stored_arrays(const LoadedDecoderConfig& loaded,
                         const Decoder& decoder,
                         const ClipEmbedder* clip) {
  const ShardDataConfig& config = loaded.config.data;
  const Json data = Json::parse(loaded.full_json)["data"];
  Json reading;
  for (const char* key : kReadingKeys) reading[std::string("/data/") + key] = data[key];
  const std::set<std::string> of_embeddings = manifests_beside(config, kEmbeddingsManifest);
  if (config.embeddings_in_tar && !of_embeddings.empty()) {
    Json own = reading;
    if (clip != nullptr)
      own[std::string("/decoder/clip/") + kClipOfEmbeddings] = clip_sha256(clip->clip());
    for (const std::string& path : of_embeddings) check_manifest(path, own, "embeddings", "embed");
  }
  if (!config.latents_in_tar) return;
  Json own = reading;
  own["/data/preprocessing"] = data["preprocessing"];
  own["/decoder/image_size"] = loaded.plan.stages.front().image_size;
  own[std::string("/decoder/vae/0/") + kVaeOfLatents] = weights_sha256(*decoder->vae(1));
  for (const std::string& path : manifests_beside(config, kLatentsManifest))
    check_manifest(path, own, "latents", "encode");
}

}  // namespace dalle2
