// SPDX-License-Identifier: MIT
// What all kinds of `sample` share, image embeddings of a prior, and what a CLIP and a prior make of --text,
// --image, --to and --from-text. Variations and texts are drawn from an embedding each, ways from embeddings
// between two (Ramesh et al. 2022, section 3). M texts or pictures, F images of each, D width of embeddings.
#include "run/commands/sample_command.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/timer.h"
#include "base/untrusted_text.h"
#include "config/decoder/pipeline_config.h"
#include "io/files/folder_names.h"
#include "io/files/writable.h"
#include "io/formats/npy.h"
#include "run/checkpoints/clip_weights.h"
#include "run/device/device.h"
#include "run/kinds.h"
#include "run/pictures/pictures.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

constexpr int64_t kDefaultCandidates = 2;

/// The files of --upsampler, and what the options say of these or of those of --pipeline after the first.
void set_upsamplers(SampleCommand& command) {
  std::vector<CascadeFile>& files = command.upsamplers;
  for (const std::string& path : command.upsampler_paths) files.push_back({.path = path});
  const auto each = [&](const char* option,
                        const std::vector<std::string>& given,
                        const auto& set) {
    if (!given.empty() && given.size() != files.size())
      throw ConfigError("{}: expected one for each of {} after the first, in their order, got {}",
                        option,
                        counted(std::ssize(files), "file"),
                        given.size());
    for (size_t i = 0; i < given.size(); ++i) set(files[i], given[i]);
  };
  each("--upsampler-config", command.upsampler_configs, [](CascadeFile& file, const auto& path) {
    file.config_path = path;
  });
  each("--upsampler-written-by", command.upsampler_versions, [](CascadeFile& file, const auto& v) {
    file.written_by = v;
  });
}

/// Puts the files and the defaults of --pipeline where the options are that it stands for.
void take_pipeline(SampleCommand& command) {
  const PipelineConfig pipeline = load_pipeline_config(*command.pipeline_path);
  const auto existing = [&](const std::string& path) {
    if (path.find(':') != std::string::npos || std::filesystem::exists(path)) return path;
    throw DataError(
        "{} names {}: no such file\n  Paths in it are relative to the working directory, {}.",
        *command.pipeline_path,
        path,
        std::filesystem::current_path().string());
  };
  std::vector<PipelineSource> sources = pipeline.decoder.unet_sources;
  std::ranges::sort(sources, {}, [](const PipelineSource& source) {
    return std::ranges::min(source.unet_numbers);
  });
  size_t unets = 0;
  for (const PipelineSource& source : sources) unets += source.unet_numbers.size();
  std::vector<double> scales(unets, 1.0);
  std::vector<int64_t> steps(unets, 0);
  for (const PipelineSource& source : sources) {
    for (size_t i = 0; i < source.unet_numbers.size(); ++i) {
      const auto unet = static_cast<size_t>(source.unet_numbers[i] - 1);
      if (!source.default_cond_scale.empty()) scales[unet] = source.default_cond_scale[i];
      if (!source.default_sample_timesteps.empty())
        steps[unet] = source.default_sample_timesteps[i].value_or(0);
    }
    CascadeFile file{.path = existing(source.load_model_from.path), .unets = source.unet_numbers};
    if (source.load_config_from) file.config_path = existing(source.load_config_from->path);
    command.upsamplers.push_back(std::move(file));
  }
  const CascadeFile first = command.upsamplers.front();
  command.upsamplers.erase(command.upsamplers.begin());
  command.checkpoint_path = first.path;
  command.config_path = first.config_path;
  command.unets = first.unets;
  if (command.cond_scale.empty()) command.cond_scale = scales;
  if (command.timesteps.empty()) command.timesteps = steps;
  if (!pipeline.prior || !command.text || command.image_path || command.prior_path) return;
  command.prior_path = existing(pipeline.prior->load_model_from.path);
  if (const auto& config = pipeline.prior->load_config_from; config && !command.prior_config_path)
    command.prior_config_path = existing(config->path);
  if (!command.prior_cond_scale) command.prior_cond_scale = pipeline.prior->default_cond_scale;
  if (!command.prior_timesteps) command.prior_timesteps = pipeline.prior->default_sample_timesteps;
}

