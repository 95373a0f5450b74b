// SPDX-License-Identifier: MIT
// `init`: a first config that fits the data.
#include "run/init/first_config.h"

#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/timer.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "config/kinds.h"
#include "data/embeddings/embeddings.h"
#include "data/loader/drop_log.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/walk_folder.h"
#include "run/device/device.h"
#include "run/kinds.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardsLookedAt = 3,
                  kPicturesLookedAt = 100;  // of a folder, if it has that many
constexpr size_t kTenth = 10;
constexpr int64_t kSplits = 3;

/// "shards/set_000012.tar" -> the digits at the end of its stem.
std::string number_in_name(const fs::path& shard) {
  const std::string stem = shard.stem().string();
  const size_t last_other = stem.find_last_not_of("0123456789");
  return stem.substr(last_other == std::string::npos ? 0 : last_other + 1);
}

/// A path as the beginning of a url, in which a brace is written twice.
std::string as_url_text(const std::string& path) {
  std::string text;
  for (const char c : path) {
    text += c;
    if (c == '{' || c == '}') text += c;
  }
  return text;
}

/// Fills in the keys and how many shards the splits are cut from.
void read_names(const std::vector<std::string>& shards, ShardSurvey& survey) {
  const fs::path front = shards.front();
  const std::string digits = number_in_name(front);
  const std::string stem = front.stem().string();
  const std::string prefix = stem.substr(0, stem.size() - digits.size());
  for (const std::string& shard : shards) {
    const fs::path path = shard;
    const std::string own = number_in_name(path);
    if (own.empty() || own.size() != digits.size() || path.stem().string() != prefix + own) {
      throw ConfigError(
          "{} and {} are not numbered in the same way: expected names such as 000000.tar, "
          "000001.tar\n  Rename them, or write the config by hand: \"webdataset_base_url\" may be "
          "a list.",
          shards.front(),
          shard);
    }
  }
  const int64_t first = std::stoll(digits), last = std::stoll(number_in_name(shards.back()));
  survey.width = static_cast<int64_t>(digits.size());
  survey.dealt = last - first + 1;
  survey.keys = fmt::format(
      R"(    "webdataset_base_url": {},   // {{}} is the number of the shard
    "start_shard": {},
    "end_shard": {},
    "shard_width": {},
)",
      json_text(as_url_text((front.parent_path() / prefix).string()) + "{}.tar"),
      first,
      last,
      survey.width);
}

/// The urls of the shards in a folder, or of its pictures as shards.
std::vector<std::string> shards_of(const std::string& folder, ShardSurvey& survey) {
  if (holds_files(folder, {".tar"}, /*below=*/false)) {
    std::vector<std::string> shards = shards_in_folder(folder);
    read_names(shards, survey);
    return shards;
  }
  survey.listing = PictureShards::of(folder);
  survey.dealt = survey.listing->size();
  survey.pictures = survey.listing->pictures();
  survey.keys = fmt::format("    \"folder\": {},   // pictures and same-named .txt captions\n",
                            json_text(folder));
  return survey.listing->urls();
}

/// Of the image embeddings beside the pictures, if all usable pictures have one; else 0.
int64_t width_in_shards(const ShardSurvey& survey) {
  try {
    const auto first = open_shard(survey.urls.front(), {}, {}, survey.caption_encoding)->next();
    if (!first || first->find({"img_emb.npy"}) == nullptr) return 0;
  } catch (const DataError&) {  // a damaged shard
    return 0;
  }
  const CheckReport report = check_shards({.urls = survey.urls,
                                           .embeddings_in_tar = true,
                                           .caption_encoding = survey.caption_encoding});
  if (report.usable < survey.usable || report.image_row_shape.empty()) return 0;
  return report.image_row_shape.back();
}

