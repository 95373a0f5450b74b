// SPDX-License-Identifier: MIT
// The cascade of diffusion stages.
#pragma once

#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/decoder/decoder_config.h"
#include "diffusion/decoder/lowres_conditioner.h"
#include "diffusion/loss.h"
#include "diffusion/sampler.h"
#include "model/unet/unet.h"
#include "model/vae/vqgan_vae.h"

namespace dalle2 {

/// @param images [B, C, H, W] @param side of the pictures that a unet trains on, pixels
/// @throws DataError for smaller ones
void check_size(const at::Tensor& images, int64_t side);

/// A batch of training examples for a stage.
struct DecoderInputs {
  at::Tensor images;          ///< [B, C, H, W] in [0, 1], at least as large as the stage
  at::Tensor image_embeds;    ///< [B, D] or undefined
  at::Tensor text_encodings;  ///< [B, L, D] or undefined
  /// [B, D, h, w] or undefined: what the VAE of the first stage makes of the images, if it was asked
  /// before; not scaled.
  at::Tensor latents = {};

  /// Every tensor with the samples in its first dimension (trainer/tensor_group.h).
  void tensors(const auto& f) {
    f(images);
    f(image_embeds);
    f(text_encodings);
    f(latents);
  }
};

/// Upper left corner of a sample's crop, pixels.
struct CropOffset {
  int64_t x = 0;
  int64_t y = 0;
};

/// Everything random of one training step of a stage: given by a test, or made by DecoderImpl::draw().
struct DecoderStepNoise {
  at::Tensor times;  ///< [B] int64 in [0, T)
  at::Tensor noise;  ///< [B, D, s, s] standard normal, of what the unet denoises, or of its crop
  at::Tensor image_keep_mask;            ///< [B] bool: false puts the null embedding
  at::Tensor text_keep_mask;             ///< [B] bool
  bool self_condition = false;           ///< one decision for the batch
  std::vector<CropOffset> crop_offsets;  ///< one a sample, empty without random crops
  LowresDraws lowres;                    ///< upper stages
  NoiseAugmentationDraws augmentation;
  uint64_t dropout_seed = 0;  ///< of adapters; nothing is drawn for it

  void tensors(const auto& f) {
    f(times);
    f(noise);
    f(image_keep_mask);
    f(text_keep_mask);
    f(lowres.noise);
    f(lowres.noise_level);
    f(augmentation.offset);
    f(augmentation.perturbation);
  }
  void cut_rest(int64_t begin, int64_t length) {
    if (crop_offsets.empty()) return;
    const auto first = crop_offsets.begin() + begin;
    crop_offsets = std::vector<CropOffset>(first, first + length);
  }
};

/// A training batch as the network of a stage takes it: whatever the host has to decide about it is done.
struct DecoderExamples {
  at::Tensor x_start;         ///< [B, D, s, s] what is denoised, in the space of the stage
  at::Tensor times;           ///< [B] int64
  at::Tensor noise;           ///< [B, D, s, s] standard normal
  UnetConditions conditions;  ///< without its own estimate
  NoiseAugmentationDraws augmentation;
  bool self_condition = false;  ///< the network is shown its own estimate

  void tensors(const auto& f) {
    f(x_start);
    f(times);
    f(noise);
    f(conditions.image_embed);
    f(conditions.text_encodings);
    f(conditions.lowres_cond_img);
    f(conditions.lowres_noise_level);
    f(conditions.image_keep_mask);
    f(conditions.text_keep_mask);
    f(augmentation.offset);
    f(augmentation.perturbation);
  }
};

struct DecoderSampleOptions {
  at::Tensor image_embeds;             ///< [B, D]; undefined if unconditional
  at::Tensor text_encodings;           ///< [B, L, D]
  int64_t batch_size = 1;              ///< used if no conditioning implies it
  OneOrMany<double> cond_scale = 1.0;  ///< one, or one a stage
  int64_t start_at_unet = 1;           ///< 1-based, as everywhere users see it
  std::optional<int64_t> stop_at_unet;
  at::Tensor image;          ///< [B, C, h, w] in [0, 1], needed when start_at_unet > 1
  at::Tensor inpaint_image;  ///< [B, C, H, W] in the range of the data
  at::Tensor inpaint_mask;   ///< [B, H, W] bool: true keeps the given image
  int64_t inpaint_resample_times = 5;
  /// Steps of every stage, or one entry a stage of the decoder; none: those of its plan.
  OneOrMany<std::optional<int64_t>> sample_timesteps = std::nullopt;
  std::string steps_name = "sample timesteps";  ///< in messages
  /// auto | ddpm | ddim | dpmpp; auto is ddim for fewer than T steps, else ddpm.
  std::string sampler = "auto";
  double cfg_rescale = 0.0;            ///< Lin et al. 2023, eq. 15-16; 0 is off
  std::vector<at::Tensor> init_noise;  ///< one for each sampled stage, in order; empty draws it
  std::optional<at::Generator> generator;
  /// One for each picture, instead of `generator`: a picture comes out the same in any batch.
  std::vector<at::Generator> row_generators;
  NoiseSource noise;  ///< if set, gives all noise instead of `generator` (tests)
  /// On CUDA only the unet at work is on the device, the others wait in host memory. Moving them
  /// replaces the parameters' storage, so nothing else may hold views of it (a trainer's flat
  /// buffers do).
  bool one_unet_in_gpu = false;
  /// Called before each step with the stage (from 1), the step (from 0) and their number.
  std::function<void(int64_t unet_number, size_t step, size_t steps)> on_step;

