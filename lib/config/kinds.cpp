// SPDX-License-Identifier: MIT
#include "config/kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/json_text.h"
#include "config/reading/reader.h"
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

/// Files of other programs that people bring, by a key that only they have.
struct OtherConfig {
  const char* pointer;
  const char* what;
  const char* advice;
};
constexpr const char* kDrawAdvice =
    "It trains nothing: it says how pictures are drawn. `dalle2-train sample --checkpoint DECODER "
    "--prior PRIOR --clip CLIP --text TEXT --out DIR` does that with the files or URLs that stand under "
    "its load_model_from.";
constexpr const char* kInitAdvice =
    "Models of that program are not trained here. `dalle2-train init DATA` writes a first config for "
    "your pictures; configs/ has examples.";
constexpr const char* kClipAdvice =
    "It describes a model, not a training. `dalle2-train init DATA --kind clip` writes a config; put "
    "embed_dim, vision_cfg and text_cfg into its section \"clip\".";
constexpr OtherConfig kOtherConfigs[] = {
    {"/decoder/unet_sources", "a config of dalle2-laion", kDrawAdvice},
    {"/prior/load_model_from", "a config of dalle2-laion", kDrawAdvice},
    {"/model_cfg", "a model config of open_clip", kClipAdvice},
    {"/vision_cfg", "a model config of open_clip", kClipAdvice},
    {"/_class_name", "a model config of diffusers or muse", kInitAdvice},
    {"/_diffusers_version", "a model config of diffusers or muse", kInitAdvice},
    {"/architectures", "a model config of transformers", kInitAdvice},
    {"/model_type", "a model config of transformers", kInitAdvice},
    {"/pretrained_model_name_or_path",
     "a training config of kohya's or diffusers' scripts",
     kInitAdvice},
    {"/train_data_dir", "a training config of kohya's or diffusers' scripts", kInitAdvice},
    {"/network_module", "a training config of kohya's scripts", kInitAdvice},
    {"/datasets/0/subsets", "a data config of kohya's scripts", kInitAdvice},
    {"/train_micro_batch_size_per_gpu", "a config of DeepSpeed", kInitAdvice}};

/// @throws ConfigError for a file of another program
static void refuse_other_programs(const Json& root, const std::string& path) {
  const auto& kinds = config_kinds();
  const bool is_ours = std::any_of(
      kinds.begin(), kinds.end(), [&](const ConfigKind& kind) { return root.contains(kind.key); });
  for (const auto& [pointer, what, advice] : kOtherConfigs) {
    const bool is_top = std::string_view(pointer).rfind('/') == 0;
    if (is_ours && is_top) continue;
    if (!root.contains(Json::json_pointer(pointer))) continue;
    throw ConfigError("{}: this is {} (it has {})\n  {}", path, what, pointer, advice);
  }
}

