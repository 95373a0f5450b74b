// SPDX-License-Identifier: MIT
// What `init` needs to write a first config of any kind.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/pictures/picture_tally.h"
#include "run/commands.h"

namespace dalle2 {

enum class FirstKind { kDecoder, kPrior, kVae, kClip };

struct RecipeInput {
  FirstKind kind = FirstKind::kDecoder;
  int64_t samples = 0;     ///< for training
  int64_t short_side = 0;  ///< that nearly all pictures have, pixels
  bool gpu = false;
  int64_t processes = 1;
  std::optional<int64_t> image_size = {};  ///< that was asked for
  std::optional<int64_t> updates = {};     ///< that fit into the time asked for
  int64_t epochs = 20;                     ///< so often a run validates, saves and draws
};

struct FirstRecipe {
  RecipeInput input = {};
  int64_t side = 0;        ///< pixels
  int64_t dim = 0;         ///< width of a decoder's or VAE's first level
  int64_t batch_size = 0;  ///< of a process
  int64_t updates = 0;
  int64_t wanted_updates = 0;  ///< that so many samples are worth, however long they take
  int64_t epochs = 0;
  std::optional<int64_t> epoch_samples = {};  ///< where an epoch is not one pass
  bool resample = false;  ///< an epoch is more than one pass: samples are drawn without end
  int64_t warmup_steps = 0;
  double lr = 0, ema_beta = 0;
  int64_t ema_inv_gamma = 1;
};

/// How long a first run trains, and with what: by the number of samples, so that a small set ends with
/// more than noise, and a large one in a bearable time.
FirstRecipe recipe_for(const RecipeInput& input);

/// Of the section `data`: the batch, and how samples are drawn. Lines of JSON that end in commas.
std::string batch_text(const FirstRecipe& recipe);
/// "10,000 updates of 16 samples: each of 640 for training about 250 times", and what to expect.
std::vector<std::string> describe(const FirstRecipe& recipe);

class PictureShards;

/// A first config, and what was found that it was made from.
struct FirstConfig {
  std::string text = {};  ///< JSON with comments
  std::vector<std::string> found = {};
  FirstRecipe recipe = {};
};

// First configs of the kinds for a folder of their data. @throws ConfigError, DataError
FirstConfig decoder_first_config(const InitCommand& command);
FirstConfig prior_first_config(const InitCommand& command);
FirstConfig vae_first_config(const InitCommand& command);
FirstConfig clip_first_config(const InitCommand& command);

/// Shards of a folder, or pictures that are read as shards, and the samples of the first few.
struct ShardSurvey {
  std::string keys = {};               ///< of the section `data`, that name them: lines of JSON
  int64_t width = 6;                   ///< digits of a shard's number
  int64_t dealt = 0;                   ///< shards that the splits are cut from
  int64_t count = 0;                   ///< of these, shards that are there
  int64_t looked_at = 0;               ///< shards whose samples were read
  std::vector<std::string> urls = {};  ///< of these
  int64_t pictures = 0;                ///< of a folder of pictures, all of them; 0: it has shards
  std::shared_ptr<const PictureShards> listing = {};  ///< of that folder, so that it is listed once
  int64_t embed_width = 0;    ///< of image embeddings beside the pictures in the shards; 0: none
  int64_t samples = 0;        ///< in these shards
  int64_t usable = 0;         ///< pictures of them that can be decoded
  int64_t with_caption = 0;   ///< of the samples
  int64_t several_lines = 0;  ///< of these, captions of more than one line
  std::vector<std::array<int64_t, 2>> of_shards = {};  ///< usable, and with a caption, of each
  std::string caption_encoding = {};                   ///< that was asked for
  std::vector<std::string> bad_captions = {};          ///< how many give no text, and why
  std::vector<std::string> differences = {};  ///< of the splits, if all shards were looked at
  std::vector<int64_t> short_sides = {};      ///< of the pictures, pixels, ascending
  PictureTally tally = {};                    ///< transparent, rotated and 16-bit ones
  std::vector<double> shapes = {};            ///< shorter side by longer side of each, ascending
  std::vector<std::string> faults = {};  ///< why the first few are not usable, with their names
};

/// @throws DataError for a folder without shards and pictures, or without a usable one, ConfigError for shards
/// whose names do not end in a number of one width
ShardSurvey survey_shards(const InitCommand& command);
/// "10 shards; 300 pictures looked at: 298 usable, 300 with a caption; shortest side 96 px", and what
/// else a user should know of the pictures.
std::vector<std::string> describe(const ShardSurvey& survey);
/// What is found of pictures, and what the written config says of it. @param keys as of reading_text()
std::vector<std::string> describe(const PictureTally& tally, std::string keys);

/// The names of pictures that are read.
inline const std::vector<std::string> kPictureEndings = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp"};

/// True if a file with one of the endings (".tar") lies in the folder itself, or, if `below`, in one
/// below it.
bool holds_files(const std::string& folder, const std::vector<std::string>& endings, bool below);
/// The first of `names` that is a folder of .npy files in `folder` or beside it; empty if none is.
std::string find_embeddings(const std::string& folder, const std::vector<std::string>& names);

FirstRecipe first_recipe(FirstKind kind, const InitCommand& command, const ShardSurvey& survey);
/// The recipe for this number of training samples.
/// @param short_side that nearly all pictures have, pixels; 0 for none
FirstRecipe first_recipe(FirstKind kind,
                         const InitCommand& command,
                         int64_t samples,
                         int64_t short_side = 0);
/// The section `data` of these shards: lines of JSON. Pictures are cropped to squares that those of these
/// shapes can give.
/// @param more of its lines @param least the smallest part of the largest square, by area
/// @throws ConfigError for fewer than three shards a process
std::string shards_text(const InitCommand& command,
                        const ShardSurvey& survey,
                        const FirstRecipe& recipe,
                        double least,
                        const std::string& more = "");
/// What a run of that side does with smaller pictures; empty if there are none.
std::vector<std::string> of_smaller_pictures(const ShardSurvey& survey, int64_t side);
/// Of a network's section: `channels` for a set that is all grey.
std::string channels_text(const PictureTally& tally);
/// Lines of `data` for what was found of the pictures: ground, apply_exif, range.
std::string reading_text(const PictureTally& tally);

/// A text as JSON, with its quotes.
std::string json_text(const std::string& text);
/// The whole file. @param model, data, train lines of JSON in the kind's sections; those of `train` end
/// in commas
std::string first_file(const InitCommand& command,
                       const FirstRecipe& recipe,
                       const std::string& model,
                       const std::string& data,
                       const std::string& train = "");

}  // namespace dalle2