  void tensors(const auto& f) {
    f(image_embeds);
    f(text_encodings);
    f(image);
    f(inpaint_image);
    f(inpaint_mask);
    for (at::Tensor& start : init_noise) f(start);
  }
  /// What is cut along with the tensors but is not one.
  void cut_rest(int64_t begin, int64_t length) {
    batch_size = length;
    if (row_generators.empty()) return;
    const auto first = row_generators.begin() + begin;
    row_generators = std::vector<at::Generator>(first, first + length);
  }
};

/// Usage, a loss and a sample (a trainer calls draw(), prepare() and loss() instead):
///   Decoder decoder(loaded.plan);
///   decoder->forward({images, embeds, {}}, /*unet_number=*/1, generator).backward();
///   at::Tensor images = decoder->sample(options);
class DecoderImpl : public torch::nn::Module {
 public:
  /// @param plan made by plan_decoder() @throws ConfigError
  explicit DecoderImpl(const DecoderPlan& plan);
  ~DecoderImpl() override;

  /// Mean loss of stage `unet_number` (from 1); drawing everything random from `generator`.
  /// @throws DataError for inputs that do not fit the stage
  at::Tensor forward(const DecoderInputs& inputs, int64_t unet_number, at::Generator generator);

  /// The same with everything random given.
  at::Tensor loss(const DecoderInputs& inputs, int64_t unet_number, const DecoderStepNoise& draws);

  /// The same in two halves: pictures become examples (resized, cropped, blurred, encoded), without gradients of the unet.
  DecoderExamples prepare(const DecoderInputs& inputs,
                          int64_t unet_number,
                          const DecoderStepNoise& draws) const;
  /// Mean loss of examples of prepare(). [] float32
  at::Tensor loss(const DecoderExamples& examples, int64_t unet_number);

  /// What `forward` draws for a batch, on the decoder's device.
  /// @param generator on the CPU or on that device; tensors are drawn where it lives
  DecoderStepNoise draw(int64_t batch, int64_t unet_number, at::Generator generator) const;

  /// Runs the stages start_at_unet .. stop_at_unet in eval mode, without gradients.
  /// @return [B, C, H, W] in the range of the data (about [0, 1], not clamped)
  /// @throws ConfigError, DataError for options that do not fit the decoder or each other
  at::Tensor sample(const DecoderSampleOptions& options);

  /// What stage `unet_number` is trained to denoise: pictures resized to its side, in its space.
  /// @param images [B, C, H, W] in the range of the data @return [B, D, h, w]
  at::Tensor encode(const at::Tensor& images, int64_t unet_number) const;

  int64_t num_unets() const { return static_cast<int64_t>(stages_.size()); }
  const DecoderPlan& plan() const { return plan_; }
  /// What sample() asks of its options before it draws. @return the batch size
  /// @throws ConfigError, DataError as sample()
  int64_t check_sample_options(const DecoderSampleOptions& options) const;
  /// The steps that a sampling takes at this stage, from 1.
  int64_t sample_steps(int64_t unet_number, const DecoderSampleOptions& options) const;
  /// Whether a sampling walks with DDIM at this stage, from 1.
  bool walks_with_ddim(int64_t unet_number, const DecoderSampleOptions& options) const;

  /// The unet of a stage, counted from 1; null after drop_unet.
  std::shared_ptr<UnetImpl> unet(int64_t unet_number);
  /// The VAE of a latent stage, frozen, without its discriminator; null of the others.
  VqganVae vae(int64_t unet_number) const;
  /// Takes the unet of an untrained stage out: no parameters, no keys, as the reference's Identity.
  void drop_unet(int64_t unet_number);
  /// Where the buffers of the noise schedules are.
  at::Device device() const;

 private:
  struct Stage;

  Stage& stage(int64_t unet_number) const;
  std::unique_ptr<Stage> make_stage(const UnetPlan& plan, int64_t unet_number);
  void check_training_inputs(const DecoderInputs& inputs, const Stage& stage) const;
  void check_conditions(bool needs_image_embeds,
                        bool needs_text,
                        const at::Tensor& image_embeds,
                        const at::Tensor& text_encodings) const;

  /// @throws ConfigError for a stage, from 1, without a unet
  void check_has_unet(int64_t unet_number) const;
  void check_guidance(const DecoderSampleOptions& options) const;
  void check_stage_options(const DecoderSampleOptions& options, size_t order, int64_t batch) const;
  std::unique_ptr<Sampler> make_sampler(int64_t unet_number,
                                        const DecoderSampleOptions& options) const;
  at::Tensor sample_stage(int64_t unet_number,
                          const at::Tensor& previous,
                          int64_t batch,
                          const DecoderSampleOptions& options,
                          const NoiseSource& noise);

  DecoderPlan plan_;
  ImageRange range_;
  std::shared_ptr<torch::nn::Module> unets_, vaes_, noise_schedulers_, lowres_conds_;
  std::vector<std::unique_ptr<Stage>> stages_;
};
TORCH_MODULE(Decoder);

}  // namespace dalle2
