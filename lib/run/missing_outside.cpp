// SPDX-License-Identifier: MIT
#include "run/missing_outside.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <variant>

#include "base/error.h"
#include "base/public_url.h"
#include "base/untrusted_text.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_evaluate_config.h"
#include "config/prior/prior_run_config.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "data/shards/shards.h"
#include "io/streams/url_source.h"
#include "io/text/clip_vocabulary.h"
#include "metrics/image_metrics.h"
#include "net/hub/hub_api.h"
#include "net/http_stream.h"
#include "net/wandb_api.h"
#include "tracker/places/checkpoint_source.h"
#include "tracker/places/destination.h"

namespace dalle2 {
namespace {

class Search {
 public:
  Search(bool asks_hosts, const Faults& known) : asks_hosts_(asks_hosts), known_(known) {}

  const std::vector<Fault>& found() const { return found_; }

  void add(const std::string& pointer, const std::string& text) {
    if (!known_.has_error_under(pointer)) found_.push_back({pointer, text});
  }

  /// What a check throws, under `pointer`, which the check may have named already.
  template <class Check>
  void attempt(const std::string& pointer, const Check& check) {
    try {
      check();
    } catch (const NetworkError& error) {
      const bool is_absent = dynamic_cast<const HttpStatusError*>(&error) != nullptr;
      if (!is_absent) add(pointer, error.what());  // a status may be that of one file among many
    } catch (const Error& error) {
      const std::string text = error.what();
      add(pointer, text.starts_with(pointer) ? text.substr(text.find(": ") + 2) : text);
    }
  }

  /// A folder or file, here or behind a url.
  void place(const std::string& pointer,
             const std::string& url,
             const char* advice = "Name one that exists, relative to the working directory.") {
    if (url.empty() || url.find('{') != std::string::npos || url.starts_with("pipe:")) return;
    std::error_code ignored;
    if (!is_local_url(url)) return host(pointer, url);
    if (std::filesystem::exists(local_path(url), ignored)) return;
    add(pointer,
        fmt::format("there is no file or folder '{}'\n  {}", printable(local_path(url)), advice));
  }

  /// Whether anything answers there.
  void host(const std::string& pointer, std::string url) {
    if (!asks_hosts_ || url.starts_with("pipe:")) return;
    while (url.ends_with('/')) url.pop_back();
    std::optional<HttpGet> request;
    try {
      request = remote_request(url);
    } catch (const Error&) {  // not the url of a file: whoever lists the place says more
    }
    if (!request) return;
    attempt(pointer, [&] {
      HttpOptions once;
      once.attempts = 1;
      char byte = 0;
      HttpStream(*request, once).read(&byte, 1);
    });
  }

  bool asks_hosts() const { return asks_hosts_; }

 private:
  bool asks_hosts_;
  const Faults& known_;
  std::vector<Fault> found_;
};

/// Whether a shell knows the program that a "pipe:" begins with. The command itself does not run.
bool is_known_command(const std::string& url) {
  const std::string command = url.substr(url.find(':') + 1);
  const size_t begin = std::min(command.find_first_not_of(' '), command.size());
  const std::string name = command.substr(begin, command.find(' ', begin) - begin);
  const bool is_plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (!is_plain || name.empty()) return true;
  return std::system(("command -v -- " + name + " >/dev/null 2>&1").c_str()) == 0;
}

void look_for_shards(const ShardDataConfig& data, Search& search) {
  if (data.folder) return search.place("/data/folder", *data.folder);
  search.attempt("/data/webdataset_base_url", [&] {
    const ShardList list(data);
    if (list.size() == 0) return;
    const std::string first = list.url(0);
    if (first.starts_with("pipe:") && !is_known_command(first)) {
      throw ConfigError("no such program: {}\n  Install it, or name the shards as files or by "
                        "s3://, https:// or hf://.",
                        public_url(first));
    }
    if (!is_local_url(first)) return search.host("/data/webdataset_base_url", first);
    std::vector<uint32_t> all(static_cast<size_t>(list.size()));
    std::iota(all.begin(), all.end(), 0U);
    if (list.existing(all).empty()) {
      throw DataError("none of the shards exists: {}\n  {}", list.shown(), list.advice(all, "train"));
    }
  });
}

/// Keys of services are looked for; the services themselves are asked if hosts are.
void look_for_services(const TrackerConfig& tracker, Search& search) {
  for (const LogConfig& log : tracker.log.values()) {
    if (std::holds_alternative<WandbLogConfig>(log))
      search.attempt("/tracker/log", [] { find_wandb_access(); });
  }
  if (tracker.load) {
    search.attempt("/tracker/load", [&] {
      make_checkpoint_source(*tracker.load, tracker.data_path, [] { return std::nullopt; })->check();
    });
  }
  for (size_t i = 0; i < tracker.save.size(); ++i) {
    const SaveConfig& save = tracker.save[i];
    search.attempt(fmt::format("/tracker/save/{}", i), [&] {
      const auto* hub = std::get_if<HuggingfaceSaveConfig>(&save);
      const bool lacks_key =
          (hub != nullptr && find_hub_access(hub->token_path, hub->allow_plain_http).token.empty()) ||
          (std::holds_alternative<WandbSaveConfig>(save) &&
           find_wandb_access().mode != WandbMode::kOnline);
      const auto destination = make_destination(save);
      if (destination == nullptr || !(lacks_key || search.asks_hosts())) return;
      try {
        destination->check_access({.attempts = 1, .says_retries = false});
      } catch (const NetworkError& error) {
        if (!may_pass(error)) throw ConfigError("{}", error.what());  // a run waits for the others
      }
    });
  }
}

}  // namespace

void find_missing(const NamedOutside& named, bool asks_hosts, Faults& faults) {
  Search search(asks_hosts, faults);
  if (named.shards != nullptr) {
    look_for_shards(*named.shards, search);
    search.place("/data/img_embeddings_url", named.shards->img_embeddings_url.value_or(""));
    search.place("/data/text_embeddings_url", named.shards->text_embeddings_url.value_or(""));
  }
  if (named.tables != nullptr) {
    search.place("/data/image_url", named.tables->image_url.value_or(""));
    search.place("/data/text_url", named.tables->text_url.value_or(""));
    search.place("/data/text_encodings_url", named.tables->text_encodings_url.value_or(""));
    search.place("/data/meta_url", named.tables->meta_url.value_or(""));
  }
  if (named.vae_folder != nullptr) search.place("/data/folder", *named.vae_folder);
  if (named.vgg_path != nullptr) {
    search.place("/train/vgg_path",
                 named.vgg_path->value_or(""),
                 "scripts/export_vgg.py makes it from the weights that torchvision publishes.");
  }
  if (named.metrics != nullptr) {
    for (const auto& [pointer, text] : absent_networks(*named.metrics)) search.add(pointer, text);
  }
  if (named.tokenizer != nullptr && !named.tokenizer->train) {
    search.attempt("/clip/tokenizer/path", [&] {
      find_clip_vocabulary(named.tokenizer->path, "/clip/tokenizer/path");
    });
  }
  look_for_services(*named.tracker, search);
  if (faults.errors().empty() && search.found().size() < 2) return;
  for (const auto& [pointer, text] : search.found()) faults.error(pointer, text);
}

}  // namespace dalle2
