// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "config/decoder/decoder_config.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

/// Adds what is wrong with a key of a unet.
using UnetError = std::function<void(const std::string& key, const std::string& text)>;

void check_lengths(const UnetConfig& unet, const UnetError& error) {
  const size_t resolutions = unet.dim_mults.size();
  const auto check = [&](const auto& value, const char* key) {
    if (value.is_one() || value.size() == resolutions) return;
    error(key,
          fmt::format("must be one value or {} (one for each entry of dim_mults), got {}",
                      resolutions,
                      value.size()));
  };
  check(unet.self_attn, "self_attn");
  check(unet.resnet_groups, "resnet_groups");
  check(unet.num_resnet_blocks, "num_resnet_blocks");
}

void check_kernels(const UnetConfig& unet, const UnetError& error) {
  // Stride 1 keeps the side only with odd kernels, stride 2 halves it only with even ones.
  const auto check_cross_embed =
      [&](const std::vector<int64_t>& kernels, const char* key, int64_t parity) {
        for (size_t i = 0; i < kernels.size(); ++i) {
          if (kernels[i] % 2 == parity) continue;
          error(fmt::format("{}/{}", key, i),
                fmt::format(
                    "must be {} and positive, got {}", parity == 1 ? "odd" : "even", kernels[i]));
        }
      };
  const auto check_odd = [&](int64_t kernel, const char* key) {
    if (kernel % 2 != 0) return;
    error(key,
          fmt::format("must be odd and positive, an even kernel would change the image's size, "
                      "got {}",
                      kernel));
  };
  if (unet.init_cross_embed) {
    check_cross_embed(unet.init_cross_embed_kernel_sizes, "init_cross_embed_kernel_sizes", 1);
  } else {
    check_odd(unet.init_conv_kernel_size, "init_conv_kernel_size");
  }
  if (unet.cross_embed_downsample) {
    check_cross_embed(
        unet.cross_embed_downsample_kernel_sizes, "cross_embed_downsample_kernel_sizes", 0);
  }
  check_odd(unet.final_conv_kernel_size, "final_conv_kernel_size");
}

// The last block takes 2 * dim channels: what comes up the unet, and the first convolution's
// output. The reference dies of a channel mismatch in its first forward pass otherwise.
void check_widths(const UnetConfig& unet, const UnetError& error) {
  if (unet.init_dim.value_or(unet.dim) != unet.dim) {
    error("init_dim",
          fmt::format("must equal dim ({}) or be null, got {}", unet.dim, *unet.init_dim));
  }
  if (unet.dim_mults[0] != 1 && !unet.memory_efficient) {
    error("dim_mults/0",
          fmt::format("must be 1 unless memory_efficient is true, got {}", unet.dim_mults[0]));
  }
  const size_t kernels = unet.init_cross_embed_kernel_sizes.size();
  if (unet.init_cross_embed && (kernels > 32 || unet.dim < int64_t{1} << (kernels - 1))) {
    error("init_cross_embed_kernel_sizes",
          fmt::format("dim {} is too narrow to be shared among {} kernels", unet.dim, kernels));
  }
  if (unet.combine_upsample_fmaps && unet.dim % 8 != 0) {
    error("dim",
          fmt::format("must be divisible by 8 with combine_upsample_fmaps, got {}", unet.dim));
  }
}

void check_groups(const UnetConfig& unet, const UnetError& error) {
  for (size_t i = 0; i < unet.dim_mults.size(); ++i) {
    const int64_t width_in = i == 0 ? unet.dim : unet.dim * unet.dim_mults[i - 1];
    const int64_t width_out = unet.dim * unet.dim_mults[i];
    const int64_t groups = unet.resnet_groups.at(i);
    for (const int64_t width : {unet.memory_efficient && i > 0 ? width_out : width_in, width_out}) {
      if (width % groups == 0) continue;
      const bool one = unet.resnet_groups.is_one();
      error(one ? "resnet_groups" : fmt::format("resnet_groups/{}", i),
            fmt::format("must divide every width it normalises; {} does not divide {} "
                        "(resolution {})",
                        groups,
                        width,
                        i + 1));
      if (one) return;
      break;
    }
  }
}

