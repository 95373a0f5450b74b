// SPDX-License-Identifier: MIT
// docs/config.md: an introduction, then the keys of each kind of run, which the structs describe.
#include "config/config_page.h"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/json_text.h"
#include "config/reading/writer.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

constexpr const char* kDecoderRules = R"(
## Rules between the sections

- `data.preprocessing` makes square pictures, at least as large as the size of each trained unet and, if
  `decoder.clip` embeds them, as the CLIP's input.
- A unet with `cond_on_text_encodings` needs `data.text_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip`.
  Without such a unet, `data.text_embeddings_url` is absent.
- Unless `decoder.unconditional` is true, `data.img_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` is
  given.
- With `decoder.clip`, `decoder.unconditional` is false, and `data.img_embeddings_url` is absent. If a unet has
  `cond_on_text_encodings`, it is enough that `data.text_embeddings_url` is absent.
- `data.latents_in_tar` needs a VAE in `decoder.vae` for the first unet, and no random transform.
- A list in `train` has one entry for each unet.
- A `train.cond_scale` other than 1 needs a `decoder.image_cond_drop_prob` or `decoder.text_cond_drop_prob` above 0.
- A unet with `train.min_snr_gamma` has a `decoder.p2_loss_weight_gamma` of 0.
- `train.dream.enabled` needs trained unets that predict the noise.
- Without `train.epoch_samples`, the first epoch never ends if `data.resample_train` is true. A warning says so.

These rules apply to every kind of run:

- Without `train.use_ema`, `train.ema`, the keys `train.ema_*` and `train.update_model_with_ema_every` have no effect.
- If `train.ema.kind` is `ema_pytorch`, the other keys of `train.ema` keep their defaults. If it is `diffusers`, the keys
  `train.ema_*` have no effect, and `train.update_model_with_ema_every` is null.
- Changed `train.post_hoc_ema.sigmas` need `train.post_hoc_ema.save_every_n_steps`.
- If `train.lora.rank` is 0, `train.frozen_dtype` is `fp32`, and no saver has the `save_type` `lora`.
- The config of a resumed run gives weights and data the same meaning, or `train.allow_changed_config` is true.

## Derived values of each unet

- **Sizes.** Each size in `image_sizes` (and each crop size; with a VAE, the side of its latent) must be divisible by 2
  to the power of the number of halvings. This number is one less than that of `dim_mults`, or equal to it with
  `memory_efficient`.
- **Inputs.** The first unet receives the image embedding (unless `unconditional`), and each other unet the
  low-resolution picture. Unets with `cond_on_text_encodings` also receive the text encodings.
- **Schedules.** Every beta must stay below 1, for which `linear`, `quadratic` and `sigmoid` need 21 `timesteps`. Only
  `jsd` and `zero_terminal_snr` end at beta = 1, where nothing of the picture is left. A unet with one of them cannot
  have `learned_variance`, nor `sample_timesteps` equal to `timesteps - 1`, because DDIM must not start at that step. If
  it predicts the noise, which `zero_terminal_snr` excludes, its `sample_timesteps` must be below `timesteps - 1`.
- **Widths.** `init_dim` must equal `dim`, and `dim_mults` must start with 1 unless `memory_efficient`, because the last
  block expects 2 x `dim` channels. `resnet_groups` must divide every width.
)";

constexpr const char* kPriorPage = R"(
## Files that train a prior

A file with the root key `prior` trains a diffusion prior, which makes image embeddings from text embeddings. Keys and
defaults are those of the reference's `train_diffusion_prior.py`. Without `prior.clip`, `data.image_url`,
`data.text_url` and `data.text_encodings_url` are folders of embeddings. With `prior.clip`, the run computes the
embeddings and encodings of the captions in `data.meta_url` and, if that has shards, those of the pictures. Rules
between the sections:

- `prior.net.dim` equals `prior.image_embed_dim`. `prior.net.num_timesteps`, if given, equals `prior.timesteps`.
- `train` and `val` of `data.splits` sum to less than 1.
- Without `prior.clip`, `data.image_url` and `data.text_url` are given, and `data.text_encodings_url` exactly if
  `prior.condition_on_text_encodings` is true.
- With `prior.clip`, `data.meta_url` is given, `data.text_url` and `data.text_encodings_url` are absent, and
  `data.image_url` is given unless `data.meta_url` has shards.
