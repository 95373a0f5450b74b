// SPDX-License-Identifier: MIT
// What a prior run logs.
#include <torch/torch.h>

#include "base/text.h"
#include "metrics/embedding_metrics.h"
#include "run/prior/prior_run.h"

namespace dalle2 {
namespace {

/// What the console calls a similarity; null: it is for log.jsonl alone.
const char* label_of(const std::string& similarity) {
  if (similarity == "similarity with original image") return "image";
  if (similarity == "similarity with text") return "text";
  if (similarity == "similarity with unrelated caption") return "other text";
  return nullptr;
}

}  // namespace

void PriorRun::log(const std::vector<PriorRecord>& records) {
  for (const PriorRecord& each : records) {
    session_.tracker().log(each.values, trainer_.steps(), each.shown);
  }
}

PriorRecord PriorRun::loss_record(const std::string& folder, const char* label, double loss) const {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  return {{{fmt::format("metrics/{}/{}-loss", folder, loss_type), loss}},
          {{.label = label, .values = {loss}}}};
}

/// One batch: rank 0 draws, and the others wait for it.
void PriorRun::add_similarities(const std::string& folder, std::vector<PriorRecord>& records) {
  session_.together("similarities of the validation rows", [&] {
    if (session_.group().is_main()) draw_similarities(folder, records);
  });
}

void PriorRun::draw_similarities(const std::string& folder, std::vector<PriorRecord>& records) {
  const auto batch =
      from_outside([&] { return data_.batch("val", 0, 0, config_.data.batch_size); });
  if (!batch || batch->size() == 0) return;
  PriorSampleOptions options;
  const PriorInputs inputs = inputs_of(*batch);
  options.text = inputs.text;
  options.on_step = [&](size_t step, size_t steps) {
    session_.throw_if_signalled();
    session_.progress().stage(fmt::format("drawing embeddings: step {}/{}", step + 1, steps));
  };
  for (const int64_t steps : config_.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator = session_.generator("similarities", /*epoch=*/0, steps);
    const auto similarities =
        embedding_similarities(inputs.text.embeds,
                               inputs.image_embeds,
                               trainer_.p_sample_loop(options,
                                                      /*use_non_ema=*/false,
                                                      config_.train.max_batch_size));
    LogRecord record;
    ShownRecord shown;
    for (const auto& [name, value] : similarities) {
      record.emplace_back(fmt::format("metrics/{}/{} [steps={}]", folder, name, steps), value);
      if (const char* label = label_of(name)) shown.push_back({.label = label, .values = {value}});
    }
    shown.insert(shown.begin(), {.label = "cosines in", .values = {steps}, .unit = "steps:"});
    records.push_back({std::move(record), std::move(shown)});
  }
}

LogRecord PriorRun::step_values(double samples_per_second) {
  return {{"tracking/samples-sec", samples_per_second},
          {"tracking/samples-seen", position_.samples_seen}};
}

}  // namespace dalle2
