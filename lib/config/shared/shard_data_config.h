// SPDX-License-Identifier: MIT
// `data` of the kinds that read shards: a decoder and a CLIP.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/public_url.h"
#include "config/reading/reflect.h"

namespace dalle2 {

struct SplitConfig {
  static constexpr const char* kDoc =
      "Fractions of the shards of each process, or of the rows of a prior. They must sum to 1 "
      "(within 1e-6).";

  double train = 0.75;
  double val = 0.15;
  double test = 0.1;

  void fields(auto& f) {
    D2_FIELD(train, "Fraction for training.", within(0, 1));
    D2_FIELD(val, "Fraction for validation and metrics.", within(0, 1));
    D2_FIELD(test,
             "Fraction for the test pictures in a decoder's log, or a prior's test loss.",
             within(0, 1));
    f.check(std::abs(train + val + test - 1) <= 1e-6,
            "",
            "train, val and test must sum to 1.0, found: " + std::to_string(train + val + test));
  }
};

/// Names as in torchvision; JSON key order is the order of application.
D2_ENUM(TransformKind,
        RandomResizedCrop,
        RandomHorizontalFlip,
        Resize,
        CenterCrop,
        ColorJitter,
        RandomRotation,
        ToTensor);

struct TransformConfig {
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  TransformKind kind = TransformKind::ToTensor;
  /// Whether it makes something else of a picture each time.
  bool is_random() const {
    return kind == TransformKind::RandomResizedCrop ||
           kind == TransformKind::RandomHorizontalFlip || kind == TransformKind::ColorJitter ||
           kind == TransformKind::RandomRotation;
  }
  std::vector<int64_t> size;  ///< [side] or [height, width], pixels
  bool fits = false;  ///< Resize to [side]: of the longer side; what a CLIP asks for, no config
  std::vector<double> scale = {0.08, 1.0};  ///< RandomResizedCrop: share of the area
  std::vector<double> ratio = {3.0 / 4.0, 4.0 / 3.0};
  std::string interpolation = "bilinear";
  double p = 0.5;  ///< RandomHorizontalFlip
  // ColorJitter: [reach], or [low, high]
  std::vector<double> brightness = {0}, contrast = {0}, saturation = {0}, hue = {0};
  std::vector<double> degrees;     ///< RandomRotation: [reach], or [low, high]
  std::vector<double> fill = {0};  ///< RandomRotation; CenterCrop, what a CLIP asks for

