// SPDX-License-Identifier: MIT
// `shards check`, `shards make` and `shards order`: what shards hold, and the training samples of each
// rank in the order in which a run takes them.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/public_url.h"
#include "base/text.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "data/loader/loader.h"
#include "data/shards/pack.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "data/shards/url_patterns.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/decoder/decoder_data.h"
#include "run/init/first_config.h"
#include "run/shards/shard_run.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostShardsToCheck = 10'000'000;

/// Of a url with {}: --first to --last.
std::vector<std::string> numbered_shards(const ShardsCheckCommand& command) {
  const UrlTemplate shards = parse_url_template(command.url, command.shard_width, "SHARDS");
  if (!command.last_shard) {
    std::string there;
    const auto numbers = is_local_url(command.url) ? existing_numbers(shards) : std::nullopt;
    if (numbers && !numbers->empty())
      there = fmt::format("; there are {} to {}", numbers->front(), numbers->back());
    throw ConfigError(
        "SHARDS: \"{}\" has {{}} for a number.\n  Add --last N, the number of the last shard{}.",
        public_url(command.url),
        there);
  }
  const int64_t first = command.first_shard.value_or(0), last = *command.last_shard;
  if (first > last)
    throw ConfigError("--first {} is above --last {}: there is no shard between them", first, last);
  if (last - first >= kMostShardsToCheck) {
    throw ConfigError("--first {} to --last {}: at most {} shards are checked at once",
                      first,
                      last,
                      with_commas(kMostShardsToCheck));
  }
  std::vector<std::string> urls;
  for (int64_t shard = first; shard <= last; ++shard) urls.push_back(shards.with(shard));
  return urls;
}

/// @param listing set for a folder of pictures: holds it listed
std::vector<std::string> shards_to_check(const ShardsCheckCommand& command,
                                         std::shared_ptr<const PictureShards>& listing) {
  const std::string folder = local_path(command.url);
  const bool is_listed = is_folder(folder);
  // Commands have braces of their own.
  const bool is_numbered = count_braces(command.url) > 0 && !command.url.starts_with("pipe:");
  if (!is_listed && (is_numbered || command.last_shard)) return numbered_shards(command);
  if (command.first_shard || command.last_shard) {
    throw ConfigError("{} is only for SHARDS with {{}}, but \"{}\" has none",
                      command.first_shard ? "--first" : "--last",
                      short_shards({command.url}));
  }
  if (!is_listed) return expand_urls(command.url, "SHARDS");
  if (!names_ending(folder, ".tar").empty()) return shards_in_folder(folder);
  listing = PictureShards::of(folder);
  return listing->urls();
}

/// @throws DataError, NetworkError for what speaks against training on the shards as they are
void judge(const CheckReport& report, const std::string& shards) {
  if (report.unreachable) {
    throw NetworkError("{}: some could not be reached (listed above), so the check is incomplete",
                       shards);
  }
  if (report.usable == 0) throw DataError("{}: not one usable sample", shards);
  std::string faults;
  if (const int64_t unusable = report.samples - report.usable; unusable > 0) {
    faults = fmt::format(
        "{} of {} cannot be used", with_commas(unusable), counted(report.samples, "sample"));
  }
  if (report.lost > 0) {
    faults += fmt::format("{}{} of {} absent, damaged or empty",
                          faults.empty() ? "" : ", ",
                          with_commas(report.lost),
                          counted(static_cast<int64_t>(report.shards.size()), "shard"));
  }
  if (!faults.empty()) throw DataError("{}: {} (listed above)", shards, faults);
  if (report.misaligned > 0) {
    throw DataError("{}: {} have the embeddings of other pictures (listed above)",
                    shards,
                    counted(report.misaligned, "sample may", "samples may"));
  }
}

DealOptions deal_options(const ShardsMakeCommand& command) {
  return {.order = command.together   ? FolderOrder::together
                   : command.in_order ? FolderOrder::in_order
                                      : FolderOrder::mixed,
          .seed = command.seed,
          .per_shard = command.per_shard,
          .index_width = command.index_width};
}

