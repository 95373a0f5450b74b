// SPDX-License-Identifier: MIT
// What conditions a Unet: time, image embedding, text, low-res image.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/unet/unet_layers.h"

namespace dalle2 {
at::Tensor prob_mask(int64_t batch,
                     double keep_prob,
                     const at::Device& device,
                     std::optional<at::Generator> generator) {
  const at::TensorOptions options = at::TensorOptions().device(device);
  if (keep_prob >= 1.0) return at::ones({batch}, options.dtype(at::kBool));
  if (keep_prob <= 0.0) return at::zeros({batch}, options.dtype(at::kBool));
  return at::rand({batch}, generator, options.dtype(at::kFloat)) < keep_prob;
}

void UnetLayers::check_inputs(const at::Tensor& x,
                              const at::Tensor& time,
                              const UnetConditions& given) const {
  if (x.dim() != 4 || x.size(1) != config.channels) {
    throw DataError(
        "the unet takes images [B, {}, H, W], got {}", config.channels, shape_text(x.sizes()));
  }
  const int64_t step = int64_t{1} << shape.halvings;
  if (x.size(2) % step != 0 || x.size(3) % step != 0) {
    throw DataError(
        "an image of {} x {} pixels does not go through this unet, which halves it {} times: both "
        "sides must be multiples of {}",
        x.size(2),
        x.size(3),
        shape.halvings,
        step);
  }
  const int64_t batch = x.size(0);
  check_batch("time", time, batch);
  check_embeddings(batch, given);
  if (config.lowres_cond && !given.lowres_cond_img.defined()) {
    throw DataError("this unet enlarges a low-resolution image (lowres_cond), but none was given");
  }
  if (!config.lowres_cond && given.lowres_cond_img.defined()) {
    throw DataError("a low-resolution image was given to a unet without lowres_cond");
  }
  if (config.lowres_cond && given.lowres_cond_img.sizes() != x.sizes()) {
    throw DataError("the low-resolution image has shape {}, the image {}: they must be equal",
                    shape_text(given.lowres_cond_img.sizes()),
                    shape_text(x.sizes()));
  }
  if (given.lowres_noise_level.defined() && !config.lowres_noise_cond) {
    throw DataError(
        "a noise level of the low-resolution image was given to a unet without lowres_noise_cond");
  }
  check_batch("lowres_noise_level", given.lowres_noise_level, batch);
  if (config.self_cond && given.self_cond.defined() && given.self_cond.sizes() != x.sizes()) {
    throw DataError("the self conditioning has shape {}, the image {}: they must be equal",
                    shape_text(given.self_cond.sizes()),
                    shape_text(x.sizes()));
  }
}

void UnetLayers::check_embeddings(int64_t batch, const UnetConditions& given) const {
  check_batch("image_keep_mask", given.image_keep_mask, batch);
  check_batch("text_keep_mask", given.text_keep_mask, batch);
  if (config.cond_on_image_embeds) {
    const at::Tensor& embed = given.image_embed;
    if (!embed.defined()) {
      throw DataError("this unet is conditioned on image embeddings, but none was given");
    }
    check_batch("image embeddings", embed, batch);
    if (embed.dim() != 2 || embed.size(1) != *config.image_embed_dim) {
      throw DataError(
          "image embeddings of shape {}, but image_embed_dim is {} in /decoder/unets: use embeddings "
          "of that width, or train a decoder with theirs",
          shape_text(embed.sizes()),
          *config.image_embed_dim);
    }
  }
  if (config.cond_on_text_encodings.value_or(false) && given.text_encodings.defined()) {
    const at::Tensor& text = given.text_encodings;
    check_batch("text encodings", text, batch);
    if (text.dim() != 3 || text.size(2) != *config.text_embed_dim) {
      throw DataError(
          "text encodings of shape {}, but text_embed_dim is {} in /decoder/unets: use encodings of "
          "that width, or train a decoder with theirs",
          shape_text(text.sizes()),
          *config.text_embed_dim);
    }
  }
}

at::Tensor UnetLayers::join_inputs(const at::Tensor& x, const UnetConditions& given) const {
  std::vector<at::Tensor> planes = {x};
  if (config.self_cond) {
    planes.push_back(given.self_cond.defined() ? given.self_cond : at::zeros_like(x));
  }
  if (config.lowres_cond) planes.push_back(given.lowres_cond_img);
  // The first convolution has large kernels over few channels, and is slower channels-last.
  return planes.size() == 1 ? x.contiguous() : at::cat(planes, 1).contiguous();
}

UnetEmbedded UnetLayers::embed(const at::Tensor& time, const UnetConditions& given) const {
  const at::Tensor hidden =
      at::gelu(to_time_hiddens->forward(sinusoidal_embedding(time, config.dim)));
  at::Tensor t = to_time_cond->forward(hidden);
  if (given.lowres_noise_level.defined()) {
    const at::Tensor level = given.lowres_noise_level.to(time.scalar_type());
    t = t + lowres_noise_out->forward(
                at::gelu(lowres_noise_in->forward(sinusoidal_embedding(level, config.dim))));
  }
  if (to_image_hiddens) {
    at::Tensor image = at::gelu(to_image_hiddens->forward(given.image_embed));
    if (given.image_keep_mask.defined()) {
      image = at::where(
          given.image_keep_mask.unsqueeze(-1), image, null_image_hiddens.to(image.scalar_type()));
    }
    t = t + image;
  }
  at::Tensor context =
      to_time_tokens->forward(hidden).view({time.size(0), config.num_time_tokens, -1});
  if (config.cond_on_image_embeds) context = at::cat({context, image_tokens(given)}, 1);
  at::Tensor mid_context = context;
  if (text_to_cond && given.text_encodings.defined()) {
    mid_context = at::cat({context, text_tokens(given)}, 1);
  }
  return {at::silu(t), norm_cond->forward(context), norm_mid_cond->forward(mid_context)};
}

// [B, num_image_tokens, cond_dim]
at::Tensor UnetLayers::image_tokens(const UnetConditions& given) const {
  const int64_t batch = given.image_embed.size(0);
  const at::Tensor tokens =
      image_to_tokens ? image_to_tokens->forward(given.image_embed)
                            .view({batch, config.num_image_tokens, shape.cond_dim})
                      : given.image_embed.unsqueeze(1).expand({-1, config.num_image_tokens, -1});
  if (!given.image_keep_mask.defined()) return tokens;
  return at::where(
      given.image_keep_mask.view({-1, 1, 1}), tokens, null_image_embed.to(tokens.scalar_type()));
}

// [B, max_text_len, cond_dim]; null tokens where the text is dropped or has ended.
at::Tensor UnetLayers::text_tokens(const UnetConditions& given) const {
  const int64_t length = config.max_text_len;
  const at::Tensor text =
      given.text_encodings.narrow(1, 0, std::min(length, given.text_encodings.size(1)));
  at::Tensor keep = text.ne(0).any(-1);  // [B, L]
  at::Tensor tokens = text_to_cond->forward(text);
  const int64_t missing = length - text.size(1);
  if (missing > 0) {
    tokens = at::constant_pad_nd(tokens, {0, 0, 0, missing});
    keep = at::constant_pad_nd(keep, {0, missing}, false);
  }
  if (given.text_keep_mask.defined()) keep = keep & given.text_keep_mask.unsqueeze(1);
  return at::where(keep.unsqueeze(-1), tokens, null_text_embed.to(tokens.scalar_type()));
}

}  // namespace dalle2