/// Halvings of the image between the input of the unet and its middle.
int64_t halvings(const UnetConfig& unet) {
  const auto resolutions = static_cast<int64_t>(unet.dim_mults.size());
  return unet.memory_efficient ? resolutions : resolutions - 1;
}

/// Widths, groups, kernels and array lengths of a unet whose plain limits hold.
void check_unet_shape(const UnetConfig& unet, const std::string& pointer, Faults& faults) {
  const UnetError error = [&](const std::string& key, const std::string& text) {
    faults.error(pointer + "/" + key, text);
  };
  const size_t before = faults.errors().size();
  if (unet.dim < 4 || unet.dim % 2 != 0) {
    error("dim",
          fmt::format("must be even and at least 4 (it is the width of the sinusoidal time "
                      "embedding too), got {}",
                      unet.dim));
  }
  check_lengths(unet, error);
  check_kernels(unet, error);
  // The rest computes with these figures, so it is asked only when they make sense.
  if (faults.errors().size() != before) return;
  check_widths(unet, error);
  check_groups(unet, error);
}

/// Refuses schedules in which a beta reaches 1 where the maths of this stage would turn into NaN, and zero
/// terminal SNR for a unet that predicts the noise. A chain whose last alphas_cumprod is 0 (jsd, zero terminal SNR)
/// keeps nothing of the image at t = T-1: adding noise and predicting x_start or v are fine there; what divides by it
/// is not.
void check_noise_schedule(const UnetPlan& stage,
                          size_t index,
                          bool zero_terminal_snr,
                          Faults& faults) {
  const bool predicts_noise = stage.objective == Objective::eps;
  if (zero_terminal_snr && predicts_noise) {
    faults.error(
        "/decoder/zero_terminal_snr",
        fmt::format("needs predict_v or predict_x_start: at the last step the input is nothing but "
                    "noise, so predicting the noise teaches unet {} nothing about images; "
                    "set one of them to true for it, or zero_terminal_snr to false",
                    index + 1));
  }
  const bool is_jsd = stage.beta_schedule == BetaSchedule::jsd;
  if (!is_jsd && !check_betas(stage.beta_schedule, stage.timesteps, network_name(index), faults))
    return;
  if (!is_jsd && !zero_terminal_snr) return;
  const auto refuse = [&](bool wrong, const std::string& text) {
    if (!wrong) return;
    faults.error(is_jsd ? "/decoder/beta_schedule" : "/decoder/zero_terminal_snr",
                 fmt::format("{} leaves nothing of the image at the last step, {}",
                             is_jsd ? "the jsd schedule" : "zero_terminal_snr",
                             text));
  };
  refuse(stage.learned_variance,
         fmt::format("where the loss of a learned variance is NaN: set learned_variance to false "
                     "for unet {}",
                     index + 1));
  refuse(!stage.sample_timesteps && predicts_noise && !zero_terminal_snr,
         fmt::format("so noise prediction cannot be undone there: set predict_v or "
                     "predict_x_start to true for unet {}, or its sample_timesteps below {}",
                     index + 1,
                     stage.timesteps - 1));
  refuse(stage.sample_timesteps == stage.timesteps - 1,
         fmt::format("where {0} DDIM steps would start: use {1} steps (DDPM) or fewer than {0} for "
                     "unet {2}",
                     stage.timesteps - 1,
                     stage.timesteps,
                     index + 1));
}

std::string at(const char* key, size_t index) {
  return fmt::format("/decoder/{}/{}", key, index);
}

class Planner {
 public:
  Planner(const DecoderConfig& config, Faults& faults)
      : config_(config), faults_(faults), count_(config.unets.size()) {
    D2_CHECK(count_ > 0, "a decoder without unets");
  }

  DecoderPlan plan() {
    const Version& v = config_.written_by;
    DecoderPlan plan{config_, std::vector<UnetPlan>(count_), {v}};
    if (config_.unconditional && config_.clip) {
      faults_.error("/decoder/clip",
                    "clip must not be given if doing unconditional image training");
    }
    for (size_t i = 0; i < count_; ++i) {
      plan.stages[i].unet = config_.unets[i];
      plan.stages[i].unet.layout = {v};
    }
    set_sizes(plan.stages);
    set_latents(plan.stages);
    set_objectives(plan.stages);
    set_schedules(plan.stages);
    set_lowres_conditioning(plan.stages);
    set_random_crops(plan.stages);
    set_wiring(plan.stages);
    for (size_t i = 0; i < count_; ++i) check_stage(plan.stages, i);
    if (count_ > 1) check_blur(plan.stages);
    return plan;
  }

