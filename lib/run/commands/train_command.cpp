// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <torch/version.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <variant>

#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_evaluate_config.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "data/shards/shards.h"
#include "dist/process_group.h"
#include "io/files/folder_names.h"
#include "io/library_versions.h"
#include "io/streams/url_source.h"
#include "io/text/clip_vocabulary.h"
#include "metrics/image_metrics.h"
#include "net/http_transfer.h"
#include "net/hub/hub_api.h"
#include "net/wandb_api.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/commands/several_processes.h"
#include "run/device/compute_threads.h"
#include "run/device/device.h"
#include "run/kinds.h"
#include "tracker/places/remote_file.h"
#include "tracker/places/uploads.h"

namespace dalle2 {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;  // "Clang 14.0.6"
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

/// What names files and folders, here or at a url.
constexpr std::array kPlaces = {"/data/folder",
                                "/data/img_embeddings_url",
                                "/data/text_embeddings_url",
                                "/data/image_url",
                                "/data/text_url",
                                "/data/text_encodings_url",
                                "/data/meta_url"};

/// Whether a shell knows the program that a "pipe:" begins with. The command itself does not run.
bool is_known_command(const std::string& url) {
  const std::string command = url.substr(url.find(':') + 1);
  const std::string name = command.substr(0, command.find(' '));
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  if (name.empty() || name.find_first_not_of(kPlain) != name.npos) return true;
  return std::system(("command -v -- " + name + " >/dev/null 2>&1").c_str()) == 0;
}

struct Search {
  bool asks_hosts;
  const Faults& known;
  std::vector<Fault> found = {};

  void add(const std::string& pointer, const std::string& text) {
    if (!known.has_error_under(pointer)) found.push_back({pointer, text});
  }

  /// What a check throws, under `pointer`, which the check may have named already.
  template <class Check>
  void attempt(const std::string& pointer, const Check& check) {
    try {
      check();
    } catch (const Error& error) {
      const std::string text = error.what();
      add(pointer, text.starts_with(pointer) ? text.substr(text.find(": ") + 2) : text);
    }
  }

  /// A file or folder here, a command, or a url of which anything has to answer.
  void place(const std::string& pointer,
             std::string url,
             const char* advice = "Name one that exists, relative to the working directory.") {
    if (url.empty() || url.find('{') != url.npos) return;
    if (url.starts_with("pipe:")) {
      if (is_known_command(url)) return;
      return add(pointer,
                 fmt::format("no such program: {}\n  Install it, or name the data as files or by "
                             "s3://, https:// or hf://.",
                             public_url(url)));
    }
    if (is_local_url(url)) {
      if (path_exists(local_path(url))) return;
      return add(
          pointer,
          fmt::format("there is no file or folder '{}'\n  {}", printable(local_path(url)), advice));
    }
    while (url.ends_with('/')) url.pop_back();
    try {
      const std::optional<HttpGet> request = asks_hosts ? remote_request(url) : std::nullopt;
      HttpOptions once;
      once.attempts = 1;
      char byte = 0;
      if (request) HttpStream(*request, once).read(&byte, 1);
    } catch (const HttpStatusError&) {  // of a folder, or of one shard among many
    } catch (const NetworkError& error) {
      add(pointer, error.what());
    } catch (const Error&) {  // no url of a file: whoever lists the place says more
    }
  }

  void shards(const ShardDataConfig& data) {
    constexpr const char* kKey = "/data/webdataset_base_url";
    if (data.folder) return;  // one of kPlaces
    attempt(kKey, [&] {
      const ShardList list(data);
      const std::string first = list.size() > 0 ? list.url(0) : "";
      if (!is_local_url(first)) return place(kKey, first);
      std::vector<uint32_t> all(static_cast<size_t>(list.size()));
      std::iota(all.begin(), all.end(), 0U);
      if (!list.existing(all).empty()) return;
      throw DataError(
          "none of the shards exists: {}\n  {}", list.shown(), list.advice(all, "train"));
    });
  }