PackProgress live_progress(const char* unit) {
  return [unit](int64_t done, int64_t total) {
    log_live(fmt::format("{} of {}", with_commas(done), counted(total, unit)));
  };
}

/// @param next the command that comes after
ExitCode tell(const ShardsMakeCommand& command, const PackReport& report, const char* next) {
  log_live("");
  if (report.stopped) {
    print_line("stopped by a signal; no shard was written");
    return ExitCode::kStopped;
  }
  for (const std::string& line : describe_pack(report)) print_line("{}", line);
  if (report.packed == 0)
    throw DataError(
        "{}: not one usable {}, so no shard was written", command.from_folder, report.unit);
  print_line("next: dalle2-train {} {}", next, command.out_folder);
  return ExitCode::kDone;
}

ExitCode mix(const ShardsMakeCommand& command) {
  if (command.ground || command.need_captions || command.first_line_only) {
    throw ConfigError(
        "--from {}: holds shards, whose samples are mixed as they are; expected no option of pictures "
        "(--ground, --need-captions, --first-line)\n  To change pictures or captions, pack the folder "
        "of pictures again.",
        printable(command.from_folder));
  }
  return tell(command,
              mix_shards(command.from_folder,
                         command.out_folder,
                         deal_options(command),
                         command.overwrite,
                         live_progress("sample")),
              "shards check");
}

using nlohmann::json;

/// The keys of a config that decide what a position means.
constexpr const char* kDeciding[] = {
    "/seed", "/data/shuffle_train", "/data/resample_train", "/data/splits"};

/// What the file does not say of its config is not compared.
void check_same_order(const Cursor& saved, const json& config) {
  const std::optional<Cursor> of_file = saved.find("config");
  const json then = of_file ? json::parse(json_of_value(of_file->value())) : json();
  for (const char* key : kDeciding) {
    const json::json_pointer at(key);
    if (!then.contains(at) || then[at] == config.at(at)) continue;
    throw ConfigError(
        "{}: /config{}: expected {}, the config's {}, got {}: the position belongs to another order of "
        "samples.\n  Give the config that it was saved with (--config, --set).",
        saved.where(),
        key,
        config.at(at).dump(),
        key,
        then[at].dump());
  }
}

/// Reads a position: a file of --save, or a run's checkpoint, whose entries the former has as far as they
/// concern the order. A checkpoint made after the training of its epoch stands for the beginning of
/// the next one.
ShardPosition read_order_position(const std::string& path, const json& config) {
  const Value root = read_checkpoint_outline(path);
  const Cursor saved(root, path);
  if (!root.is_dict() || !saved.has("epoch")) {
    throw DataError(
        "{}: not a position: expected a run's checkpoint, with an entry \"epoch\", or a position "
        "of `shards order --save`. Model files do not say where a run stood",
        path);
  }
  check_kind(saved, TrainDecoderConfig::kKind);
  check_same_order(saved, config);
  ShardPosition position;
  read_position(position, saved);
  if (position.next_task != kTrainTask) {
    position.restart_epoch();
    position.next_task = kTrainTask;
    ++position.epoch;
  }
  log_info("order",
           "{}: epoch {}, {} passed",
           path,
           position.epoch,
           counted(position.loader.row, "sample"));
  return position;
}

/// With the part of the config that decides its meaning.
void write_order_position(const std::string& path, ShardPosition& position, const json& config) {
  Dict own, out;
  for (auto& [key, value] : position_entries(position, own)) out.set(key, std::move(value));
  out.set(kOwnState, std::move(own));
  json kept;
  for (const char* key : kDeciding)
    kept[json::json_pointer(key)] = config.at(json::json_pointer(key));
  out.set("config", value_of_json(kept.dump()));
  write_pth(path, out);
}

struct RankCounts {
  int64_t batches = 0, samples = 0, empty_steps = 0;
};

