// SPDX-License-Identifier: MIT
// How much a pass computes, from the config alone: multiply-adds of the forward pass of the samples that go through the network at once.
// The 3x3 convolutions count, or the matrices of a transformer.
#pragma once

#include <algorithm>

#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

// Of one sample. Of a decoder, by the trained stage that takes the most.
double sample_work(const LoadedDecoderConfig& loaded);
double sample_work(const LoadedPriorConfig& loaded);
double sample_work(const LoadedVaeConfig& loaded);
double sample_work(const LoadedClipConfig& loaded);

template <class Loaded>
requires requires(const Loaded& config) {
  sample_work(config);
}
double forward_work(const Loaded& loaded) {
  const int64_t batch = loaded.config.data.batch_size;
  return sample_work(loaded) *
         static_cast<double>(std::min(batch, loaded.config.train.max_batch_size.value_or(batch)));
}

}  // namespace dalle2