TextEmbedding load_texts(const SampleCommand& command, const PriorConfig& config) {
  if (!command.text_embeds_path) {
    throw ConfigError(
        "--text-embeds is missing: a prior draws from text embeddings (.npy, [N, {}])",
        config.image_embed_dim);
  }
  TextEmbedding text{load_npy_tensor(*command.text_embeds_path, 2), {}};
  if (command.text_encodings_path)
    text.encodings = load_npy_tensor(*command.text_encodings_path, 3);
  if (text.embeds.size(0) == 0 || text.embeds.size(1) != config.image_embed_dim) {
    throw DataError("{}: expected text embeddings [N, {}], got {}",
                    *command.text_embeds_path,
                    config.image_embed_dim,
                    c10::str(text.embeds.sizes()));
  }
  if (config.condition_on_text_encodings && !text.encodings.defined()) {
    throw ConfigError(
        "--text-encodings is missing: this prior is conditioned on the encodings of the texts' "
        "tokens (.npy, [N, length, {}])",
        config.image_embed_dim);
  }
  warn_of_cut_encodings(text.encodings, "/prior/net/max_text_len", config.net.text_len());
  if (text.encodings.defined() && text.encodings.size(0) != text.embeds.size(0)) {
    throw DataError("{} has {}, {} has {}: the numbers must agree",
                    *command.text_embeds_path,
                    counted(text.embeds.size(0), "row"),
                    *command.text_encodings_path,
                    counted(text.encodings.size(0), "row"));
  }
  return text;
}

constexpr const char* kEmbeds = "image_embeds.npy";

constexpr int64_t kDefaultFrames = 8;
/// The largest that the paper names for text diffs.
constexpr double kDefaultTheta = 0.5;

/// A text, or with "@" the lines of a file, none of them empty. @param option that gave it
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
    const auto blank = std::ranges::find(texts, "");
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
    throw DataError(
        "{}: expected pictures of 1 or 3 channels, got {}", given, shape_text(picture.sizes()));
  }
  const auto low = picture.min().item<float>(), high = picture.max().item<float>();
  if (low < 0 || high > 1)
    throw DataError(
        "{}: expected values from 0 to 1, what a CLIP is shown, got {} to {}", given, low, high);
  if (!clip.enlarges(picture.size(2), picture.size(1))) return;
  throw DataError(
      "{0}: expected pictures of {1} x {1} pixels or more, what --clip {2} sees, got {3} x {4}\n  "
      "Give a larger picture: an enlarged one has other embeddings than what the decoder learnt.",
      given,
      clip.side,
      printable(*command.clip_path),
      picture.size(2),
      picture.size(1));
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
  for (int64_t row = 0; row < made.image_embeds.size(0); ++row)
    made.noise_rows.push_back(row / frames);
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

int64_t steps_of(const PriorConfig& config, const PriorSampleOptions& options) {
  return options.timesteps.value_or(config.sample_timesteps.value_or(config.timesteps));
}

/// Checks the options of a prior before it draws. @param path of its file, for messages
void check_prior(const DiffusionPrior& prior,
                 const PriorSampleOptions& options,
                 const std::string& path) {
  naming_file(path, [&] { prior->check_sample_options(options); });
  const PriorPlan& plan = prior->plan();
  tell_of_own_ddim(plan.layout, steps_of(plan.config, options) < plan.config.timesteps, path);
  if (options.cond_scale == 1 || prior->net()->drops()) return;
  log_info("sample",
           "guidance of the prior has no effect: dalle2-pytorch {} never dropped its conditions",
           to_text(plan.config.written_by));
}

/// @param options with all texts [N, ...], which check_prior() took @return [N, D] on the CPU
at::Tensor draw_image_embeds(DiffusionPrior prior,
                             const SampleCommand& command,
                             PriorSampleOptions options,
                             const at::Device& device) {
  prior->to(device);
  const TextEmbedding texts = options.text;
  const int64_t rows = texts.embeds.size(0);
  std::vector<at::Tensor> parts;
  for (const ChunkRange& range : chunk_ranges(rows, command.batch_size)) {
    options.text = on_device(chunk_of(texts, range), device);
    std::vector<int64_t> numbers(static_cast<size_t>(range.length));
    std::iota(numbers.begin(), numbers.end(), range.begin);
    options.noise = noise_source(
        {}, generators_of_rows(command.seed, numbers, options.num_samples_per_text), {}, device);
    options.on_step = [&](size_t step, size_t steps) {
      log_live(fmt::format("texts {}-{} of {}, step {}/{}",
                           range.begin,
                           range.begin + range.length - 1,
                           rows,
                           step + 1,
                           steps));
    };
    const Autocast autocast = precision_of(command, device);
    parts.push_back(prior->sample(options).to(at::kCPU, at::kFloat));
    check_drawn(parts.back(),
                range.begin,
                "embeddings",
                command.prior_path.value_or(command.checkpoint_path),
                options.cond_scale == 1 ? ""
                : command.prior_path
                    ? giver_of(command, "--prior-cond-scale", "/prior/default_cond_scale")
                    : "--cond-scale");
  }
  log_live("");
  return at::cat(parts).contiguous();
}

