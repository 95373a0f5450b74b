// SPDX-License-Identifier: MIT
#include "run/missing_outside.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <variant>

#include "base/error.h"
#include "base/public_url.h"
#include "base/untrusted_text.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_evaluate_config.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "data/shards/shards.h"
#include "io/streams/url_source.h"
#include "io/text/clip_vocabulary.h"
#include "metrics/image_metrics.h"
#include "net/http_stream.h"
#include "net/hub/hub_api.h"
#include "net/wandb_api.h"
#include "tracker/places/checkpoint_source.h"
#include "tracker/places/destination.h"

namespace dalle2 {
namespace {

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
    std::error_code ignored;
    if (url.empty() || url.find('{') != url.npos) return;
    if (url.starts_with("pipe:")) {
      if (is_known_command(url)) return;
      return add(pointer,
                 fmt::format("no such program: {}\n  Install it, or name the data as files or by "
                             "s3://, https:// or hf://.",
                             public_url(url)));
    }
    if (is_local_url(url)) {
      if (std::filesystem::exists(local_path(url), ignored)) return;
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

}  // namespace

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
        make_checkpoint_source(*tracker->load, tracker->data_path, [] {
          return std::nullopt;
        })->check();
      });
    }
    for (size_t i = 0; i < tracker->save.size(); ++i)
      search.saver(fmt::format("/tracker/save/{}", i), tracker->save[i]);
  }
  if (faults.errors().empty() && search.found.size() < 2) return;
  for (const auto& [pointer, text] : search.found) faults.error(pointer, text);
}

}  // namespace dalle2
