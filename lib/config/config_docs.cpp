// SPDX-License-Identifier: MIT
// The visitor that writes docs/config.md.
#include "config/coerce.h"
#include "config/prior_run_config.h"
#include "config/run_config.h"
#include "config/vae_run_config.h"
#include "config/writer.h"

namespace dalle2 {
namespace {

constexpr const char* kIntroduction = R"(# The config of a training run

<!-- Generated from lib/config; `DALLE2_UPDATE_GENERATED=1 ctest -R config` writes it anew. -->

A run is described by one JSON file, with the keys and defaults of dalle2-pytorch's
`train_decoder.py`, so its files work as they are. The smallest one that trains:

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

## How a file is read

- **All faults at once.** A fault names its place as a JSON pointer (`/decoder/unets/0/dim`), what
  was expected, what was found, and the key you may have meant. The program then ends with exit
  code 2, before data or model are touched.
- **Lenient where nothing can be misunderstood.** `"3"`, `8.0`, `1e6` and `true` are integers,
  `"1e-4"` is a number, `0`, `1`, `"yes"`, `"off"` and the like are booleans. `8.5` is no integer.
- **One or many.** "X, or a list" takes one value for all unets (or resolutions), or one for each.
- **Unknown keys** are ignored with a warning, but an error if they are near a known key ("did you
  mean"), and always an error in `decoder`, `prior`, `vae`, the arguments of transforms and those of
  metrics. With `--strict` every warning is an error. `$schema` is free for editors:
  `configs/schema/decoder.json`, `prior.json` and `vae.json` have the schemas.
- **Comments** (`//` and `/* */`) are allowed; a key given twice in an object is an error.
- **Paths** are relative to the working directory.
- `--set /train/lr=3e-4` changes one value from the command line; it beats the file. The part after
  `=` is JSON, or else text. `--dump-config` prints the config as it is used, with every default.
- What is marked *not available yet* is refused unless it has its default.
)";

constexpr const char* kClosing = R"(
## Rules between the sections

| when | then |
|---|---|
| a unet has `cond_on_text_encodings` | give `data.text_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` |
| no unet has it | `data.text_embeddings_url` must be absent |
| not `decoder.unconditional` | give `data.img_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` |
| `decoder.clip`, with text | give at most one of the two embedding urls |
| `decoder.clip`, without text | `data.img_embeddings_url` must be absent |
| `decoder.clip` | not `decoder.unconditional` |
| a value of `train` is a list | it has one entry for each unet |
| `train.cond_scale` is not 1 | a `cond_drop_prob` of the decoder is above 0 |
| `train.min_snr_gamma` of a unet | its `decoder.p2_loss_weight_gamma` is 0 |
| `train.dream.enabled` | every trained unet predicts the noise |
| `data.resample_train` | `train.epoch_samples` should bound the epoch |

These hold for every kind of run:

| when | then |
|---|---|
| `train.use_ema` is false | no other key of the averages has an effect |
| `train.ema.kind` is `ema_pytorch` | the other keys of `train.ema` keep their defaults |
| `train.ema.kind` is `diffusers` | `train.update_model_with_ema_every` is null |
| a width of `train.post_hoc_ema` is given | `train.post_hoc_ema.save_every_n_steps` is given, too |
| `train.lora.rank` is 0 | `train.frozen_dtype` is `fp32`, and no saver has the `save_type` `lora` |
| a run goes on from a checkpoint | its config gives weights and data the same meaning, or `train.allow_changed_config` is true |

## What is derived for each unet

- **Sizes.** `image_sizes` is sorted and stripped of doubles; the lowest belongs to the first unet.
  Each size (and crop size) must be divisible by 2 for each halving: one less than there are
  `dim_mults`, as many with `memory_efficient`.
- **Wiring.** The first unet gets the image embedding (unless `unconditional`), the others the low
  resolution image of the one before. Text goes to the unets with `cond_on_text_encodings`.
- **Schedules.** Every beta must stay below 1: 21 `timesteps` are enough for `linear`, `quadratic`
  and `sigmoid`. `jsd` ends at beta = 1, which leaves nothing of the image in the last step. It is
  allowed where that does no harm: without `learned_variance`, and either with `predict_v` or
  `predict_x_start` or with `sample_timesteps` below `timesteps - 1`; DDIM must not start at the
  last step. `zero_terminal_snr` ends there too; it always needs `predict_v` or `predict_x_start`.
- **Widths.** `init_dim` equals `dim`, and `dim_mults` starts with 1 unless `memory_efficient`: the
  last block of the network has no other shape. `resnet_groups` divides every width.
)";

constexpr const char* kVaePage = R"(
## Files that train a VAE

A file with the root key `vae` trains a VQGAN-VAE (Esser et al. 2021), which makes small maps of codes from pictures and
pictures from such maps. Keys and defaults are the arguments of the VQGanVAE and the VQGanVAETrainer of
muse-maskgit-pytorch; with `vae.kind` `dalle2` the network is that of dalle2-pytorch. Rules between sections:

| if | then |
|---|---|
| always | `data.image_size` is divisible by 2 to the power of `vae.layers` (a `vit`: by its patch), and equals `vae.image_size` where that is given |
| `vae.use_vgg_and_gan` | `train.vgg_path` is given, and `data.image_size` is 4 times 2 to the power of `vae.discr_layers`, or more |
| `vae.kind` `muse` with `lookup_free_quantization` | `vae.codebook_size` is a power of two |

)";

