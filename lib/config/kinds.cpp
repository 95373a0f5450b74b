// SPDX-License-Identifier: MIT
#include "config/kinds.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/reader.h"
#include "config/reading/root_json.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

std::vector<ConfigKind>& config_kinds() {
  static std::vector<ConfigKind> kinds = {decoder_kind(), prior_kind(), vae_kind(), clip_kind()};
  return kinds;
}

const ConfigKind& config_kind_of(const std::string& key) {
  for (const ConfigKind& kind : config_kinds()) {
    if (kind.key == key) return kind;
  }
  throw ConfigError("no kind \"{}\" of config; known are {}", key, available_kinds());
}

std::string available_kinds() {
  std::vector<std::string> keys;
  for (const ConfigKind& kind : config_kinds()) keys.push_back(fmt::format("\"{}\"", kind.key));
  const std::string last = keys.back();
  keys.pop_back();
  return fmt::format("{} and {}", fmt::join(keys, ", "), last);
}

std::vector<std::string> known_root_keys() {
  std::vector<std::string> all = {"$schema"};
  for (const ConfigKind& kind : config_kinds()) all.push_back(kind.key);
  return all;
}

void refuse_other_kinds(const Json& root, const std::string& kind, ReadFindings& findings) {
  for (const ConfigKind& other : config_kinds()) {
    if (other.key == kind || !root.contains(other.key)) continue;
    findings.faults.error(
        "/" + other.key,
        fmt::format("has no place here: this needs the config of a {}, and a file trains one kind",
                    kind));
  }
}

/// " (did you mean "decoder" instead of "decodr"?)", if a key of `root` is nearly that of a kind.
static std::string near_kind(const Json& root) {
  std::vector<std::string> kinds;
  for (const ConfigKind& kind : config_kinds()) kinds.push_back(kind.key);
  for (const auto& [key, value] : root.items()) {
    if (const auto near = nearest_word(key, kinds)) {
      return fmt::format(" (did you mean \"{}\" instead of {}?)", *near, shown(key));
    }
  }
  return "";
}

std::string config_kind(const std::string& path) {
  Faults ignored;  // reading the whole config reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
  const ConfigKind* found = nullptr;
  for (const ConfigKind& kind : config_kinds()) {
    if (!root.contains(kind.key)) continue;
    if (found != nullptr) {
      throw ConfigError("{}: has both \"{}\" and \"{}\"; a config trains one of them",
                        path,
                        found->key,
                        kind.key);
    }
    found = &kind;
  }
  if (found == nullptr) {
    throw ConfigError(
        "{}: has none of the root keys that say what is trained ({}){}; the examples in configs/ have one",
        path,
        available_kinds(),
        near_kind(root));
  }
  return found->key;
}

namespace {

constexpr const char* kIntroduction = R"(# The config of a training run

<!-- Generated from lib/config; `DALLE2_UPDATE_GENERATED=1 ctest -R config` writes it again. -->

One JSON file describes a run. It has the keys and defaults of dalle2-pytorch's
`train_decoder.py`, so configs for that script work unchanged. The smallest config that trains:

```json
{
  "decoder": {
    "unets": [{"dim": 32, "dim_mults": [1, 2, 4], "image_embed_dim": 512}],
    "image_sizes": [64]
  },
  "data": {
    "webdataset_base_url": "shards/{}.tar",
    "img_embeddings_url": "embeddings",
    "end_shard": 99,
    "splits": {}
  },
  "train": {},
  "evaluate": {},
  "tracker": {"log": {}, "save": {"save_latest_to": "latest.pth"}}
}
```

## How a config is read

- **All mistakes at once.** The program reports all mistakes together. Each message has the location
  as a JSON pointer (`/decoder/unets/0/dim`), the expected value, the value found, and the key that
  you may have meant. The program then ends with exit code 2, before it reads data or builds a model.
- **Unambiguous forms are accepted.** `"3"`, `8.0`, `1e6` and `true` are integers, `"1e-4"` is a
  number, and `0`, `1`, `"yes"`, `"off"` and similar values are booleans. `8.5` is not an integer.
- **One value or a list.** "X, or a list" accepts one value for all unets (or resolutions), or a list
  with one value each.
- **Unknown keys** give a warning and are ignored. An unknown key is an error if it resembles a known
  key ("did you mean"), and always in `decoder`, `prior`, `vae`, `clip`, the arguments of transforms
  and those of metrics. With `--strict`, every warning is an error. For editors, `$schema` may name
  one of the schemas `decoder.json`, `prior.json`, `vae.json` and `clip.json` in `configs/schema`.
- **Comments** (`//` and `/* */`) are allowed. A duplicate key in an object is an error.
- **Paths** are relative to the working directory.
- `--set /train/lr=3e-4` changes one value from the command line and overrides the file. The part
  after `=` is JSON, or otherwise text. An unknown key is an error. `--dump-config` prints the
  resulting config with all defaults.
- A key marked *not available yet* is refused unless it has its default.
)";

}  // namespace

std::string config_docs() {
  std::string text = kIntroduction;
  for (const ConfigKind& kind : config_kinds()) text += kind.docs();
  return text;
}

std::string config_schema(const std::string& kind) {
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", fmt::format("dalle2-train {} config", kind)},
      {"$comment",
       "Generated from lib/config. The strict form: the program also takes \"3\" and 8.0 for "
       "integers, \"1e-4\" for numbers, 0, 1, \"yes\" and \"no\" for booleans, and ignores unknown "
       "keys with a warning."}};
  schema.update(config_kind_of(kind).schema());
  schema["properties"]["$schema"] = Json{{"type", "string"}};
  return schema.dump(2) + "\n";
}

}  // namespace dalle2
