// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_data.h"

#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "io/files/folder_names.h"
#include "io/streams/url_source.h"
#include "model/random.h"
#include "model/resize.h"
#include "optim/precision.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/pictures/pictures.h"

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
                 const LoadedClip& clip) {
  if (width.value_or(of_clip) == of_clip) return;
  throw DataError("{}: expected {}, the width of the {} of {}, got {}",
                  pointer,
                  of_clip,
                  what,
                  clip.name,
                  *width);
}

namespace fs = std::filesystem;

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
  const Json manifest = read_manifest(path);
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

std::string cache_folder(const TrainDecoderConfig& config) {
  if (config.evaluate.cache_path) return *config.evaluate.cache_path;
  return (std::filesystem::path(config.tracker.data_path) / "metrics").string();
}

/// A number that no other sample of the split has.
int64_t number_of(const ShardPlace& place) {
  constexpr int kSampleBits = 32;
  return place.shard << kSampleBits | place.sample;
}

/// Cosines of pictures and their captions; NaN without a caption.
/// @param drawn [n, C, h, w] @return [n] float32 on the CPU
at::Tensor caption_cosines(const LoadedClip& clip,
                           const at::Tensor& drawn,
                           const std::vector<std::string>& captions) {
  const PlainFloat32 plain;
  const at::Tensor pictures = resize_image_to(with_three_channels(drawn.to(at::kFloat).clamp(0, 1)),
                                              clip.clip->image_size(),
                                              std::make_pair(0.0, 1.0));
  const at::Tensor texts = clip.embed_captions(captions).embeds;
  at::Tensor cosines = (clip.embed_images(pictures) * texts).sum(-1).cpu();
  for (size_t i = 0; i < captions.size(); ++i) {
    if (captions[i].empty()) cosines[static_cast<int64_t>(i)] = NAN;
  }
  return cosines;
}

/// Says it once an evaluation and rank: there may be as many as there are samples.
void tell_left_out(const std::vector<int64_t>& left_out, const Batch& batch, bool& told) {
  if (left_out.empty() || told) return;
  told = true;
  log_warning(
      "eval",
      "sample {}: its picture, the one drawn for it or their features are not finite (NaN or "
      "infinite): the metrics leave out this pair and all others like it",
      batch.keys.at(static_cast<size_t>(left_out.front())));
}

/// The first and the last unet, from 1, that a run of this config trains: it draws with these.
std::pair<int64_t, int64_t> trained_unets(const LoadedDecoderConfig& loaded) {
  int64_t first = 0, last = 0;
  for (int64_t unet = 1; unet <= std::ssize(loaded.plan.stages); ++unet) {
    const auto& mask = loaded.config.train.unet_training_mask;
    if (mask && !mask->at(static_cast<size_t>(unet - 1))) continue;
    if (first == 0) first = unet;
    last = unet;
  }
  return {first, last};
}

}  // namespace