void print_step(int64_t epoch, int64_t number, const std::vector<Batch>& step) {
  nlohmann::ordered_json line = {{"epoch", epoch}, {"step", number}, {"keys", json::array()}};
  for (const Batch& batch : step) line["keys"].push_back(batch.keys);
  // Keys come from tar files and may be no UTF-8.
  print_line(
      "{}",
      escaped_json(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
  check_stdout();  // an epoch is long
}

void print_table(const std::vector<RankCounts>& ranks, int64_t steps) {
  RankCounts all;
  const auto row = [](const std::string& name, const RankCounts& counts) {
    print_line("{:>6} {:>9} {:>10} {:>12}",
               name,
               with_commas(counts.batches),
               with_commas(counts.samples),
               with_commas(counts.empty_steps));
  };
  print_line("{:>6} {:>9} {:>10} {:>12}", "rank", "batches", "samples", "empty steps");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    row(std::to_string(rank), ranks[rank]);
    all.batches += ranks[rank].batches;
    all.samples += ranks[rank].samples;
    all.empty_steps += ranks[rank].empty_steps;
  }
  row("all", all);
  print_line("{}", counted(steps, "step"));
}

/// The steps of `world` ranks, read by one loader with all lanes: these take turns, and those of rank r are r,
/// r + world, ...
struct Steps {
  int64_t world, epoch;
  ShardLoader loader;
  LoaderPosition position;
  std::optional<Batch> ahead = {};  // of the next step

  /// The batches of the next step, one a rank, without samples for a rank whose lanes are out; none at
  /// the end of the epoch.
  std::optional<std::vector<Batch>> next() {
    std::vector<Batch> step(static_cast<size_t>(world));
    int64_t last = -1;  // lane
    while (last < 0 || (last + 1) % world > 0) {
      if (!ahead) ahead = loader.next();
      if (!ahead) break;
      const int64_t next_lane = ahead->position.next_lane;
      const int64_t lane = (next_lane > 0 ? next_lane : std::ssize(ahead->position.lanes)) - 1;
      if (last >= 0 && (lane <= last || lane / world != last / world)) break;
      last = lane;
      position = ahead->position;
      step[static_cast<size_t>(lane % world)] = *std::exchange(ahead, std::nullopt);
      if (next_lane == 0) break;
    }
    if (last < 0) return std::nullopt;
    for (size_t rank = 0; rank < step.size(); ++rank)
      trace_samples(static_cast<int>(rank), "train", epoch, step[rank]);
    return step;
  }
};

/// Takes the steps asked for, as many as a run would: /train/epoch_samples may end an epoch early.
void take_steps(const ShardsOrderCommand& command,
                const TrainDecoderConfig& config,
                Steps& walk,
                ShardPosition& position) {
  std::vector<RankCounts> ranks(static_cast<size_t>(command.world));
  int64_t steps = 0;
  for (; steps < command.steps.value_or(INT64_MAX); ++steps) {
    const bool is_over = walk.position.row >= config.train.epoch_samples.value_or(INT64_MAX);
    const auto step = is_over ? std::nullopt : walk.next();
    if (!step) {
      log_info("order", "the epoch is over: {}", counted(walk.position.row, "sample"));
      break;
    }
    if (command.print) print_step(position.epoch, steps, *step);
    for (size_t rank = 0; rank < step->size(); ++rank) {
      const int64_t samples = (*step)[rank].size();
      ++(samples > 0 ? ranks[rank].batches : ranks[rank].empty_steps);
      ranks[rank].samples += samples;
    }
  }
  position.loader = walk.position;
  if (!command.print) print_table(ranks, steps);
  if (const DropCounts& dropped = walk.loader.dropped(); !dropped.empty())
    log_info("order", "{}", describe_drops(dropped));
}

}  // namespace

void run_shards_check(const ShardsCheckCommand& command) {
  CheckOptions options;
  std::shared_ptr<const PictureShards> listing;
  options.urls = shards_to_check(command, listing);
  options.img_embeddings_url = command.img_embeddings;
  options.text_embeddings_url = command.text_embeddings;
  options.allow_pipe = command.allow_pipe;
  options.embeddings_in_tar = command.embeddings_in_tar;
  options.shard_width = command.shard_width;
  options.index_width = command.index_width;
  options.caption_encoding = command.caption_encoding;
  const CheckReport report = check_shards(options, live_progress("shard"));
  log_live("");
  for (const std::string& line : describe_check(report)) print_line("{}", line);
  judge(report, short_shards({command.url}));
}

