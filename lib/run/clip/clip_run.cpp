// SPDX-License-Identifier: MIT
#include "run/clip/clip_run.h"

#include <torch/types.h>

#include "base/error.h"
#include "model/random.h"
#include "run/device/device.h"

namespace dalle2 {
ClipInputs ClipRun::inputs_of(const Batch& batch) {
  if (batch.size() == 0) return {};
  ClipInputs inputs{batch.images,
                    trimmed_tokens(tokens_of(batch.captions,
                                             *tokenizer_,
                                             config_.clip.text_cfg.context_length,
                                             TextFrame::kEnclosed,
                                             &long_captions_))};
  if (!session_.device().is_cpu()) inputs.tokens = inputs.tokens.pin_memory();
  return timed(&session_.times(), StepPhase::kCopy, [&] {
    return copied_to(session_.device(), std::move(inputs));
  });
}

/// One update, from the loss of all samples of the group together.
std::optional<int64_t> ClipRun::train_group(const std::vector<Batch>& group) {
  std::vector<ClipInputs> batches;
  int64_t samples = 0;
  for (const Batch& batch : group) {
    batches.push_back(inputs_of(batch));
    samples += batch.samples_of_step;
  }
  from_outside([&] { trainer_.check(batches); });
  trainer_.step(batches,
                hash_address({.seed = session_.seed(),
                              .purpose = "dropout",
                              .epoch = position_.epoch,
                              .step = position_.sample,
                              .rank = session_.group().rank()}));
  update(1);
  return samples;
}

void ClipRun::add_validation_losses(const Batch& batch,
                                    int64_t /*place*/,
                                    std::vector<LossSum>& sums) {
  const ClipInputs inputs = inputs_of(batch);
  from_outside([&] { trainer_.check({inputs}); });
  const ClipEvaluation found = trainer_.evaluate(inputs);
  sums[0].add(found.loss);
  validation_.add(found.pairs, batch.captions);
}

/// Retrieval over all samples of the validation.
void ClipRun::log_figures() {
  const RetrievalSamples samples = validation_.gather(session_.group());
  if (!session_.group().is_main()) return;
  const auto figures = retrieval_figures(samples);
  if (figures.empty()) return;
  LogRecord record;
  ShownRecord shown;
  for (const auto& [name, value] : figures) {
    record.emplace_back(name, value);
    if (!name.ends_with("R@5")) shown.push_back({.label = name, .values = {value}});
  }
  session_.tracker().log(record, trainer_.first_steps(), shown);
}

void ClipRun::end_epoch() {
  if (position_.next_task == "eval") {
    log_figures();
    position_.next_task = "sample";
  }
  save_epoch();
}

LogRecord ClipRun::step_values(double samples_per_second) {
  LogRecord record = ShardRun::step_values(samples_per_second);
  record.emplace_back("Logit Scale", trainer_.logit_scale());
  return record;
}

}  // namespace dalle2