/// Stored embeddings hold for pictures that are read as `shards embed` read them, so a run has to read them so.
std::string reading_of_survey(const ShardSurvey& survey) {
  if (survey.embed_width == 0) return reading_text(survey.tally);
  const Json made_with =
      read_manifest((fs::path(survey.urls.front()).parent_path() / kEmbeddingsManifest).string());
  std::string text;
  for (const char* key : kReadingKeys) {
    const Json value = made_with.value(key, Json());
    if (!value.is_null() && value != false)
      text += fmt::format("    \"{}\": {},\n", key, value.dump());
  }
  return text;
}

/// Of the section `data`: how pictures are read. Lines of JSON, each with a comma at its end.
std::string picture_text(const ShardSurvey& survey, const FirstRecipe& recipe) {
  std::string text = reading_of_survey(survey);
  if (survey.caption_encoding != CaptionReadConfig().caption_encoding)
    text += fmt::format("    \"caption_encoding\": {},\n", json_text(survey.caption_encoding));
  if (2 * survey.several_lines > survey.with_caption) {
    text += "    \"caption_lines\": \"first\",     // \"all\" keeps the other lines too\n";
  }
  constexpr int64_t kScales = 8;
  const int64_t most_have = survey.short_sides.at(survey.short_sides.size() / kTenth);
  if (most_have >= kScales * recipe.side) {
    text +=
        "    \"fast_jpeg\": true,            // large pictures, decoded at a part of their size\n";
  }
  return text;
}

/// RandomResizedCrop to a square, as JSON. @param least as shards_text() takes it
std::string crop_text(const ShardSurvey& survey, int64_t side, double least) {
  constexpr double kHundred = 100, kLeast = 0.01;
  const auto tenth = static_cast<std::ptrdiff_t>(survey.shapes.size() / kTenth);
  // Pictures that are much longer than most give their centre.
  const double middle = survey.shapes.at(survey.shapes.size() / 2);
  const double low = std::floor(kHundred * least * middle) / kHundred;
  return fmt::format(
      R"("RandomResizedCrop": {{"size": [{0}, {0}], "scale": [{1:g}, {2:g}], "ratio": [1.0, 1.0], "interpolation": "bicubic"}})",
      side,
      std::max(low, kLeast),
      std::max(survey.shapes.rbegin()[tenth], kLeast));
}

/// Shares of train, val and test as JSON, so that each of the processes has a shard of each.
std::string splits_text(const ShardSurvey& survey, int64_t processes) {
  const int64_t each = survey.dealt / processes;
  if (each < kSplits) {
    const bool has_shards = survey.pictures == 0;
    throw ConfigError(
        "{} for {}: each process needs one for training, one for validation and one for the test, "
        "{} in all{}",
        has_shards ? counted(survey.dealt, "shard is too few", "shards are too few")
                   : counted(survey.pictures, "picture is too few", "pictures are too few"),
        counted(processes, "process", "processes"),
        kSplits * processes,
        has_shards ? "\n  Make more and smaller ones: `dalle2-train shards make --per-shard N`."
                   : "");
  }
  const SplitConfig splits = first_splits(each);
  return fmt::format(
      R"({{"train": {:g}, "val": {:g}, "test": {:g}}})", splits.train, splits.val, splits.test);
}

/// "cuda:0" if there is a usable GPU, else "cpu".
std::string first_device() {
  cuda_fault();  // before torch is asked
  return torch::cuda::is_available() ? "cuda:0" : "cpu";
}

/// What differs between the kinds; of two numbers, the second is for a GPU. They are near those of
/// the measured configs (stamps.json, text_clip.json, text_prior.json, stamps_vae.json).
struct KindRow {
  int64_t worth;  ///< updates for 100 samples or fewer; others by the square root
  int64_t most_updates[2], batch_size[2];
  int64_t batches_of_pass;  ///< a smaller set gets a smaller batch
  int64_t dim[2];
  double lr[2];
};