ExitCode run_shards_make(const ShardsMakeCommand& command) {
  const std::vector<std::string> tars = names_ending(command.from_folder, ".tar");
  const bool has_shards =
      std::ranges::any_of(tars, [](const std::string& name) { return !name.starts_with('.'); });
  const bool is_again =
      canonical_folder(command.out_folder) == canonical_folder(command.from_folder);
  if (has_shards && !is_again) {
    if (holds_files(command.from_folder, kPictureEndings, /*below=*/true)) {
      throw ConfigError(
          "--from {}: expected pictures or shards, found both\n  Move the shards ({} ...) to a folder of "
          "their own.",
          printable(command.from_folder),
          printable(tars.front()));
    }
    return mix(command);
  }
  if (is_folder(command.from_folder) &&
      is_in_folder(canonical_folder(command.out_folder), canonical_folder(command.from_folder))) {
    log_warning(
        "data",
        "--out {} is --from {} or inside it: a VAE with that folder as its data.folder reads each picture "
        "twice, from its file and from the shards",
        printable(command.out_folder),
        printable(command.from_folder));
  }
  std::optional<Rgb> ground;
  if (command.ground) ground = rgb_from_text("--ground", *command.ground);
  return tell(
      command,
      pack_folder(command.from_folder,
                  command.out_folder,
                  {.deal = deal_options(command),
                   .ground = ground,
                   .need_captions = command.need_captions,
                   .captions = {.caption_encoding = command.caption_encoding,
                                .caption_lines = command.first_line_only ? CaptionLines::first
                                                                         : CaptionLines::all},
                   .overwrite = command.overwrite},
                  live_progress("picture")),
      "init");
}

void run_shards_order(const ShardsOrderCommand& command) {
  if (command.print) log_to_stderr();
  if (command.save_path) {  // before an epoch is read, not after it
    check_out_file("--save", *command.save_path, command.overwrite);
    const AtomicFile can_be_written(*command.save_path);
  }
  const LoadedDecoderConfig loaded =
      load_decoder_config(command.config_path, {.overrides = command.overrides});
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  const TrainDecoderConfig& config = loaded.config;
  if (config.data.resample_train && !command.steps && !config.train.epoch_samples) {
    throw ConfigError(
        "--steps is missing: an epoch of shards drawn with replacement (/data/resample_train) has no "
        "end.\n  Give --steps N, or set /train/epoch_samples.");
  }
  const json all = json::parse(loaded.full_json);
  ShardPosition position;
  position.epoch = command.epoch.value_or(0);
  if (command.from_path) position = read_order_position(*command.from_path, all);
  const int world = static_cast<int>(command.world);
  ShardData data(
      config.data, config.seed, decoder_needs(config, loaded.plan), at::kCPU, RankInfo{0, world});
  // A run keeps the slices that it began with, see ShardPosition.
  position.slices = position.slices_of_run();
  if (position.slices == 0) position.slices = data.slices_at_begin();
  data.deal(position.slices);
  if (const auto why = data.other_shards(position.loader)) {
    throw ConfigError(
        "{}: the position belongs to other shards: {}\n  Give the config that it was saved with "
        "(/data/webdataset_base_url, /data/start_shard). A run that resumes with other shards "
        "starts the epoch over.",
        command.from_path.value_or(""),
        *why);
  }
  LoaderOptions options = data.options("train", config.data.batch_size, /*in_order=*/false);
  options.lanes = options.lanes.value_or(world);
  options.rank = {};
  log_info("order",
           "epoch {}: {}, {}, batches of {}",
           position.epoch,
           counted(std::ssize(options.urls), "training shard"),
           counted(world, "rank"),
           config.data.batch_size);
  Steps walk{world, position.epoch, {config.data, options}, position.loader};
  walk.loader.start_epoch(position.epoch, position.loader);
  take_steps(command, config, walk, position);
  if (!command.save_path) return;
  write_order_position(*command.save_path, position, all);
  log_info("order", "position saved: {}", *command.save_path);
}

}  // namespace dalle2
