// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_evaluation.h"

#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "dist/gather_rows.h"
#include "io/pictures/image.h"
#include "metrics/script/script_archive.h"
#include "model/random.h"
#include "model/resize.h"
#include "optim/tf32.h"
#include "run/pictures/pictures.h"

namespace dalle2 {
namespace {

/// @throws DataError if latents from the shards are not what the VAE makes of their pictures
void check_stored(const at::Tensor& stored, const at::Tensor& made) {
  constexpr double kMostDifference = 1e-2;  // of their spread: they may have been made on a GPU
  std::string difference = "another shape";
  if (stored.sizes() == made.sizes()) {
    const double share = ((stored - made).norm() / made.norm()).item<double>();
    if (share <= kMostDifference) return;
    difference = fmt::format("differ by {} of their size", short_number(share));
  }
  throw DataError(
      "/data/latents_in_tar: the latents in the shards are not what /decoder/vae/0 makes of their "
      "pictures (the first {}: {})\n  They belong to another VAE, image size or preprocessing: "
      "make them again with `dalle2-train shards encode`.",
      made.size(0),
      difference);
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

/// To draw the rows `range` of a batch. The noise belongs to the row: whatever is drawn beside it
/// changes nothing.
/// @param noise_seed of all that is drawn together @param rows their numbers, to address the noise by
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

void DecoderPictures::load() {
  training_ = examples("train", "Train: ", "Train Samples");
  test_ = examples("test", "Test: ", "Test Samples");
}

/// Rank 0 reads them and gives them to the others, so that all draw for the same.
std::vector<DecoderPictures::Examples> DecoderPictures::examples(const std::string& split,
                                                                 const std::string& caption_prefix,
                                                                 const std::string& section) {
  ProcessGroup& group = session_.group();
  std::optional<Batch> own;
  session_.together("reading the samples for pictures", [&] {
    if (group.is_main()) own = data_.examples(split, config_.train.n_sample_images);
  });
  std::optional<Batch> batch = batch_of_main(group, std::move(own));
  if (!batch) return {};
  return {{*std::move(batch), caption_prefix, section}};
}

void DecoderPictures::tell_latents() const {
  if (training_.empty()) return;
  for (int64_t unet = 1; unet <= trainer_.num_unets(); ++unet) {
    const UnetPlan& stage = trainer_.decoder()->plan().stages[static_cast<size_t>(unet - 1)];
    if (!stage.latent) continue;
    const at::Tensor images = training_.front().batch.images.to(session_.device());
    const at::Tensor latents = trainer_.decoder()->encode(images, unet);
    const auto of_one = [](const at::Tensor& value) { return short_number(value.item<double>()); };
    log_info("model",
             "latents of unet {}: {} channels of {} x {}, mean {}, standard deviation {}"
             " (/decoder/vae/{}/scale is {})",
             unet,
             latents.size(1),
             latents.size(2),
             latents.size(3),
             of_one(latents.mean()),
             of_one(latents.std()),
             unet - 1,
             short_number(stage.latent->scale));
    const at::Tensor& stored = training_.front().batch.latents;
    if (unet == 1 && stored.defined()) check_stored(stored * stage.latent->scale, latents.cpu());
  }
}

void DecoderPictures::draw_all() {
  const HeldAverages averages = trainer_.hold_averages();
  for (const Examples& examples : test_) draw(examples);
  draw_training_samples();
}

void DecoderPictures::draw_training_samples() {
  const HeldAverages averages = trainer_.hold_averages();
  for (const Examples& examples : training_) draw(examples);
}

/// Each rank draws a stretch of the pictures; rank 0 logs all.
void DecoderPictures::draw(const Examples& examples) {
  ProcessGroup& group = session_.group();
  const int64_t count = examples.batch.size();
  const int64_t begin = group.rank() * count / group.size();
  const int64_t end = (group.rank() + 1) * count / group.size();
  std::vector<at::Tensor> drawn;
  session_.together("drawing pictures", [&] {
    if (begin == end) return;
    for (const ChunkRange& range : chunk_ranges(end - begin, config_.data.batch_size)) {
      drawn.push_back(draw_part(examples, {begin + range.begin, range.length}));
    }
  });
  const at::Tensor own =
      drawn.empty() ? at::empty({0}) : at::cat(drawn).to(at::kFloat).contiguous();
  std::vector<at::Tensor> all = gather_rows(group, own, "pictures");
  std::erase_if(all, [](const at::Tensor& rows) { return rows.numel() == 0; });
  if (group.is_main()) log(examples, at::cat(all));
}

/// @return [range.length, C, H, W] on the CPU
at::Tensor DecoderPictures::draw_part(const Examples& examples, const ChunkRange& range) {
  const std::vector<int64_t> unets = trainer_.trained_parts();
  std::vector<int64_t> rows(static_cast<size_t>(range.length));
  std::iota(rows.begin(), rows.end(), range.begin);
  // The same noise every time, so that the pictures of two epochs show what training changed.
  DecoderSampleOptions options = draw_options(
      examples.batch,
      range,
      {config_.train.cond_scale, unets.front(), unets.back(), session_.device(), clip_},
      hash_address({.seed = config_.seed, .purpose = "sample " + examples.section}),
      rows);
  options.on_step = [&](int64_t unet, size_t step, size_t steps) {
    session_.throw_if_signalled();
    session_.progress().stage(
        fmt::format("drawing {}: unet {}, step {}/{}", examples.section, unet, step + 1, steps));
  };
  return trainer_.sample(options).cpu();
}

/// @param drawn [n, C, H, W] beside the real pictures
void DecoderPictures::log(const Examples& examples, const at::Tensor& drawn) {
  const at::Tensor real =
      resize_image_to(examples.batch.images, drawn.size(-1), std::make_pair(0.0, 1.0));
  std::vector<LogImage> pairs;
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < drawn.size(0); ++i) {
    const std::vector<at::Tensor> pair = {real[i], drawn[i].clamp(0, 1)};
    all.insert(all.end(), pair.begin(), pair.end());
    pairs.push_back({encode_png(to_picture(image_grid(pair, 2))),
                     examples.caption_prefix + examples.batch.captions[static_cast<size_t>(i)]});
  }
  session_.progress().pause();
  Tracker& tracker = session_.tracker();
  tracker.log_images(pairs, examples.section, trainer_.first_steps());
  // All pairs on one sheet, four pairs a row.
  tracker.log_images({{encode_png(to_picture(image_grid(all, 8))),
                       config_.decoder.unconditional
                           ? "real | drawn; the drawn ones are of no subject that was asked for"
                           : "real | drawn, in pairs"}},
                     examples.section + " Grid",
                     trainer_.first_steps());
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