constexpr KindRow kRows[] = {  // in the order of FirstKind
    {3'600, {10'000, 100'000}, {16, 64}, 1, {16, 64}, {1e-3, 3e-4}},
    {400, {10'000, 100'000}, {128, 1024}, 4, {0, 0}, {5e-4, 2e-4}},
    {1'500, {5'000, 100'000}, {16, 32}, 1, {32, 64}, {1e-3, 3e-4}},
    {150, {2'000, 50'000}, {128, 512}, 8, {0, 0}, {1e-3, 5e-4}}};

/// A power of two from 16 up, which nearly all pictures have, if 16 will do.
int64_t first_side(const RecipeInput& input) {
  if (input.image_size) return *input.image_size;
  constexpr int64_t kSmallest = 16, kOnCpu = 32, kOnGpu = 64;
  int64_t side = kSmallest;
  while (side < (input.gpu ? kOnGpu : kOnCpu) && 2 * side <= input.short_side) side *= 2;
  return side;
}

/// The updates become those that the epochs really have.
void set_epochs(FirstRecipe& recipe) {
  const FirstKind kind = recipe.input.kind;
  const int64_t of_update = recipe.batch_size * recipe.input.processes;
  const int64_t of_pass = (recipe.input.samples + of_update - 1) / of_update;
  const int64_t epochs = recipe.input.epochs;
  int64_t of_epoch =
      recipe.updates < epochs ? recipe.updates : (recipe.updates + epochs - 1) / epochs;
  // A batch of a CLIP must not hold a pair twice, as one of samples drawn without end may.
  recipe.resample = kind == FirstKind::kDecoder && of_epoch > of_pass;
  const bool may_end_early = kind == FirstKind::kDecoder || kind == FirstKind::kClip;
  if (recipe.resample || (may_end_early && of_epoch < of_pass)) {
    recipe.epoch_samples = of_epoch * of_update;
  } else {
    of_epoch = of_pass;
  }
  recipe.epochs = (recipe.updates + of_epoch - 1) / of_epoch;
  if (kind != FirstKind::kVae) recipe.updates = recipe.epochs * of_epoch;
}

/// Of the section `train`: length, learning rate, average. Lines of JSON that end in commas.
std::string train_text(const FirstRecipe& recipe) {
  const FirstKind kind = recipe.input.kind;
  std::string text = kind == FirstKind::kVae
                         ? fmt::format("    \"num_train_steps\": {},\n", recipe.updates)
                         : fmt::format("    \"epochs\": {},\n", recipe.epochs);
  if (recipe.epoch_samples)
    text += fmt::format("    \"epoch_samples\": {},\n", *recipe.epoch_samples);
  if (kind == FirstKind::kDecoder || kind == FirstKind::kClip)
    text += "    \"validation_samples\": 1024,      // at most\n";
  text += fmt::format(
      "    \"lr\": {},\n    \"warmup_steps\": {},\n    \"cosine_decay_max_steps\": {},   // all updates of the run\n",
      recipe.lr,
      recipe.warmup_steps,
      recipe.updates);
  if (kind == FirstKind::kClip) return text;
  return text +
         fmt::format(
             "    \"ema_beta\": {}, \"ema_inv_gamma\": {}, \"ema_power\": 2, \"ema_update_after_step\": 0, \"ema_update_every\": 1,\n",
             recipe.ema_beta,
             recipe.ema_inv_gamma);
}

/// The kind that a folder's files are for, if none is asked for.
std::string kind_of_data(const std::string& data) {
  if (!is_folder(data)) {
    throw ConfigError(
        "DATA {}: expected a folder of shards, embeddings or pictures, relative to {}",
        data,
        std::filesystem::current_path().string());
  }
  if (holds_files(data, {".tar"}, /*below=*/false)) return "decoder";
  if (holds_files(data, kPictureEndings, /*below=*/true)) return "decoder";
  if (holds_files(data, {".npy"}, /*below=*/true)) return "prior";
  throw DataError(
      "{}: found no shard (.tar), embedding (.npy) or picture (.jpg, .png, .webp) in the folder\n  "
      "`dalle2-train shards make --from PICTURES --out {}` makes shards.",
      data,
      data);
}

/// The command with the updates and epochs that fit into its minutes, by a run of an epoch in a folder of its own.
InitCommand fitted(const RunKind& kind, const InitCommand& asked) {
  constexpr int64_t kUpdates = 6, kTimed = 3;  // the first ones are slow
  InitCommand command = asked;
  command.updates = kUpdates;
  command.processes = 1;
  const FirstConfig first = kind.first_config(command);
  const fs::path folder = command.out_path + ".trial", config = folder / "trial.json";
  if (!fs::create_directory(folder)) {
    throw ConfigError(
        "{}: exists\n  Remove what an earlier trial has left there, or choose another --out.",
        printable(folder.string()));
  }
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  });
  write_file_atomically(config.string(), first.text);
  const std::string run = (folder / "run").string();
  const TrainCommand trial{
      .config_path = config.string(),
      .overrides = {"/tracker/data_path=" + json_text(run),
                    "/tracker/load=null",
                    R"(/tracker/save={"save_to": "local", "save_latest_to": )" +
                        json_text(run + "/latest.pth") + "}",
                    "/train/log_every_n_updates=1"},
      .quiet = true};
  const Timer whole;
  if (run_train(trial) == ExitCode::kStopped) throw_stopped();
  const double trial_seconds = whole.seconds();
  std::vector<double> rates;  // samples per second
  std::ifstream log(folder / "run" / "log.jsonl");
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    for (const char* key : {"Samples per second", "samples_per_second", "tracking/samples-sec"})
      if (record.contains(key)) rates.push_back(record[key].get<double>());
  }
  if (std::ssize(rates) < kTimed)
    throw DataError("{}: too few samples to time an update", command.data);
  std::sort(rates.end() - kTimed, rates.end());
  const double rate =
      *(rates.end() - (kTimed + 1) / 2) / static_cast<double>(first.recipe.batch_size);
  constexpr double kBetween = 0.2;  // of the time, at most, for validation, pictures and saves
  const double seconds = 60 * *asked.minutes;
  const auto updates = static_cast<double>(first.recipe.updates);
  const double between = std::max(trial_seconds - updates / rate, 1e-3);
  command = asked;
  command.epochs = std::clamp<int64_t>(std::llround(kBetween * seconds / between), 1, asked.epochs);
  const double training = seconds - static_cast<double>(command.epochs) * between;
  command.updates = std::max(std::llround(training * rate), 1LL);
  return command;
}

}  // namespace