constexpr const char* kPriorPage = R"(
## Files that train a prior

A file with the root key `prior` in place of `decoder` trains a diffusion prior, which makes image
embeddings from text embeddings. It has the keys and defaults of the reference's
`train_diffusion_prior.py`; what the two kinds of files share means the same. Embeddings are made
before: `data.image_url`, `data.text_url` and `data.text_encodings_url` are folders of .npy files.
Rules between sections:

| if | then |
|---|---|
| always | `data.text_url` is given; `prior.net.dim` equals `prior.image_embed_dim`; `data.splits` leave something for test |
| `prior.condition_on_text_encodings` | `data.text_encodings_url` is given, else absent |
| `prior.net.num_timesteps` | equals `prior.timesteps` |
| `train.dream` | neither `prior.predict_v` nor `prior.predict_x_start` |
| `train.eval_timesteps` | each from `prior.sample_timesteps` to `prior.timesteps` |
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
    const char* off = limits.false_is_null_    ? ", false or null"
                      : IsVector<Value>::value ? ", or null"
                                               : " or null";
    return type_text<Value>(limits) + off;
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
    return limits.words.empty() ? "text" : words_text(limits.words);
  } else {
    return "object";
  }
}

/// A table of one struct, and the sections of the structs below it.
class Tables {
 public:
  explicit Tables(std::string path) : path_(std::move(path)) {}

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    row<Member>(key, "`" + to_json(member).dump() + "`", doc, limits);
    section<Member>(path_.empty() ? key : path_ + "." + key);
  }
  template <class Member>
  void required(const char* key, Member&, const char* doc, const Limits& limits = {}) {
    row<Member>(key, "**required**", doc, limits);
    section<Member>(path_.empty() ? key : path_ + "." + key);
  }
  void check(bool, const std::string&, const std::string&) {}
  void rule(const std::string&, const std::optional<std::string>&) {}
  void note(bool, const std::string&, const std::string&) {}

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
    if constexpr (requires { T::kUnavailable; }) {
      text += fmt::format("\n*Not available yet:* {}.\n", T::kUnavailable);
    }
    if (!tables.rows_.empty()) {
      text += "\n| key | type | default | meaning |\n|---|---|---|---|\n" + tables.rows_;
    }
    return text + tables.below_;
  }

 private:
  template <class Member>
  void row(const char* key, const std::string& initial, const char* doc, const Limits& limits) {
    rows_ += fmt::format("| `{}` | {} | {} | {}{} |\n",
                         key,
                         escaped(type_text<Member>(limits)),
                         escaped(initial),
                         escaped(doc),
                         limits.unavailable == nullptr ? "" : " *Not available yet.*");
  }

  template <class Member>
  void section(const std::string& path) {
    if constexpr (OptionalTraits<Member>::is_optional) {
      section<typename OptionalTraits<Member>::Value>(path);
    } else if constexpr (std::is_same_v<Member, std::vector<TransformConfig>>) {
      below_ += transforms(path);
    } else if constexpr (IsVector<Member>::value) {
      section<typename ValueOf<Member>::Type>(path + "[i]");
    } else if constexpr (IsVariant<Member>::value) {
      alternatives(static_cast<Member*>(nullptr), path);
    } else if constexpr (Reflected<Member>) {
      below_ += section_of(Member{}, path, "`" + path + "`");
    }
  }

  template <class... Alternatives>
  void alternatives(std::variant<Alternatives...>*, const std::string& path) {
    using Traits = TagTraits<std::variant<Alternatives...>>;
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
        "\n"
        "## `{}`\n"
        "\n"
        "An object: the name of a transform -> an object with its arguments, or `true` for none, "
        "or `false` to leave it out. They are applied in the order of their keys; `ToTensor` is "
        "needed.\n"
        "\n"
        "| transform | argument | type | default | meaning |\n"
        "|---|---|---|---|---|\n",
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

}  // namespace

std::string config_docs() {
  return kIntroduction + Tables::section_of(TrainDecoderConfig{}, "", "The sections") + kClosing +
         kPriorPage + Tables::section_of(TrainPriorConfig{}, "", "The sections of a prior's file") +
         kVaePage + Tables::section_of(TrainVaeConfig{}, "", "The sections of a VAE's file");
}

}  // namespace dalle2