 private:
  void error(const std::string& key, const std::string& text) {
    faults_.error("/decoder/" + key, text);
  }

  /// One value for each unet; an array of another length is a fault and is filled up to continue.
  template <class T>
  std::vector<T> per_unet(const OneOrMany<T>& value, const char* key) {
    if (value.is_one()) return std::vector<T>(count_, value.at(0));
    std::vector<T> values = value.values();
    if (values.size() != count_) {
      error(key,
            fmt::format("must have one entry for each unet ({}), got {}", count_, values.size()));
      values.resize(count_);
    }
    return values;
  }

  void set_sizes(std::vector<UnetPlan>& stages) {
    if (config_.image_size.has_value() == config_.image_sizes.has_value()) {
      return error("image_sizes",
                   fmt::format("either image_size or image_sizes is required, but not both; got {}",
                               config_.image_size ? "both" : "none"));
    }
    const char* key = config_.image_sizes ? "image_sizes" : "image_size";
    std::vector<int64_t> sizes =
        config_.image_sizes ? *config_.image_sizes : std::vector{*config_.image_size};
    const std::string given = fmt::format("{}", fmt::join(sizes, ", "));
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    if (sizes.size() != count_) {
      return error(key,
                   fmt::format("the number of unets ({}) and of different image sizes ({}: {}) "
                               "must be the same",
                               count_,
                               sizes.size(),
                               given));
    }
    for (size_t i = 0; i < count_; ++i) stages[i].image_size = sizes[i];
  }

  void set_latents(std::vector<UnetPlan>& stages) {
    if (!config_.vae) return;
    const auto& vaes = *config_.vae;
    if (vaes.size() > count_) {
      error("vae",
            fmt::format(
                "must have at most one entry for each unet ({}), got {}", count_, vaes.size()));
    }
    for (size_t i = 0; i < std::min(count_, vaes.size()); ++i) {
      if (!vaes[i]) continue;
      if (!vaes[i]->model) {
        faults_.error(
            at("vae", i) + "/model",
            fmt::format("must be given: the `vae` section of the file that {} was trained "
                        "with",
                        vaes[i]->checkpoint));
        continue;
      }
      stages[i].latent = vaes[i];
      check_latent(stages[i], i);
    }
  }

  void check_latent(const UnetPlan& stage, size_t i) {
    const VaeConfig& vae = *stage.latent->model;
    if (vae.channels != config_.channels) {
      faults_.error(at("vae", i),
                    fmt::format("the VAE is of pictures of {} channel{}, decoder.channels is {}",
                                vae.channels,
                                vae.channels == 1 ? "" : "s",
                                config_.channels));
    }
    if (!config_.auto_normalize_img) {
      error("auto_normalize_img",
            "must be true with decoder.vae: a VAE is trained on pictures in [0, 1]");
    }
    if (stage.image_size % vae.reduction() != 0) {
      faults_.error(
          config_.image_sizes ? "/decoder/image_sizes" : "/decoder/image_size",
          fmt::format("the image size of unet {} must be divisible by {}, the pixels of a "
                      "latent of its VAE, got {}",
                      i + 1,
                      vae.reduction(),
                      stage.image_size));
    }
  }

  void set_objectives(std::vector<UnetPlan>& stages) {
    const std::vector<bool> predict_v = per_unet(config_.predict_v, "predict_v");
    const std::vector<bool> predict_x_start = per_unet(config_.predict_x_start, "predict_x_start");
    for (size_t i = 0; i < count_; ++i) {
      const bool x_start = config_.predict_x_start_for_latent_diffusion
                               ? stages[i].latent.has_value()
                               : predict_x_start[i];
      stages[i].objective = predict_v[i] ? Objective::v
                            : x_start    ? Objective::x_start
                                         : Objective::eps;
    }
  }