- With `train.dream.enabled`, `prior.predict_v` and `prior.predict_x_start` are false.
- Each number in `train.eval_timesteps` is from `prior.sample_timesteps` (2 if that is null) to `prior.timesteps`.
)";

constexpr const char* kVaePage = R"(
## Files that train a VAE

A file with the root key `vae` trains a VQGAN-VAE (Esser et al. 2021), which encodes pictures as small maps of codes
and decodes such maps into pictures. Keys and defaults are those of VQGanVAE and VQGanVAETrainer in
muse-maskgit-pytorch. With `vae.kind` `dalle2`, the network is that of dalle2-pytorch. Rules between the sections:

- `data.image_size` is divisible by 2 to the power of `vae.layers`, or for a `vit` by `vae.encdec_patch_size`. It equals
  `vae.image_size`, if given.
- `train.lora.rank` is 0: a VAE is trained as a whole.
- With `vae.use_vgg_and_gan`, `train.vgg_path` is given, and `data.image_size` is at least 4 times 2 to the power of
  `vae.discr_layers`.
- If `vae.kind` is `muse`, with `vae.lookup_free_quantization`, `vae.codebook_size` is a power of two.
)";

constexpr const char* kClipPage = R"(
## Files that train a CLIP

A file with the root key `clip` trains a CLIP (Radford et al. 2021) on pictures and captions. The keys of `clip` are
those of open_clip's model configs, and the keys of `data` are those of a decoder. Rules between the sections:

- `data.preprocessing` makes pictures whose sides are `clip.vision_cfg.image_size`.
- `data.img_embeddings_url` and `data.text_embeddings_url` are absent; `data.embeddings_in_tar` and
  `data.latents_in_tar` are false.
- A ResNet (a list in `clip.vision_cfg.layers`) needs one process, a `train.mixed_precision` other than `fp16`, a
  `train.grad_accum_every` of 1, and no `train.max_batch_size` below `data.batch_size`.
- With `clip.tokenizer.train`, `clip.tokenizer.path` is absent, and `clip.text_cfg.vocab_size` is absent or the same.
)";

std::string words_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "`" : ", `") + word + "`";
  return text;
}

std::string with_limits(const std::string& type, const Limits& limits) {
  if (std::isfinite(limits.low) && std::isfinite(limits.high) && !limits.low_open &&
      !limits.high_open) {
    return fmt::format("{} {}..{}", type, limits.low, limits.high);
  }
  const std::string text = limits_text(limits);
  return text.empty() ? type : type + " " + text;
}

template <class T>
std::string type_text(const Limits& limits) {
  if constexpr (OptionalTraits<T>::is_optional) {
    using Value = typename OptionalTraits<T>::Value;
    const std::string type = type_text<Value>(limits);
    if constexpr (is_of<Value, std::vector> &&
                  !std::is_same_v<Value, std::vector<TransformConfig>>) {
      using Item = typename Value::value_type;
      if (!limits.one_is_list_) return type + " or null";
      if constexpr (takes_null<Item>) {
        return type_text<typename OptionalTraits<Item>::Value>(limits) +
               ", null, or a list of these";
      }
    }
    return type + (limits.false_is_null_ ? ", false or null" : " or null");
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return "object";
  } else if constexpr (is_of<T, std::vector>) {
    const std::string item = type_text<typename T::value_type>(limits);
    if (limits.one_is_list_) return item + ", or a list";
    if (item == "object") return "list of objects";
    const std::string count = limits.least > 0 && limits.least == limits.most
                                  ? fmt::format("list of {}: ", limits.most)
                                  : "list of: ";
    return count + item;
  } else if constexpr (is_of<T, OneOrMany>) {
    // Null may stand for the whole and for each entry.
    return type_text<typename T::Value>(limits) +
           (T::is_optional ? ", null, or a list of these" : ", or a list");
  } else if constexpr (std::is_enum_v<T>) {
    std::vector<std::string> names(enum_names<T>.begin(), enum_names<T>.end());
    return words_text(names);
  } else if constexpr (std::is_same_v<T, bool>) {
    return "boolean";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return with_limits("integer", limits);
  } else if constexpr (std::is_same_v<T, double>) {
    return with_limits("number", limits);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return limits.words.empty() ? "string" : words_text(limits.words);
  } else if constexpr (std::is_same_v<T, Colour>) {
    return "`white`, `black`, list of 3 integers";
  } else {
    return "object";
  }
}

