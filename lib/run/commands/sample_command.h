// SPDX-License-Identifier: MIT
// The halves of `dalle2-train sample`, one a kind of checkpoint, and what they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "data/pictures/preprocess.h"
#include "optim/precision.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"

namespace dalle2 {

/// Writes 0000.png ... and samples.npy.
void sample_decoder(const SampleCommand& command,
                    const Value& checkpoint,
                    const at::Device& device);
/// Writes image_embeds.npy.
void sample_prior(const SampleCommand& command, const Value& checkpoint, const at::Device& device);

/// Says that tokens are left out. @param encodings [N, L, W], undefined for none
/// @param key that limits them to `most` tokens
void warn_of_cut_encodings(const at::Tensor& encodings, const std::string& key, int64_t most);

/// Says that fewer steps than all walk as in 1.15.6, where the version of the weights had no such walk.
void tell_of_own_ddim(const DdimLayout& layout, bool walks_with_ddim, const std::string& path);

/// Whether --image is seen by a CLIP: else a unet enlarges it.
inline bool starts_from_picture(const SampleCommand& command) {
  return command.image_path && command.clip_path && command.start_unet == 1;
}
/// Whether a CLIP makes what the decoder draws from.
inline bool has_made_conditions(const SampleCommand& command) {
  return command.text || starts_from_picture(command);
}

/// What a decoder draws from, a row an image.
struct MadeConditions {
  at::Tensor image_embeds;          ///< [N, D]
  at::Tensor text_encodings;        ///< [N, L, W]; undefined for a decoder that takes none
  std::vector<int64_t> noise_rows;  ///< [N] whose draws a row has: those of one way share them
  std::vector<std::string>
      texts;  ///< [N] what a picture shows, empty between two; none without texts
  /// Gives image_embeds, which until then have their shape alone: a prior draws them. Empty: they are there.
  std::function<at::Tensor()> draw_embeds;
  int64_t weight_bytes = 0;  ///< of CLIP and prior
};
/// Of texts or pictures, or of the ways between them. With --dry-run, says which CLIP and prior make them.
/// @param decoder the root of its file @param takes_encodings of it @param reading of the pictures that
/// it was trained with
/// @throws ConfigError, DataError
MadeConditions made_conditions(const SampleCommand& command,
                               const Cursor& decoder,
                               bool takes_encodings,
                               const DecodeOptions& reading,
                               const at::Device& device);

/// @param facts what more is known of the model
/// @throws ConfigError for an option that does not go with the others, or with the model
void check_options_on(const SampleCommand& command, OptionFacts facts);
/// @throws ConfigError unless an option is given not at all, once, or for each of `unets`
void check_one_or_each(const char* option,
                       size_t given,
                       size_t unets,
                       const std::string& checkpoint_path);
/// Puts the name of a file before what `check` throws.
void naming_file(const std::string& path, const std::function<void()>& check);
ModelSource source_of(const SampleCommand& command);
/// What gave a value, for messages: the option, or this key of the file of --pipeline.
std::string giver_of(const SampleCommand& command, const char* option, const char* key);
/// What gives a decoder's file its config, for messages: that `option`, or a key of the file of --pipeline.
std::string config_giver(const SampleCommand& command, const char* option);
/// The arithmetic that --precision asks for, for as long as it lives.
Autocast precision_of(const SampleCommand& command, const at::Device& device);
/// @throws ConfigError if --out cannot be written, or if it holds files and --overwrite is not given
void check_out(const SampleCommand& command);
/// @param samples from number `begin` on; `what` they are, the `path` of the weights that drew them and what gave their
/// guidance, "" for none, for the message
/// @throws NonFiniteError
void check_drawn(const at::Tensor& samples,
                 int64_t begin,
                 const char* what,
                 const std::string& path,
                 const std::string& guidance);

}  // namespace dalle2
