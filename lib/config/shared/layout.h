// SPDX-License-Identifier: MIT
// What weights of a version of dalle2-pytorch mean: which layers and formulas they were trained with. Networks and
// loops are built from it. The defaults are those of 1.15.6, the last one. What a version's config leaves out, noise
// schedules among it, is in old_configs.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace dalle2 {

/// A version of dalle2-pytorch, compared number by number.
using Version = std::array<int64_t, 3>;
inline constexpr Version kFirstVersion = {0, 14, 0};
inline constexpr Version kLastVersion = {1, 15, 6};

std::string to_text(const Version& version);
/// "1.0.2"; whatever follows the third number is not read. @param where precedes the text of errors
/// @param or_later takes a version after the last one as the last
/// @throws ConfigError for another text, and for versions whose layers are not known here
Version parse_version(const std::string& text, const std::string& where, bool or_later = false);

/// The LayerNorms of a network.
struct NormLayout {
  bool gamma = false;   ///< the gain is named `gamma`, and there is a buffer `beta` of zeros
  bool by_max = false;  ///< they divide by the largest (signed) entry first
};

struct UnetLayout {
  NormLayout norm;
  bool attention_first = false;  ///< of a level, before all blocks but the first
  bool strided_down = false;     ///< Conv2d(4, stride 2) in place of pixel unshuffle and 1x1
  bool transposed_up = false;    ///< ConvTranspose2d(4, stride 2) in place of pixel shuffle
  bool lowres_at_end = true;     ///< the last convolution sees the low-resolution picture too
  bool unit_values = true;       ///< linear attention normalises the values,
  bool mean_values = true;       ///< and divides by the number of pixels
  bool twice_scaled = true;      ///< logits of self attention are q.k / dim_head, else by its root
  bool wrapped_cross_attn = false;  ///< `cross_attn.fn.*`
};

struct PriorLayout {
  enum class Nulls {
    none,       ///< padding and dropped text are hidden by a mask
    encodings,  ///< `null_text_embed` stands for padding; nothing is ever dropped
    all,
  };
  NormLayout norm;
  bool last_norm_by_max = true;
  bool cosine_attention = true;  ///< else q.k / sqrt(dim_head) and the bias `bias_factor` times
  double bias_factor = 1;
  Nulls nulls = Nulls::all;
  bool drops_text_embeds = true;
  bool truncated_times = false;  ///< sines and cosines of times become integers
  bool query_of_self_cond =
      true;  ///< the learned query stands behind it; else image tokens come twice, it last
};

/// How a loop walks with DDIM.
struct DdimLayout {
  enum class Noise { of_clipped, of_raw, negative_of_raw };
  bool exists = true;            ///< else the walk of 1.15.6 without noise is used
  bool to_zero = false;          ///< of a prior: the times are those of a decoder, and end at 0
  bool previous_levels = false;  ///< alphas_cumprod_prev
  Noise of_x_start = Noise::of_clipped;  ///< the noise that a prediction of x_start implies
  bool predicted_noise =
      false;  ///< a prediction of the noise is used as it is, though x_start was clipped
};

struct DecoderLoopLayout {
  DdimLayout ddim;
  bool nearest = true;         ///< pictures are resized to a unet's side; else by cubic resampling
  bool clamped = true;         ///< the resized low-resolution picture
  bool plain_in_eval = false;  ///< it is neither shrunk nor blurred in eval mode
  bool normalized_in_ddim = true;  ///< it is in [-1, 1] there, as everywhere
};

struct Layout {
  UnetLayout unet;
  PriorLayout prior;
  DecoderLoopLayout decoder_loop;
  DdimLayout prior_loop;
};

/// The layout that a version wrote.
Layout layout_of(const Version& version);

/// Versions whose weights mean the same, as far as a network goes.
struct VersionRange {
  Version from = kFirstVersion, to = kLastVersion;
  bool contains(const Version& version) const { return from <= version && version <= to; }
  bool operator==(const VersionRange&) const = default;
};
std::string to_text(const VersionRange& range);
/// @param kind "decoder" or "prior"
VersionRange same_network(const std::string& kind, const Version& version);
/// The ranges of same_network(), from the oldest on.
std::span<const VersionRange> networks_of(const std::string& kind);

}  // namespace dalle2