ShardSurvey survey_shards(const InitCommand& command) {
  const std::string& folder = command.data;
  ShardSurvey survey;
  survey.caption_encoding = command.caption_encoding;
  const std::vector<std::string> shards = shards_of(folder, survey);
  survey.count = static_cast<int64_t>(shards.size());
  int64_t wanted = kShardsLookedAt;
  if (survey.pictures > 0) {  // a folder of few pictures has one in each of its shards
    const int64_t in_shard = (survey.pictures + survey.dealt - 1) / survey.dealt;
    wanted = std::max(wanted, (kPicturesLookedAt + in_shard - 1) / in_shard);
  }
  constexpr uintmax_t kSmallSet = 256 << 20;  // bytes; it is looked at whole, to compare its splits
  uintmax_t bytes = 0;
  for (const std::string& shard : shards) {
    std::error_code ignored;
    if (survey.pictures == 0) bytes += fs::file_size(shard, ignored);
  }
  if (survey.pictures == 0 && bytes <= kSmallSet) wanted = survey.count;
  survey.looked_at = std::min(survey.count, wanted);
  survey.urls.assign(shards.begin(), shards.begin() + survey.looked_at);
  const CheckReport report =
      check_shards({.urls = survey.urls, .caption_encoding = command.caption_encoding});
  survey.samples = report.samples;
  survey.usable = report.usable;
  if (survey.looked_at == survey.count) survey.differences = report.split_differences;
  if (survey.usable == 0) {
    throw DataError("{}: no usable picture in the first {}{}",
                    folder,
                    survey.pictures > 0 ? counted(survey.samples, "picture")
                                        : counted(survey.looked_at, "shard"),
                    report.drops.empty() ? "" : ": " + report.drops.examples().front());
  }
  survey.with_caption = report.usable - report.no_caption;
  survey.several_lines = report.captions.count(drop::kSeveralLines);
  survey.tally = report.pictures;
  survey.faults = report.drops.examples();
  for (const auto& [reason, one, many] :
       {std::array{drop::kBadCaption, "caption has no text", "captions have no text"},
        std::array{drop::kUnreadCaption, "caption cannot be read", "captions cannot be read"}}) {
    if (const int64_t count = report.captions.count(reason); count > 0)
      survey.bad_captions.push_back(counted(count, one, many) + ": " +
                                    report.captions.first(reason));
  }
  for (const ShardCheck& shard : report.shards) {
    survey.of_shards.push_back({shard.usable, shard.usable - shard.no_caption});
    for (const auto& [side, pictures] : shard.short_sides)
      survey.short_sides.insert(survey.short_sides.end(), static_cast<size_t>(pictures), side);
    for (const auto& [percent, pictures] : shard.shapes) {
      constexpr double kWhole = 100;
      survey.shapes.insert(survey.shapes.end(),
                           static_cast<size_t>(pictures),
                           static_cast<double>(percent) / kWhole);
    }
  }
  std::ranges::sort(survey.short_sides);
  std::ranges::sort(survey.shapes);
  survey.embed_width = width_in_shards(survey);
  return survey;
}

