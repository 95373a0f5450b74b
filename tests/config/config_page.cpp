// SPDX-License-Identifier: MIT
// docs/config.md: an introduction, then the tables of each kind of run, which the structs describe.
#include "config/config_page.h"

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <set>
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

| if | then |
|---|---|
| always | `data.preprocessing` makes square pictures, at least as large as the size of each trained unet |
| `decoder.clip` computes image embeddings | `data.preprocessing` makes pictures at least as large as the CLIP's input |
| a unet has `cond_on_text_encodings` | `data.text_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` is given |
| no unet has `cond_on_text_encodings` | `data.text_embeddings_url` is absent |
| `decoder.unconditional` is false | `data.img_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` is given |
| `decoder.clip` is given, and a unet has `cond_on_text_encodings` | `data.img_embeddings_url` or `data.text_embeddings_url` is absent |
| `decoder.clip` is given, and no unet has `cond_on_text_encodings` | `data.img_embeddings_url` is absent |
| `decoder.clip` is given | `decoder.unconditional` is false |
| `data.latents_in_tar` is true | `decoder.vae` has a VAE for the first unet, and no transform is random |
| a key of `train` has a list instead of one value | the list has one entry for each unet |
| `train.cond_scale` is not 1 | `decoder.image_cond_drop_prob` or `decoder.text_cond_drop_prob` is above 0 |
| `train.min_snr_gamma` is set for a unet | `decoder.p2_loss_weight_gamma` of this unet is 0 |
| `train.dream.enabled` is true | every trained unet predicts the noise |
| `data.resample_train` is true | `train.epoch_samples` is given; otherwise a warning appears, and the first epoch never ends |

These rules apply to every kind of run:

| if | then |
|---|---|
| `train.use_ema` is false | `train.ema`, the keys `train.ema_*` and `train.update_model_with_ema_every` have no effect |
| `train.ema.kind` is `ema_pytorch` | the other keys of `train.ema` keep their defaults |
| `train.ema.kind` is `diffusers` | `train.update_model_with_ema_every` is null, and the keys `train.ema_*` have no effect |
| `train.post_hoc_ema.sigmas` is changed | `train.post_hoc_ema.save_every_n_steps` is given |
| `train.lora.rank` is 0 | `train.frozen_dtype` is `fp32`, and no saver has the `save_type` `lora` |
| a run resumes from a checkpoint | its config gives weights and data the same meaning, or `train.allow_changed_config` is true |

## Derived values of each unet

- **Sizes.** `image_sizes` is sorted and duplicates are removed; the first unet has the smallest
  size. Each size (and crop size) must be divisible by 2 to the power of the number of halvings.
  With a VAE, this applies to the side of the latent instead. The number of halvings is one less
  than the number of `dim_mults`, or equal to it with `memory_efficient`.
- **Inputs.** The first unet receives the image embedding (unless `unconditional`), and each other
  unet receives the low-resolution picture of the previous unet. Unets with `cond_on_text_encodings`
  also receive the text encodings.
- **Schedules.** Every beta must stay below 1, except the last one with `jsd` or
  `zero_terminal_snr`. With `linear`, `quadratic` and `sigmoid`, 21 `timesteps` are enough for this.
  `jsd` ends at beta = 1, which leaves nothing of the picture in the last step. A unet with `jsd`
  therefore cannot have `learned_variance`, nor `sample_timesteps` equal to `timesteps - 1`, because
  DDIM must not start at the last step. If the unet predicts the noise, its `sample_timesteps` must
  be below `timesteps - 1`. `zero_terminal_snr` also ends at beta = 1. The same conditions apply,
  and the unet must have `predict_v` or `predict_x_start`.
- **Widths.** `init_dim` must equal `dim`, and `dim_mults` must start with 1 unless
  `memory_efficient`, because the last block of the network expects 2 x `dim` channels.
  `resnet_groups` must divide every width.
)";

constexpr const char* kPriorPage = R"(
## Files that train a prior

A file with the root key `prior` instead of `decoder` trains a diffusion prior, which makes image
embeddings from text embeddings. It has the keys and defaults of the reference's
`train_diffusion_prior.py`. Keys that also occur in a decoder's file have the same meaning. Without
`prior.clip`, compute the embeddings beforehand: `data.image_url`, `data.text_url` and
`data.text_encodings_url` are folders of `.npy` files. With `prior.clip`, the run computes the
embeddings and encodings of the texts from the captions of `data.meta_url`. If `data.meta_url` has
shards, the run can also compute the image embeddings.
These rules apply between the sections:

| if | then |
|---|---|
| always | `prior.net.dim` equals `prior.image_embed_dim`; `train` and `val` of `data.splits` sum to less than 1 |
| `prior.clip` is absent | `data.image_url` and `data.text_url` are given |
| `prior.clip` is absent | `data.text_encodings_url` is given if and only if `prior.condition_on_text_encodings` is true |
| `prior.clip` is given | `data.meta_url` is given; `data.text_url` and `data.text_encodings_url` are absent |
| `prior.clip` is given, and `data.meta_url` has no shards | `data.image_url` is given |
| `prior.net.num_timesteps` is given | it equals `prior.timesteps` |
| `train.dream.enabled` is true | `prior.predict_v` and `prior.predict_x_start` are false |
| always | each number in `train.eval_timesteps` is from `prior.sample_timesteps` (2 if that is null) to `prior.timesteps` |
)";

constexpr const char* kVaePage = R"(
## Files that train a VAE

A file with the root key `vae` trains a VQGAN-VAE (Esser et al. 2021), which encodes pictures as small maps of codes and
decodes such maps into pictures. The keys and defaults are those of VQGanVAE and VQGanVAETrainer in
muse-maskgit-pytorch. With `vae.kind` `dalle2`, the network is that of dalle2-pytorch. These rules apply between the sections:

| if | then |
|---|---|
| always | `data.image_size` is divisible by 2 to the power of `vae.layers`, or for a `vit` by `vae.encdec_patch_size` |
| always | `train.lora.rank` is 0: a VAE is trained as a whole |
| `vae.image_size` is given | `data.image_size` equals it |
| `vae.use_vgg_and_gan` is true | `train.vgg_path` is given |
| `vae.use_vgg_and_gan` is true | `data.image_size` is at least 4 times 2 to the power of `vae.discr_layers` |
| `vae.kind` is `muse`, and `vae.lookup_free_quantization` is true | `vae.codebook_size` is a power of two |

)";

constexpr const char* kClipPage = R"(
## Files that train a CLIP

A file with the root key `clip` trains a CLIP (Radford et al. 2021) on pictures and their captions. The keys of `clip` are
those of open_clip's model configs, and the keys of `data` are those of a decoder. These rules apply between the sections:

| if | then |
|---|---|
| always | `data.preprocessing` makes pictures whose sides are `clip.vision_cfg.image_size` |
| always | `data.img_embeddings_url` and `data.text_embeddings_url` are absent |
| always | `data.embeddings_in_tar` and `data.latents_in_tar` are false |
| `clip.vision_cfg.layers` is a list (a ResNet) | the run has one process, `train.mixed_precision` is not `fp16`, `train.grad_accum_every` is 1, `train.max_batch_size` is absent or at least `data.batch_size` |
| `clip.tokenizer.train` is given | `clip.text_cfg.vocab_size` is absent or the same, and `clip.tokenizer.path` is absent |

)";

std::string escaped(const std::string& text) {
  std::string cell;
  for (const char c : text) cell += c == '|' ? "\\|" : std::string(1, c);
  return cell;
}

std::string words_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "`" : ", `") + word + "`";
  return text;
}

std::string with_limits(const std::string& type, const Limits& limits) {
  const std::string text = limits_text(limits);
  return text.empty() ? type : type + " " + text;
}