/// `text` without `end`, if it ends so.
std::string without_end(const std::string& text, std::string_view end) {
  return text.ends_with(end) ? text.substr(0, text.size() - end.size()) : text;
}

/// A key of a section.
struct Row {
  std::string key, type;
  std::string initial;  ///< its default, or that it is required; empty for an object of defaults
  std::string doc;

  bool operator==(const Row&) const = default;

  bool has_effect() const { return !doc.starts_with("No effect"); }
  /// Its type and default. The default tells that a key is a boolean.
  std::string value() const {
    if (type == "boolean" && (initial == "`true`" || initial == "`false`")) return initial;
    return initial.empty() ? type : type + "; " + initial;
  }
  /// Its type for a kind of run with one network.
  std::string type_of_one() const {
    return without_end(without_end(without_end(type, ", or a list"), ", null, or a list of these"),
                       " or null");
  }
  std::string line() const { return fmt::format("- `{}` ({}): {}\n", key, value(), doc); }
};

struct Section {
  std::string path;  ///< in a config
  std::string title, text = {};
  std::vector<Row> rows = {};

  const Row* row(const std::string& key) const {
    for (const Row& row : rows) {
      if (row.key == key) return &row;
    }
    return nullptr;
  }
  std::string body() const {
    std::string body = text;
    for (const Row& row : rows) body += row.line();
    return body;
  }
};

/// The keys of one struct, and the sections of the structs below it.
class Tables : public IgnoresRules {
 public:
  explicit Tables(std::string path) : path_(std::move(path)) {}

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if constexpr (Reflected<Member>) {
      row<Member>(key, "", doc, limits);
      // Not of Member(): a kind of run may have defaults of its own.
      add_below(sections_of(member, path, "`" + path + "`"));
    } else {
      row<Member>(key, "`" + to_json(member).dump() + "`", doc, limits);
      section<Member>(path);
    }
  }
  template <class Member>
  void required(const char* key, Member&, const char* doc, const Limits& limits = {}) {
    const std::string unless =
        limits.other_key == nullptr ? "" : fmt::format(" without `{}`", limits.other_key);
    row<Member>(key, "**required**" + unless, doc, limits);
    section<Member>(path_.empty() ? key : path_ + "." + key);
  }

  template <class T>
  static std::vector<Section> sections_of(T value,
                                          const std::string& path,
                                          const std::string& title) {
    Tables tables(path);
    value.fields(tables);
    Section section = {.path = path, .title = title, .rows = tables.rows_};
    if constexpr (requires { T::kDoc; }) section.text = fmt::format("\n{}\n", T::kDoc);
    std::vector<Section> sections = {section};
    sections.insert(sections.end(), tables.below_.begin(), tables.below_.end());
    return sections;
  }

 private:
  /// Null is named as the default, or in the type.
  template <class Member>
  void row(const char* key, const std::string& initial, const char* doc, const Limits& limits) {
    std::string type = type_text<Member>(limits);
    if (initial == "`null`") {
      type = type.ends_with(", false or null") ? without_end(type, ", false or null") + " or false"
                                               : without_end(type, " or null");
    }
    rows_.push_back({key, type, initial, doc});
  }

  void add_below(const std::vector<Section>& sections) {
    below_.insert(below_.end(), sections.begin(), sections.end());
  }

  template <class Member>
  void section(const std::string& path) {
    if constexpr (OptionalTraits<Member>::is_optional) {
      section<typename OptionalTraits<Member>::Value>(path);
    } else if constexpr (std::is_same_v<Member, std::vector<TransformConfig>>) {
      below_.push_back(transforms(path));
    } else if constexpr (is_of<Member, std::vector>) {
      section<typename Member::value_type>(path + "[i]");
    } else if constexpr (is_of<Member, OneOrMany>) {
      section<typename Member::value_type>(path);
    } else if constexpr (is_of<Member, std::variant>) {
      alternatives(static_cast<Member*>(nullptr), path);
    } else if constexpr (Reflected<Member>) {
      add_below(sections_of(Member(), path, "`" + path + "`"));
    }
  }

  /// A section with the keys that all alternatives have, then one for each with its own keys.
  template <class... Alternatives>
  void alternatives(std::variant<Alternatives...>*, const std::string& path) {
    using Traits = TagTraits<std::variant<Alternatives...>>;
    std::vector<Section> sections;
    std::vector<std::string> tags;
    const auto add = [&](auto alternative) {
      tags.push_back(fmt::format("\"{}\"", alternative.kTag));
      const std::string tag = fmt::format("`\"{}\": {}`", Traits::key, tags.back());
      sections.push_back(
          sections_of(alternative, path + " with " + tag, "`" + path + "` with " + tag).front());
    };
    (add(Alternatives{}), ...);
    const bool none_is_default = Traits::key == std::string("load_from");
    Section shared = {.path = path, .title = "`" + path + "`"};
    shared.rows.push_back({Traits::key,
                           words_text(tags),
                           none_is_default ? "`null`" : "`" + tags.front() + "`",
                           Traits::doc});
    for (const Row& row : std::vector<Row>(sections.front().rows)) {
      const auto has_row = [&](const Section& section) {
        return std::find(section.rows.begin(), section.rows.end(), row) != section.rows.end();
      };
      if (!std::all_of(sections.begin(), sections.end(), has_row)) continue;
      shared.rows.push_back(row);
      for (Section& section : sections) std::erase(section.rows, row);
    }
    below_.push_back(shared);
    add_below(sections);
  }

  static Section transforms(const std::string& path) {
    Section section = {.path = path, .title = "`" + path + "`"};
    section.text =
        "\nAn object with one key for each transform. The value is an object with the arguments, "
        "`true` for the defaults, or `false` to leave the transform out. The transforms are "
        "applied in the order of their keys. `ToTensor` is needed.\n\n";
    for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
      TransformConfig transform;
      transform.kind = static_cast<TransformKind>(i);
      Tables arguments("");
      transform.fields(arguments);
      section.text += fmt::format("- `{}`{}\n",
                                  enum_names<TransformKind>[i],
                                  arguments.rows_.empty() ? ": no arguments" : "");
      // MkDocs needs four spaces.
      for (const Row& row : arguments.rows_) section.text += "    " + row.line();
    }
    return section;
  }

  std::string path_;
  std::vector<Row> rows_;
  std::vector<Section> below_;
};

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

