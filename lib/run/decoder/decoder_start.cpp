// SPDX-License-Identifier: MIT
// What a decoder run is made of.
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "run/checkpoints/model_weights.h"
#include "run/decoder/decoder_data.h"
#include "run/decoder/decoder_evaluation.h"
#include "run/decoder/decoder_run.h"
#include "run/decoder/memory_budget.h"
#include "run/shards/stored_arrays.h"

namespace dalle2 {
namespace {

/// What the images are conditioned on.
std::string describe_conditioning(const TrainDecoderConfig& config,
                                  const DecoderClip& clip,
                                  bool text_conditioned) {
  std::string source;
  if (config.decoder.unconditional) {
    return "unconditional: draws pictures like those in the shards";
  } else if (clip.makes_image_embeds) {
    source = "image embeddings by " + clip.embedder->name();
  } else if (config.data.img_embeddings_url) {
    source = "precomputed image embeddings";
  } else {
    source = "image embeddings from the shards";
  }
  if (clip.makes_text_encodings) {
    source += " and text encodings by " + clip.embedder->name();
  } else if (text_conditioned) {
    source += config.data.text_embeddings_url ? " and precomputed text embeddings"
                                              : " and text encodings from the shards";
  }
  return "conditioned on " + source;
}

void log_parameters(const std::vector<std::shared_ptr<UnetImpl>>& unets) {
  ParameterCount all;
  std::vector<ParameterCount> counts;
  for (const auto& unet : unets) {
    counts.push_back(count_parameters(*unet));
    all.total += counts.back().total;
    all.training += counts.back().training;
  }
  log_parameters(all);
  if (counts.size() == 1) return;
  for (size_t i = 0; i < counts.size(); ++i) {
    log_info(
        "model", "Unet {} has {} total; {} training", i + 1, counts[i].total, counts[i].training);
  }
}

std::unique_ptr<DecoderTrainer> make_trainer(const LoadedDecoderConfig& loaded,
                                             const ClipEmbedder* clip,
                                             const at::Device& device,
                                             ProcessGroup* group) {
  const std::vector<int64_t> recomputed = levels_to_recompute(loaded, clip, device, group);
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  Decoder decoder(loaded.plan);
  load_latent_vaes(decoder);
  check_stored_arrays(loaded, decoder, clip);
  if (clip != nullptr) clip->hold_in(*decoder);
  std::vector<std::shared_ptr<UnetImpl>> unets;  // also those that are not trained
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) unets.push_back(decoder->unet(unet));
  for (size_t i = 0; i < unets.size(); ++i) {
    if (recomputed[i] > 0) unets[i]->recompute_levels(recomputed[i]);
  }
  auto trainer = std::make_unique<DecoderTrainer>(decoder, loaded.config.train, device);
  log_parameters(unets);
  return trainer;
}

std::vector<PartMetricNames> metric_names(size_t unets) {
  std::vector<PartMetricNames> names;
  for (size_t i = 0; i < unets; ++i) names.push_back({.prefix = fmt::format("Unet {} ", i)});
  return names;
}

}  // namespace

ConfigTexts config_texts(const LoadedDecoderConfig& loaded) {
  ConfigTexts texts = config_texts<LoadedDecoderConfig>(loaded);
  auto config = nlohmann::ordered_json::parse(texts.full_json);
  nlohmann::ordered_json kept = nlohmann::ordered_json::object();
  for (const auto& [key, value] : config["decoder"].items()) {
    const bool unused_extension = key == "zero_terminal_snr" && value == false;
    if (!value.is_null() && !unused_extension) kept[key] = value;
  }
  config["decoder"] = std::move(kept);
  texts.full_json = config.dump();
  return texts;
}

DecoderRun::DecoderRun(const LoadedDecoderConfig& loaded, const RunProcess& process)
    : DecoderRun(loaded, process, open_decoder_clip(loaded.config, loaded.plan)) {}

DecoderRun::DecoderRun(const LoadedDecoderConfig& loaded,
                       const RunProcess& process,
                       const DecoderClip& clip)
    : ShardRun(run_plan(loaded,
                        process,
                        metric_names(loaded.plan.stages.size()),
                        "damaged images and embeddings with `dalle2-train shards check`"),
               [&](const at::Device& device) {
                 return make_trainer(loaded, clip.get(), device, process.group);
               },
               {.loop = loaded.config.train,
                .data = loaded.config.data,
                .needs = decoder_needs(loaded.config, loaded.plan)}),
      loaded_(loaded),
      config_(loaded.config),
      trainer_(trainer_as<DecoderTrainer>()),
      clip_(clip),
      trained_unets_(trainer_.trained_parts()),
      pictures_(session_, trainer_, data_, config_, clip_),
      metrics_(make_metrics(loaded, session_.device())),
      clip_of_score_(open_clip_of_score(loaded, clip_, session_.device())) {
  if (clip_.embedder)
    clip_.embedder->compute_as(trainer_.precision().precision, config_.train.max_batch_size);
}

void DecoderRun::introduce() const {
  session_.print_precision(trainer_.precision());
  log_info("train", "{}", describe_conditioning(config_, clip_, loaded_.plan.text_conditioned()));
}

void DecoderRun::load_examples() {
  session_.together("looking at a picture", [&] {
    if (!session_.group().is_main()) return;
    const auto example = data_.examples("train", 1);
    if (!example) return;
    if (clip_.makes_image_embeds)
      naming_sample(*example, [&] { clip_.check_pictures(example->images); });
    check_sizes(*example, config_.train, loaded_.plan);
  });
  pictures_.load();
  pictures_.tell_latents();
}

}  // namespace dalle2
