// SPDX-License-Identifier: MIT
// What weights of a version `v` of dalle2-pytorch mean: which layers and formulas they were trained with. Networks and
// loops are built from it. What a version's config leaves out, noise schedules among it, is in old_configs.cpp.
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
/// Of the root key `written_by`.
inline constexpr const char* kWrittenByDoc =
    "Extension: version of dalle2-pytorch, \"0.14.0\" to \"1.15.6\", that wrote the weights. "
    "Its layers, formulas and defaults apply. Null: 1.15.6.";

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
inline NormLayout norms_of(const Version& v) {
  return {v < Version{0, 16, 0}, v >= Version{0, 16, 2} && v < Version{0, 23, 3}};
}

struct UnetLayout {
  Version v = kLastVersion;
  NormLayout norm = norms_of(v);
  bool attention_first = v < Version{0, 15, 3};  ///< of a level, before all blocks but the first
  bool strided_down = v < Version{1, 10, 0};  ///< Conv2d(4, stride 2), else pixel unshuffle and 1x1
  /// ConvTranspose2d(4, stride 2) in place of pixel shuffle.
  bool transposed_up = v >= Version{0, 15, 0} && v < Version{0, 21, 0};
  bool lowres_at_end = v >= Version{0, 24, 0};  ///< the last convolution sees the low-res picture
  bool unit_values = v >= Version{1, 4, 0};     ///< linear attention normalises the values,
  bool mean_values = v >= Version{1, 2, 0};     ///< and divides by the number of pixels
  /// Logits of self attention are q.k / dim_head, else by its root.
  bool twice_scaled = v >= Version{1, 4, 3};
  bool wrapped_cross_attn = v < Version{1, 14, 0};  ///< `cross_attn.fn.*`
};

struct PriorLayout {
  enum class Nulls {
    none,       ///< padding and dropped text are hidden by a mask
    encodings,  ///< `null_text_embed` stands for padding; nothing is ever dropped
    all,
  };
  Version v = kLastVersion;
  NormLayout norm = norms_of(v);
  bool last_norm_by_max = v >= Version{0, 16, 2};
  /// Else q.k / sqrt(dim_head) and the bias `bias_factor` times.
  bool cosine_attention = v >= Version{1, 4, 3};
  double bias_factor = cosine_attention || v < Version{0, 16, 1} ? 1
                       : v < Version{0, 23, 3}                   ? 1024
                                                                 : 128;
  Nulls nulls = v < Version{0, 23, 0}  ? Nulls::none
                : v < Version{1, 9, 0} ? Nulls::encodings
                                       : Nulls::all;
  bool drops_text_embeds = v >= Version{1, 10, 4};
  /// Sines and cosines of times become integers.
  bool truncated_times = v >= Version{0, 16, 9} && v < Version{1, 10, 8};
  /// The learned query stands behind it; else image tokens come twice, it last.
  bool query_of_self_cond = v >= Version{1, 12, 1};
};

/// How a loop walks with DDIM. A prior's walks of 0.19.0 to 0.19.4 gave back the noise that they began with; theirs
/// is that of 0.19.5.
struct DdimLayout {
  enum class Noise { of_clipped, of_raw, negative_of_raw };
  Version v = kLastVersion;
  bool is_prior = false;
  /// Else the walk of 1.15.6 without noise is used.
  bool exists = v >= (is_prior ? Version{0, 19, 0} : Version{0, 19, 3});
  /// Of a prior: the times are those of a decoder, and end at 0.
  bool to_zero = is_prior && exists && v < Version{1, 10, 3};
  bool previous_levels = exists && v < Version{1, 10, 2};  ///< alphas_cumprod_prev, of a decoder
  /// The noise that a prediction of x_start implies.
  Noise of_x_start = !exists || v >= (is_prior ? Version{1, 10, 5} : Version{1, 11, 0})
                         ? Noise::of_clipped
                     : v < Version{0, 25, 2} ? Noise::negative_of_raw
                                             : Noise::of_raw;
  /// A prediction of the noise is used as it is, though x_start was clipped.
  bool predicted_noise = exists && v < Version{1, 12, 3};
};

struct DecoderLoopLayout {
  Version v = kLastVersion;
  DdimLayout ddim = {.v = v};
  bool nearest = v >= Version{0, 23, 10};  ///< pictures are resized to a unet's side; else cubic
  bool clamped = v >= Version{0, 16, 16};  ///< the resized low-resolution picture
  bool plain_in_eval = v < Version{0, 23, 5};  ///< it is neither shrunk nor blurred in eval mode
  /// It is in [-1, 1] there, as everywhere.
  bool normalized_in_ddim = !ddim.exists || v >= Version{0, 23, 4};
};

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
