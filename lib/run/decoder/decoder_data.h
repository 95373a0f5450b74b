// SPDX-License-Identifier: MIT
// What a decoder needs of its shards; latents and embeddings that lie in them: what they were made of, and
// whether a run reads the same.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config/decoder/decoder_run_config.h"
#include "data/loader/batch.h"
#include "diffusion/decoder/decoder.h"
#include "run/checkpoints/clip_weights.h"
#include "run/shards/shard_data.h"

namespace dalle2 {

/// What /decoder/clip makes of a batch, because its shards do not hold it.
struct DecoderClip {
  std::shared_ptr<ClipEmbedder> embedder;  ///< null: there is none
  bool makes_image_embeds = false, makes_text_encodings = false;

  const ClipEmbedder* get() const { return embedder.get(); }
  /// @throws DataError for pictures smaller than those that it sees
  void check_pictures(const at::Tensor& images) const;
};

/// The CLIP of /decoder/clip, which fits the unets. @throws ConfigError, DataError
DecoderClip open_decoder_clip(const TrainDecoderConfig& config, const DecoderPlan& plan);

/// clip_sha256() of the CLIP of the run's image embeddings: of `clip`, or what `shards embed` wrote beside
/// the shards; empty if it is not known.
std::string clip_identity(const TrainDecoderConfig& config, const DecoderClip& clip);

/// Embeddings, latents and their widths, as the unets take them.
LoaderOptions decoder_needs(const TrainDecoderConfig& config, const DecoderPlan& plan);

/// A decoder draws squares, and its unets only make pictures smaller.
/// @param images [N, C, H, W] as the transforms leave them
/// @throws DataError for others, and for smaller ones than a unet that is trained takes
void check_sizes(const Batch& example, const DecoderTrainConfig& train, const DecoderPlan& plan);

/// A batch on `device`, as the decoder takes it. Copies to a GPU run on a stream of their own,
/// beside the step before; the current stream waits for them.
/// @param clip on that device
DecoderInputs to_inputs(const Batch& batch, const at::Device& device, const DecoderClip& clip = {});

/// In kLatentsManifest: the VAE, by weights_sha256().
inline constexpr const char* kVaeOfLatents = "vae_sha256";

/// Adds to a manifest how pictures were read. @param data of a config, as JSON with every default
void add_reading(nlohmann::ordered_json& manifest, const nlohmann::ordered_json& data);

/// Compares what the manifests beside the shards say with what the run would make of the pictures itself. A manifest that is
/// absent, or lacks a key, says nothing.
/// @param decoder with its VAEs @param clip null: the embeddings may be of any
/// @throws DataError
void check_stored_arrays(const LoadedDecoderConfig& loaded,
                         const Decoder& decoder,
                         const ClipEmbedder* clip);

}  // namespace dalle2