std::vector<std::string> describe(const PictureTally& tally, std::string keys) {
  std::vector<std::string> lines = tally.describe();
  if (keys.empty()) return lines;
  for (size_t at = 0; (at = keys.find(",\n    ")) != std::string::npos;) keys.replace(at, 6, ", ");
  lines.push_back("the written config reads these pictures so:" + keys.substr(3, keys.size() - 5));
  return lines;
}

std::vector<std::string> describe(const ShardSurvey& survey) {
  const std::string all =
      survey.pictures > 0 ? counted(survey.pictures, "picture") : counted(survey.count, "shard");
  std::vector<std::string> lines = {
      fmt::format("{}; {} looked at: {} usable, {} with a caption; shortest side {} px",
                  all,
                  counted(survey.samples, "picture"),
                  with_commas(survey.usable),
                  with_commas(survey.with_caption),
                  survey.short_sides.front())};
  if (survey.usable < survey.samples && !survey.faults.empty())
    lines.push_back("not usable, or not in all:" + indented_list(survey.faults));
  for (std::string& line : describe(survey.tally, reading_of_survey(survey)))
    lines.push_back(std::move(line));
  if (survey.several_lines > 0) {
    lines.push_back(counted(survey.several_lines, "caption has", "captions have") +
                    " several lines: data.caption_lines \"first\" takes the first");
  }
  lines.insert(lines.end(), survey.bad_captions.begin(), survey.bad_captions.end());
  lines.insert(lines.end(), survey.differences.begin(), survey.differences.end());
  return lines;
}

bool holds_files(const std::string& folder, const std::vector<std::string>& endings, bool below) {
  bool found = false;
  walk_data(folder, below ? Below::kReadable : Below::kNothing, [&](const auto& entry) {
    const std::string ending = lower_extension(entry.path());
    found = found || std::ranges::find(endings, ending) != endings.end();
  });
  return found;
}