  void saver(const std::string& pointer, const SaveConfig& save) {
    attempt(pointer, [&] {
      const auto* hub = std::get_if<HuggingfaceSaveConfig>(&save);
      const bool has_key =
          hub != nullptr ? !find_hub_access(hub->token_path, hub->allow_plain_http).token.empty()
                         : !std::holds_alternative<WandbSaveConfig>(save) ||
                               find_wandb_access().mode == WandbMode::kOnline;
      const auto destination = make_destination(save);
      if (destination == nullptr || (has_key && !asks_hosts)) return;
      try {
        destination->check_access({.attempts = 1, .says_retries = false});
      } catch (const NetworkError& error) {
        if (!may_pass(error)) throw;  // else a run waits for the service
      }
    });
  }
};

/// Adds to the faults of a config what it names outside of itself and is not there: files, folders,
/// programs, keys of services. A single thing is left to the place that needs it, with its exit code.
/// @param asks_hosts services and hosts are asked too, once each
void find_missing(const NamedOutside& named, bool asks_hosts, Faults& faults) {
  Search search{.asks_hosts = asks_hosts, .known = faults};
  const auto at = [&](const char* pointer) {
    const Json::json_pointer place(pointer);
    return named.config.contains(place) ? named.config.at(place) : Json();
  };
  if (named.shards != nullptr) search.shards(*named.shards);
  for (const char* pointer : kPlaces) {
    if (const Json url = at(pointer); url.is_string()) search.place(pointer, url);
  }
  if (const Json path = at("/train/vgg_path");
      path.is_string() && at("/vae/use_vgg_and_gan") == true) {
    search.place("/train/vgg_path",
                 path,
                 "scripts/export_vgg.py makes it from the weights that torchvision publishes.");
  }
  if (named.metrics != nullptr) {
    for (const auto& [pointer, text] : absent_networks(*named.metrics)) search.add(pointer, text);
  }
  if (named.tokenizer != nullptr && !named.tokenizer->train) {
    search.attempt("/clip/tokenizer/path",
                   [&] { find_clip_vocabulary(named.tokenizer->path, "/clip/tokenizer/path"); });
  }
  if (const TrackerConfig* tracker = named.tracker) {
    if (tracker->load) {
      search.attempt("/tracker/load", [&] {
        CheckpointSource(*tracker->load, tracker->data_path, [] { return ""; });
      });
    }
    for (size_t i = 0; i < tracker->save.size(); ++i)
      search.saver(fmt::format("/tracker/save/{}", i), tracker->save[i]);
  }
  if (faults.errors().empty() && search.found.size() < 2) return;
  for (const auto& [pointer, text] : search.found) faults.error(pointer, text);
}

StartOptions start_of(const TrainCommand& command, const LoadedRun& loaded) {
  StartOptions start{
      .fresh = command.fresh, .back_to = command.back_to, .config_path = command.config_path};
  // Of the texts in the section some are no paths: then none lies in the folder of the run.
  const Json data = parse_untrusted_object(loaded.full_json)["data"].flatten();
  for (const Json& value : data)
    if (value.is_string()) start.data.push_back(value.get<std::string>());
  return start;
}

/// A signal before there is anything to save; afterwards the run answers it itself.
ExitCode train(const TrainCommand& command, const LoadedRun& loaded, ProcessGroup& group) {
  check_same_config(group, loaded.full_json, loaded.train->device);
  // Only warnings and errors, until the run tells how it ends.
  if (command.quiet) set_least_log_level(LogLevel::kWarning);
  const auto stopped = [&](int64_t signal) {
    if (command.quiet && group.is_main()) set_least_log_level(LogLevel::kInfo);
    return stopped_before_the_start(signal);
  };
  std::unique_ptr<TrainingRun> run;
  // A signal breaks the opening off on the rank that got it: the others hear of it afterwards.
  int64_t stopped_by = group.most(stop_requested(), "stop before the start");
  if (stopped_by == 0) {
    const ProcessGroup::BusyScope busy(group, "opening the data");
    try {
      run = loaded.make_run(
          {.quiet = command.quiet, .group = &group, .start = start_of(command, loaded)});
      run->open();
    } catch (const StoppedError&) {
      stopped_by = stop_requested();
    }
  }
  stopped_by = group.most(stopped_by, "stop while the data was opened");
  if (stopped_by != 0) return stopped(stopped_by);
  ExitCode code = ExitCode::kDone;
  try {
    code = run->run();
  } catch (const StoppedError&) {
    return stopped(group.heard_stop());
  }
  try {
    check_stdout();
  } catch (const ResourceError& error) {  // the files of the run are what counts
    log_warning(
        "train", "{}: lines of this log are lost, but log.jsonl has the numbers", error.what());
  }
  return code;
}

ExitCode dry_run(const TrainCommand& command, const LoadedRun& loaded) {
  uninstall_stop_signals();  // there is nothing to save
  // LibTorch asks at its first convolution, and never again, whether it has CUDA: load that before any network is tried.
  if (loaded.train->device != "cpu") cuda_fault();
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  World world;
  world.local_size = static_cast<int>(command.processes);
  choose_threads(world, loaded.work);
  loaded.dry_run(command.processes, start_of(command, loaded));
  check_stdout();
  return ExitCode::kDone;
}

/// True also if the variables of the ranks contradict each other: starting the ranks reports that.
bool is_first_rank() {
  try {
    return world_from_environment().is_main();
  } catch (const ConfigError&) {
    return true;
  }
}

}  // namespace

std::string program_version_text(const std::string& device) {
  return fmt::format("dalle2-train {} (LibTorch {})\n  {}\n  {}, {}\n  {}\n  compiled by {}",
                     program_version(),
                     TORCH_VERSION,
                     device == "cpu" ? "CPU" : cuda_text(),
                     base_library_versions(),
                     net_library_versions(),
                     io_library_versions(),
                     kCompiler);
}

ExitCode run_train(const TrainCommand& command) {
  if (command.config_path.empty()) {
    throw ConfigError(
        "no --config: give one, e.g. dalle2-train --config my.json; `dalle2-train init DATA` writes a "
        "first one\n"
        "  or a command: sample, evaluate, inspect, fsck, convert, ema, schema, report, sync, "
        "shards. "
        "`dalle2-train --help` lists all.");
  }
  if (!path_exists(command.config_path)) {
    throw ConfigError("{}: no such file (--config, relative to {})",
                      command.config_path,
                      std::filesystem::current_path().string());
  }
  if (command.dry_run) try_hosts_once();
  ReadOptions options =
      with_checkpoints({.overrides = command.overrides, .strict = command.strict});
  if (!command.dump_config) {
    options.find_missing = [&](NamedOutside named, Faults& faults) {
      if (!is_first_rank()) named.tracker = nullptr;  // the others do not use it
      find_missing(named, /*asks_hosts=*/command.dry_run, faults);
    };
  }
  const RunKind& kind = run_kind_of(config_kind(command.config_path));
  const LoadedRun loaded = kind.load(command.config_path, options);
  if (command.dump_config) {
    print_line("{}", public_config(loaded.full_json));
    check_stdout();
    return ExitCode::kDone;
  }
  if (command.dry_run) return dry_run(command, loaded);
  if (command.processes > 1) return launch(command.processes);
  return as_one_of_several(meeting_of(*loaded.train, loaded.work, loaded.warnings),
                           std::bind_front(train, std::cref(command), std::cref(loaded)));
}

}  // namespace dalle2
