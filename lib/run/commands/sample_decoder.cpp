// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/timer.h"
#include "checkpoint/convert.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "model/layers.h"
#include "run/commands/sample_command.h"
#include "run/dry_run.h"
#include "run/pictures/pictures.h"
#include "tracker/places/remote_file.h"
#include "trainer/lanes.h"

namespace dalle2 {
namespace {

constexpr int64_t kDefaultResampleTimes = 5;

/// Rows of everything that is given for each image have to agree.
int64_t common_rows(const std::vector<std::pair<std::string, at::Tensor>>& inputs,
                    std::optional<int64_t> num) {
  std::optional<int64_t> rows = num;
  std::string from = "--num";
  for (const auto& [name, tensor] : inputs) {
    if (!tensor.defined()) continue;
    if (rows && *rows != tensor.size(0)) {
      throw ConfigError("{} gives {} images, {} gives {}: the numbers must agree",
                        from,
                        *rows,
                        name,
                        tensor.size(0));
    }
    rows = tensor.size(0);
    from = name;
  }
  return rows.value_or(1);
}

/// A picture given once stands for every image.
at::Tensor repeat_to(const at::Tensor& tensor, int64_t rows) {
  return tensor.defined() && tensor.size(0) == 1 ? tensor.expand({rows, -1, -1, -1}) : tensor;
}

struct SampleInputs : MadeConditions {
  at::Tensor image, inpaint_image, inpaint_mask;
  std::vector<at::Tensor> init_noise;
  int64_t rows = 1;
};

/// Pictures hold [0, 1]; an array comes in the range of the decoder's data.
at::Tensor to_range(const at::Tensor& pictures,
                    const std::optional<std::string>& path,
                    ImageRange range) {
  const bool as_it_is = !pictures.defined() || range.auto_normalize ||
                        std::filesystem::path(*path).extension() == ".npy";
  return as_it_is ? pictures : pictures * 2 - 1;
}

/// @throws DataError for an array with values of another range, such as 0 to 255; noise and latents pass
void check_range(const at::Tensor& pictures,
                 const char* option,
                 const std::optional<std::string>& path,
                 ImageRange range) {
  if (!pictures.defined() || std::filesystem::path(*path).extension() != ".npy") return;
  const auto [lowest, highest] = range.bounds();
  const auto low = pictures.min().item<double>(), high = pictures.max().item<double>();
  constexpr double kFar = 10;
  if (low >= -kFar && high <= kFar) return;
  throw DataError("{} {}: expected values from {:g} to {:g}, got {:g} to {:g}",
                  option,
                  *path,
                  lowest,
                  highest,
                  low,
                  high);
}

/// Consecutive stages that one file draws.
struct Segment {
  std::string path;
  Decoder decoder = nullptr;
  int64_t first = 1, last = 1;  ///< unets, from 1

