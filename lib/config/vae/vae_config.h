// SPDX-License-Identifier: MIT
// `vae` of a VQGAN-VAE config: the constructor arguments of the two references' VQGanVAE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/reflect.h"

namespace dalle2 {

/// Whose VQGanVAE a network is: names in files, quantiser and losses follow from it.
D2_ENUM(VaeKind, muse, dalle2);

D2_ENUM(VaeNetworkType, resnet, vit);

struct LookupFreeConfig {
  static constexpr const char* kDoc = "Arguments of lookup-free quantisation (Yu et al. 2023).";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  double diversity_gamma = 4.0;
  double entropy_loss_weight = 0.1;
  double commitment_loss_weight = 0.0;

  void fields(auto& f) {
    D2_FIELD(diversity_gamma,
             "Weight of the entropy of the mean distribution over codes, which is maximised.",
             at_least(0));
    D2_FIELD(entropy_loss_weight, "Weight of the entropies in the loss.", at_least(0));
    D2_FIELD(commitment_loss_weight,
             "Weight of the squared distance between projection and signs.",
             at_least(0));
  }
};

struct VaeConfig {
  static constexpr const char* kDoc =
      "The VQGAN-VAE, with the constructor arguments of VQGanVAE in muse-maskgit-pytorch or "
      "dalle2-pytorch.";

  VaeKind kind = VaeKind::muse;
  int64_t dim = 0;  // required
  std::optional<int64_t> image_size;
  int64_t channels = 3;
  int64_t layers = 4;
  bool l2_recon_loss = false;
  bool use_hinge_loss = true;
  bool use_vgg_and_gan = true;
  bool quantizer_loss_without_gan = false;
  int64_t discr_layers = 4;
  VaeNetworkType vae_type = VaeNetworkType::resnet;
  bool lookup_free_quantization = true;
  std::optional<int64_t> codebook_size;
  LookupFreeConfig lfq_kwargs = {};
  std::optional<int64_t> vq_codebook_size;
  int64_t vq_codebook_dim = 256;
  double vq_decay = 0.8;
  double vq_commitment_weight = 1.0;
  bool vq_kmeans_init = true;
  int64_t vq_kmeans_iters = 10;
  bool vq_use_cosine_sim = true;
  double vq_threshold_ema_dead_code = 0.0;
  bool vq_rotation_trick = true;
  std::optional<std::vector<int64_t>> encdec_layer_mults;
  OneOrMany<int64_t> encdec_num_resnet_blocks = int64_t{1};
  int64_t encdec_resnet_groups = 16;
  int64_t encdec_first_conv_kernel_size = 5;
  OneOrMany<bool> encdec_use_attn = true;
  std::optional<int64_t> encdec_attn_dim_head;
  std::optional<int64_t> encdec_attn_heads;
  int64_t encdec_patch_size = 8;
  int64_t encdec_dim_head = 32;
  int64_t encdec_heads = 8;
  int64_t encdec_ff_mult = 4;

  bool is_muse() const { return kind == VaeKind::muse; }
  bool is_vit() const { return !is_muse() && vae_type == VaeNetworkType::vit; }
  bool is_lookup_free() const { return is_muse() && lookup_free_quantization; }
  /// Entries of the codebook.
  int64_t codes() const {
    return is_muse() ? codebook_size.value_or(65536) : vq_codebook_size.value_or(512);
  }
  /// Channels of the encoded map.
  int64_t encoded_dim() const {
    if (is_vit()) return dim;
    return dim * (encdec_layer_mults ? encdec_layer_mults->back() : int64_t{1} << (layers - 1));
  }
  /// Pixels that become one place of the encoded map, along a side.
  int64_t reduction() const { return is_vit() ? encdec_patch_size : int64_t{1} << layers; }