  /// Only the arguments of its own kind.
  void fields(auto& f) {
    const bool crops = kind == TransformKind::RandomResizedCrop;
    if (crops) {
      D2_REQUIRED(size,
                  "Side of the result in pixels, or [height, width].",
                  within(1, 65'535).entries(1, 2).one_is_list());
      D2_FIELD(
          scale, "Range of the crop's area, as a fraction of the picture.", above(0).entries(2));
      D2_FIELD(ratio, "Range of the crop's width divided by its height.", above(0).entries(2));
      check_range(f, scale, "scale");
      check_range(f, ratio, "ratio");
    } else if (kind == TransformKind::Resize) {
      D2_REQUIRED(size,
                  "Length of the shorter side in pixels, or [height, width].",
                  within(1, 65'535).entries(1, 2).one_is_list());
    } else if (kind == TransformKind::CenterCrop) {
      D2_REQUIRED(size,
                  "Side of the central crop in pixels, or [height, width].",
                  within(1, 65'535).entries(1, 2).one_is_list());
    }
    if (crops || kind == TransformKind::Resize) {
      D2_FIELD(
          interpolation,
          "Resampling filter, by name or by Pillow's number.",
          one_of({"nearest", "lanczos", "bilinear", "bicubic", "box", "hamming", "nearest_exact"})
              .index_is_word(6));
    }
    if (kind == TransformKind::RandomHorizontalFlip) {
      D2_FIELD(
          p, "Probability of mirroring a picture. (The reference always uses 0.5.)", within(0, 1));
    }
    if (kind == TransformKind::ColorJitter) color_jitter_fields(f);
    if (kind == TransformKind::RandomRotation) {
      D2_REQUIRED(
          degrees,
          "Range [low, high] of the random angle, counter-clockwise; one number d for [-d, d].",
          within(-360, 360).entries(1, 2).one_is_list());
      D2_FIELD(interpolation,
               "How values between pixels are interpolated.",
               one_of({"nearest", "bilinear"}));
      D2_FIELD(fill,
               "Value of the empty corners: one number, or red, green and blue.",
               within(0, 255).entries(1, 3).one_is_list());
      check_reach(f, degrees, "degrees");
      f.check(fill.size() != 2, "fill", "must be one value or three, got 2");
    }
  }

 private:
  void color_jitter_fields(auto& f) {
    const auto factor = [] { return within(0, 100).entries(1, 2).one_is_list(); };
    D2_FIELD(brightness,
             "Range [low, high] of a random factor of the values; one number d for [1 - d, 1 + d].",
             factor());
    D2_FIELD(contrast,
             "Like `brightness`, for the distances from the picture's mean lightness.",
             factor());
    D2_FIELD(saturation, "Like `brightness`, for the distances from grey.", factor());
    D2_FIELD(
        hue,
        "Range [low, high] of a random shift of the hue, as a fraction of the colour circle; one "
        "number d for [-d, d].",
        within(-0.5, 0.5).entries(1, 2).one_is_list());
    check_reach(f, brightness, "brightness");
    check_reach(f, contrast, "contrast");
    check_reach(f, saturation, "saturation");
    check_reach(f, hue, "hue");
  }

  static void check_reach(auto& f, const std::vector<double>& reach, const char* key) {
    if (reach.size() == 1) f.check(reach[0] >= 0, key, "must not be negative if it is one number");
    if (reach.size() == 2) check_range(f, reach, key);
  }

  static void check_range(auto& f, const std::vector<double>& range, const char* key) {
    f.check(range[0] <= range[1], key, "must be a range [low, high] with low <= high");
  }
};

/// How many times `{}` is in `text`. `{{` is a plain brace, as in the urls.
inline int count_braces(const std::string& text) {
  int count = 0;
  for (size_t at = 0; (at = text.find('{', at)) != std::string::npos; at += 2)
    count += text.compare(at, 2, "{}") == 0 ? 1 : 0;
  return count;
}

/// What is wrong with the urls of the shards, as far as their text tells.
inline std::optional<std::string> shard_url_fault(const OneOrMany<std::string>& urls) {
  for (const std::string& url : urls.values()) {
    const int places = count_braces(url);
    const bool names = url.find('{') != std::string::npos || url.find("::") != std::string::npos;
    const bool good = places == 0 ? names || !urls.is_one() : places == 1;
    if (!good) {
      return "must contain {} exactly once, where the shard number goes, got \"" + public_url(url) +
             "\"";
    }
    if (url.empty()) return "must not hold an empty text";
  }
  return std::nullopt;
}

/// What is wrong with a size that the transforms ask for, if no picture can be made of it.
inline std::optional<std::string> transform_size_fault(const std::vector<TransformConfig>& steps,
                                                       int64_t most_pixels) {
  for (const TransformConfig& step : steps) {
    if (step.size.empty() || step.size.front() * step.size.back() <= most_pixels) continue;
    return std::string(enum_names<TransformKind>[static_cast<size_t>(step.kind)]) +
           " makes pictures of " + std::to_string(step.size.front()) + " x " +
           std::to_string(step.size.back()) + " pixels at least, and max_transform_pixels is " +
           std::to_string(most_pixels) + ": lower the size, or raise the limit";
  }
  return std::nullopt;
}

/// How the file of a picture becomes pixels: the same in every reader.
struct PictureReadConfig {
  std::optional<Colour> ground;
  std::optional<bool> apply_exif;  ///< null: as the kind of data says
  std::optional<int64_t> range;

  bool turns(bool by_default) const { return apply_exif.value_or(by_default); }

  void fields(auto& f) {
    D2_FIELD(
        ground,
        "Extension: colour under transparent pictures: `white`, `black` or red, green and blue (0 "
        "to 255). Null: transparency is ignored, as in the reference, and the stored colours "
        "appear. A picture with 4 channels keeps its transparency.");
    D2_FIELD(apply_exif,
             "Extension: rotate and mirror pictures by their EXIF orientation. Null: true with "
             "`data.folder` of a decoder or a CLIP, false with shards and for a VAE, as in the "
             "reference.");
    D2_FIELD(
        range,
        "Extension: value of grey pictures with 16 bits that becomes 255. Null: 65535, or less if "
        "the PNG file states fewer significant bits (sBIT).",
        within(1, 65'535));
  }
};

/// Which lines of a caption file are the caption.
D2_ENUM(CaptionLines, all, first, drawn);

/// How a caption's bytes become text: the same in every reader.
struct CaptionReadConfig {
  std::string caption_encoding = "windows-1252";
  CaptionLines caption_lines = CaptionLines::all;

  void fields(auto& f) {
    D2_FIELD(
        caption_encoding,
        "Extension: encoding of captions that are not UTF-8 and have no byte order mark, as ICU "
        "names it, e.g. `windows-1251`, `gb18030` or `shift_jis`.",
        not_empty());
    D2_FIELD(
        caption_lines,
        "Extension: what of a text is the caption: all, its first line that is not empty, or a "
        "line drawn anew each epoch.");
  }
};

/// How the pictures of a folder are dealt into virtual shards.
D2_ENUM(FolderOrder, mixed, in_order, together);

struct ShardDataConfig : PictureReadConfig, CaptionReadConfig {
  static constexpr const char* kDoc =
      "Where the samples come from: tar shards, or a folder of pictures and captions.";

  OneOrMany<std::string> webdataset_base_url = std::string();  // required without folder
  std::optional<std::string> folder;                           // extension
  std::optional<FolderOrder> folder_order;                     // extension
  std::optional<std::string> img_embeddings_url;
  std::optional<std::string> text_embeddings_url;
  int64_t num_workers = 4;
  std::optional<int64_t> lanes;
  int64_t batch_size = 64;
  int64_t start_shard = 0;
  int64_t end_shard = 9999999;
  int64_t shard_width = 6;
  int64_t index_width = 4;
  SplitConfig splits;  // required
  bool shuffle_train = true;
  bool resample_train = false;
  std::optional<int64_t> shuffle_buffer;  // extension
  std::vector<TransformConfig> preprocessing = {TransformConfig{}};
  // Extensions
  bool latents_in_tar = false;     ///< take <key>.latent.npy from the shards
  bool embeddings_in_tar = false;  ///< take <key>.img_emb.npy / <key>.text_emb.npy from the shards
  bool fast_jpeg = false;          ///< decode JPEG at a smaller scale where the crop allows it
  double max_bad_fraction = 1;     ///< of a split's shards, more that cannot be read end the run
  bool allow_pipe = false;         ///< urls may be commands
  int64_t max_transform_pixels = 16'777'216;  ///< of a picture that a transform makes

  FolderOrder order_of_folder() const { return folder_order.value_or(FolderOrder::mixed); }
  /// Whether EXIF orientations count.
  bool turns_pictures() const { return turns(/*by_default=*/folder.has_value()); }

  bool names_pipe() const {
    const auto is_pipe = [](const std::string& url) { return url.starts_with("pipe:"); };
    for (const std::string& url : webdataset_base_url.values()) {
      if (is_pipe(url) || url.find("::pipe:") != std::string::npos) return true;
    }
    return is_pipe(img_embeddings_url.value_or("")) || is_pipe(text_embeddings_url.value_or(""));
  }

  /// Samples that are mixed with each other in training.
  int64_t training_shuffle_buffer() const {
    return shuffle_buffer.value_or(shuffle_train || resample_train ? 1000 : 1);
  }

  void fields(auto& f) {
    D2_FIELD(
        folder,
        "Extension: folder of JPEG, PNG and WebP pictures with same-named `.txt` captions, instead "
        "of shards; subfolders and links are included. The pictures form 30 to 100 virtual shards "
        "(more with over 100,000 pictures).",
        not_empty());
    D2_FIELD(
        folder_order,
        "Extension: which pictures of `folder` form a virtual shard, and so lie in one split. "
        "`mixed`: a share of each subfolder. `together`: whole lowest subfolders, for example all "
        "pictures of a person. `in_order`: the order of the paths. Null: `mixed`; needed with "
        "folders of embeddings, whose rows follow this order.");
    D2_REQUIRED(
        webdataset_base_url,
        "Path of the shards with one `{}` for the zero-padded shard number, e.g. `shards/{}.tar`, "
        "or such a URL: `file:`, `http:`, `https:`, `s3:`, `hf://datasets/OWNER/NAME/{}.tar` of "
        "the Hugging Face hub or, with `allow_pipe`, `pipe:` and a shell command that writes the "
        "tar. Or all shards: with braces (`shards/{000..123}.tar`, `{a,b}/{0..9}.tar`), patterns "
        "joined by `::`, or a list.",
        not_empty().fetched().or_else("folder", folder.has_value()));
    D2_FIELD(
        img_embeddings_url,
        "Folder of `.npy` files with the image embeddings, one for each shard, with its number at "
        "the end of the name (`000012.npy`, `img_emb_000012.npy`). The last `index_width` digits "
        "of a key are its row. A path, `s3://BUCKET/FOLDER`, `hf://OWNER/NAME/FOLDER`, "
        "`hf://datasets/OWNER/NAME/FOLDER`, the URL of a page that links to the files, or a path "
        "or URL with `{}` for the shard number, like `https://host/img_emb_{}.npy` (with "
        "`allow_pipe`, also `pipe:`). For the folders of `shards embed`, use `embeddings_in_tar`.",
        not_empty().fetched());
    D2_FIELD(text_embeddings_url,
             "Like `img_embeddings_url`, for text encodings; only if a unet has "
             "`cond_on_text_encodings`. An empty string counts as null.",
             any_value().fetched());
    D2_FIELD(
        num_workers,
        "Threads that read and decode, per process; 0 reads in the main thread. The order of the "
        "samples stays the same.",
        within(0, most::kThreads));
    D2_FIELD(
        lanes,
        "Extension: number of lanes, equal parts of an epoch's shards from which batches come in "
        "turn. Null: one for each process. With a number, runs with up to that many processes see "
        "the same samples in the same order.",
        within(1, most::kRanks));
    D2_FIELD(batch_size, "Samples per step and process.", within(1, most::kBatch));
    D2_FIELD(start_shard, "Number of the first shard.", within(0, most::kSamples));
    D2_FIELD(end_shard, "Number of the last shard (inclusive).", within(0, most::kSamples));
    D2_FIELD(shard_width, "Digits of a shard number.", within(1, 18));
    D2_FIELD(index_width,
             "Digits at the end of a key that are the row of its embedding.",
             within(1, 18));
    D2_REQUIRED(
        splits,
        "Fractions of the shards for training, validation and test; `{}` for the defaults. Each "
        "process (with `lanes`: each lane) needs a shard of each.");
    D2_FIELD(shuffle_train,
             "Read the training shards in a new random order in each epoch, by `seed`.");
    D2_FIELD(resample_train,
             "Draw training shards with replacement, endlessly. Limit the epoch with "
             "`train.epoch_samples`, and set `shuffle_train` to false.");
    D2_FIELD(shuffle_buffer,
             "Extension: training samples that are shuffled together in memory, not yet decoded; 1 "
             "keeps the order of the shards. Null: 1000 with `shuffle_train` or `resample_train`, "
             "otherwise 1.",
             within(1, most::kBuffer));
    D2_FIELD(preprocessing, "Transforms of each picture (see below).");
    D2_FIELD(embeddings_in_tar,
             "Extension: take the embeddings from the shards: `KEY.img_emb.npy` and, for "
             "text-conditioned unets, `KEY.text_emb.npy`.");
    D2_FIELD(
        latents_in_tar,
        "Extension: take the latents of the first unet from the shards (`KEY.latent.npy`), which "
        "`dalle2-train shards encode` writes, instead of encoding the pictures at each step. The "
        "pictures still serve the log, metrics and upper unets. No transform may be random.");
    D2_FIELD(
        fast_jpeg,
        "Extension: decode JPEG at 1/2, 1/4 or 1/8 scale if RandomResizedCrop or Resize still gets "
        "all the pixels it needs. This is faster, above all for large pictures, but pixel values "
        "(0 to 255) differ from the reference's by 0.5 to 2 on average.");
    PictureReadConfig::fields(f);
    CaptionReadConfig::fields(f);
    D2_FIELD(
        max_bad_fraction,
        "Extension: largest fraction of a split's shards that may be absent, damaged or "
        "unreachable in an epoch. They are left out with a warning; more of them end the run. With "
        "1, the run ends only without any usable training sample, or after three unreachable "
        "shards in a row: a lost network.",
        within(0, 1));
    D2_FIELD(
        allow_pipe,
        "Extension: run the commands of `pipe:` URLs on this machine, with your permissions. Only "
        "the config file can allow it, not `--set`. A config in a checkpoint runs no command.");
    D2_FIELD(
        max_transform_pixels,
        "Extension: largest picture that a transform may make, in pixels (width times height). "
        "Resize keeps the proportions, so a long strip would become huge. Such pictures are left "
        "out and counted, like damaged ones.",
        within(1, most::kImagePixels));
    f.check(!folder_order || folder, "folder_order", "has no effect without data.folder");
    f.check(!folder || folder_order || (!img_embeddings_url && !text_embeddings_url),
            "folder_order",
            "must be given with embeddings: \"in_order\" if their rows follow the paths of the "
            "pictures, \"mixed\" if they follow the virtual shards of today");
    if (!folder) f.rule("webdataset_base_url", shard_url_fault(webdataset_base_url));
    f.check(!folder || !(embeddings_in_tar || latents_in_tar),
            embeddings_in_tar ? "embeddings_in_tar" : "latents_in_tar",
            "a folder of pictures holds no arrays: pack it by `dalle2-train shards make`, or give "
            "img_embeddings_url");
    f.rule("preprocessing", transform_size_fault(preprocessing, max_transform_pixels));
    f.check(start_shard <= end_shard,
            "end_shard",
            "must not be less than start_shard (" + std::to_string(start_shard) + "), got " +
                std::to_string(end_shard));
    f.check(!(shuffle_train && resample_train),
            "resample_train",
            "Cannot both resample and shuffle: set shuffle_train (default true) or resample_train "
            "to false");
    f.check(shuffle_buffer.value_or(1) == 1 || shuffle_train || resample_train,
            "shuffle_buffer",
            "mixes samples only with shuffle_train or resample_train, and both are false");
  }
};

}  // namespace dalle2
