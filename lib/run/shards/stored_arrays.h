// SPDX-License-Identifier: MIT
// Latents and embeddings that lie in shards: what they were made of, and whether a run reads the same.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/decoder/decoder_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "run/checkpoints/clip_weights.h"

namespace dalle2 {

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