  const DecoderPlan& plan() const { return decoder->plan(); }
  int64_t bytes() const { return count_parameters(*decoder).bytes; }
};

/// @throws ConfigError for a prior in the place of a decoder
void check_place(const Cursor& root, const SampleCommand& command) {
  if (command.pipeline_path && checkpoint_kind(root) == "prior")
    throw ConfigError(
        "{}: /decoder/unet_sources: {} is of a prior\n  Name it under /prior/load_model_from.",
        *command.pipeline_path,
        root.where());
}

Decoder load_file(const CascadeFile& file, const SampleCommand& command) {
  const FetchedFile fetched(file.path);
  const Value checkpoint = read_checkpoint(fetched.path());
  check_place(Cursor(checkpoint, file.path), command);
  return load_decoder({.checkpoint_path = fetched.path(),
                       .config_path = file.config_path,
                       .use_ema = command.use_ema,
                       .written_by = file.written_by,
                       .version_option = "--upsampler-written-by",
                       .config_option = config_giver(command, "--upsampler-config")},
                      checkpoint);
}

/// The stages of one file, or of several that draw one after another, each as its own file's config
/// says. A file's stages below its first one here are not used.
class Cascade {
 public:
  Cascade(const SampleCommand& command, const Value& checkpoint) {
    std::vector<CascadeFile> files = {{.path = command.checkpoint_path, .unets = command.unets}};
    files.insert(files.end(), command.upsamplers.begin(), command.upsamplers.end());
    check_place(Cursor(checkpoint, command.checkpoint_path), command);
    std::vector<Decoder> decoders;
    std::vector<size_t> givers;  // of each unet
    for (size_t i = 0; i < files.size(); ++i) {
      decoders.push_back(i == 0 ? load_decoder(source_of(command), checkpoint, &data_)
                                : load_file(files[i], command));
      const int64_t count = decoders.back()->num_unets();
      for (int64_t unet = std::ssize(givers) + 1; files[i].unets.empty() && unet <= count; ++unet) {
        if (files.size() > 1 && !decoders.back()->unet(unet)) break;  // trained apart
        givers.push_back(i);
      }
      for (const int64_t unet : files[i].unets) {
        givers.resize(std::max(givers.size(), static_cast<size_t>(unet)));
        givers[static_cast<size_t>(unet - 1)] = i;
      }
      if (!files[i].unets.empty() || (!givers.empty() && givers.back() == i)) continue;
      throw ConfigError(
          "--upsampler {}: has {}, and the files before it draw these\n  Leave it out, or give a "
          "file whose stages go on from there.",
          files[i].path,
          counted(count, "unet"));
    }
    for (size_t i = 0; i < givers.size(); ++i)
      add(files[givers[i]].path, decoders[givers[i]], static_cast<int64_t>(i) + 1);
    for (size_t i = 1; i < segments_.size(); ++i) check_joint(i);
    // What another file draws is not held.
    for (int64_t unet = 1; unet <= unets(); ++unet) {
      for (Decoder& decoder : decoders) {
        if (decoder.ptr() != segment_of(unet).decoder.ptr() && unet <= decoder->num_unets())
          decoder->drop_unet(unet);
      }
    }
  }

  int64_t unets() const { return segments_.back().last; }
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& segment_of(int64_t unet) const {
    const auto draws = [&](const Segment& segment) { return unet <= segment.last; };
    return *std::ranges::find_if(segments_, draws);
  }
  const UnetPlan& stage(int64_t unet) const {
    return segment_of(unet).plan().stages[static_cast<size_t>(unet - 1)];
  }
  const DecoderConfig& first_config() const { return segments_.front().plan().config; }
  /// How the first file's training read pictures.
  PictureReading reading() const {
    const int64_t channels = first_config().channels;
    PictureReading reading{decode_options(data_, channels), channels};
    reading.options.fast_jpeg = false;
    return reading;
  }
  std::string files() const {
    std::vector<std::string> paths;
    for (const Segment& segment : segments_) paths.push_back(segment.path);
    return fmt::format("{}", fmt::join(paths, " and "));
  }

 private:
  void add(const std::string& path, Decoder decoder, int64_t unet) {
    if (unet > decoder->num_unets()) {
      throw DataError("{}: expected a decoder with unet {}, which this file is to draw, got {}",
                      path,
                      unet,
                      counted(decoder->num_unets(), "unet"));
    }
    if (!segments_.empty() && segments_.back().decoder.ptr() == decoder.ptr()) {
      segments_.back().last = unet;
    } else {
      segments_.push_back({path, std::move(decoder), unet, unet});
    }
  }
  /// What a segment enlarges is what the one before it draws.
  void check_joint(size_t index) const {
    const Segment &below = segments_[index - 1], &above = segments_[index];
    const auto at = static_cast<size_t>(below.last - 1);
    const int64_t drawn = below.plan().stages[at].image_size;
    const int64_t taken = above.plan().stages[at].image_size;
    const int64_t channels = below.plan().config.channels, of_above = above.plan().config.channels;
    if (drawn == taken && channels == of_above) return;
    throw ConfigError(
        "{0} does not continue {1}: its unet {2} enlarges pictures of {3} x {3} pixels and {4}, and "
        "unet {5} draws {6} x {6} and {7}\n  Give files whose sizes meet.",
        above.path,
        below.path,
        above.first,
        taken,
        counted(of_above, "channel"),
        below.last,
        drawn,
        counted(channels, "channel"));
  }