- **Lists of keys.** Each key is followed by its type and, after a semicolon, its default. `true` or `false`
  alone is the default of a boolean. A default of null is also a value that you may give. `1..8` means from
  1 to 8.
  "Extension" marks keys that the reference, dalle2-pytorch, does not have (in `train`, `evaluate` and
  `tracker` not all). [At the end](#keys-without-effect) are the keys of the references without effect.
- **One value or a list.** If the type is "X, or a list", give one value for all unets (or
  resolutions), or a list with one value for each, unless the key says otherwise. Other kinds of run have
  no lists over unets.
- **All mistakes at once.** Each message has the location as a JSON pointer (`/decoder/unets/0/dim`), the
  expected value and the value found, or, for a misspelled key, the key that you may have meant. The
  program then ends with exit code 2, before it reads data or builds a model.
- **Unambiguous forms are accepted.** `"3"`, `8.0`, `1e6` and `true` are read as integers,
  `"1e-4"` as a number, and `0`, `1`, `"yes"`, `"off"` and the like as booleans. `8.5` is not an integer.
- **Unknown keys** give a warning and are ignored. An unknown key is an error if it resembles a known key
  of the section, and always in `decoder`, `prior`, `clip`, `decoder.vae[i]`, `prior.net` and
  `clip.tokenizer` themselves, below keys that end in `_kwargs`, and in the arguments of transforms and
  metrics. A key for a token or a password is an error everywhere. With `--strict`, every warning about the
  file is an error.
- **Editors** check a config while you write it if the key `$schema` names a file that
  `dalle2-train schema KIND` printed.
- **Comments** (`//` and `/* */`) are allowed. A duplicate key in an object is an error.
- **Paths** are relative to the working directory.
- `--set /train/lr=3e-4` overrides a value of the file. The part after `=` is read as JSON, or else as a
  string, but it is an error if it then begins with `[` or `{"`. An unknown key is an error too.
  `--dump-config` prints the resulting config with all defaults.
)";

