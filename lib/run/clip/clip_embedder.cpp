// SPDX-License-Identifier: MIT
#include "run/clip/clip_embedder.h"

#include <torch/torch.h>

#include <utility>

#include "base/log.h"
#include "base/untrusted_text.h"
#include "model/pass_scopes.h"
#include "optim/precision.h"

namespace dalle2 {

ClipEmbedder::ClipEmbedder(LoadedClip clip, std::string name)
    : clip_(std::move(clip)),
      module_(std::make_shared<FrozenClipImpl>(clip_.clip)),
      name_(std::move(name)) {}

void ClipEmbedder::hold_in(torch::nn::Module& model) const {
  model.register_module(kFrozenClipName, module_);
}

void ClipEmbedder::compute_as(MixedPrecision precision, std::optional<int64_t> max_batch_size) {
  precision_ = precision;
  max_batch_size_ = max_batch_size;
}

at::Tensor ClipEmbedder::embed_images(const at::Tensor& images) const {
  const NoGradPass no_grad;
  const Autocast autocast(images.device().type(), precision_);
  return clip_.embed_images(images, max_batch_size_);
}

TextEmbedding ClipEmbedder::embed_captions(const std::vector<std::string>& captions) const {
  const NoGradPass no_grad;
  const at::Device device = clip_.clip->parameters().front().device();
  at::Tensor tokens = clip_.clip->trimmed(clip_.tokens_of(captions, &long_captions_));
  if (!device.is_cpu()) tokens = tokens.pin_memory().to(device, /*non_blocking=*/true);
  const Autocast autocast(device.type(), precision_);
  return clip_.embed_tokens(tokens, max_batch_size_);
}

at::Tensor ClipEmbedder::similarity(const at::Tensor& images,
                                    const std::vector<std::string>& captions) const {
  const NoGradPass no_grad;
  return (embed_images(images) * embed_captions(captions).embeds).sum(-1);
}

std::shared_ptr<ClipEmbedder> open_clip_of(const std::optional<ClipConfig>& config,
                                           const std::string& pointer) {
  if (!config) return nullptr;
  LoadedClip clip = load_clip_file(clip_file_of(config->model), config->base_model_kwargs);
  log_info("clip",
           "{}: {} makes embeddings of {} values, pictures of {} pixels, {} tokens",
           pointer,
           printable(config->model),
           clip.clip->embed_dim(),
           clip.clip->image_size(),
           clip.text_len());
  return std::make_shared<ClipEmbedder>(std::move(clip),
                                        fmt::format("{} ({})", pointer, printable(config->model)));
}

}  // namespace dalle2
