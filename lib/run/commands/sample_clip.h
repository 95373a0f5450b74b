// SPDX-License-Identifier: MIT
// `sample --clip`: from words and pictures to the embeddings that a decoder draws from.
#pragma once

#include <string>
#include <vector>

#include "run/checkpoints/clip_weights.h"
#include "run/commands/sample_command.h"

namespace dalle2 {

/// A text, or with "@" the lines of a file, none of them empty. @param option that gave it
/// @throws ConfigError
std::vector<std::string> texts_of(const char* option, const std::string& given);

/// The CLIP of --clip on the device of the sampling. What it makes is on the CPU.
class SampleClip {
 public:
  /// @throws ConfigError, DataError as load_clip_file()
  SampleClip(const SampleCommand& command, const at::Device& device);

  /// @throws ConfigError for a text that is too long: a drawing shows what the whole text says
  ClipTexts embed_texts(const char* option, const std::vector<std::string>& texts) const;
  /// A picture, a folder of them or an array in [0, 1], of any sizes. @return [N, D]
  /// @throws DataError for a picture that is smaller than what the CLIP sees
  at::Tensor embed_pictures(const char* option, const std::string& path) const;

  const ClipEncoderImpl& network() const { return *clip_.clip; }

 private:
  void check_lengths(const char* option, const std::vector<std::string>& texts) const;

  const SampleCommand& command_;
  at::Device device_;
  LoadedClip clip_;
};

/// Image embeddings that the prior of --prior draws for texts. @param texts by the CLIP
/// @return [N, D] @throws DataError for a prior that is not of this CLIP
at::Tensor drawn_by_prior(const SampleCommand& command,
                          const SampleClip& clip,
                          const ClipTexts& texts,
                          const at::Device& device);

}  // namespace dalle2
