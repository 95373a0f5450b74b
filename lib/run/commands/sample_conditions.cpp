// SPDX-License-Identifier: MIT
// `sample --text`, `--image`, `--to`, `--from-text`: what is asked for, as embeddings that a CLIP and a
// prior make. Variations and texts are drawn from an embedding each, ways from embeddings between two
// (Ramesh et al. 2022, section 3). Legend: M texts or pictures, F images of each, D width of embeddings.
#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/log.h"
#include "base/untrusted_text.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/convert.h"
#include "model/clip/clip_encoder.h"
#include "run/checkpoints/clip_weights.h"
#include "run/commands/sample_command.h"
#include "run/pictures/pictures.h"
#include "run/prior/prior_run.h"

namespace dalle2 {
namespace {

constexpr int64_t kDefaultFrames = 8;
/// The largest that the paper names for text diffs.
constexpr double kDefaultTheta = 0.5;

/// A text, or with "@" the lines of a file, none of them empty. @param option that gave it
/// @throws ConfigError
std::vector<std::string> texts_of(const char* option, const std::string& given) {
  std::vector<std::string> texts;
  if (given.starts_with("@")) {
    const std::string path = given.substr(1);
    std::ifstream in(path);
    if (!in)
      throw ConfigError("{} {}: {}: no such file", option, printable(given), printable(path));
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      texts.push_back(line);
    }
    while (!texts.empty() && texts.back().empty()) texts.pop_back();
    const auto blank = std::find(texts.begin(), texts.end(), "");
    if (blank != texts.end())
      throw ConfigError("{} {}: line {} is empty\n  Each line is the text of a picture: remove it.",
                        option,
                        printable(given),
                        blank - texts.begin() + 1);
    if (texts.empty())
      throw ConfigError("{} {}: expected a text a line, got none", option, printable(given));
  } else {
    texts.push_back(given);
  }
  for (const std::string& text : texts) {
    if (is_utf8(text)) continue;
    throw ConfigError("{} {}: \"{}\" is not UTF-8", option, printable(given), printable(text));
  }
  return texts;
}

/// @param picture [C, H, W]
void check_picture(const at::Tensor& picture,
                   const std::string& given,
                   const SampleCommand& command,
                   const ClipPreprocessing& clip) {
  if (picture.numel() == 0 || (picture.size(0) != 1 && picture.size(0) != 3)) {
    throw DataError("{}: expected pictures of 1 or 3 channels, got {} x {} x {}",
                    given,
                    picture.size(0),
                    picture.size(1),
                    picture.size(2));
  }
  const auto [lowest, highest] = at::aminmax(picture);
  if (lowest.item<float>() < 0 || highest.item<float>() > 1) {
    throw DataError("{}: expected values from 0 to 1, what a CLIP is shown, got {} to {}",
                    given,
                    lowest.item<float>(),
                    highest.item<float>());
  }
  if (!clip.enlarges(picture.size(2), picture.size(1))) return;
  throw DataError(
      "{}: expected pictures of {} x {} pixels or more, what --clip {} sees, got {} x {}\n  "
      "Give a larger picture: an enlarged one has other embeddings than what the decoder learnt.",
      given,
      clip.side,
      clip.side,
      printable(*command.clip_path),
      picture.size(2),
      picture.size(1));
}

/// The CLIP of --clip on the device of the sampling. What it makes is on the CPU.
class SampleClip {
 public:
  /// @throws ConfigError, DataError as load_clip_file()
  SampleClip(const SampleCommand& command, const DecodeOptions& reading, const at::Device& device)
      : command_(command),
        reading_(reading),
        clip_(
            load_clip_file(command.clip_path.value(), {.config_path = command.clip_config_path})) {
    clip_.clip->to(device);
  }

  /// @throws ConfigError for a text that is too long: a drawing shows what the whole text says
  TextEmbedding embed_texts(const char* option, const std::vector<std::string>& texts) const {
    const int64_t room = clip_.text_room();
    for (const std::string& text : texts) {
      const int64_t tokens = std::ssize(clip_.tokenizer->encode(text));
      if (tokens <= room) continue;
      throw ConfigError("{}: \"{}\" has {} tokens, and --clip {} takes {}\n  Shorten the text.",
                        option,
                        shown_caption(text),
                        tokens,
                        printable(*command_.clip_path),
                        room);
    }
    const torch::NoGradGuard no_grad;
    TextEmbedding made = clip_.embed_tokens(clip_.tokens_of(texts), command_.batch_size);
    made.tensors([](at::Tensor& tensor) { tensor = tensor.cpu(); });
    return made;
  }

