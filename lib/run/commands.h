// SPDX-License-Identifier: MIT
// What the command line can do: one options struct and one function a subcommand. Each function
// prints its result on stdout and throws an Error (base/error.h) that apps/ turns into the exit
// code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"             // apps check stdout with it
#include "base/untrusted_text.h"  // apps print errors with it

namespace dalle2 {

// Which options go together: a table a command, of which errors and `--help` speak.

/// A row of a table. A name that does not begin with "--" is a fact about what a command reads, in the
/// words of messages.
struct OptionRule {
  std::vector<std::string> options;
  std::vector<std::string> needs;          ///< one of them; none: nothing
  std::vector<std::string> excludes = {};  ///< all of them
  std::string instead = {};                ///< what to do, beside leaving the option out
};

/// The options that are given, and facts. A fact that is absent is not known yet.
using OptionFacts = std::map<std::string, bool>;

// Facts of `sample`.
inline constexpr const char* kOnDecoder = "a decoder as --checkpoint";
inline constexpr const char* kOnPrior = "a prior as --checkpoint";
inline constexpr const char* kUnconditional = "an unconditional decoder";
inline constexpr const char* kTakesEncodings = "a model that takes text encodings";
inline constexpr const char* kTakesNoEncodings = "a decoder that takes no text encodings";
inline constexpr const char* kVariesPicture = "a picture to vary (--image with --clip)";
inline constexpr const char* kEnlarges = "a --start-unet above 1";
inline constexpr const char* kGuided = "a --cond-scale other than 1";

/// The table of a command: "sample", "convert", "make"; empty where all options go together.
const std::vector<OptionRule>& option_rules(const std::string& command);

/// @param where stands behind the option in the message: " on latest.pth, of a prior"
/// @throws ConfigError for an option whose row does not hold; a row that hangs on unknown facts may hold
void check_options(const std::string& command,
                   const OptionFacts& facts,
                   const std::string& where = "");
/// Ends the help of the options of a row: "; needs --clip; not with --pipeline".
std::string rule_help(const OptionRule& rule);

/// dalle2-train --config F
struct TrainCommand {
  std::string config_path;
  std::vector<std::string> overrides;  ///< "/train/lr=3e-4"
  bool strict = false;                 ///< warnings about the config are errors
  bool dry_run = false;
  bool dump_config = false;
  bool quiet = false;        ///< warnings, errors and how the run ends, no more
  bool fresh = false;        ///< a new run, whatever is in data_path
  std::string back_to = {};  ///< a snapshot of the run in data_path; empty: none
  int64_t processes = 1;     ///< to start on this machine
};

/// A decoder's file in a cascade of several.
struct CascadeFile {
  std::string path;
  std::optional<std::string> config_path = {};  ///< for a checkpoint that carries no config
  std::string written_by = {};                  ///< version of dalle2-pytorch; "": the file says it
  /// The unets that it draws, from 1; empty: those after the ones of the files before it.
  std::vector<int64_t> unets = {};
};

/// dalle2-train sample
struct SampleCommand {
  OptionFacts facts;  ///< the options that are given, to refuse those that do not go together
  std::string checkpoint_path;
  std::optional<std::string> config_path;    ///< for a checkpoint that carries no config
  std::vector<int64_t> unets;                ///< CascadeFile::unets of the checkpoint
  std::vector<std::string> upsampler_paths;  ///< further files, whose unets enlarge
  /// One for each of these, or none; with `pipeline_path` versions of its files after the first.
  std::vector<std::string> upsampler_configs, upsampler_versions;
  std::vector<CascadeFile> upsamplers;             ///< run_sample() makes them of these
  std::optional<std::string> pipeline_path;        ///< gives the files in place of these options
  bool dry_run = false;                            ///< says what would be drawn with, and ends
  std::optional<std::string> image_embeds_path;    ///< .npy [N, D]
  std::optional<std::string> text_embeds_path;     ///< .npy [N, D], of a prior
  std::optional<std::string> text_encodings_path;  ///< .npy [N, L, D]
  /// Images of an unconditional decoder, of each `text` or each picture of `image_path`; with `to` or
  /// `from_text` of each way.
  std::optional<int64_t> num;
  std::optional<std::string> text;  ///< "a cat", or "@FILE" with a text a line
  std::optional<std::string>
      to;  ///< the end of a way from `text` or `image_path`, of the same kind
  std::optional<std::string> from_text;  ///< pictures change as from it to `text`
  std::optional<double> theta;           ///< how far, with `from_text`; none is kDefaultTheta
  std::optional<std::string> prior_path,
      clip_path;                                ///< checkpoints, with `text`; a CLIP with pictures
  std::optional<std::string> clip_config_path;  ///< instead of the config beside the CLIP
  std::string written_by, prior_written_by;  ///< versions of dalle2-pytorch; "": the files say it
  std::optional<std::string> prior_config_path;  ///< for a prior that carries no config
  std::optional<double> prior_cond_scale;        ///< with `text`; none is 1
  std::optional<int64_t> prior_timesteps;        ///< of `prior_path`; none: its config's
  bool prior_use_ema = true;
  std::vector<std::string> prior_lora_paths;  ///< adapters that are put into its weights
  std::vector<double> cond_scale;             ///< one, or one for each unet; none is 1
  std::vector<int64_t> timesteps;  ///< one, or one for each unet; none, or 0 for one: the config's
  std::string sampler = "auto";    ///< auto, ddpm, ddim, dpmpp
  double cfg_rescale = 0.0;
  std::string precision = "no";               ///< no, bf16
  std::vector<std::string> init_noise_paths;  ///< .npy [N, C, H, W], one for each sampled stage
  int64_t seed = 0;
  bool use_ema = true;
  std::string device = "cpu";
  int64_t batch_size = 8;               ///< images or texts sampled at once
  std::vector<std::string> lora_paths;  ///< files of adapters that are put into the weights
  std::vector<double> lora_scale;       ///< one, or one for each file; none is 1
  /// Embeddings that a prior draws for a text, of which the nearest to it is taken; none is 2.
  std::optional<int64_t> candidates;
  int64_t start_unet = 1;
  std::optional<int64_t> stop_unet;
  /// Picture, folder or .npy: what start_unet > 1 enlarges, else what a CLIP sees.
  std::optional<std::string> image_path;
  std::optional<std::string> inpaint_image_path, inpaint_mask_path;
  std::optional<int64_t> inpaint_resample_times;  ///< none is 5
  std::string out_folder;
  bool overwrite = false;  ///< replace files that are there
};

struct EvaluateCommand {
  std::string config_path, checkpoint_path;
  std::vector<std::string> overrides;
  std::string split = "val";  ///< train, val or test
  /// Sampling steps: of a decoder one, or one for each unet; of a prior those to compare; none: the
  /// config's.
  std::vector<int64_t> timesteps;
  bool use_ema = true;
  int64_t processes = 1;  ///< to start on this machine
};

/// dalle2-train inspect, fsck: a checkpoint, a model file or safetensors; for `fsck` the folder of a run too.
struct FileCommand {
  std::string path;
  bool json = false;
};

struct ConvertCommand {
  std::vector<std::string> in_paths;  ///< one; two or more with `merge`
  std::string out_path;
  bool merge = false;  ///< stages that were trained apart become one cascade
  std::optional<std::string>
      config_path;          ///< of the cascade, with `merge`; else to be stored in the file
  std::string written_by;   ///< version of dalle2-pytorch, for a file that does not say it
  std::string to;           ///< a version to convert the weights to, or ""
  bool ema = false;         ///< averaged weights only
  bool merge_lora = false;  ///< the checkpoint's adapters become a part of its weights
  std::vector<std::string> lora_paths;  ///< files of adapters to become a part of the weights
  std::vector<double> lora_scale;       ///< one, or one for each file; none is 1
  bool open_clip = false;               ///< the input is a CLIP: open_clip's layout
  bool overwrite = false;               ///< replace a file that is there
};

/// An average of the weights, of a width chosen after training.
struct EmaCommand {
  double sigma = 0.0;                    ///< parts of the training up to `step`
  std::optional<int64_t> step;           ///< the last one by default
  std::vector<std::string> checkpoints;  ///< files with averages, or folders of them
  std::string out_path;
  bool overwrite = false;  ///< replace a file that is there
};

struct InitCommand {
  std::string data;                 ///< folder of shards, embeddings or pictures
  std::optional<std::string> kind;  ///< none: by what the folder holds
  std::string out_path;             ///< "": the kind's name with .json
  std::optional<int64_t> image_size;
  int64_t processes = 1;                          ///< that the splits have to have shards for
  std::string caption_encoding = "windows-1252";  ///< of captions that are not UTF-8
  bool overwrite = false;
  std::optional<double> minutes;   ///< that the run may take on this machine
  std::optional<int64_t> updates;  ///< that fit into them: run_init() finds out
  int64_t epochs = 20;             ///< so often the run validates, saves and draws, if they fit
};

struct ShardsMakeCommand {
  std::string from_folder, out_folder;
  int64_t per_shard = 0;                          ///< 0: a tenth of all, 1000 at most
  bool in_order = false;                          ///< of the paths; else mixed
  bool together = false;                          ///< a lowest folder in one shard
  int64_t seed = 0;                               ///< of the order
  int64_t index_width = 4;                        ///< digits of a row, at the end of a key
  std::optional<std::string> ground;              ///< colour behind transparent pictures
  bool need_captions = false;                     ///< leave pictures without a caption out
  bool first_line_only = false;                   ///< of a caption
  std::string caption_encoding = "windows-1252";  ///< of captions that are not UTF-8
  bool overwrite = false;                         ///< replace the shards that are there
};

struct ShardsCheckCommand {
  std::string url;  ///< like data.webdataset_base_url, or a folder of tars
  std::optional<std::string> img_embeddings, text_embeddings;
  bool embeddings_in_tar = false;
  bool allow_pipe = false;                         ///< urls may be commands
  std::optional<int64_t> first_shard, last_shard;  ///< for a url with {}; from 0 by default
  int64_t shard_width = 6, index_width = 4;
  std::string caption_encoding = "windows-1252";  ///< of captions that are not UTF-8
};

/// What the loaders of all ranks of a run would read, without training.
struct ShardsOrderCommand {
  std::string config_path;
  std::vector<std::string> overrides;
  int64_t world = 1;                     ///< ranks
  std::optional<int64_t> epoch;          ///< 0, or where `from_path` stands
  std::optional<int64_t> steps;          ///< to the end of the epoch
  std::optional<std::string> from_path;  ///< a saved position, or a checkpoint
  std::optional<std::string> save_path;
  bool overwrite = false;  ///< replace `save_path` if it is there
  bool print = false;      ///< a JSON line a step instead of the table
};

/// The shards of a decoder's config again, with the latents of its first unet.
struct ShardsEncodeCommand {
  std::string config_path;
  std::vector<std::string> overrides;
  std::string out_folder;
  std::string device = "cpu";
  bool overwrite = false;  ///< replace the shards that the folder holds
  int64_t processes = 1;   ///< on this machine, which share the shards
};

/// Shards again, with the embeddings of a CLIP.
struct ShardsEmbedCommand {
  std::string url;  ///< like data.webdataset_base_url, or a folder of tars
  std::string clip_path, out_folder;
  std::optional<std::string> clip_config_path;  ///< instead of the config beside the CLIP
  bool captions = true;                         ///< of pictures alone otherwise
  bool text_encodings = false;                  ///< those of each caption's tokens too
  std::optional<std::string> ground;            ///< these three as in a run's `data`
  bool apply_exif = false;
  std::optional<int64_t> range;
  int64_t batch_size = 64;  ///< samples embedded at once
  int64_t shard_width = 6;
  std::string device = "cpu";
  bool overwrite = false;  ///< replace the shards that the folder holds
  int64_t processes = 1;   ///< on this machine, which share the shards
};

/// A run as one HTML page that loads nothing.
struct ReportCommand {
  std::string data_path, out_path;
  std::vector<std::string> compare;  ///< folders of other runs, whose curves are shown too
  int64_t most_picture_steps = 12;   ///< columns of the pictures' tables
};

/// Refuses to write `path` into a folder that is not there, which is a slip of the pen more often
/// than a wish. @param option that names it: "--out". @throws ConfigError
void check_out_folder(const std::string& option, const std::string& path);
/// The same, and refuses to replace a file that is there.
void check_out_file(const std::string& option, const std::string& path, bool overwrite);

/// Trains. @return kDone, or kStopped after a signal, as run_shards_make does
ExitCode run_train(const TrainCommand& command);
void run_sample(const SampleCommand& command);
ExitCode run_evaluate(const EvaluateCommand& command);
void run_inspect(const FileCommand& command);
/// @return kDone if all is whole, kData if a file is damaged
ExitCode run_fsck(const FileCommand& command);
void run_convert(const ConvertCommand& command);
void run_ema(const EmaCommand& command);
void run_schema(const std::string& kind);
void run_init(const InitCommand& command);
ExitCode run_shards_make(const ShardsMakeCommand& command);
void run_shards_check(const ShardsCheckCommand& command);
void run_shards_order(const ShardsOrderCommand& command);
/// @return kStopped after a signal and a whole shard
ExitCode run_shards_encode(const ShardsEncodeCommand& command);
/// @return as run_shards_encode()
ExitCode run_shards_embed(const ShardsEmbedCommand& command);
void run_report(const ReportCommand& command);
/// Sends what waits in the outbox of a run. @return kNetwork if something could not be sent
ExitCode run_sync(const std::string& data_path);

/// "0.1.0 (LibTorch 2.11.0)" and what it is made of.
/// @param device the name of the one that is asked for: for "cpu" LibTorch's CUDA half is not looked
/// for, which loads it
std::string program_version_text(const std::string& device = "");

}  // namespace dalle2