/// The CLIP of --clip on the device of the sampling. What it makes is on the CPU.
class SampleClip {
 public:
  SampleClip(const SampleCommand& command, const DecodeOptions& reading, const at::Device& device)
      : command_(command),
        reading_(reading),
        device_(device),
        clip_(
            load_clip_file(command.clip_path.value(), {.config_path = command.clip_config_path})) {
    clip_.clip->to(device);
    clip_.max_batch_size = command.batch_size;
  }

  const ClipEncoderImpl& network() const { return *clip_.clip; }
  /// A prior and a decoder of this version say of which CLIP their embeddings were. @param root of the file
  /// @param option that names it
  void warn_of_other_clip(const Cursor& root, const char* option) const {
    const std::string own = clip_identity_in(root);
    if (own.empty()) return;
    if (identity_.empty()) identity_ = clip_sha256(*clip_.clip);
    if (own == identity_) return;
    log_warning(
        "sample",
        "{} {}: trained with the embeddings of another CLIP: its identity, a SHA-256, is {:.16}, and that "
        "of --clip {} is {:.16}: the pictures will not match what is asked for\n  Name the CLIP that these "
        "embeddings were made with, with the same config.",
        option,
        root.where(),
        own,
        *command_.clip_path,
        identity_);
  }
  /// The prior of --prior. @throws DataError for one that is not of this CLIP
  DiffusionPrior load_named_prior() const {
    const FetchedFile file(*command_.prior_path);
    const Value checkpoint = read_checkpoint(file.path());
    DiffusionPrior prior = load_prior({.checkpoint_path = *command_.prior_path,
                                       .config_path = command_.prior_config_path,
                                       .use_ema = command_.prior_use_ema,
                                       .live_option = "--prior-no-ema",
                                       .lora = {.files = command_.prior_lora_paths, .scales = {}},
                                       .written_by = command_.prior_written_by,
                                       .version_option = "--prior-written-by",
                                       .config_option = "--prior-config F.json"},
                                      checkpoint);
    check_clip_widths(prior->plan().config,
                      "--prior " + printable(*command_.prior_path),
                      *clip_.clip,
                      "--clip " + printable(*command_.clip_path));
    warn_of_other_clip(Cursor(checkpoint, *command_.prior_path), "--prior");
    return prior;
  }
  MadeConditions of_texts() const {
    const int64_t pictures = command_.num.value_or(1);
    const std::vector<std::string> given = texts_of("--text", *command_.text);
    TextEmbedding texts = embed_texts("--text", given);
    // Each picture of a text has a draw of its own, of the prior too.
    texts.tensors([&](at::Tensor& tensor) { tensor = tensor.repeat_interleave(pictures, 0); });
    MadeConditions made;
    made.draw_embeds = prior_for(texts, made);
    made.image_embeds = texts.embeds;
    made.text_encodings = texts.encodings;
    number_rows(made);
    for (const std::string& text : given)
      made.texts.insert(made.texts.end(), static_cast<size_t>(pictures), text);
    return made;
  }
  MadeConditions between_texts() const {
    const std::vector<std::string> texts = texts_of("--text", *command_.text);
    const std::vector<std::string> ends = texts_of("--to", *command_.to);
    const auto starts = std::ssize(texts), goals = std::ssize(ends);
    rows_of_both("--text", starts, "--to", goals);
    const TextEmbedding from = embed_texts("--text", texts), to = embed_texts("--to", ends);
    const TextEmbedding both = {
        at::cat({from.embeds, to.embeds}),
        at::cat({from.encodings, to.encodings})};  // [starts and goals, ...]
    const int64_t frames = command_.num.value_or(kDefaultFrames);
    const auto ways = [=](const at::Tensor& embeds) {
      return along(embeds.narrow(0, 0, starts), embeds.narrow(0, starts, goals), frames, 1, 0.5);
    };
    MadeConditions made;
    made.draw_embeds = [ways, draw = prior_for(both, made)] { return ways(draw()); };
    made.image_embeds = ways(both.embeds);
    number_rows(made, frames);
    name_ends(made, texts, ends, frames);
    return made;
  }
  MadeConditions of_pictures(bool takes_encodings) const {
    const at::Tensor starts = embed_pictures(*command_.image_path);
    const bool is_way = command_.to || command_.from_text;
    const int64_t images = command_.num.value_or(is_way ? kDefaultFrames : 1);
    MadeConditions made;
    if (is_way) {
      const double last = command_.from_text ? command_.theta.value_or(kDefaultTheta) : 1;
      made.image_embeds =
          along(starts, end_of_picture(starts), images, last, command_.from_text ? last : 0.5);
      number_rows(made, images);
      if (command_.from_text) {
        name_ends(made,
                  texts_of("--from-text", *command_.from_text),
                  texts_of("--text", *command_.text),
                  images);
      }
    } else {
      made.image_embeds = starts.repeat_interleave(images, 0);
      number_rows(made);
    }
    if (takes_encodings) {
      const std::vector<std::string> texts = texts_of("--text", *command_.text);
      const at::Tensor encodings = embed_texts("--text", texts).encodings;
      const int64_t pictures = starts.size(0);
      if (std::ssize(texts) != pictures && texts.size() != 1)
        throw ConfigError("--text gives {} for {} of --image: expected as many, or one for all",
                          texts.size(),
                          pictures);
      made.text_encodings = encodings.expand({pictures, -1, -1}).repeat_interleave(images, 0);
      for (size_t i = 0; made.texts.size() < made.noise_rows.size(); ++i)
        made.texts.insert(
            made.texts.end(), static_cast<size_t>(images), texts[std::min(i, texts.size() - 1)]);
    }
    return made;
  }