  void set_schedules(std::vector<UnetPlan>& stages) {
    // A single value is for the first unet; a short array is filled with false.
    std::vector<bool> learned_variance = config_.learned_variance.values();
    if (learned_variance.size() > count_) {
      error("learned_variance",
            fmt::format("must have at most one entry for each unet ({}), got {}",
                        count_,
                        learned_variance.size()));
    }
    learned_variance.resize(count_, false);

    std::vector<BetaSchedule> schedules(count_, BetaSchedule::cosine);
    if (count_ > 1) schedules.back() = BetaSchedule::linear;
    if (config_.beta_schedule)
      schedules = per_unet(OneOrMany<BetaSchedule>(*config_.beta_schedule), "beta_schedule");
    const std::vector<double> gammas =
        per_unet(config_.p2_loss_weight_gamma, "p2_loss_weight_gamma");
    const std::vector<std::optional<int64_t>> sample_timesteps =
        per_unet(config_.sample_timesteps, "sample_timesteps");
    for (size_t i = 0; i < count_; ++i) {
      stages[i].timesteps = config_.timesteps;
      stages[i].learned_variance = learned_variance[i];
      stages[i].beta_schedule = schedules[i];
      stages[i].p2_loss_weight_gamma = gammas[i];
      if (sample_timesteps[i].value_or(0) > config_.timesteps) {
        error(config_.sample_timesteps.is_one() ? "sample_timesteps"
                                                : fmt::format("sample_timesteps/{}", i),
              fmt::format("sampling timesteps {} must be less than or equal to the number of "
                          "training timesteps {} for unet {}",
                          *sample_timesteps[i],
                          config_.timesteps,
                          i + 1));
      } else if (sample_timesteps[i] != config_.timesteps) {
        stages[i].sample_timesteps = sample_timesteps[i];
      }
    }
  }

  /// A value for each upper unet, or an array for all unets whose first entry must be false.
  std::vector<bool> per_upper_unet(const OneOrMany<bool>& value, const char* key) {
    std::vector<bool> values = value.is_one() ? std::vector<bool>(count_ - 1, value.at(0))
                                              : std::vector<bool>(value.values());
    if (values.size() == count_ - 1) values.insert(values.begin(), false);
    if (values.size() != count_) {
      error(key,
            fmt::format("must have one entry for each unet ({}), or for each but the first, got {}",
                        count_,
                        values.size()));
      values.resize(count_);
    }
    if (values[0]) {
      error(fmt::format("{}/0", key),
            "must be false: the first unet has no low resolution image to be conditioned on");
    }
    return values;
  }

  void set_lowres_conditioning(std::vector<UnetPlan>& stages) {
    const size_t before = faults_.errors().size();
    const std::vector<bool> noise =
        per_upper_unet(config_.use_noise_for_lowres_cond, "use_noise_for_lowres_cond");
    const std::vector<bool> blur =
        per_upper_unet(config_.use_blur_for_lowres_cond, "use_blur_for_lowres_cond");
    for (size_t i = 0; i < count_; ++i) {
      stages[i].lowres_noise = noise[i];
      stages[i].lowres_blur = blur[i];
      if (i > 0 && !noise[i] && !blur[i] && faults_.errors().size() == before) {
        error("use_blur_for_lowres_cond",
              fmt::format("unet {} has neither blur nor noise on its low resolution image: set "
                          "use_blur_for_lowres_cond or use_noise_for_lowres_cond to true for it",
                          i + 1));
      }
    }
  }

  void set_random_crops(std::vector<UnetPlan>& stages) {
    if (!config_.random_crop_sizes) return;
    const auto crops = per_unet(OneOrMany<std::optional<int64_t>>(*config_.random_crop_sizes),
                                "random_crop_sizes");
    if (crops[0]) {
      faults_.error(
          at("random_crop_sizes", 0),
          fmt::format("must be null: the first unet sees whole images, got {}", *crops[0]));
    }
    for (size_t i = 0; i < count_; ++i) stages[i].random_crop_size = crops[i];
  }

  void set_wiring(std::vector<UnetPlan>& stages) {
    for (size_t i = 0; i < count_; ++i) {
      UnetConfig& unet = stages[i].unet;
      unet.lowres_cond = i > 0;
      unet.lowres_noise_cond = stages[i].lowres_noise;
      // Upper unets never see the image embedding: published weights have no such layer.
      unet.cond_on_image_embeds = !config_.unconditional && i == 0;
      unet.cond_on_text_encodings =
          !config_.unconditional && unet.cond_on_text_encodings.value_or(false);
      unet.channels = stages[i].latent ? stages[i].latent->model->encoded_dim() : config_.channels;
      unet.channels_out = unet.channels * (stages[i].learned_variance ? 2 : 1);
    }
  }