/// The paragraphs of a section wrapped; the items of lists stay.
std::string with_wrapped_text(const std::string& body) {
  constexpr size_t kColumns = 140;
  std::string text;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    const bool is_item = line.starts_with("- ") || line.starts_with("    - ");
    while (!is_item && line.size() > kColumns) {
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
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return fmt::format("[{}](#{})", title, anchor);
}

/// Prints each section and key once, and names where an equal one stands.
class Page {
 public:
  void add_text(const std::string& text) {
    end_repeats();
    text_ += text;
  }
  void add(const Section& section, const std::string& kind) {
    const auto first = first_of_path_.find(section.path);
    const bool is_known_path = first != first_of_path_.end();
    const std::string title = is_known_path && !section.path.empty()
                                  ? fmt::format("{} of {}", section.title, kind)
                                  : section.title;
    const auto [known, is_new] = title_of_.emplace(section.body(), title);
    if (!is_new) return repeat(section.title, known->second);
    end_repeats();
    text_ += fmt::format("\n## {}\n{}", title, with_wrapped_text(section.text));
    text_ += keys(section, is_known_path ? &first->second : nullptr);
    first_of_path_.emplace(section.path, section);
  }
  std::string text() const {
    return text_ +
           "\n## Keys without effect\n\nThese keys of the references are accepted, but "
           "change nothing here:\n\n" +
           without_effect_;
  }

 private:
  /// The sections below a repeated one are repeated with it.
  void repeat(const std::string& title, const std::string& known) {
    const auto below = [](const std::string& name, const std::string& above) {
      return !above.empty() && name.starts_with(above + ".") ? name.substr(above.size()) : "";
    };
    const std::string path = below(title, repeated_);
    if (!path.empty() && path == below(known, equal_to_)) return;
    repeated_ = title.substr(0, title.find('`', 1));
    equal_to_ = known.substr(0, known.find('`', 1));
    if (!std::exchange(repeats_, true))
      text_ += "\nThese sections, with those below them, have the same keys as above:\n\n";
    const std::string name = title == known ? "" : fmt::format("{}: see ", title);
    text_ += fmt::format("- {}{}\n", name, link_to(known));
  }
  void end_repeats() {
    repeats_ = false;
    repeated_.clear();
    equal_to_.clear();
  }

  /// @param first section with this path, of another kind of run; null for none
  std::string keys(const Section& section, const Section* first) {
    std::string own, same, other, without_effect;
    for (const Row& row : section.rows) {
      const Row* const known = first == nullptr ? nullptr : first->row(row.key);
      const auto name = [&](const std::string& text) { return text.empty() ? "`" : ", `"; };
      if (!row.has_effect()) {
        without_effect += name(without_effect) + row.key + "`";
      } else if (known == nullptr || known->doc != row.doc) {
        own += row.line();
      } else if (known->type_of_one() != row.type_of_one()) {
        other += fmt::format("{}{}` ({})", name(other), row.key, row.value());
      } else if (known->initial != row.initial) {
        other += fmt::format("{}{}` ({})", name(other), row.key, row.initial);
      } else {
        same += name(same) + row.key + "`";
      }
    }
    if (!without_effect.empty())
      without_effect_ += fmt::format("- `{}`: {}\n", section.path, without_effect);
    std::string text;
    if (!same.empty()) text += fmt::format("\nAs in {}: {}.\n", link_to(first->title), same);
    if (!other.empty())
      text += fmt::format("\nAs in {}, with another default: {}.\n", link_to(first->title), other);
    return with_wrapped_text(text) + (own.empty() ? "" : "\n" + own);
  }

  std::string text_ = kIntroduction, without_effect_;
  std::map<std::string, std::string> title_of_;   // by the body
  std::map<std::string, Section> first_of_path_;  // the first that was printed
  bool repeats_ = false;
  std::string repeated_,
      equal_to_;  // of the list's last line, without the end: "`prior.clip", "`decoder.clip"
};

/// @param before, after the keys of a kind
template <class Config>
void add_kind(Page& page, const std::string& before, const std::string& after = "") {
  const std::string& kind = config_kind_of(Config::kKind).name;
  page.add_text(before);
  const std::string title = fmt::format("The sections of {}'s file", kind);
  for (const Section& section : Tables::sections_of(Config(), "", title)) page.add(section, kind);
  page.add_text(after);
}

}  // namespace

std::string config_page() {
  Page page;
  add_kind<TrainDecoderConfig>(page, "", kDecoderRules);
  add_kind<TrainPriorConfig>(page, kPriorPage);
  add_kind<TrainVaeConfig>(page, kVaePage);
  add_kind<TrainClipConfig>(page, kClipPage);
  return page.text();
}

}  // namespace dalle2