 private:
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
    TextEmbedding made = clip_.embed_tokens(clip_.tokens_of(texts));
    made.tensors([](at::Tensor& tensor) { tensor = tensor.cpu(); });
    return made;
  }
  /// A picture, a folder of them or an array in [0, 1], of any sizes. @return [N, D]
  /// @throws DataError for a picture that is smaller than what the CLIP sees
  at::Tensor embed_pictures(const std::string& path) const {
    const ClipPreprocessing seen_as = clip_.clip->preprocessing();
    const Preprocess preprocess(clip_preprocessing(seen_as));
    const std::string given = printable(path);
    std::vector<at::Tensor> seen;
    for (const at::Tensor& picture : load_pictures_of_any_size(path, {.options = reading_})) {
      check_picture(picture, given, command_, seen_as);
      seen.push_back(from_picture(preprocess.apply(to_picture(picture), /*random=*/nullptr)));
    }
    if (seen.empty()) throw DataError("{}: expected at least one picture, got none", given);
    return clip_.embed_images(at::stack(seen)).cpu();
  }

  /// Where a picture's embedding goes: to that of another one, or along the difference of two texts.
  at::Tensor end_of_picture(const at::Tensor& starts) const {
    if (command_.to) {
      const at::Tensor ends = embed_pictures(*command_.to);
      rows_of_both("--image", starts.size(0), "--to", ends.size(0));
      return ends;
    }
    const auto embed = [&](const char* option, const std::string& given) {
      return embed_texts(option, texts_of(option, given)).embeds;
    };
    const at::Tensor now = embed("--from-text", *command_.from_text);
    const at::Tensor then = embed("--text", *command_.text);
    const int64_t texts = rows_of_both("--from-text", now.size(0), "--text", then.size(0));
    rows_of_both("--image", starts.size(0), "--text", texts);
    const at::Tensor difference = text_difference(now, then);
    if (!at::isfinite(difference).all().item<bool>()) {
      throw ConfigError(
          "--from-text and --text: --clip {} has the same embedding for both, which no way joins\n  "
          "Say what is to change.",
          printable(*command_.clip_path));
    }
    return difference;
  }
  /// What draws image embeddings for texts, with the prior. @param texts by the CLIP
  /// @return MadeConditions::draw_embeds of `made`, whose weights it adds
  std::function<at::Tensor()> prior_for(const TextEmbedding& texts, MadeConditions& made) const {
    const DiffusionPrior prior = load_named_prior();
    const PriorConfig& config = prior->plan().config;
    PriorSampleOptions options;
    options.text = as_prior_takes(texts, config);
    options.cond_scale = command_.prior_cond_scale.value_or(1.0);
    options.timesteps = command_.prior_timesteps;
    options.steps_name = giver_of(command_, "--prior-timesteps", "/prior/default_sample_timesteps");
    options.num_samples_per_text = command_.candidates.value_or(kDefaultCandidates);
    check_prior(prior, options, *command_.prior_path);
    const ParameterCount count = count_parameters(*prior);
    made.weight_bytes += count.bytes;
    if (command_.dry_run) {
      log_info("sample",
               "prior {}: {} parameters, {} of {} steps, guidance {:g}",
               *command_.prior_path,
               count.total,
               steps_of(config, options),
               config.timesteps,
               options.cond_scale);
    }
    return [prior, options, &command = command_, device = device_] {
      return draw_image_embeds(prior, command, options, device);
    };
  }
  const SampleCommand& command_;
  DecodeOptions reading_;
  mutable std::string identity_;  // of the CLIP, once it is asked for
  at::Device device_;
  LoadedClip clip_;
};

}  // namespace