  void check_stage(const std::vector<UnetPlan>& stages, size_t i) {
    const UnetPlan& stage = stages[i];
    const std::string pointer = at("unets", i);
    if (stage.unet.cond_on_image_embeds && !stage.unet.image_embed_dim) {
      faults_.error(pointer + "/image_embed_dim",
                    "required, but missing: the first unet is conditioned on image embeddings (set "
                    "decoder.unconditional to true to train without)");
    }
    if (*stage.unet.cond_on_text_encodings && !stage.unet.text_embed_dim) {
      faults_.error(pointer + "/text_embed_dim",
                    "text_embed_dim must be given to the unet if cond_on_text_encodings is true");
    }
    check_unet_shape(stage.unet, pointer, faults_);
    check_noise_schedule(stage, i, config_.zero_terminal_snr, faults_);
    if (!faults_.has_error_under(pointer) && stage.image_size > 0) check_sides(stage, i);
  }

  void check_sides(const UnetPlan& stage, size_t i) {
    const int64_t steps = std::min<int64_t>(halvings(stage.unet), 40);
    const int64_t pixels_of_latent = stage.latent ? stage.latent->model->reduction() : 1;
    const int64_t factor = (int64_t{1} << steps) * pixels_of_latent;
    const std::string encoded =
        stage.latent ? fmt::format("its VAE divides it by {}, ", pixels_of_latent) : "";
    const auto check = [&](int64_t side, const std::string& pointer, const char* what) {
      if (side % factor == 0) return;
      faults_.error(pointer,
                    fmt::format("{} of unet {} must be divisible by {} ({}{} dim_mults{} halve it "
                                "{} time{}), got {}",
                                what,
                                i + 1,
                                factor,
                                encoded,
                                stage.unet.dim_mults.size(),
                                stage.unet.memory_efficient ? " with memory_efficient" : "",
                                steps,
                                steps == 1 ? "" : "s",
                                side));
    };
    check(stage.image_size,
          config_.image_sizes ? "/decoder/image_sizes" : "/decoder/image_size",
          "the image size");
    if (!stage.random_crop_size || i == 0) return;
    const std::string pointer = at("random_crop_sizes", i);
    if (*stage.random_crop_size > stage.image_size) {
      faults_.error(pointer,
                    fmt::format("must not exceed the image size {} of unet {}, got {}",
                                stage.image_size,
                                i + 1,
                                *stage.random_crop_size));
    } else {
      check(*stage.random_crop_size, pointer, "the crop size");
    }
  }

  template <class T>
  bool check_range(const OneOrMany<T>& range, const char* key) {
    if (range.is_one()) return true;
    if (range.size() == 2 && range.at(0) <= range.at(1)) return true;
    error(key,
          fmt::format("must be one value or a range [low, high], got [{}]",
                      fmt::join(range.values(), ", ")));
    return false;
  }

  void check_blur(const std::vector<UnetPlan>& stages) {
    check_range(config_.blur_sigma, "blur_sigma");
    if (!check_range(config_.blur_kernel_size, "blur_kernel_size")) return;
    int64_t largest = 0;
    for (const int64_t kernel : config_.blur_kernel_size.values()) {
      largest = std::max(largest, kernel);
      if (kernel % 2 == 0) error("blur_kernel_size", fmt::format("must be odd, got {}", kernel));
    }
    // Reflection at the border needs more pixels than it mirrors.
    for (size_t i = 1; i < count_; ++i) {
      const int64_t side = stages[config_.lowres_downsample_first ? i - 1 : i].image_size;
      if (stages[i].lowres_blur && side > 0 && largest / 2 >= side) {
        error("blur_kernel_size",
              fmt::format("a kernel of {} pixels does not fit the images of {} pixels that unet {} "
                          "blurs",
                          largest,
                          side,
                          i + 1));
      }
    }
  }

  const DecoderConfig& config_;
  Faults& faults_;
  size_t count_;
};

}  // namespace

DecoderPlan plan_decoder(const DecoderConfig& config, Faults& faults) {
  return Planner(config, faults).plan();
}

}  // namespace dalle2
