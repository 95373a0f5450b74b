// SPDX-License-Identifier: MIT
#include <torch/types.h>

#include <cstdio>

#include "base/text.h"
#include "model/random.h"
#include "run/dry_run.h"
#include "run/prior/prior_run.h"
#include "trainer/adapters.h"

namespace dalle2 {
namespace {

/// Loss and gradients of made-up embeddings.
void step(DiffusionPrior prior, int64_t batch) {
  const PriorConfig& config = prior->plan().config;
  PriorInputs inputs{at::ones({batch, config.image_embed_dim}),
                     {at::ones({batch, config.image_embed_dim}), {}}};
  if (config.condition_on_text_encodings) {
    inputs.text.encodings = at::ones({batch, config.net.text_len(), config.image_embed_dim});
  }
  prior->forward(inputs, make_generator({.purpose = "dry run"}, at::kCPU)).backward();
}

DryRunPlan make_plan(const LoadedPriorConfig& loaded, const ClipEmbedder* clip) {
  DiffusionPrior prior(loaded.plan);
  if (clip != nullptr) clip->hold_in(*prior);
  add_adapters({prior->net()}, loaded.config.train);
  return {.model = prior.ptr(),
          .networks = {{.label = "network",
                        .note = "",
                        .module = prior->net(),
                        .step = [prior](int64_t batch) { step(prior, batch); }}},
          .batch_size = loaded.config.data.batch_size,
          .cuda_graph = loaded.config.train.cuda_graph,
          .texts = config_texts(loaded)};
}

}  // namespace

void dry_run(const LoadedPriorConfig& loaded, int64_t processes) {
  const TrainPriorConfig& config = loaded.config;
  const auto clip = open_prior_clip(config.prior);
  const PriorDataset data = prior_data(config, clip.get());
  check_usable(data, clip != nullptr);
  warn_of_several_clips(config, clip.get());
  DryRunPlan plan = make_plan(loaded, clip.get());
  plan.data_size = {count_rows(data), "row"};
  PriorPosition position(config.train);
  const at::Device device = check_start(plan, config.tracker, config.train, position);
  print_networks(plan, config.train);
  for (const char* split : {"train", "val", "test"}) {
    std::printf("%s: %s\n", split, counted(data.rows(split), "sample").c_str());
  }
  print_steps(data.rows("train"), config.data.batch_size * processes, config.train);
  print_sizes(plan, config.train, device, processes);
}

}  // namespace dalle2