ModelSource source_of(const SampleCommand& command) {
  return {.checkpoint_path = command.checkpoint_path,
          .config_path = command.config_path,
          .use_ema = command.use_ema,
          .lora = {.files = command.lora_paths, .scales = command.lora_scale},
          .written_by = command.written_by,
          .config_option = config_giver(command, "--config")};
}

std::string giver_of(const SampleCommand& command, const char* option, const char* key) {
  if (!command.pipeline_path || command.facts.at(option)) return option;
  return fmt::format("{} ({})", key, *command.pipeline_path);
}

std::string config_giver(const SampleCommand& command, const char* option) {
  if (!command.pipeline_path) return fmt::format("{} F.json", option);
  return fmt::format(
      R"("load_config_from": {{"load_type": "local", "path": "F.json"}} beside its load_model_from in {})",
      *command.pipeline_path);
}

void check_options_on(const SampleCommand& command, OptionFacts facts) {
  facts.insert(command.facts.begin(), command.facts.end());
  const char* const kind = facts.at(kOnPrior) ? "prior" : "decoder";
  check_options("sample", facts, fmt::format(" on {}, a {}'s file", command.checkpoint_path, kind));
}

void check_one_or_each(const char* option,
                       size_t given,
                       size_t unets,
                       const std::string& checkpoint_path) {
  if (given <= 1 || given == unets) return;
  throw ConfigError(
      "{}: expected one value{} {}, got {}",
      option,
      unets == 1 ? " for" : fmt::format(", or one for each of the {} unets of", unets),
      checkpoint_path,
      given);
}

void naming_file(const std::string& path, const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
}

void tell_of_own_ddim(const DdimLayout& layout, bool walks_with_ddim, const std::string& path) {
  if (layout.exists || !walks_with_ddim) return;
  log_info(
      "sample",
      "{}: its version of dalle2-pytorch had no DDIM; fewer steps than all are walked as in {}",
      path,
      to_text(kLastVersion));
}

void warn_of_cut_encodings(const at::Tensor& encodings, const std::string& key, int64_t most) {
  if (!encodings.defined() || encodings.size(1) <= most) return;
  log_warning("sample",
              "{} is {}, and the text encodings have {}: the rest is cut",
              key,
              most,
              counted(encodings.size(1), "token"));
}

Autocast precision_of(const SampleCommand& command, const at::Device& device) {
  return {device.type(), command.precision == "bf16" ? MixedPrecision::bf16 : MixedPrecision::no};
}

void check_out(const SampleCommand& command) {
  if (command.out_folder.empty()) throw ConfigError("--out: expected a folder, got \"\"");
  if (const auto fault = why_not_writable(command.out_folder))
    throw ConfigError("--out {}: {}", command.out_folder, *fault);
  std::vector<std::string> names = names_in_folder(command.out_folder);
  std::erase_if(names,
                [](const std::string& n) { return n.starts_with('.') || n.ends_with(".part"); });
  if (names.empty() || command.overwrite) return;
  std::ranges::sort(names);
  throw ConfigError(
      "--out {}: expected a new or empty folder, but it holds {}\n  Choose another folder, or add "
      "--overwrite: files with the names of the output are replaced, and nothing is removed.",
      command.out_folder,
      short_list(names));
}