  /// A picture, a folder of them or an array in [0, 1], of any sizes. @return [N, D]
  /// @throws DataError for a picture that is smaller than what the CLIP sees
  at::Tensor embed_pictures(const char* option, const std::string& path) const {
    const ClipPreprocessing seen_as = clip_.clip->preprocessing();
    const Preprocess preprocess(clip_preprocessing(seen_as));
    const std::string given = printable(path);
    std::vector<at::Tensor> seen;
    try {
      for (const at::Tensor& picture : load_pictures_of_any_size(path, {.options = reading_})) {
        check_picture(picture, given, command_, seen_as);
        seen.push_back(from_picture(preprocess.apply(to_picture(picture), /*random=*/nullptr)));
      }
    } catch (const DataError& error) {
      throw DataError("{} {}", option, error.what());  // which begins with the path
    }
    if (seen.empty())
      throw DataError("{} {}: expected at least one picture, got none", option, given);
    const torch::NoGradGuard no_grad;
    return clip_.embed_images(at::stack(seen), command_.batch_size).cpu();
  }

  const ClipEncoderImpl& network() const { return *clip_.clip; }
  /// clip_sha256(), computed when it is first asked for.
  const std::string& identity() const {
    if (identity_.empty()) identity_ = clip_sha256(*clip_.clip);
    return identity_;
  }