std::string find_embeddings(const std::string& folder, const std::vector<std::string>& names) {
  const fs::path here = fs::path(folder) / "";  // so that its parent is not above it
  for (const fs::path& place : {here.parent_path(), here.parent_path().parent_path()}) {
    for (const std::string& name : names) {
      const std::string candidate = (place / name).string();
      if (is_folder(candidate) && holds_files(candidate, {".npy"}, false)) return candidate;
    }
  }
  return "";
}

std::string channels_text(const PictureTally& tally) {
  return tally.pictures > 0 && tally.grey == tally.pictures
             ? "    \"channels\": 1,                // all pictures are grey; 3 for colours\n"
             : "";
}

std::string reading_text(const PictureTally& tally) {
  std::string text;
  if (tally.transparent > 0) text += "    \"ground\": \"white\",\n";
  if (tally.rotated > 0) text += "    \"apply_exif\": true,\n";
  if (tally.needs_range()) {  // other pictures may be brighter: up to the bits that are in use
    const auto bits = std::bit_ceil(static_cast<unsigned>(tally.grey_largest) + 1);
    text += fmt::format("    \"range\": {},\n", bits - 1);
  }
  return text;
}

std::vector<std::string> of_smaller_pictures(const ShardSurvey& survey, int64_t side) {
  const auto begin = survey.short_sides.begin(), end = survey.short_sides.end();
  const int64_t smaller = std::lower_bound(begin, end, side) - begin;
  if (smaller == 0) return {};
  return {fmt::format(
      "{} of {} {} smaller than the run's {} px: the run enlarges {}. Remove {}, or choose another "
      "size with --image-size",
      with_commas(smaller),
      counted(std::ssize(survey.short_sides), "picture"),
      smaller == 1 ? "is" : "are",
      side,
      smaller == 1 ? "it" : "them",
      smaller == 1 ? "it" : "them")};
}

std::string json_text(const std::string& text) {
  return nlohmann::json(as_utf8(text)).dump();
}

FirstRecipe first_recipe(FirstKind kind, const InitCommand& command, const ShardSurvey& survey) {
  const int64_t all = survey.pictures > 0
                          ? survey.pictures
                          : survey.samples * survey.count / std::max<int64_t>(survey.looked_at, 1);
  const int64_t of_samples = kind == FirstKind::kClip ? survey.with_caption : survey.usable;
  const double usable = static_cast<double>(of_samples) / static_cast<double>(survey.samples);
  const SplitConfig splits =
      first_splits(std::max<int64_t>(survey.dealt / command.processes, kSplits));
  int64_t samples = std::lround(static_cast<double>(all) * usable * splits.train);
  const auto split = split_positions(splits, survey.dealt, /*seed=*/0);
  if (split && std::ssize(survey.of_shards) == survey.dealt && command.processes == 1) {
    samples = 0;  // shards need not be equal
    for (const uint32_t shard : split->train)
      samples += survey.of_shards[shard][kind == FirstKind::kClip ? 1 : 0];
  }
  return first_recipe(
      kind, command, samples, survey.short_sides.at(survey.short_sides.size() / kTenth));
}

FirstRecipe first_recipe(FirstKind kind,
                         const InitCommand& command,
                         int64_t samples,
                         int64_t short_side) {
  return recipe_for({.kind = kind,
                     .samples = std::max<int64_t>(samples, 1),
                     .short_side = short_side,
                     .gpu = first_device() != "cpu",
                     .processes = command.processes,
                     .image_size = command.image_size,
                     .updates = command.updates,
                     .epochs = command.epochs});
}

std::string shards_text(const InitCommand& command,
                        const ShardSurvey& survey,
                        const FirstRecipe& recipe,
                        double least,
                        const std::string& more) {
  return survey.keys + more + picture_text(survey, recipe) + batch_text(recipe) +
         fmt::format(R"(    "splits": {},                   // shares of the shards
    "preprocessing": {{               // torchvision's transforms, in this order
      {},
      // "RandomHorizontalFlip": true,   // doubles the pictures; not for letters, clocks, left and right hands
      "ToTensor": true
    }}
)",
                     splits_text(survey, command.processes),
                     crop_text(survey, recipe.side, least));
}