void DecoderClip::check_pictures(const at::Tensor& images) const {
  if (!makes_image_embeds) return;
  const int64_t side = embedder->clip->image_size();
  if (images.size(-1) >= side && images.size(-1) == images.size(-2)) return;
  throw DataError(
      "/data/preprocessing: expected square pictures of at least {0} x {0} pixels, which {1} sees, got "
      "{2} x {3}\n  Make them of that size: the unets take them smaller by themselves.",
      side,
      embedder->name,
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
                  clip.embedder->clip->embed_dim(),
                  *clip.embedder);
    if (clip.makes_text_encodings && unet.cond_on_text_encodings.value_or(false))
      check_width(pointer + "text_embed_dim",
                  "text encodings",
                  unet.text_embed_dim,
                  clip.embedder->clip->text_width(),
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
  if (clip.makes_image_embeds) return clip_sha256(*clip.embedder->clip);
  if (!config.data.embeddings_in_tar) return "";
  const std::set<std::string> manifests = manifests_beside(config.data, kEmbeddingsManifest);
  return manifests.empty() ? "" : clip_of_manifest(*manifests.begin());
}

void add_reading(Json& manifest, const Json& data) {
  for (const char* key : kReadingKeys) manifest[key] = data[key];
}

void check_stored_arrays(const LoadedDecoderConfig& loaded,
                         const Decoder& decoder,
                         const LoadedClip* clip) {
  const ShardDataConfig& config = loaded.config.data;
  const Json data = Json::parse(loaded.full_json)["data"];
  Json own;
  for (const char* key : kReadingKeys) own[std::string("/data/") + key] = data[key];
  const std::set<std::string> of_embeddings = manifests_beside(config, kEmbeddingsManifest);
  if (config.embeddings_in_tar && !of_embeddings.empty()) {
    if (clip != nullptr)
      own[std::string("/decoder/clip/") + kClipOfEmbeddings] = clip_sha256(*clip->clip);
    for (const std::string& path : of_embeddings) check_manifest(path, own, "embeddings", "embed");
  }
  if (!config.latents_in_tar) return;
  own["/data/preprocessing"] = data["preprocessing"];
  own["/decoder/image_size"] = loaded.plan.stages.front().image_size;
  own[std::string("/decoder/vae/0/") + kVaeOfLatents] = weights_sha256(*decoder->vae(1));
  for (const std::string& path : manifests_beside(config, kLatentsManifest))
    check_manifest(path, own, "latents", "encode");
}

std::unique_ptr<ImageMetrics> make_metrics(const LoadedDecoderConfig& loaded,
                                           const at::Device& device) {
  const DecoderEvaluateConfig& config = loaded.config.evaluate;
  if (config.is_off()) return nullptr;
  const auto last = static_cast<size_t>(trained_unets(loaded).second - 1);
  auto metrics = std::make_unique<ImageMetrics>(
      config, loaded.plan.stages.at(last).image_size, device, loaded.config.seed);
  const std::string fault = metrics->known().load(cache_folder(loaded.config));
  if (!fault.empty())
    log_warning("eval", "the features of real images are computed again: {}", fault);
  return metrics;
}

std::shared_ptr<LoadedClip> open_clip_of_score(const LoadedDecoderConfig& loaded,
                                               const DecoderClip& own,
                                               const at::Device& device) {
  const auto& score = loaded.config.evaluate.clip_score;
  if (!score) return nullptr;
  // Of one's own a copy with the same weights, which computes in float32 whatever the run does.
  auto clip = score->clip ? open_clip_of(score->clip, "/evaluate/clip_score/clip")
                          : std::make_shared<LoadedClip>(*own.embedder);
  const int64_t side =
      loaded.plan.stages.at(static_cast<size_t>(trained_unets(loaded).second - 1)).image_size;
  if (side < clip->clip->image_size()) {
    log_warning(
        "clip",
        "/evaluate/clip_score: the CLIP sees pictures of {} pixels, and those of this decoder have {}: they are "
        "enlarged, and the score says less",
        clip->clip->image_size(),
        side);
  }
  clip->precision = MixedPrecision::no;
  clip->max_batch_size = loaded.config.train.max_batch_size;
  clip->clip->to(device);
  return clip;
}

void keep_real_features(const TrainDecoderConfig& config, ImageMetrics& metrics) {
  if (!metrics.known().has_news()) return;
  try {
    metrics.known().save(cache_folder(config));
  } catch (const std::exception& error) {
    log_warning(
        "eval",
        "the features of real images are not kept for later runs (/evaluate/cache_path): {}",
        error.what());
  }
}

DrawSettings draw_settings(const LoadedDecoderConfig& loaded,
                           const at::Device& device,
                           const DecoderClip& clip) {
  const auto [first, last] = trained_unets(loaded);
  return {loaded.config.train.cond_scale, first, last, device, clip};
}

DecoderSampleOptions draw_options(const Batch& batch,
                                  const ChunkRange& range,
                                  const DrawSettings& settings,
                                  uint64_t noise_seed,
                                  const std::vector<int64_t>& rows) {
  const DecoderInputs inputs = to_inputs(batch, settings.device, settings.clip);
  DecoderSampleOptions options;
  options.image_embeds = inputs.image_embeds;
  options.text_encodings = inputs.text_encodings;
  options.batch_size = batch.size();
  options.cond_scale = settings.cond_scale;
  options.start_at_unet = settings.first_unet;
  options.stop_at_unet = settings.last_unet;
  if (options.start_at_unet > 1) options.image = inputs.images;
  options = chunk_of(options, range);
  options.row_generators = generators_of_rows(static_cast<int64_t>(noise_seed >> 1), rows);
  return options;
}

void show_pairs(const DecoderEvaluation& evaluation, const RankInfo& rank, ImageMetrics& metrics) {
  const TrainDecoderConfig& config = evaluation.config;
  const int64_t count = config.evaluate.n_evaluation_samples;
  const uint64_t noise_seed = hash_address({.seed = config.seed, .purpose = "evaluate"});
  const auto loader =
      evaluation.data->loader_of_share(evaluation.split, count, config.data.batch_size, rank);
  loader->start_epoch(0);
  const int64_t share = (count + rank.world - 1) / rank.world;
  int64_t drawn_before = 0;
  bool told = false;
  while (const std::optional<Batch> batch = loader->next()) {
    loader->consumed(*batch);
    std::vector<int64_t> numbers;
    for (const ShardPlace& place : batch->places) numbers.push_back(number_of(place));
    DecoderSampleOptions options =
        draw_options(*batch, {0, batch->size()}, evaluation.draw, noise_seed, numbers);
    options.on_step = [&](int64_t unet, size_t step, size_t steps) {
      evaluation.on_step(fmt::format("drawing {} of {} for the metrics: unet {}, step {}/{}",
                                     drawn_before + batch->size(),
                                     share,
                                     unet,
                                     step + 1,
                                     steps));
    };
    const at::Tensor on_device = evaluation.sample(options);
    at::Tensor cosines;
    if (evaluation.clip_of_score != nullptr)
      cosines = caption_cosines(*evaluation.clip_of_score, on_device, batch->captions);
    const at::Tensor drawn = on_device.cpu();
    const at::Tensor real =
        resize_image_to(batch->images, drawn.size(-1), std::make_pair(0.0, 1.0));
    tell_left_out(
        metrics.update(at::tensor(numbers, at::kLong), real, drawn, cosines), *batch, told);
    drawn_before += batch->size();
  }
}

std::optional<Batch> batch_of_main(ProcessGroup& group, std::optional<Batch> own) {
  if (group.is_alone()) return own;
  nlohmann::json about;  // null: there is none
  if (group.is_main() && own) {
    std::vector<std::string> keys;
    for (const std::string& key : own->keys) keys.push_back(as_utf8(key));
    about = {{"keys", keys}, {"captions", own->captions}, {"shapes", nlohmann::json::array()}};
    own->tensors([&](const at::Tensor& tensor) {
      about["shapes"].push_back(tensor.defined() ? nlohmann::json(tensor.sizes().vec()) : nullptr);
    });
  }
  about = nlohmann::json::parse(group.text_of_main(about.dump(), "samples for pictures"));
  if (about.is_null()) return std::nullopt;
  Batch batch = group.is_main() ? *std::move(own) : Batch{};
  batch.keys = about["keys"].get<std::vector<std::string>>();
  batch.captions = about["captions"].get<std::vector<std::string>>();
  auto shape = about["shapes"].begin();
  batch.tensors([&](at::Tensor& tensor) {
    const nlohmann::json& sizes = *shape++;
    if (sizes.is_null()) return;
    const auto there = at::TensorOptions(group.device()).dtype(at::kFloat);
    const at::Tensor values = group.is_main() ? tensor.to(there).contiguous()
                                              : at::empty(sizes.get<std::vector<int64_t>>(), there);
    group.broadcast(values, "samples for pictures");
    tensor = values.cpu();
  });
  return batch;
}

}  // namespace dalle2