void check_drawn(const at::Tensor& samples,
                 int64_t begin,
                 const char* what,
                 const std::string& path,
                 const std::string& guidance) {
  if (at::isfinite(samples).all().item<bool>()) return;
  log_live("");
  throw NonFiniteError(
      "{} {}-{} hold values that are not finite: nothing was written\n"
      "  The weights of {} may be damaged or diverged{}.",
      what,
      begin,
      begin + samples.size(0) - 1,
      path,
      guidance.empty() ? "" : fmt::format(", or {} is far too large", guidance));
}

void run_sample(const SampleCommand& asked) {
  SampleCommand command = asked;
  if (command.pipeline_path) take_pipeline(command);
  if (command.prior_path) command.facts["--prior"] = true;
  command.facts[kVariesPicture] = starts_from_picture(command);
  command.facts[kEnlarges] = command.start_unet > 1;
  command.facts[kGuided] =
      std::ranges::any_of(command.cond_scale, [](double scale) { return scale != 1; });
  check_options("sample", command.facts);
  set_upsamplers(command);
  if (command.checkpoint_path.empty()) {
    throw ConfigError(
        "--checkpoint is missing: expected a decoder's or a prior's file, or --pipeline");
  }
  const FetchedFile file(command.checkpoint_path);
  command.checkpoint_path = file.path();
  for (const double scale : command.cond_scale) {
    if (!std::isfinite(scale)) throw ConfigError("--cond-scale: expected a number, got {}", scale);
  }
  const at::Device device = choose_device(command.device, "--device", WithoutGpu::kError);
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const std::string found = checkpoint_kind(Cursor(checkpoint, command.checkpoint_path));
  // What names do not tell, and a pipeline's file, is taken for a decoder: its loading says what does not fit.
  const RunKind& kind =
      run_kind_of(found.empty() || command.pipeline_path ? TrainDecoderConfig::kKind : found);
  if (!kind.sample) {
    std::vector<std::string> drawn_from;
    for (const RunKind& each : run_kinds()) {
      if (each.sample) drawn_from.push_back(each.key);
    }
    throw DataError("{}: expected a checkpoint of a {}, got one of a {}",
                    command.checkpoint_path,
                    fmt::join(drawn_from, " or "),
                    kind.key);
  }
  command.facts[kOnPrior] = kind.key == "prior";
  command.facts[kOnDecoder] = kind.key == "decoder";
  check_options_on(command, {});
  kind.sample(command, checkpoint, device);
}

void sample_prior(const SampleCommand& command, const Value& checkpoint, const at::Device& device) {
  check_one_or_each("--cond-scale", command.cond_scale.size(), 1, command.checkpoint_path);
  check_one_or_each("--timesteps", command.timesteps.size(), 1, command.checkpoint_path);
  DiffusionPrior prior = load_prior(source_of(command), checkpoint);
  const PriorConfig& config = prior->plan().config;
  check_options_on(command, {{kTakesEncodings, config.condition_on_text_encodings}});
  PriorSampleOptions options;
  options.text = load_texts(command, config);
  if (!command.cond_scale.empty()) options.cond_scale = command.cond_scale.front();
  if (!command.timesteps.empty()) options.timesteps = command.timesteps.front();
  options.steps_name = "--timesteps";
  options.num_samples_per_text = command.candidates.value_or(kDefaultCandidates);
  check_prior(prior, options, command.checkpoint_path);
  check_out(command);
  Timer timer;
  const at::Tensor embeds = draw_image_embeds(prior, command, options, device);  // [N, D]
  const std::string path = (std::filesystem::path(command.out_folder) / kEmbeds).string();
  write_npy_float32(path, embeds.sizes().vec(), embeds.const_data_ptr<float>());
  log_info("sample",
           "{} in {}: {}",
           counted(embeds.size(0), "image embedding"),
           human_duration(timer.seconds()),
           path);
}

MadeConditions made_conditions(const SampleCommand& command,
                               const Cursor& decoder,
                               bool takes_encodings,
                               const DecodeOptions& reading,
                               const at::Device& device) {
  const SampleClip clip(command, reading, device);
  clip.warn_of_other_clip(decoder, "--checkpoint");
  const ParameterCount count = count_parameters(clip.network());
  if (command.dry_run)
    log_info("sample", "CLIP {}: {} parameters", *command.clip_path, count.total);
  MadeConditions made = starts_from_picture(command) ? clip.of_pictures(takes_encodings)
                        : command.to                 ? clip.between_texts()
                                                     : clip.of_texts();
  if (!takes_encodings) made.text_encodings = at::Tensor();
  made.weight_bytes += count.bytes;
  return made;
}

}  // namespace dalle2