  std::vector<Segment> segments_;
  ShardDataConfig data_;  // of the first file
};

ImageRange range_of(const Segment& segment) {
  return {segment.plan().config.auto_normalize_img};
}

/// The values of a segment's own unets, of one for each of the cascade's. @param other of the rest
template <class T>
OneOrMany<T> values_of(const std::vector<T>& given, const Segment& segment, const T& other) {
  if (given.empty()) return other;
  std::vector<T> values(segment.plan().stages.size(), other);
  for (int64_t unet = segment.first; unet <= segment.last; ++unet) {
    const auto i = static_cast<size_t>(unet - 1);
    values[i] = given.size() == 1 ? given.front() : given.at(i);
  }
  return values;
}

void move_to_draw(Decoder& decoder, const at::Device& device) {
  decoder->to(device);
  lay_filters_in_order(*decoder);
}

constexpr const char* kArray = "samples.npy";
constexpr int64_t kMostOnSheet = 64;

std::string picture_name(int64_t number) {
  return fmt::format("{:04}.png", number);
}

/// The first pictures side by side, about as many in a row as in a column.
/// @param pictures [N, C, H, W] in [0, 1] @param texts under them; none without
Image sheet_of(const at::Tensor& pictures, const std::vector<std::string>& texts) {
  const int64_t count = std::min(pictures.size(0), kMostOnSheet);
  const auto columns = static_cast<int64_t>(std::ceil(std::sqrt(count)));
  std::vector<at::Tensor> cells = pictures.narrow(0, 0, count).unbind();
  if (!texts.empty()) {
    std::vector<std::string> names;
    for (int64_t i = 0; i < count; ++i) names.push_back(picture_name(i));
    cells = above_texts(cells, {texts.begin(), texts.begin() + count}, names);
  }
  return to_picture(image_grid(cells, columns));
}

/// What a batch holds besides the weights while a unet draws it: a made-up step of one picture, and what
/// a second one adds.
struct BatchBytes {
  int64_t one = 0, more = 0;
  int64_t of(int64_t pictures) const { return one + (pictures - 1) * more; }
};

class DecoderSampling {
 public:
  DecoderSampling(const SampleCommand& command, const Value& checkpoint, const at::Device& device)
      : command_(command), cascade_(command, checkpoint), device_(device) {}

  void run(const Value& checkpoint) {
    check_unets();
    bool takes_encodings = false, one_takes_them = false;
    for (int64_t unet = 1; unet <= cascade_.unets(); ++unet) {
      const bool takes = cascade_.stage(unet).unet.cond_on_text_encodings.value_or(false);
      one_takes_them |= takes;
      takes_encodings |= takes && unet >= command_.start_unet && unet <= last_unet();
    }
    check_options_on(command_,
                     {{kUnconditional, cascade_.first_config().unconditional},
                      {kTakesEncodings, one_takes_them},
                      {kTakesNoEncodings, !one_takes_them}});
    check_out(command_);
    const Cursor root(checkpoint, command_.checkpoint_path);
    const PictureReading reading = cascade_.reading();
    MadeConditions made;
    if (has_made_conditions(command_))
      made = made_conditions(command_, root, takes_encodings, reading.options, device_);
    load_inputs(std::move(made), reading);
    check_command();
    if (command_.dry_run) return tell_cascade();
    Timer timer;
    if (inputs_.draw_embeds)
      inputs_.image_embeds =
          std::exchange(inputs_.draw_embeds, nullptr)();  // which frees the prior
    const ImageRange range = range_of(cascade_.segment_of(last_unet()));
    const auto [lowest, highest] = range.bounds();
    const at::Tensor pictures = draw().clamp(lowest, highest);
    write_samples(pictures, range);
    log_info("sample",
             "{} in {}: {}/{}, {}",
             counted(inputs_.rows, "image"),
             human_duration(timer.seconds()),
             command_.out_folder,
             inputs_.rows == 1 ? picture_name(0)
                               : fmt::format("{} ..., {}", picture_name(0), kSheetFile),
             kArray);
  }

