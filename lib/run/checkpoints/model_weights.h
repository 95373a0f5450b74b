// SPDX-License-Identifier: MIT
// From files to models with weights, and the sizes of models.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_version.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/state_dict.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/resume_changes.h"
#include "config/vae/vae_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "diffusion/prior/prior.h"
#include "model/clip/clip.h"
#include "model/vae/vqgan_vae.h"

namespace dalle2 {

/// Parameters of a module, and their bytes as they are held: all, and those that are trained.
struct ParameterCount {
  int64_t total = 0, training = 0, bytes = 0, trained_bytes = 0;
};
ParameterCount count_parameters(const torch::nn::Module& module);
/// "Number of parameters: 1000 total; 900 training"
void log_parameters(const ParameterCount& count);

/// Of the names and the bytes of all weights and buffers, as hexadecimal digits.
std::string weights_sha256(const torch::nn::Module& module);

/// The kind of run that a checkpoint, a model file or a bare state dict is of, by the names of its
/// tensors: a key of run_kinds(), or "" where the names do not tell.
std::string checkpoint_kind(const Cursor& checkpoint);
/// @throws DataError for a checkpoint of another kind than `kind`
void check_kind(const Cursor& checkpoint, const std::string& kind);

/// The model's tensors in a checkpoint, in a model file, or in a bare state dict.
/// @param kind in messages @param use_ema averaged weights where the file has them
/// @throws DataError
StateDict model_weights(const Cursor& checkpoint, const std::string& kind, bool use_ema);

/// Whether a run of that config may take the weights of a checkpoint up. @throws ConfigError for those of a version of
/// dalle2-pytorch whose networks are others than the config's
void check_version(const Cursor& checkpoint, const std::string& kind, const std::string& full_json);

/// The same options, with which a config takes the sections that it leaves out (those of a decoder's
/// VAEs) from their checkpoints.
ReadOptions with_checkpoints(ReadOptions options);

/// The VAE of a latent stage, with the weights of its file, frozen and without its discriminator.
/// @param from with its `model` @throws DataError, ConfigError
VqganVae load_latent_vae(const LatentConfig& from);
/// Gives the latent stages the weights of the files that /decoder/vae names.
/// @throws DataError, ConfigError
void load_latent_vaes(const Decoder& decoder);

/// Where a model comes from.
struct ModelSource {
  std::string checkpoint_path;  ///< `save_type` checkpoint or model, ours or foreign
  std::optional<std::string> config_path =
      {};  ///< a training file, or the model's section of one, for a checkpoint without config
  std::vector<std::string> overrides = {};  ///< `--set`, of that file
  bool use_ema = true;                      ///< averaged weights where the file has them
  const char* live_option = "--no-ema";     ///< what turns it off, for messages
  LoraChoice lora = {};                     ///< adapters beside those that the file holds
  std::string written_by = {};  ///< version of dalle2-pytorch, for a file that does not say it
  const char* version_option = "--written-by";    ///< what names it, for messages
  std::string config_option = "--config F.json";  ///< what gives `config_path`, for messages
  /// The training file may give the weights another meaning; so may one whose
  /// /train/allow_changed_config says it.
  bool allow_changed_config = false;
};

/// The config that a checkpoint carries, as JSON; with the version of an older dalle2-pytorch, and what that understood
/// by keys that are absent.
std::string stored_config(const Cursor& checkpoint);

/// What differs between the config that a checkpoint carries and this one; nothing for a checkpoint
/// without config.
ConfigChanges changes_since(const Cursor& checkpoint, const std::string& full_json);
/// What of that would give the weights another meaning: "/decoder/timesteps: the checkpoint has 1000, this config 500".
/// @param kind root key: "decoder"
std::vector<std::string> model_changes(const Cursor& checkpoint,
                                       const std::string& kind,
                                       const std::string& full_json);

/// Models with the weights of a checkpoint; adapters are merged into their layers.
/// @throws DataError (unreadable, keys that do not fit), ConfigError (no config, or one that gives the weights another
/// meaning; averages refused where there are none; scales of adapters that are not there)
/// @param data takes the section `data` of the config
Decoder load_decoder(const ModelSource& source,
                     const Value& checkpoint,
                     ShardDataConfig* data = nullptr);
DiffusionPrior load_prior(const ModelSource& source, const Value& checkpoint);
VqganVae load_vae(const ModelSource& source, const Value& checkpoint);
/// With gradients: load_clip() of clip_weights.h gives a frozen one.
std::shared_ptr<ClipImpl> load_clip_model(const ModelSource& source,
                                          const Value& checkpoint,
                                          ShardDataConfig* data = nullptr);

// `convert` of what versions of dalle2-pytorch wrote: gives a file the config and the version that it lacks, and makes
// a file of 1.15.6 of it where the numbers allow that.

struct DescribedFile {
  std::optional<std::string> config_path = {};  ///< none: the file's own config
  std::string written_by = {};                  ///< "": by what the file says
  bool to_last_version = false;                 ///< of 1.15.6; weights alone
  bool averaged = false;  ///< weights alone, averaged ones where there are any
};

/// A decoder's or prior's file with `version` and `config`. @param in where it lies
/// @throws ConfigError for another kind, for no config, and for weights that mean nothing in 1.15.6
Dict described_checkpoint(const Value& checkpoint, const std::string& in, const DescribedFile& how);

}  // namespace dalle2