std::string config_kind(const std::string& path) {
  for (const char* other : {".toml", ".yaml", ".yml"}) {
    if (!path.ends_with(other)) continue;
    throw ConfigError("{}: expected a config in JSON, got a name that ends in {}\n  {}",
                      path,
                      other,
                      kInitAdvice);
  }
  Faults ignored;  // reading the whole config reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
  refuse_other_programs(root, path);
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

// docs/config.md: an introduction, then the tables of each kind of run.

namespace {

constexpr const char* kIntroduction = R"(# The config of a training run

<!-- Generated from lib/config; `DALLE2_UPDATE_GENERATED=1 ctest -R config` writes it again. -->

One JSON file describes a run. The file of a decoder has the keys and defaults of dalle2-pytorch's
`train_decoder.py`. Configs for that script work unchanged, except that `pipe:` URLs need
`data.allow_pipe`, and metrics need the [files of their networks](evaluation.md#networks). Further
down are the keys for [priors](#files-that-train-a-prior), [VAEs](#files-that-train-a-vae) and
[CLIPs](#files-that-train-a-clip). The smallest config that trains a decoder:

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
  as a JSON pointer (`/decoder/unets/0/dim`), the expected value and the value found, or, for a
  misspelled key, the key that you may have meant. The program then ends with exit code 2, before it reads data or builds a model.
- **Unambiguous forms are accepted.** `"3"`, `8.0`, `1e6` and `true` are read as integers,
  `"1e-4"` as a number, and `0`, `1`, `"yes"`, `"off"` and similar values as booleans. `8.5` is not
  an integer.
- **One value or a list.** If the type is "X, or a list", give one value for all unets (or
  resolutions), or a list with one value for each. For a few keys, the list means something else,
  such as a range, or one value does not apply to all; the table then says so.
- **Unknown keys** give a warning and are ignored. An unknown key is an error if it resembles a known
  key of the same section. For a key of another section, the warning names that section. An unknown
  key is always an error directly in `decoder`, `prior` and `clip`, in `decoder.vae[i]`, `prior.net`
  and `clip.tokenizer`, below keys that end in `_kwargs`, and in the arguments of transforms and
  metrics. A key for a token or a password is an error everywhere. With `--strict`, every warning
  about the file is an error.
- **Editors** check a config while you write it if the key `$schema` names one of the schemas
  `decoder.json`, `prior.json`, `vae.json` and `clip.json` in `configs/schema`.
- **Comments** (`//` and `/* */`) are allowed. A duplicate key in an object is an error.
- **Paths** are relative to the working directory.
- `--set /train/lr=3e-4` changes one value from the command line and overrides the file. The part
  after `=` is read as JSON. If it is not valid JSON, it is read as a string, but it is an error if
  it begins with `[` or `{"`. An unknown key is an error too.
  `--dump-config` prints the resulting config with all defaults.
- **The reference** in these tables is dalle2-pytorch. "Extension" marks a key that the reference
  does not have. In `train`, `evaluate` and `tracker`, not all such keys are marked.
)";

struct Section {
  std::string title, body;
};

constexpr std::string_view kHeading = "\n## ";

std::vector<Section> sections_of(const std::string& text) {
  std::vector<Section> sections;
  for (size_t begin = text.find(kHeading); begin != std::string::npos;) {
    const size_t title = begin + kHeading.size(), body = text.find('\n', title);
    const size_t end = text.find(kHeading, body);
    sections.push_back({text.substr(title, body - title),
                        text.substr(body, end == std::string::npos ? end : end - body)});
    begin = end;
  }
  return sections;
}

/// The paragraphs of a section wrapped; rows of tables, and lists, which their authors wrapped, stay.
std::string with_wrapped_text(const std::string& body) {
  constexpr size_t kColumns = 140;
  std::string text;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    while (!line.starts_with("|") && line.size() > kColumns) {
      const size_t space = line.rfind(' ', kColumns);
      if (space == line.npos) break;
      text += line.substr(0, space) + "\n";
      line.erase(0, space + 1);
    }
    text += line + "\n";
  }
  return text;
}

/// A link to a heading of this page, as GitHub and MkDocs name them.
std::string link_to(const std::string& title) {
  std::string anchor;
  for (const char c : title) {
    if (c == ' ') anchor += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return fmt::format("[{}](#{})", title, anchor);
}

/// Prints each table once, and names where an equal one stands.
class Page {
 public:
  void add(const Section& section, const std::string& kind) {
    const bool is_table = section.title.starts_with("`");
    std::string title = section.title;
    if (is_table) {
      if (titles_.contains(title)) title += " of " + kind;
      const auto [known, is_new] = title_of_.emplace(section.body, title);
      if (!is_new) {
        // The tables below a repeated one are repeated with it.
        const auto below = [](const std::string& name, const std::string& above) {
          return !above.empty() && name.starts_with(above + ".") ? name.substr(above.size()) : "";
        };
        const std::string path = below(section.title, repeated_);
        if (!path.empty() && path == below(known->second, equal_to_)) return;
        repeated_ = section.title.substr(0, section.title.find('`', 1));
        equal_to_ = known->second.substr(0, known->second.find('`', 1));
        if (!std::exchange(repeats_, true)) {
          text_ += "\nThese sections, with those below them, have the same keys as above:\n\n";
        }
        const bool is_same = section.title == known->second;
        text_ += fmt::format("- {}{}\n",
                             is_same ? "" : fmt::format("{}: see ", section.title),
                             link_to(known->second));
        return;
      }
    }
    repeats_ = false;
    repeated_.clear();
    equal_to_.clear();
    titles_.insert(section.title);
    text_ += fmt::format("{}{}{}", kHeading, title, with_wrapped_text(section.body));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_ = kIntroduction;
  std::map<std::string, std::string> title_of_;  // by the body
  std::set<std::string> titles_;
  bool repeats_ = false;
  std::string repeated_,
      equal_to_;  // of the list's last line, without the end: "`prior.clip", "`decoder.clip"
};

}  // namespace

std::string config_docs() {
  Page page;
  for (const ConfigKind& kind : config_kinds()) {
    for (const Section& section : sections_of(kind.docs())) page.add(section, kind.name);
  }
  return page.text();
}

}  // namespace dalle2