 private:
  const SampleCommand& command_;
  DecodeOptions reading_;
  mutable std::string identity_;
  LoadedClip clip_;
};

/// A prior and a decoder of this version say of which CLIP their embeddings were. @param root of the file
/// @param option that names it
void warn_of_other_clip(const Cursor& root,
                        const char* option,
                        const SampleCommand& command,
                        const SampleClip& clip) {
  const std::string own = clip_identity_in(root);
  if (own.empty()) return;
  const std::string& given = clip.identity();
  if (own == given) return;
  log_warning(
      "sample",
      "{} {}: trained with the embeddings of another CLIP: its identity, a SHA-256, is {}, and that "
      "of --clip {} is {}: the pictures will not match what is asked for\n  Name the CLIP that these "
      "embeddings were made with, with the same config.",
      option,
      root.where(),
      short_clip_identity(own),
      *command.clip_path,
      short_clip_identity(given));
}

/// The prior of --prior. @throws DataError for one that is not of this CLIP
DiffusionPrior load_prior_of(const SampleCommand& command, const SampleClip& clip) {
  const Value checkpoint = read_checkpoint(*command.prior_path);
  DiffusionPrior prior = load_prior({.checkpoint_path = *command.prior_path,
                                     .config_path = command.prior_config_path,
                                     .use_ema = command.prior_use_ema,
                                     .live_option = "--prior-no-ema",
                                     .lora = {.files = command.prior_lora_paths, .scales = {}},
                                     .written_by = command.prior_written_by,
                                     .version_option = "--prior-written-by"},
                                    checkpoint);
  check_clip_widths(prior->plan().config,
                    "--prior " + printable(*command.prior_path),
                    clip.network(),
                    "--clip " + printable(*command.clip_path));
  warn_of_other_clip(Cursor(checkpoint, *command.prior_path), "--prior", command, clip);
  return prior;
}

/// Image embeddings that the prior draws for texts. @param texts by the CLIP @return [N, D]
at::Tensor drawn_by_prior(const SampleCommand& command,
                          const SampleClip& clip,
                          const TextEmbedding& texts,
                          const at::Device& device) {
  DiffusionPrior prior = load_prior_of(command, clip);
  prior->to(device);
  return draw_image_embeds(prior,
                           as_prior_takes(texts, prior->plan().config),
                           command,
                           command.prior_cond_scale.value_or(1.0),
                           command.prior_timesteps,
                           device);
}

/// Rows of both, of which one alone stands for all.
int64_t rows_of_both(const char* option, int64_t rows, const char* other, int64_t other_rows) {
  if (rows == other_rows || rows == 1 || other_rows == 1) return std::max(rows, other_rows);
  throw ConfigError("{} gives {}, {} gives {}: expected as many, or one for all",
                    option,
                    rows,
                    other,
                    other_rows);
}

/// Texts for M pictures: encodings of a single one are repeated. @return [M, L, W]
at::Tensor encodings_for(const at::Tensor& encodings, int64_t pictures) {
  const int64_t rows = rows_of_both("--text", encodings.size(0), "--image", pictures);
  if (rows > pictures) {
    throw ConfigError("--text gives {} for {} of --image: expected as many, or one for all",
                      encodings.size(0),
                      pictures);
  }
  return encodings.expand({rows, -1, -1});
}

/// What lies between `from` and `to`, each way's one after another. @param last the largest share of
/// the way; a single image has `alone` @return [M * F, D]
at::Tensor along(
    const at::Tensor& from, const at::Tensor& to, int64_t frames, double last, double alone) {
  std::vector<at::Tensor> rows;
  for (int64_t frame = 0; frame < frames; ++frame) {
    const double share =
        frames == 1 ? alone : last * static_cast<double>(frame) / static_cast<double>(frames - 1);
    rows.push_back(slerp(from, to, share));
  }
  return at::stack(rows, /*dim=*/1).flatten(0, 1);
}

/// Images of one embedding have draws of their own. Those of one way, `frames` long, have the same: they
/// differ by what they show alone.
void number_rows(MadeConditions& made, int64_t frames = 1) {
  made.noise_rows.resize(static_cast<size_t>(made.image_embeds.size(0)));
  std::iota(made.noise_rows.begin(), made.noise_rows.end(), 0);
  for (int64_t& row : made.noise_rows) row /= frames;
}

/// The texts of both ends of each way. @param starts, ends one for all ways, or one a way
void name_ends(MadeConditions& made,
               const std::vector<std::string>& starts,
               const std::vector<std::string>& ends,
               int64_t frames) {
  made.texts.resize(made.noise_rows.size());
  if (frames == 1) return;  // it shows neither
  const auto length = static_cast<size_t>(frames);
  for (size_t way = 0; way < made.texts.size() / length; ++way) {
    made.texts[way * length] = starts[std::min(way, starts.size() - 1)];
    made.texts[(way + 1) * length - 1] = ends[std::min(way, ends.size() - 1)];
  }
}

MadeConditions of_texts(const SampleCommand& command,
                        const SampleClip& clip,
                        const at::Device& device) {
  const int64_t pictures = command.num.value_or(1);
  const std::vector<std::string> given = texts_of("--text", *command.text);
  TextEmbedding texts = clip.embed_texts("--text", given);
  // Each picture of a text has a draw of its own, of the prior too.
  texts.tensors([&](at::Tensor& tensor) { tensor = tensor.repeat_interleave(pictures, 0); });
  MadeConditions made{drawn_by_prior(command, clip, texts, device), texts.encodings, {}, {}};
  number_rows(made);
  for (const std::string& text : given)
    made.texts.insert(made.texts.end(), static_cast<size_t>(pictures), text);
  return made;
}

MadeConditions between_texts(const SampleCommand& command,
                             const SampleClip& clip,
                             const at::Device& device) {
  const std::vector<std::string> texts = texts_of("--text", *command.text);
  const std::vector<std::string> ends = texts_of("--to", *command.to);
  const auto starts = std::ssize(texts);
  rows_of_both("--text", starts, "--to", std::ssize(ends));
  const TextEmbedding from = clip.embed_texts("--text", texts), to = clip.embed_texts("--to", ends);
  const at::Tensor drawn =
      drawn_by_prior(command,
                     clip,
                     {at::cat({from.embeds, to.embeds}), at::cat({from.encodings, to.encodings})},
                     device);  // [starts and ends, D]
  const int64_t frames = command.num.value_or(kDefaultFrames);
  MadeConditions made;
  made.image_embeds =
      along(drawn.narrow(0, 0, starts), drawn.narrow(0, starts, std::ssize(ends)), frames, 1, 0.5);
  number_rows(made, frames);
  name_ends(made, texts, ends, frames);
  return made;
}

/// Where a picture's embedding goes: to that of another one, or along the difference of two texts.
at::Tensor end_of_picture(const SampleCommand& command,
                          const SampleClip& clip,
                          const at::Tensor& starts) {
  if (command.to) {
    const at::Tensor ends = clip.embed_pictures("--to", *command.to);
    rows_of_both("--image", starts.size(0), "--to", ends.size(0));
    return ends;
  }
  const auto embed = [&](const char* option, const std::string& given) {
    return clip.embed_texts(option, texts_of(option, given)).embeds;
  };
  const at::Tensor now = embed("--from-text", *command.from_text);
  const at::Tensor then = embed("--text", *command.text);
  const int64_t texts = rows_of_both("--from-text", now.size(0), "--text", then.size(0));
  rows_of_both("--image", starts.size(0), "--text", texts);
  const at::Tensor difference = text_difference(now, then);
  if (!at::isfinite(difference).all().item<bool>()) {
    throw ConfigError(
        "--from-text and --text: --clip {} has the same embedding for both, which no way joins\n  "
        "Say what is to change.",
        printable(*command.clip_path));
  }
  return difference;
}

MadeConditions of_pictures(const SampleCommand& command,
                           const SampleClip& clip,
                           bool takes_encodings) {
  const at::Tensor starts = clip.embed_pictures("--image", *command.image_path);
  const bool is_way = command.to || command.from_text;
  const int64_t images = command.num.value_or(is_way ? kDefaultFrames : 1);
  MadeConditions made;
  if (is_way) {
    const double last = command.from_text ? command.theta.value_or(kDefaultTheta) : 1;
    made.image_embeds = along(starts,
                              end_of_picture(command, clip, starts),
                              images,
                              last,
                              command.from_text ? last : 0.5);
    number_rows(made, images);
    if (command.from_text) {
      name_ends(made,
                texts_of("--from-text", *command.from_text),
                texts_of("--text", *command.text),
                images);
    }
  } else {
    made.image_embeds = starts.repeat_interleave(images, 0);
    number_rows(made);
  }
  if (takes_encodings) {
    const std::vector<std::string> texts = texts_of("--text", *command.text);
    const at::Tensor encodings = clip.embed_texts("--text", texts).encodings;
    const int64_t pictures = made.image_embeds.size(0) / images;
    made.text_encodings = encodings_for(encodings, pictures).repeat_interleave(images, 0);
    for (size_t i = 0; made.texts.size() < made.noise_rows.size(); ++i)
      made.texts.insert(
          made.texts.end(), static_cast<size_t>(images), texts[std::min(i, texts.size() - 1)]);
  }
  return made;
}

}  // namespace