template <class T>
std::string type_text(const Limits& limits) {
  if constexpr (OptionalTraits<T>::is_optional) {
    using Value = typename OptionalTraits<T>::Value;
    const std::string type = type_text<Value>(limits);
    if constexpr (IsVector<Value>::value && !std::is_same_v<Value, std::vector<TransformConfig>>) {
      using Item = typename ValueOf<Value>::Type;
      if (!limits.one_is_list_) return "null, or a " + type;
      if constexpr (takes_null<Item>) {
        return type_text<typename OptionalTraits<Item>::Value>(limits) +
               ", null, or a list of these";
      }
    }
    return type + (limits.false_is_null_ ? ", false or null" : " or null");
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return "object";
  } else if constexpr (IsVector<T>::value) {
    const std::string item = type_text<typename ValueOf<T>::Type>(limits);
    if (limits.one_is_list_) return item + ", or a list";
    if (item == "object") return "list of objects";
    const std::string count = limits.least > 0 && limits.least == limits.most
                                  ? fmt::format("list of {}: ", limits.most)
                                  : "list of: ";
    return count + item;
  } else if constexpr (IsOneOrMany<T>::value) {
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

/// A table of one struct, and the sections of the structs below it.
class Tables : public IgnoresRules {
 public:
  explicit Tables(std::string path) : path_(std::move(path)) {}

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    row<Member>(key, "`" + to_json(member).dump() + "`", doc, limits);
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if constexpr (Reflected<Member>) {
      // Not of Member(): a kind of run may have defaults of its own.
      below_ += section_of(member, path, "`" + path + "`");
    } else {
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
  static std::string section_of(T value,
                                const std::string& path,
                                const std::string& title,
                                const std::string& first_row = "") {
    Tables tables(path);
    tables.rows_ = first_row;
    value.fields(tables);
    std::string text = fmt::format("\n## {}\n", title);
    if constexpr (requires { T::kDoc; }) text += fmt::format("\n{}\n", T::kDoc);
    if (!tables.rows_.empty()) {
      text += "\n| key | type | default | meaning |\n|---|---|---|---|\n" + tables.rows_;
    }
    return text + tables.below_;
  }

 private:
  template <class Member>
  void row(const char* key, const std::string& initial, const char* doc, const Limits& limits) {
    rows_ += fmt::format("| `{}` | {} | {} | {} |\n",
                         key,
                         escaped(type_text<Member>(limits)),
                         escaped(initial),
                         escaped(doc));
  }

  template <class Member>
  void section(const std::string& path) {
    if constexpr (OptionalTraits<Member>::is_optional) {
      section<typename OptionalTraits<Member>::Value>(path);
    } else if constexpr (std::is_same_v<Member, std::vector<TransformConfig>>) {
      below_ += transforms(path);
    } else if constexpr (IsVector<Member>::value) {
      section<typename ValueOf<Member>::Type>(path + "[i]");
    } else if constexpr (IsOneOrMany<Member>::value) {
      section<typename ValueOf<Member>::Type>(path);
    } else if constexpr (IsVariant<Member>::value) {
      alternatives(static_cast<Member*>(nullptr), path);
    } else if constexpr (Reflected<Member>) {
      below_ += section_of(Member(), path, "`" + path + "`");
    }
  }

  template <class... Alternatives>
  void alternatives(std::variant<Alternatives...>*, const std::string& path) {
    using Variant = std::variant<Alternatives...>;
    using Traits = TagTraits<Variant>;
    const bool none_is_default = Traits::key == std::string("load_from");
    std::string initial = none_is_default ? "`null`" : "";
    const auto add = [&](auto alternative) {
      const std::string tag = fmt::format("`\"{}\"`", alternative.kTag);
      if (initial.empty()) initial = tag;
      below_ += section_of(
          alternative,
          path,
          fmt::format("`{}` with `\"{}\": \"{}\"`", path, Traits::key, alternative.kTag),
          fmt::format("| `{}` | {} | {} | {} |\n", Traits::key, tag, initial, Traits::doc));
    };
    (add(Alternatives{}), ...);
  }

  static std::string transforms(const std::string& path) {
    std::string text = fmt::format(
        "\n## `{}`\n\nAn object with one key for each transform. The value is an object with "
        "the arguments, `true` for the defaults, or `false` to leave the transform out. The "
        "transforms are applied in the order of their keys. `ToTensor` is needed.\n\n| "
        "transform | argument | type | default | meaning |\n|---|---|---|---|---|\n",
        path);
    for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
      TransformConfig transform;
      transform.kind = static_cast<TransformKind>(i);
      Tables arguments("");
      transform.fields(arguments);
      const std::string name = fmt::format("| `{}` ", enum_names<TransformKind>[i]);
      if (arguments.rows_.empty()) text += name + "| | | | no arguments |\n";
      for (size_t at = 0; at < arguments.rows_.size();) {
        const size_t end = arguments.rows_.find('\n', at) + 1;
        text += name + arguments.rows_.substr(at, end - at);
        at = end;
      }
    }
    return text;
  }

  std::string path_;
  std::string rows_;
  std::string below_;
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

/// @param before, after the tables of a kind
template <class Config>
void add_kind(Page& page, const std::string& before, const std::string& after = "") {
  const std::string& kind = config_kind_of(Config::kKind).name;
  const std::string tables =
      Tables::section_of(Config(), "", fmt::format("The sections of {}'s file", kind));
  for (const Section& section : sections_of(before + tables + after)) page.add(section, kind);
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
