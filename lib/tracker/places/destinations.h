// SPDX-License-Identifier: MIT
// The services that there are, for make_destination().
#pragma once

#include <memory>

#include "tracker/places/destination.h"

namespace dalle2 {

/// A repository of the Hugging Face hub. @throws ConfigError
std::unique_ptr<Destination> make_hub_destination(const HuggingfaceSaveConfig& config);

/// A server that takes files by PUT. @throws ConfigError
std::unique_ptr<Destination> make_url_destination(const UrlSaveConfig& config);

/// A bucket of S3.
std::unique_ptr<Destination> make_s3_destination(const S3SaveConfig& config);

/// A run of Weights & Biases; without wandb_run_path it can be asked, and nothing can be sent yet.
/// @throws ConfigError
std::unique_ptr<Destination> make_wandb_destination(const WandbSaveConfig& config);

}  // namespace dalle2