 private:
  int64_t last_unet() const { return command_.stop_unet.value_or(cascade_.unets()); }
  /// @param made by a CLIP; nothing without one @param reading of the pictures of the training
  void load_inputs(MadeConditions made, const PictureReading& reading) {
    static_cast<MadeConditions&>(inputs_) = std::move(made);
    if (command_.image_embeds_path)
      inputs_.image_embeds = load_npy_tensor(*command_.image_embeds_path, 2);
    if (command_.text_encodings_path)
      inputs_.text_encodings = load_npy_tensor(*command_.text_encodings_path, 3);
    const char* const maker = starts_from_picture(command_) ? "--image"
                              : command_.text               ? "--text"
                                                            : "--image-embeds";
    std::vector<std::pair<std::string, at::Tensor>> per_image = {
        {maker, inputs_.image_embeds}, {"--text-encodings", inputs_.text_encodings}};
    for (const std::string& path : command_.init_noise_paths) {
      inputs_.init_noise.push_back(load_npy_tensor(path, 4));
      per_image.emplace_back("--init-noise " + path, inputs_.init_noise.back());
    }
    const auto pictures =
        [&](const std::optional<std::string>& path, const char* name, const PictureReading& as) {
          const at::Tensor tensor = path ? load_pictures(*path, as) : at::Tensor();
          if (tensor.defined() && tensor.size(0) > 1) per_image.emplace_back(name, tensor);
          return tensor;
        };
    if (!starts_from_picture(command_))
      inputs_.image = pictures(command_.image_path, "--image", reading);
    inputs_.inpaint_image = pictures(command_.inpaint_image_path, "--inpaint-image", reading);
    at::Tensor mask = pictures(command_.inpaint_mask_path,
                               "--inpaint-mask",
                               {.options = {.apply_exif = reading.options.apply_exif}});
    inputs_.rows =
        common_rows(per_image, has_made_conditions(command_) ? std::nullopt : command_.num);
    if (inputs_.noise_rows.empty()) {
      inputs_.noise_rows.resize(static_cast<size_t>(inputs_.rows));
      std::iota(inputs_.noise_rows.begin(), inputs_.noise_rows.end(), 0);
    }
    inputs_.image = repeat_to(inputs_.image, inputs_.rows);
    inputs_.inpaint_image = repeat_to(inputs_.inpaint_image, inputs_.rows);
    if (mask.defined())
      inputs_.inpaint_mask = repeat_to(mask, inputs_.rows).mean(1) > 0.5;  // [N, H, W]
  }
  void check_init_noise() const {
    const int64_t drawn = last_unet() - command_.start_unet + 1;
    const int64_t given = std::ssize(inputs_.init_noise);
    if (given == 0 || given == drawn) return;
    throw ConfigError(
        "--init-noise: expected {}, one for each sampled unet ({} to {}), got {}\n"
        "  Repeat the option in the order of the unets, or sample fewer (--start-unet, "
        "--stop-unet).",
        counted(drawn, "file"),
        command_.start_unet,
        last_unet(),
        given);
  }
  void check_unets() const {
    const int64_t unets = cascade_.unets();
    const int64_t last = last_unet();
    const bool wrong_start = command_.start_unet < 1 || command_.start_unet > unets;
    if (wrong_start || last < command_.start_unet || last > unets) {
      throw ConfigError("{}: expected {} to {}, the unets of {}, got {}",
                        wrong_start ? "--start-unet" : "--stop-unet",
                        wrong_start ? 1 : command_.start_unet,
                        unets,
                        cascade_.files(),
                        wrong_start ? command_.start_unet : last);
    }
    const auto check = [&](const char* option, size_t given) {
      check_one_or_each(option, given, static_cast<size_t>(unets), cascade_.files());
    };
    check("--timesteps", command_.timesteps.size());
    check("--cond-scale", command_.cond_scale.size());
  }
  void check_widths(const Segment& segment) const {
    const UnetConfig& unet = cascade_.stage(segment.first).unet;
    const auto check = [&](const at::Tensor& given,
                           const std::optional<int64_t>& width,
                           const std::string& option,
                           const std::optional<std::string>& path) {
      if (!given.defined() || !width || given.size(-1) == *width) return;
      throw DataError("{}: expected {} of {} values, as {} was trained with, got {}",
                      path ? option + " " + *path : "--clip " + *command_.clip_path,
                      option.starts_with("--image") ? "embeddings" : "text encodings",
                      *width,
                      segment.path,
                      given.size(-1));
    };
    check(inputs_.image_embeds, unet.image_embed_dim, "--image-embeds", command_.image_embeds_path);
    if (unet.cond_on_text_encodings.value_or(false)) {
      check(inputs_.text_encodings,
            unet.text_embed_dim,
            "--text-encodings",
            command_.text_encodings_path);
    }
  }
  void check_inpainting() const {
    if (!inputs_.inpaint_image.defined()) return;
    const at::Tensor& mask = inputs_.inpaint_mask;
    for (const bool keeps : {false, true}) {
      const at::Tensor same = keeps ? mask.flatten(1).all(1) : mask.flatten(1).any(1).logical_not();
      if (!same.any().item<bool>()) continue;
      log_warning(
          "sample",
          "--inpaint-mask {}: the mask keeps {}: white (from 128 of 255 on) is kept, black is "
          "drawn again",
          *command_.inpaint_mask_path,
          keeps ? "the whole picture, so that nothing is drawn"
                : "nothing, so that the whole picture is drawn again");
    }
  }
  /// What a segment makes of its first pictures; those that the one below it is to draw are stood in for.
  void check_segment(const Segment& segment) const {
    DecoderSampleOptions options = options_of(segment);
    const int64_t count = std::min(command_.batch_size, inputs_.rows);
    set_rows(options, segment, 0, count);
    if (options.start_at_unet > command_.start_unet) {
      const DecoderPlan& plan = segment.plan();
      const int64_t side = plan.stages[static_cast<size_t>(segment.first - 2)].image_size;
      options.image = at::zeros({1}).expand({count, plan.config.channels, side, side});
    }
    naming_file(segment.path, [&] { segment.decoder->check_sample_options(options); });
    bool walks_with_ddim = false;
    for (int64_t unet = options.start_at_unet; unet <= *options.stop_at_unet; ++unet)
      walks_with_ddim |= segment.decoder->walks_with_ddim(unet, options);
    tell_of_own_ddim(segment.plan().layout.ddim, walks_with_ddim, segment.path);
  }
  bool draws(const Segment& segment) const {
    return segment.last >= command_.start_unet && segment.first <= last_unet();
  }
  /// Checks the command line and its files before the first step is computed, with --dry-run too.
  void check_command() const {
    if (!cascade_.first_config().unconditional && command_.start_unet == 1 &&
        !inputs_.image_embeds.defined()) {
      throw ConfigError(
          "--image-embeds is missing: this decoder draws from image embeddings (.npy, [N, {}])\n  Or "
          "give --text with --prior and --clip, or --image with --clip, which make them.",
          cascade_.stage(1).unet.image_embed_dim.value_or(0));
    }
    check_inpainting();
    check_init_noise();
    for (const Segment& segment : cascade_.segments()) {
      if (!draws(segment)) continue;
      check_widths(segment);
      check_segment(segment);
      check_range(
          inputs_.inpaint_image, "--inpaint-image", command_.inpaint_image_path, range_of(segment));
    }
    check_range(inputs_.image,
                "--image",
                command_.image_path,
                range_of(cascade_.segment_of(command_.start_unet)));
    for (int64_t number = command_.start_unet; number <= last_unet(); ++number) {
      const UnetConfig& unet = cascade_.stage(number).unet;
      if (!unet.cond_on_text_encodings.value_or(false)) continue;
      warn_of_cut_encodings(inputs_.text_encodings,
                            fmt::format("/decoder/unets/{}/max_text_len", number - 1),
                            unet.max_text_len);
    }
  }
  DecoderSampleOptions options_of(const Segment& segment) const {
    DecoderSampleOptions options;
    options.cond_scale = values_of(command_.cond_scale, segment, 1.0);
    std::vector<std::optional<int64_t>> steps;
    for (const int64_t given : command_.timesteps)
      steps.push_back(given > 0 ? std::optional(given) : std::nullopt);
    options.sample_timesteps = values_of(steps, segment, std::optional<int64_t>());
    options.steps_name = giver_of(command_, "--timesteps", "default_sample_timesteps");
    options.start_at_unet = std::max(segment.first, command_.start_unet);
    options.stop_at_unet = std::min(segment.last, command_.stop_unet.value_or(segment.last));
    options.inpaint_resample_times =
        command_.inpaint_resample_times.value_or(kDefaultResampleTimes);
    options.sampler = command_.sampler;
    options.cfg_rescale = command_.cfg_rescale;
    options.one_unet_in_gpu = command_.device != "cpu";
    return options;
  }
  void set_rows(DecoderSampleOptions& options,
                const Segment& segment,
                int64_t begin,
                int64_t count) const {
    const auto take = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, begin, count).to(device_) : tensor;
    };
    const DecoderPlan& plan = segment.plan();
    options.image_embeds = plan.config.unconditional ? at::Tensor() : take(inputs_.image_embeds);
    options.text_encodings = plan.text_conditioned() ? take(inputs_.text_encodings) : at::Tensor();
    options.image = take(inputs_.image);
    options.inpaint_image = take(inputs_.inpaint_image);
    options.inpaint_mask = take(inputs_.inpaint_mask);
    options.init_noise.clear();
    auto noise = static_cast<size_t>(options.start_at_unet - command_.start_unet);
    if (!inputs_.init_noise.empty()) {
      for (int64_t unet = options.start_at_unet; unet <= *options.stop_at_unet; ++unet)
        options.init_noise.push_back(take(inputs_.init_noise[noise++]));
    }
    options.batch_size = count;
  }
  /// Draws all pictures with one file before the next one: of several, only one is on the device.
  /// @return [N, C, H, W] on the CPU, in the range of the last segment's data
  at::Tensor draw() {
    const int64_t last = last_unet();
    const auto generators = generators_of_rows(command_.seed, inputs_.noise_rows);  // of all stages
    const at::Tensor inpaint_image = inputs_.inpaint_image;
    inputs_.image = to_range(
        inputs_.image, command_.image_path, range_of(cascade_.segment_of(command_.start_unet)));
    const std::string guide =
        command_.facts.at(kGuided) ? giver_of(command_, "--cond-scale", "default_cond_scale") : "";
    for (const Segment& segment : cascade_.segments()) {
      if (!draws(segment)) continue;
      Decoder decoder = segment.decoder;
      move_to_draw(decoder, device_);
      const ImageRange range = range_of(segment);
      inputs_.inpaint_image = to_range(inpaint_image, command_.inpaint_image_path, range);
      DecoderSampleOptions options = options_of(segment);
      std::vector<at::Tensor> parts;
      for (int64_t begin = 0; begin < inputs_.rows; begin += command_.batch_size) {
        const int64_t count = std::min(command_.batch_size, inputs_.rows - begin);
        set_rows(options, segment, begin, count);
        options.row_generators = {generators.begin() + begin, generators.begin() + begin + count};
        options.on_step = [&](int64_t unet, size_t step, size_t steps) {
          log_live(fmt::format("images {}-{} of {}, unet {}, step {}/{}",
                               begin,
                               begin + count - 1,
                               inputs_.rows,
                               unet,
                               step + 1,
                               steps));
        };
        parts.push_back(draw_in_chunks(*decoder, options, count, {}, device_, [&](const auto& own) {
          const Autocast autocast = precision_of(command_, device_);
          return decoder->sample(own).to(at::kCPU, at::kFloat);
        }));
        check_drawn(parts.back(), begin, "images", segment.path, guide);
      }
      if (cascade_.segments().size() > 1) decoder->to(at::kCPU);
      inputs_.image = at::cat(parts);
      if (segment.last >= last) break;
      const ImageRange next = range_of(cascade_.segment_of(segment.last + 1));
      if (range.auto_normalize != next.auto_normalize)
        inputs_.image = next.auto_normalize ? (inputs_.image + 1) / 2 : inputs_.image * 2 - 1;
    }
    log_live("");
    return inputs_.image;
  }
  std::string path_in(const std::string& name) const {
    return (std::filesystem::path(command_.out_folder) / name).string();
  }
  /// @param samples [N, C, H, W] in the range of the decoder's data; samples.npy keeps it
  void write_samples(const at::Tensor& samples, ImageRange range) const {
    const int64_t count = samples.size(0);
    const at::Tensor values = samples.contiguous();
    write_npy_float32(path_in(kArray), values.sizes().vec(), values.const_data_ptr<float>());
    const at::Tensor pictures = range.auto_normalize ? samples : (samples + 1) / 2;
    for (int64_t i = 0; i < count; ++i)
      write_png(path_in(picture_name(i)), to_picture(pictures[i]));
    if (count > 1) write_png(path_in(kSheetFile), sheet_of(pictures, inputs_.texts));
  }
  BatchBytes batch_bytes(const Segment& segment, int64_t unet) const {
    Decoder decoder = segment.decoder;
    const DecoderPlan& plan = segment.plan();
    const auto bytes_of = [&](int64_t pictures) {
      const at::TensorOptions on_device(device_);
      DecoderSampleOptions options = options_of(segment);
      options.start_at_unet = unet;
      options.stop_at_unet = unet;
      options.sampler = "ddim";
      options.sample_timesteps = std::optional<int64_t>(1);
      options.batch_size = pictures;
      options.generator = make_generator({.seed = command_.seed, .purpose = "dry run"}, at::kCPU);
      for (const UnetPlan& stage : plan.stages) {
        const UnetConfig& takes = stage.unet;
        if (!plan.config.unconditional && takes.image_embed_dim)
          options.image_embeds = at::ones({pictures, *takes.image_embed_dim}, on_device);
        if (takes.cond_on_text_encodings.value_or(false))
          options.text_encodings =
              at::ones({pictures, takes.max_text_len, takes.text_embed_dim.value()}, on_device);
      }
      if (unet > 1) {
        const int64_t side = plan.stages[static_cast<size_t>(unet - 2)].image_size;
        options.image = at::zeros({pictures, plan.config.channels, side, side}, on_device);
      }
      const Autocast autocast = precision_of(command_, device_);
      return peak_tensor_bytes([&] { decoder->sample(options); });
    };
    const int64_t one = bytes_of(1);
    return {one, std::max<int64_t>(bytes_of(2) - one, 0)};
  }
  /// The weights that --dry-run found, and the most that they and a batch take at a time.
  /// @param batches while each unet draws, on the device that holds the unets of one file at a time
  void tell_memory(const std::map<int64_t, BatchBytes>& batches) const {
    const int64_t makers = inputs_.weight_bytes;  // gone when the unets draw
    const auto text = [](int64_t bytes) { return human_bytes(static_cast<uint64_t>(bytes)); };
    int64_t unets = 0, of_file = 0;
    const auto peak_of = [&](int64_t pictures) {
      int64_t peak = makers;
      for (const auto& [unet, batch] : batches) {
        const int64_t held = device_.is_cpu() ? 0 : cascade_.segment_of(unet).bytes();
        peak = std::max(peak, held + batch.of(pictures));
      }
      return peak + (device_.is_cpu() ? unets : 0);
    };
    for (const Segment& segment : cascade_.segments()) {
      unets += segment.bytes();
      of_file = std::max(of_file, segment.bytes());
    }
    log_info(
        "sample",
        "Weights in main memory: {} of the unets{}; a GPU holds those of one file at a time, at most {}",
        text(unets),
        makers == 0 ? "" : fmt::format(", {} of CLIP and prior", text(makers)),
        text(of_file));
    log_info(
        "sample",
        "Peak memory of the {}, and about {} of weights and batches for one picture at a time, {} "
        "for {} (--batch-size)",
        device_.is_cpu() ? "program: about 0.2 GiB of its own" : "GPU: what CUDA takes",
        text(peak_of(1)),
        text(peak_of(command_.batch_size)),
        command_.batch_size);
  }
  /// --dry-run: the stages, with what each is drawn, and what they need.
  void tell_cascade() {
    inputs_.draw_embeds = nullptr;
    std::map<int64_t, BatchBytes> batches;
    for (int64_t unet = command_.start_unet; unet <= last_unet(); ++unet) {
      const Segment& segment = cascade_.segment_of(unet);
      const UnetPlan& stage = cascade_.stage(unet);
      Decoder decoder = segment.decoder;
      const DecoderSampleOptions options = options_of(segment);
      log_info(
          "sample",
          "unet {0} of {1}: {2} x {2} pixels, {3} parameters, {4} of {5} steps, guidance {6:g}",
          unet,
          segment.path,
          stage.image_size,
          count_parameters(*decoder->unet(unet)).total,
          decoder->sample_steps(unet, options),
          stage.timesteps,
          options.cond_scale.at(static_cast<size_t>(unet - 1)));
      move_to_draw(decoder, device_);
      batches[unet] = batch_bytes(segment, unet);
      decoder->to(at::kCPU);
    }
    tell_memory(batches);
  }

  const SampleCommand& command_;
  const Cascade cascade_;
  const at::Device device_;
  SampleInputs inputs_;
};

}  // namespace

void sample_decoder(const SampleCommand& command,
                    const Value& checkpoint,
                    const at::Device& device) {
  DecoderSampling(command, checkpoint, device).run(checkpoint);
}

}  // namespace dalle2