std::string first_file(const InitCommand& command,
                       const FirstRecipe& recipe,
                       const std::string& model,
                       const std::string& data,
                       const std::string& train) {
  const FirstKind kind = recipe.input.kind;
  constexpr const char* kKinds[] = {"decoder", "prior", "vae", "clip"};  // as FirstKind
  const fs::path folder = fs::path("runs") / fs::path(command.out_path).stem();
  const std::string latest = json_text((folder / "latest.pth").string());
  // The loss of a CLIP that is sure of its few pairs rises, while it finds more of the others.
  const std::string best =
      kind == FirstKind::kVae || kind == FirstKind::kClip
          ? ""
          : R"(, "save_best_to": )" + json_text((folder / "best.pth").string());
  return fmt::format(R"({{
  "{}": {{
{}  }},
  "data": {{
{}  }},
  "train": {{
{}{}    "device": "{}"
  }},
{}  "tracker": {{
    "data_path": {},               // log, checkpoint.pth, model.pth, pictures
    "log": {{"log_type": "console", "auto_resume": true}},   // the same command resumes after a stop
    "save": {{"save_to": "local", "save_latest_to": {}{}}}
  }},
  "seed": 0
}}
)",
                     kKinds[static_cast<size_t>(kind)],
                     model,
                     data,
                     train_text(recipe),
                     train,
                     first_device(),
                     kind == FirstKind::kDecoder ? "  \"evaluate\": {},\n" : "",
                     json_text(folder.string()),
                     latest,
                     best);
}

FirstRecipe recipe_for(const RecipeInput& input) {
  const KindRow& row = kRows[static_cast<size_t>(input.kind)];
  const int device = input.gpu ? 1 : 0;
  FirstRecipe recipe{
      .input = input, .side = first_side(input), .dim = row.dim[device], .lr = row.lr[device]};
  recipe.input.samples = std::max<int64_t>(input.samples, 1);
  constexpr int64_t kLeastBatch = 16;
  const int64_t of_batch = input.samples / input.processes / row.batches_of_pass;
  const auto fits = std::bit_floor(static_cast<uint64_t>(std::max(of_batch, kLeastBatch)));
  recipe.batch_size = std::min(row.batch_size[device], static_cast<int64_t>(fits));
  constexpr double kHundred = 100;  // both of samples, and what updates are rounded to
  const double root = std::sqrt(static_cast<double>(input.samples) / kHundred);
  const double worth = static_cast<double>(row.worth) * std::max(root, 1.0);
  recipe.wanted_updates = static_cast<int64_t>(std::ceil(worth / kHundred) * kHundred);
  recipe.updates =
      input.updates.value_or(std::min(recipe.wanted_updates, row.most_updates[device]));
  constexpr int64_t kCostOfWidth = 4;  // of an update of twice the width, at most
  if (recipe.dim > 0 && recipe.updates >= kCostOfWidth * recipe.wanted_updates) {
    recipe.dim *= 2;
    recipe.updates /= kCostOfWidth;
  }
  set_epochs(recipe);
  constexpr int64_t kTwentieth = 20, kMostWarmup = 1000;
  recipe.warmup_steps = std::clamp<int64_t>(recipe.updates / kTwentieth, 1, kMostWarmup);
  // The average reaches over the last tenth of the run. With this divisor and the exponent 2 it reaches over 9 updates at the
  // end of the warm-up, where the loss falls fastest, and over more with the square of the updates.
  constexpr double kParts = 10, kDigits = 1e4;
  const double beta = 1 - kParts / static_cast<double>(recipe.updates);
  recipe.ema_beta = std::clamp(std::round(beta * kDigits) / kDigits, 0.9, 0.9999);
  constexpr int64_t kFortieth = 40;
  recipe.ema_inv_gamma = std::max<int64_t>(recipe.updates / kFortieth, 1);
  return recipe;
}

