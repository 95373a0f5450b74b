// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_evaluation.h"

#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/untrusted_text.h"
#include "model/random.h"
#include "model/resize.h"
#include "optim/tf32.h"
#include "run/pictures/pictures.h"

namespace dalle2 {
namespace {

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
at::Tensor caption_cosines(const ClipEmbedder& clip,
                           const at::Tensor& drawn,
                           const std::vector<std::string>& captions) {
  const PlainFloat32 plain;
  const at::Tensor pictures = resize_image_to(with_three_channels(drawn.to(at::kFloat).clamp(0, 1)),
                                              clip.clip().image_size(),
                                              std::make_pair(0.0, 1.0));
  at::Tensor cosines = clip.similarity(pictures, captions).cpu();
  for (size_t i = 0; i < captions.size(); ++i) {
    if (captions[i].empty()) cosines[static_cast<int64_t>(i)] = NAN;
  }
  return cosines;
}

/// Says it once an evaluation and rank: there may be as many as there are samples.
void tell_left_out(const std::vector<LeftOutPair>& left_out, const Batch& batch, bool& told) {
  if (left_out.empty() || told) return;
  told = true;
  log_warning(
      "eval",
      "sample {}: {} is not finite (NaN or infinite): the metrics leave out this pair and all "
      "others like it",
      batch.keys.at(static_cast<size_t>(left_out.front().row)),
      left_out.front().what);
}

}  // namespace

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

std::unique_ptr<ImageMetrics> make_metrics(const LoadedDecoderConfig& loaded,
                                           const at::Device& device) {
  const DecoderEvaluateConfig& config = loaded.config.evaluate;
  if (config.is_off()) return nullptr;
  const auto last = static_cast<size_t>(trained_unets(loaded).second - 1);
  auto metrics = std::make_unique<ImageMetrics>(
      config, loaded.plan.stages.at(last).image_size, device, loaded.config.seed);
  const std::string fault = metrics->known().load(cache_folder(loaded.config));
  if (!fault.empty()) {
    log_warning("eval", "the features of real images are computed again: {}", fault);
  }
  return metrics;
}

std::shared_ptr<ClipEmbedder> open_clip_of_score(const LoadedDecoderConfig& loaded,
                                                 const DecoderClip& own,
                                                 const at::Device& device) {
  const auto& score = loaded.config.evaluate.clip_score;
  if (!score) return nullptr;
  // Of one's own a copy with the same weights, which computes in float32 whatever the run does.
  auto clip = score->clip ? open_clip_of(score->clip, "/evaluate/clip_score/clip")
                          : std::make_shared<ClipEmbedder>(*own.embedder);
  const int64_t side =
      loaded.plan.stages.at(static_cast<size_t>(trained_unets(loaded).second - 1)).image_size;
  if (side < clip->clip().image_size()) {
    log_warning(
        "clip",
        "/evaluate/clip_score: the CLIP sees pictures of {} pixels, and those of this decoder have {}: they are "
        "enlarged, and the score says less",
        clip->clip().image_size(),
        side);
  }
  clip->compute_as(MixedPrecision::no, loaded.config.train.max_batch_size);
  clip->to(device);
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
  const uint64_t noise_seed = hash_address({.seed = evaluation.seed, .purpose = "evaluate"});
  const auto loader = evaluation.data->loader_of_share(
      evaluation.split, evaluation.count, evaluation.batch_size, rank);
  loader->start_epoch(0);
  const int64_t share = (evaluation.count + rank.world - 1) / rank.world;
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