  void fields(auto& f) {
    D2_FIELD(kind, "Library of the network: muse-maskgit-pytorch or dalle2-pytorch.");
    D2_REQUIRED(dim, "Base width, in channels.", within(1, most::kDim));
    D2_FIELD(image_size,
             "Side of the pictures in pixels, which `dalle2` needs and keeps to. Null: any side.",
             within(1, most::kImageSide));
    D2_FIELD(
        channels, "Channels of a picture: 3, 1 for grey, or 4 with transparency.", within(1, 4));
    D2_FIELD(
        layers,
        "Number of resolutions, each with half the side of the one before, the first with half the "
        "picture's. For a `vit`: layers of the transformer.",
        within(1, 16));
    D2_FIELD(l2_recon_loss, "Mean squared instead of absolute error.");
    D2_FIELD(use_hinge_loss, "Hinge losses for the GAN; false for binary cross-entropy.");
    D2_FIELD(use_vgg_and_gan,
             "Perceptual and adversarial losses; false trains only the reconstruction.");
    D2_FIELD(
        quantizer_loss_without_gan,
        "Without `use_vgg_and_gan`, also train with the loss of the quantiser. The references do "
        "not, and most of their codes fall out of use.");
    D2_FIELD(discr_layers,
             "Halvings in the discriminator; a side of at least 4 pixels must remain.",
             within(0, 16));
    D2_FIELD(vae_type, "For `dalle2`: convolutions or a transformer.");
    D2_FIELD(lookup_free_quantization,
             "For `muse`: the signs of a projection are the code; false for a codebook.");
    D2_FIELD(codebook_size,
             "Codes of `muse`, a power of two if lookup-free. Null: 65536.",
             within(2, 1 << 20));
    D2_FIELD(lfq_kwargs, "Lookup-free quantisation.");
    D2_FIELD(vq_codebook_size, "Codes of `dalle2`. Null: 512.", within(2, 1 << 20));
    D2_FIELD(vq_codebook_dim, "Width of a code.", within(1, most::kWidth));
    D2_FIELD(vq_decay, "Decay of the codebook's moving averages.", within(0, 1));
    D2_FIELD(vq_commitment_weight, "Weight of the commitment loss.", at_least(0));
    D2_FIELD(vq_kmeans_init,
             "The initial codes are the centres that k-means finds in the first batch.");
    D2_FIELD(vq_kmeans_iters, "Iterations of k-means.", within(1, 1000));
    D2_FIELD(vq_use_cosine_sim, "Codes on the unit sphere, compared by their cosine.");
    D2_FIELD(
        vq_threshold_ema_dead_code,
        "A code whose moving average of uses falls below this value is replaced by a vector of the "
        "batch; 0 replaces none.",
        at_least(0));
    D2_FIELD(
        vq_rotation_trick,
        "Rotate gradients that pass through the quantiser (Fifty et al. 2024); false leaves them "
        "unchanged.");
    D2_FIELD(encdec_layer_mults,
             "Width of each resolution as a multiple of `dim`. Null: 1, 2, 4, ...",
             within(1, most::kDimMult).not_empty());
    D2_FIELD(
        encdec_num_resnet_blocks,
        "Residual blocks of each resolution. A single number applies only to the smallest; the "
        "others then have none.",
        within(0, most::kLayers).not_empty());
    D2_FIELD(encdec_resnet_groups, "Groups of the group norms.", within(1, most::kWidth));
    D2_FIELD(
        encdec_first_conv_kernel_size, "Kernel size of the first convolution; odd.", within(1, 63));
    D2_FIELD(
        encdec_use_attn,
        "For `dalle2`: attention at each resolution. A single value applies only to the smallest; "
        "the others then have none.");
    D2_FIELD(encdec_attn_dim_head,
             "For `dalle2`: width of an attention head. Null: 64.",
             within(1, most::kHeadWidth));
    D2_FIELD(encdec_attn_heads, "For `dalle2`: attention heads. Null: 8.", within(1, most::kHeads));
    D2_FIELD(encdec_patch_size, "For a `vit`: side of a patch in pixels.", within(1, 1024));
    D2_FIELD(encdec_dim_head, "For a `vit`: width of a head.", within(1, most::kHeadWidth));
    D2_FIELD(encdec_heads, "For a `vit`: number of heads.", within(1, most::kHeads));
    D2_FIELD(encdec_ff_mult,
             "For a `vit`: width of the feed-forward layers as a multiple of `dim`.",
             within(1, most::kDimMult));
    check_kind(f);
    check_network(f);
  }

 private:
  void check_kind(auto& f) {
    f.check(channels != 2, "channels", "must be 1, 3 or 4, got 2");
    f.check(is_muse() || image_size, "image_size", "is needed by the dalle2 kind");
    f.check(is_muse() || !codebook_size,
            "codebook_size",
            "is the muse kind's; of the dalle2 kind give vq_codebook_size");
    f.check(!is_muse() || !vq_codebook_size,
            "vq_codebook_size",
            "is the dalle2 kind's; of the muse kind give codebook_size");
    f.check(!is_muse() || vae_type == VaeNetworkType::resnet,
            "vae_type",
            "\"vit\" is the dalle2 kind's: set kind to \"dalle2\"");
    f.check(is_muse() || lookup_free_quantization,
            "lookup_free_quantization",
            "is the muse kind's: the dalle2 kind always has a codebook");
    f.check(!is_lookup_free() || (codes() & (codes() - 1)) == 0,
            "codebook_size",
            "must be a power of two for lookup-free quantisation, got " + std::to_string(codes()));
    f.check(!image_size || *image_size % reduction() == 0,
            "image_size",
            "must be divisible by " + std::to_string(reduction()) +
                (is_vit() ? " (encdec_patch_size)" : " (2 to the power of layers)"));
  }

  void check_network(auto& f) {
    if (is_vit()) return;
    f.check(dim % encdec_resnet_groups == 0,
            "dim",
            "must be divisible by encdec_resnet_groups (" + std::to_string(encdec_resnet_groups) +
                "), got " + std::to_string(dim));
    f.check(!use_vgg_and_gan || dim % 16 == 0 || dim % encdec_resnet_groups != 0,
            "dim",
            "must be divisible by 16, the groups of the discriminator's norms, got " +
                std::to_string(dim));
    f.check(encdec_first_conv_kernel_size % 2 == 1, "encdec_first_conv_kernel_size", "must be odd");
    const auto one_for_each = [&](size_t entries, const char* key) {
      f.check(entries == static_cast<size_t>(layers),
              key,
              "must have one entry for each of the " + std::to_string(layers) + " layers");
    };
    if (encdec_layer_mults) one_for_each(encdec_layer_mults->size(), "encdec_layer_mults");
    if (!encdec_num_resnet_blocks.is_one()) {
      one_for_each(encdec_num_resnet_blocks.values().size(), "encdec_num_resnet_blocks");
    }
    if (!encdec_use_attn.is_one()) one_for_each(encdec_use_attn.values().size(), "encdec_use_attn");
  }
};

}  // namespace dalle2