std::string batch_text(const FirstRecipe& recipe) {
  std::string text = fmt::format("    \"batch_size\": {},\n", recipe.batch_size);
  constexpr int64_t kBuffer = 200;  // encoded pictures in memory
  if (recipe.resample) {
    text += fmt::format(
        "    \"shuffle_train\": false, \"resample_train\": true, \"shuffle_buffer\": {},\n",
        std::min(recipe.input.samples, kBuffer));
  }
  return text;
}

std::vector<std::string> describe(const FirstRecipe& recipe) {
  const int64_t samples = recipe.input.samples;
  const int64_t of_update = recipe.batch_size * recipe.input.processes;
  const double passes =
      static_cast<double>(recipe.updates * of_update) / static_cast<double>(samples);
  std::vector<std::string> lines = {fmt::format("{} of {}: each of {} for training about {} times",
                                                counted(recipe.updates, "update"),
                                                counted(of_update, "sample"),
                                                with_commas(samples),
                                                short_number(passes, /*digits=*/2))};
  constexpr int64_t kFew = 200, kNoise = 2'000;
  if (samples < kFew)
    lines.push_back(
        "so few samples are learned by heart: for new results, add some hundreds of the same kind");
  if (recipe.updates < recipe.wanted_updates) {
    const bool is_noise = recipe.input.kind == FirstKind::kDecoder && recipe.updates < kNoise;
    lines.push_back(fmt::format(
        "{} updates would be better{}: raise /train/{} and /train/cosine_decay_max_steps, or give more --minutes",
        with_commas(recipe.wanted_updates),
        is_noise ? ", so few give noise" : "",
        recipe.input.kind == FirstKind::kVae ? "num_train_steps" : "epochs"));
  }
  return lines;
}

void run_init(const InitCommand& asked) {
  InitCommand command = asked;
  const std::string key = command.kind.value_or(kind_of_data(command.data));
  const RunKind& kind = run_kind_of(key);
  if (!kind.first_config) throw ConfigError("--kind {}: `init` knows no first config of it", key);
  if (command.out_path.empty()) command.out_path = key + ".json";
  constexpr int64_t kSideUnit = 8;  // what every first network can halve, or cut into patches
  if (command.image_size && *command.image_size % kSideUnit != 0) {
    throw ConfigError(
        "--image-size: expected a multiple of {}, got {}", kSideUnit, *command.image_size);
  }
  if (std::filesystem::path(command.out_path).extension() != ".json") {
    throw ConfigError(
        "--out: expected the name of a config, such as {}.json, got {}", key, command.out_path);
  }
  check_out_file("--out", command.out_path, command.overwrite);
  if (command.minutes) command = fitted(kind, command);
  const FirstConfig first = kind.first_config(command);
  config_kind_of(key).fill_in(first.text, command.out_path, {});  // throws if it is wrong
  write_file_atomically(command.out_path, first.text);
  for (const std::string& line : first.found) std::printf("found: %s\n", line.c_str());
  for (const std::string& line : describe(first.recipe)) std::printf("the run: %s\n", line.c_str());
  const std::string processes =
      command.processes > 1 ? fmt::format(" --nproc-per-node {}", command.processes) : "";
  std::printf(
      "written: %s, a first config of a %s\n"
      "next: dalle2-train --config %s%s --dry-run    # sizes, steps, memory; writes nothing\n"
      "      dalle2-train --config %s%s              # trains\n",
      command.out_path.c_str(),
      key.c_str(),
      command.out_path.c_str(),
      processes.c_str(),
      command.out_path.c_str(),
      processes.c_str());
}

}  // namespace dalle2
