// SPDX-License-Identifier: MIT
// The diffusion prior: image embeddings from text embeddings (Ramesh et al.
// 2022, section 2.2).
#pragma once

#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/prior/prior_config.h"
#include "diffusion/loss.h"
#include "diffusion/noise_schedule.h"
#include "diffusion/sampler.h"
#include "model/prior/prior_network.h"

namespace dalle2 {

/// A batch of texts, as the prior sees them.
struct TextEmbedding {
  at::Tensor embeds;     ///< [B, D]
  at::Tensor encodings;  ///< [B, L, D], rows of zeros after the text's end; may be undefined

  /// Every tensor with the samples in its first dimension (trainer/tensor_group.h).
  void tensors(const auto& f) {
    f(embeds);
    f(encodings);
  }
};

/// One training batch: embeddings as CLIP gives them, not scaled. The loss does not modify them.
struct PriorInputs {
  at::Tensor image_embeds;  ///< [B, D]
  TextEmbedding text;

  void tensors(const auto& f) {
    f(image_embeds);
    text.tensors(f);
  }
};

/// All random draws of a training step.
struct PriorStepNoise {
  at::Tensor times;             ///< [B] int64 in [0, T)
  at::Tensor noise;             ///< [B, D] standard normal
  at::Tensor text_keep_mask;    ///< [B] bool: false puts the null embeddings
  at::Tensor image_keep_mask;   ///< [B] bool
  bool self_condition = false;  ///< one decision for the batch
  NoiseAugmentationDraws augmentation;
  DropoutSeed dropout;

  void tensors(const auto& f) {
    f(times);
    f(noise);
    f(text_keep_mask);
    f(image_keep_mask);
    f(augmentation.perturbation);
  }
  void cut_rest(int64_t begin, int64_t /*length*/) { dropout.first_sample += begin; }
};

struct PriorSampleOptions {
  TextEmbedding text;
  double cond_scale = 1.0;
  std::optional<int64_t> timesteps;      ///< fewer than T walk with DDIM
  std::string steps_name = "timesteps";  ///< in messages
  int64_t num_samples_per_text = 2;      ///< of sample(): the candidates of each text
  std::optional<at::Generator> generator;
  NoiseSource noise;  ///< if set, gives all noise instead of `generator` (tests)
  /// Called before each step with the step (from 0) and their number.
  std::function<void(size_t step, size_t steps)> on_step;

  void tensors(const auto& f) { text.tensors(f); }
};

/// Usage, a training step and a sample:
///   DiffusionPrior prior(loaded.plan);
///   prior->forward({image_embeds, {text_embeds, text_encodings}}, generator).backward();
///   at::Tensor image_embeds = prior->sample({.text = text});
class DiffusionPriorImpl : public torch::nn::Module {
 public:
  explicit DiffusionPriorImpl(const PriorPlan& plan);

  /// The mean loss of a training step. All random draws come from `generator`. @throws DataError
  /// for inputs that do not fit
  at::Tensor forward(const PriorInputs& inputs, at::Generator generator);
  /// The same loss with given draws.
  at::Tensor loss(const PriorInputs& inputs, const PriorStepNoise& draws);
  /// What `forward` draws for a batch, on the prior's device.
  PriorStepNoise draw(int64_t batch, at::Generator generator) const;

  /// One image embedding for each text, in eval mode, without gradients: over all T steps (DDPM),
  /// or `timesteps` of them (DDIM). @return [B, D], in the scale of the embeddings of training
  /// @throws ConfigError, DataError for options that do not fit the prior
  at::Tensor p_sample_loop(const PriorSampleOptions& options);

  /// Draws num_samples_per_text candidates for each text, and takes the one whose cosine with the
  /// text's embedding is largest. `timesteps` defaults to the config's sample_timesteps. @return
  /// [B, D]
  at::Tensor sample(const PriorSampleOptions& options);

  /// What sample() asks of its options before it draws. @throws ConfigError, DataError as sample()
  void check_sample_options(const PriorSampleOptions& options) const;

  const PriorPlan& plan() const { return plan_; }
  const NoiseScheduleImpl& schedule() const { return *schedule_; }
  std::shared_ptr<PriorNetworkImpl> net() const { return net_; }
  at::Device device() const { return schedule_->betas.device(); }

 private:
  PriorConditions conditions(const TextEmbedding& text) const;
  at::Tensor l2_clamp(const at::Tensor& embeds) const;
  /// From noise to embeddings.
  at::Tensor walk(const PriorSampleOptions& options);
  Denoised clean_estimate(const at::Tensor& x,
                          const at::Tensor& times,
                          const PriorConditions& conditions,
                          double cond_scale);

  PriorPlan plan_;
  NoiseSchedule schedule_{nullptr};
  std::shared_ptr<PriorNetworkImpl> net_;
};
TORCH_MODULE(DiffusionPrior);

}  // namespace dalle2
