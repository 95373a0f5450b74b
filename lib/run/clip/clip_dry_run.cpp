// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include "model/clip/contrastive_loss.h"
#include "run/clip/clip_data.h"
#include "run/clip/clip_run.h"
#include "run/dry_run.h"
#include "trainer/adapters.h"

namespace dalle2 {
namespace {

/// Loss and gradients of made-up pairs.
void step(ClipImpl& clip, int64_t batch) {
  const int64_t side = clip.image_size();
  const at::Tensor images = at::full({batch, 3, side, side}, 0.5);
  const at::Tensor tokens =
      at::full({batch, clip.max_text_len()}, clip.config().text_cfg.end_token(), at::kLong);
  contrastive_loss(pair_features(clip.image_features(images), clip.text_features(tokens)),
                   clip.logit_scale)
      .backward();
}

DryRunPlan make_plan(const LoadedClipConfig& loaded) {
  const auto clip = std::make_shared<ClipImpl>(loaded.config.clip);
  add_adapters({clip}, loaded.config.train);
  DryRunPlan plan{.model = clip, .batch_size = loaded.config.data.batch_size};
  plan.networks.push_back({.label = "network",
                           .note = fmt::format("{} px", clip->image_size()),
                           .module = clip,
                           .step = [clip](int64_t batch) { step(*clip, batch); }});
  plan.texts = config_texts(loaded);
  plan.is_begun_by = is_clip_weights_alone;
  return plan;
}

}  // namespace

void dry_run(const LoadedClipConfig& loaded, int64_t processes) {
  const TrainClipConfig& config = loaded.config;
  check_processes(config.clip, processes);
  ShardData data(config.data,
                 config.seed,
                 clip_needs(),
                 RankInfo{.world = static_cast<int>(processes)},
                 at::kCPU);
  data.deal_into(data.slices_at_begin());
  data.check_usable("train");
  if (const auto example = data.examples("train", 1)) {
    naming_sample(*example,
                  [&] { check_picture_size(example->images, config.clip.vision_cfg.image_size); });
  }
  if (!config.clip.tokenizer.train) make_clip_tokenizer(config.clip, data);  // names its faults
  DryRunPlan plan = make_plan(loaded);
  plan.data_size = data_size_of(data);
  ShardPosition position;
  const at::Device device = check_start(plan, config.tracker, config.train, position);
  if (const int64_t slices = position.slices_of_run(); slices > 0) data.deal_into(slices);
  print_networks(plan, config.train);
  print_shards(data, config.data, config.train, config.train, processes);
  print_sizes(plan, config.train, device, processes);
}

}  // namespace dalle2