int64_t tell_makers(const SampleCommand& command, const Cursor& decoder) {
  const SampleClip clip(command, DecodeOptions(), at::kCPU);
  warn_of_other_clip(decoder, "--checkpoint", command, clip);
  const ParameterCount of_clip = count_parameters(clip.network());
  log_info("sample", "CLIP {}: {} parameters", *command.clip_path, of_clip.total);
  if (!command.prior_path) return of_clip.bytes;
  const DiffusionPrior prior = load_prior_of(command, clip);
  const ParameterCount of_prior = count_parameters(*prior);
  log_info("sample",
           "prior {}: {} parameters, guidance {:g}",
           *command.prior_path,
           of_prior.total,
           command.prior_cond_scale.value_or(1.0));
  return of_clip.bytes + of_prior.bytes;
}

MadeConditions made_conditions(const SampleCommand& command,
                               const Cursor& decoder,
                               bool takes_encodings,
                               const DecodeOptions& reading,
                               const at::Device& device) {
  const SampleClip clip(command, reading, device);
  warn_of_other_clip(decoder, "--checkpoint", command, clip);
  if (starts_from_picture(command)) return of_pictures(command, clip, takes_encodings);
  if (command.to) return between_texts(command, clip, device);
  MadeConditions made = of_texts(command, clip, device);
  if (!takes_encodings) made.text_encodings = at::Tensor();
  return made;
}

}  // namespace dalle2
