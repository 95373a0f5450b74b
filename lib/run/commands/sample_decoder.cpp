// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

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

struct SampleInputs {
  at::Tensor image_embeds, text_encodings, image, inpaint_image, inpaint_mask;
  std::vector<at::Tensor> init_noise;
  std::vector<int64_t> noise_rows;  // whose draws each image has
  std::vector<std::string> texts;   // under the images of the sheet; none without
  int64_t rows = 1;
};

const char* maker_of_embeds(const SampleCommand& command) {
  if (starts_from_picture(command)) return "--image";
  return command.text ? "--text" : "--image-embeds";
}

/// @param made by a CLIP; nothing without one @param reading of the pictures of the training
SampleInputs load_inputs(const SampleCommand& command,
                         const MadeConditions& made,
                         const PictureReading& reading) {
  SampleInputs inputs;
  inputs.image_embeds = made.image_embeds;
  inputs.text_encodings = made.text_encodings;
  if (command.image_embeds_path)
    inputs.image_embeds = load_npy_tensor(*command.image_embeds_path, 2);
  if (command.text_encodings_path)
    inputs.text_encodings = load_npy_tensor(*command.text_encodings_path, 3);
  std::vector<std::pair<std::string, at::Tensor>> per_image = {
      {maker_of_embeds(command), inputs.image_embeds}, {"--text-encodings", inputs.text_encodings}};
  for (const std::string& path : command.init_noise_paths) {
    try {
      inputs.init_noise.push_back(load_npy_tensor(path, 4));
    } catch (const DataError& error) {
      throw DataError("--init-noise {}", error.what());  // which begins with the path
    }
    per_image.emplace_back("--init-noise " + path, inputs.init_noise.back());
  }
  const auto pictures =
      [&](const std::optional<std::string>& path, const char* name, const PictureReading& as) {
        const at::Tensor tensor = path ? load_pictures(*path, as) : at::Tensor();
        if (tensor.defined() && tensor.size(0) > 1) per_image.emplace_back(name, tensor);
        return tensor;
      };
  if (!starts_from_picture(command))
    inputs.image = pictures(command.image_path, "--image", reading);
  inputs.inpaint_image = pictures(command.inpaint_image_path, "--inpaint-image", reading);
  at::Tensor mask = pictures(command.inpaint_mask_path,
                             "--inpaint-mask",
                             {.options = {.apply_exif = reading.options.apply_exif}});
  inputs.rows = common_rows(per_image, has_made_conditions(command) ? std::nullopt : command.num);
  inputs.noise_rows = made.noise_rows;
  inputs.texts = made.texts;
  if (inputs.noise_rows.empty()) {
    inputs.noise_rows.resize(static_cast<size_t>(inputs.rows));
    std::iota(inputs.noise_rows.begin(), inputs.noise_rows.end(), 0);
  }
  inputs.image = repeat_to(inputs.image, inputs.rows);
  inputs.inpaint_image = repeat_to(inputs.inpaint_image, inputs.rows);
  if (mask.defined())
    inputs.inpaint_mask = repeat_to(mask, inputs.rows).mean(1) > 0.5;  // [N, H, W]
  return inputs;
}

/// Pictures hold [0, 1]; an array comes in the range of the decoder's data.
at::Tensor to_range(const at::Tensor& pictures,
                    const std::optional<std::string>& path,
                    ImageRange range) {
  const bool as_it_is = !pictures.defined() || range.auto_normalize ||
                        std::filesystem::path(*path).extension() == ".npy";
  return as_it_is ? pictures : pictures * 2 - 1;
}

/// Consecutive stages that one file draws.
struct Segment {
  std::string path;
  Decoder decoder = nullptr;
  int64_t first = 1, last = 1;  ///< unets, from 1

  const DecoderPlan& plan() const { return decoder->plan(); }
  int64_t bytes() const { return count_parameters(*decoder).bytes; }
};

Decoder load_file(const CascadeFile& file, const SampleCommand& command) {
  const FetchedFile fetched(file.path);
  const Value checkpoint = read_checkpoint(fetched.path());
  check_kind(Cursor(checkpoint, file.path), "decoder");
  return load_decoder({.checkpoint_path = fetched.path(),
                       .config_path = file.config_path,
                       .use_ema = command.use_ema,
                       .written_by = file.written_by,
                       .version_option = "--upsampler-written-by"},
                      checkpoint);
}

/// The stages of one file, or of several that draw one after another, each as its own file's config
/// says. A file's stages below its first one here are not used.
class Cascade {
 public:
  /// @param checkpoint of command.checkpoint_path @throws ConfigError, DataError
  Cascade(const SampleCommand& command, const Value& checkpoint) {
    std::vector<CascadeFile> files = {{.path = command.checkpoint_path, .unets = command.unets}};
    files.insert(files.end(), command.upsamplers.begin(), command.upsamplers.end());
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
    for (size_t i = 0; i < givers.size(); ++i) {
      for (size_t file = 0; file < decoders.size(); ++file) {
        const auto unet = static_cast<int64_t>(i) + 1;
        if (file != givers[i] && unet <= decoders[file]->num_unets())
          decoders[file]->drop_unet(unet);
      }
    }
  }

  int64_t unets() const { return segments_.back().last; }
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& segment_of(int64_t unet) const {
    const auto draws = [&](const Segment& segment) { return unet <= segment.last; };
    return *std::find_if(segments_.begin(), segments_.end(), draws);
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
  bool is_text_conditioned() const {
    const auto takes = [](const Segment& segment) { return segment.plan().text_conditioned(); };
    return std::any_of(segments_.begin(), segments_.end(), takes);
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
        "{} does not continue {}: its unet {} enlarges pictures of {} x {} pixels and {}, and unet {} "
        "draws {} x {} and {}\n  Give files whose sizes meet.",
        above.path,
        below.path,
        above.first,
        taken,
        taken,
        counted(of_above, "channel"),
        below.last,
        drawn,
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

DecoderSampleOptions options_of(const SampleCommand& command, const Segment& segment) {
  DecoderSampleOptions options;
  options.cond_scale = values_of(command.cond_scale, segment, 1.0);
  std::vector<std::optional<int64_t>> steps;
  for (const int64_t given : command.timesteps)
    steps.push_back(given > 0 ? std::optional(given) : std::nullopt);
  options.sample_timesteps = values_of(steps, segment, std::optional<int64_t>());
  options.start_at_unet = std::max(segment.first, command.start_unet);
  options.stop_at_unet = std::min(segment.last, command.stop_unet.value_or(segment.last));
  options.inpaint_resample_times = command.inpaint_resample_times.value_or(kDefaultResampleTimes);
  options.sampler = command.sampler;
  options.cfg_rescale = command.cfg_rescale;
  options.one_unet_in_gpu = command.device != "cpu";
  return options;
}

/// @param first_noise of inputs.init_noise: of the segment's first unet
void set_rows(DecoderSampleOptions& options,
              const SampleInputs& inputs,
              const Segment& segment,
              int64_t begin,
              int64_t count,
              size_t first_noise,
              const at::Device& device) {
  const auto take = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, begin, count).to(device) : tensor;
  };
  const DecoderPlan& plan = segment.plan();
  options.image_embeds = plan.config.unconditional ? at::Tensor() : take(inputs.image_embeds);
  options.text_encodings = plan.text_conditioned() ? take(inputs.text_encodings) : at::Tensor();
  options.image = take(inputs.image);
  options.inpaint_image = take(inputs.inpaint_image);
  options.inpaint_mask = take(inputs.inpaint_mask);
  options.init_noise.clear();
  if (!inputs.init_noise.empty()) {
    for (int64_t unet = options.start_at_unet; unet <= *options.stop_at_unet; ++unet)
      options.init_noise.push_back(take(inputs.init_noise[first_noise++]));
  }
  options.batch_size = count;
}

/// Where it is to draw.
void move_to_draw(Decoder& decoder, const at::Device& device) {
  decoder->to(device);
  lay_filters_in_order(*decoder);
}

constexpr const char* kArray = "samples.npy";
constexpr int64_t kMostOnSheet = 64;

std::string path_in(const SampleCommand& command, const std::string& name) {
  return (std::filesystem::path(command.out_folder) / name).string();
}

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

/// @param samples [N, C, H, W] in the range of the decoder's data; samples.npy keeps it
/// @param texts of them; none without
void write_samples(const at::Tensor& samples,
                   const std::vector<std::string>& texts,
                   ImageRange range,
                   const SampleCommand& command) {
  const int64_t count = samples.size(0);
  const at::Tensor values = samples.contiguous();
  write_npy_float32(path_in(command, kArray), values.sizes().vec(), values.const_data_ptr<float>());
  const at::Tensor pictures = range.auto_normalize ? samples : (samples + 1) / 2;
  for (int64_t i = 0; i < count; ++i)
    write_png(path_in(command, picture_name(i)), to_picture(pictures[i]));
  if (count > 1) write_png(path_in(command, kSheetFile), sheet_of(pictures, texts));
}

/// A file for each sampled unet, of its size.
void check_init_noise(const SampleCommand& command,
                      const Cascade& cascade,
                      const SampleInputs& inputs) {
  const int64_t first = command.start_unet, last = command.stop_unet.value_or(cascade.unets());
  if (inputs.init_noise.empty()) return;
  const int64_t given = static_cast<int64_t>(inputs.init_noise.size());
  if (given != last - first + 1) {
    throw ConfigError(
        "--init-noise: expected {}, one for each sampled unet ({} to {}), got {}\n"
        "  Repeat the option in the order of the unets, or sample fewer (--start-unet, "
        "--stop-unet).",
        counted(last - first + 1, "file"),
        first,
        last,
        given);
  }
  for (size_t i = 0; i < inputs.init_noise.size(); ++i) {
    const int64_t unet = first + static_cast<int64_t>(i);
    const UnetPlan& stage = cascade.stage(unet);
    const int64_t side = stage.map_side(stage.image_size);
    const std::vector<int64_t> expected = {inputs.rows, stage.unet.channels, side, side};
    const at::Tensor& noise = inputs.init_noise[i];
    if (noise.sizes() == at::IntArrayRef(expected)) continue;
    throw DataError(
        "--init-noise {}: expected an array of shape [{}], what unet {} begins from, got [{}]",
        command.init_noise_paths[i],
        fmt::join(expected, ", "),
        unet,
        fmt::join(noise.sizes(), ", "));
  }
}

void check_unets(const SampleCommand& command, const Cascade& cascade) {
  const int64_t unets = cascade.unets();
  const int64_t last = command.stop_unet.value_or(unets);
  const bool wrong_start = command.start_unet < 1 || command.start_unet > unets;
  if (wrong_start || last < command.start_unet || last > unets) {
    throw ConfigError("{}: expected {} to {}, the unets of {}, got {}",
                      wrong_start ? "--start-unet" : "--stop-unet",
                      wrong_start ? 1 : command.start_unet,
                      unets,
                      command.checkpoint_path,
                      wrong_start ? command.start_unet : last);
  }
  const auto check = [&](const char* option, size_t given) {
    check_one_or_each(option, given, static_cast<size_t>(unets), command.checkpoint_path);
  };
  check("--timesteps", command.timesteps.size());
  check("--cond-scale", command.cond_scale.size());
}

void check_image_embeds(const SampleCommand& command,
                        const Segment& segment,
                        const SampleInputs& inputs) {
  const auto width =
      segment.plan().stages[static_cast<size_t>(segment.first - 1)].unet.image_embed_dim;
  if (!inputs.image_embeds.defined() || !width || inputs.image_embeds.size(1) == *width) return;
  throw DataError("{}: expected embeddings of {} values, as {} was trained with, got {}",
                  has_made_conditions(command) ? "--clip " + *command.clip_path
                                               : "--image-embeds " + *command.image_embeds_path,
                  *width,
                  segment.path,
                  inputs.image_embeds.size(1));
}

void check_inpainting(const SampleCommand& command, const SampleInputs& inputs) {
  if (!inputs.inpaint_image.defined()) return;
  const at::Tensor &image = inputs.inpaint_image, &mask = inputs.inpaint_mask;
  for (const bool keeps : {false, true}) {
    const at::Tensor same = keeps ? mask.flatten(1).all(1) : mask.flatten(1).any(1).logical_not();
    if (!same.any().item<bool>()) continue;
    log_warning(
        "sample",
        "--inpaint-mask {}: the mask keeps {}: white (from 128 of 255 on) is kept, black is "
        "drawn again",
        *command.inpaint_mask_path,
        keeps ? "the whole picture, so that nothing is drawn"
              : "nothing, so that the whole picture is drawn again");
  }
  if (mask.size(1) == image.size(2) && mask.size(2) == image.size(3)) return;
  throw DataError("--inpaint-mask {}: expected {} x {} pixels, as {} has, got {} x {}",
                  *command.inpaint_mask_path,
                  image.size(3),
                  image.size(2),
                  *command.inpaint_image_path,
                  mask.size(2),
                  mask.size(1));
}

/// What a wrong command line gets to hear before the first step is computed.
void check_command(const SampleCommand& command,
                   const Cascade& cascade,
                   const SampleInputs& inputs) {
  check_unets(command, cascade);
  if (!cascade.first_config().unconditional && command.start_unet == 1 &&
      !inputs.image_embeds.defined()) {
    throw ConfigError(
        "--image-embeds is missing: this decoder draws from image embeddings (.npy, [N, {}])\n  Or "
        "give --text with --prior and --clip, or --image with --clip, which make them.",
        cascade.stage(1).unet.image_embed_dim.value_or(0));
  }
  for (const Segment& segment : cascade.segments()) check_image_embeds(command, segment, inputs);
  check_inpainting(command, inputs);
  check_init_noise(command, cascade, inputs);
  const int64_t last = command.stop_unet.value_or(cascade.unets());
  for (int64_t number = command.start_unet; number <= last; ++number) {
    const UnetConfig& unet = cascade.stage(number).unet;
    if (!unet.cond_on_text_encodings.value_or(false)) continue;
    warn_of_cut_encodings(inputs.text_encodings,
                          fmt::format("/decoder/unets/{}/max_text_len", number - 1),
                          unet.max_text_len);
  }
  make_out_folder(command);
}

/// Draws all pictures with one file before the next one: of several, only one is on the device.
/// @return [N, C, H, W] on the CPU, in the range of the last segment's data
at::Tensor draw(const SampleCommand& command,
                const Cascade& cascade,
                SampleInputs inputs,
                const at::Device& device) {
  const int64_t last = command.stop_unet.value_or(cascade.unets());
  const auto generators = generators_of_rows(command.seed, inputs.noise_rows);  // of all stages
  const at::Tensor inpaint_image = inputs.inpaint_image;
  inputs.image =
      to_range(inputs.image, command.image_path, range_of(cascade.segment_of(command.start_unet)));
  for (const Segment& segment : cascade.segments()) {
    if (segment.last < command.start_unet || segment.first > last) continue;
    Decoder decoder = segment.decoder;
    move_to_draw(decoder, device);
    const ImageRange range = range_of(segment);
    inputs.inpaint_image = to_range(inpaint_image, command.inpaint_image_path, range);
    DecoderSampleOptions options = options_of(command, segment);
    bool walks_with_ddim = false;
    for (int64_t unet = options.start_at_unet; unet <= *options.stop_at_unet; ++unet)
      walks_with_ddim |= decoder->walks_with_ddim(unet, options);
    tell_of_own_ddim(segment.plan().layout.ddim, walks_with_ddim, segment.path);
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < inputs.rows; begin += command.batch_size) {
      const int64_t count = std::min(command.batch_size, inputs.rows - begin);
      set_rows(options,
               inputs,
               segment,
               begin,
               count,
               static_cast<size_t>(options.start_at_unet - command.start_unet),
               device);
      options.row_generators = {generators.begin() + begin, generators.begin() + begin + count};
      options.on_step = [&](int64_t unet, size_t step, size_t steps) {
        log_live(fmt::format("images {}-{} of {}, unet {}, step {}/{}",
                             begin,
                             begin + count - 1,
                             inputs.rows,
                             unet,
                             step + 1,
                             steps));
      };
      parts.push_back(draw_in_chunks(*decoder, options, count, {}, device, [&](const auto& own) {
        const Autocast autocast = precision_of(command, device);
        return decoder->sample(own).to(at::kCPU, at::kFloat);
      }));
      check_finite(parts.back(), command, "images", begin);
    }
    if (cascade.segments().size() > 1) decoder->to(at::kCPU);
    inputs.image = at::cat(parts);
    if (segment.last >= last) break;
    const ImageRange next = range_of(cascade.segment_of(segment.last + 1));
    if (range.auto_normalize != next.auto_normalize)
      inputs.image = next.auto_normalize ? (inputs.image + 1) / 2 : inputs.image * 2 - 1;
  }
  log_live("");
  return inputs.image;
}

/// What a batch holds besides the weights while a unet draws it: a made-up step of one picture, and what
/// a second one adds.
struct BatchBytes {
  int64_t one = 0, more = 0;
  int64_t of(int64_t pictures) const { return one + (pictures - 1) * more; }
};

BatchBytes batch_bytes(const SampleCommand& command,
                       const Segment& segment,
                       int64_t unet,
                       const at::Device& device) {
  Decoder decoder = segment.decoder;
  const DecoderPlan& plan = segment.plan();
  const auto bytes_of = [&](int64_t pictures) {
    const at::TensorOptions on_device(device);
    DecoderSampleOptions options = options_of(command, segment);
    options.start_at_unet = unet;
    options.stop_at_unet = unet;
    options.sampler = "ddim";
    options.sample_timesteps = std::optional<int64_t>(1);
    options.batch_size = pictures;
    options.generator = make_generator({.seed = command.seed, .purpose = "dry run"}, at::kCPU);
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
    const Autocast autocast = precision_of(command, device);
    return peak_tensor_bytes([&] { decoder->sample(options); });
  };
  const int64_t one = bytes_of(1);
  return {one, std::max<int64_t>(bytes_of(2) - one, 0)};
}

/// The weights that --dry-run found, and the most that they and a batch take at a time.
/// @param makers bytes of CLIP and prior, which are gone when the unets draw
/// @param batches while each unet draws, on the device that holds the unets of one file at a time
void tell_memory(const SampleCommand& command,
                 const Cascade& cascade,
                 int64_t makers,
                 const std::map<int64_t, BatchBytes>& batches,
                 const at::Device& device) {
  const auto text = [](int64_t bytes) { return human_bytes(static_cast<uint64_t>(bytes)); };
  int64_t unets = 0, of_file = 0;
  const auto peak_of = [&](int64_t pictures) {
    int64_t peak = makers;
    for (const auto& [unet, batch] : batches) {
      const int64_t held = device.is_cpu() ? 0 : cascade.segment_of(unet).bytes();
      peak = std::max(peak, held + batch.of(pictures));
    }
    return peak + (device.is_cpu() ? unets : 0);
  };
  for (const Segment& segment : cascade.segments()) {
    unets += segment.bytes();
    of_file = std::max(of_file, segment.bytes());
  }
  log_info(
      "sample",
      "Weights in main memory: {} of the unets{}; a GPU holds those of one file at a time, at most {}",
      text(unets),
      makers == 0 ? "" : fmt::format(", {} of CLIP and prior", text(makers)),
      text(of_file));
  log_info("sample",
           "Peak memory of the {}: about {} for one picture at a time, {} for {} (--batch-size)",
           device.is_cpu() ? "program" : "GPU",
           text(peak_of(1)),
           text(peak_of(command.batch_size)),
           command.batch_size);
}

/// --dry-run: the stages, with what each is drawn, and what they need.
void tell_cascade(const SampleCommand& command,
                  const Cascade& cascade,
                  const Cursor& root,
                  const at::Device& device) {
  check_unets(command, cascade);
  std::map<int64_t, BatchBytes> batches;
  const int64_t last = command.stop_unet.value_or(cascade.unets());
  for (int64_t unet = command.start_unet; unet <= last; ++unet) {
    const Segment& segment = cascade.segment_of(unet);
    const UnetPlan& stage = cascade.stage(unet);
    Decoder decoder = segment.decoder;
    decoder->check_has_unet(unet);
    const DecoderSampleOptions options = options_of(command, segment);
    const auto asked = options.sample_timesteps.at(static_cast<size_t>(unet - 1));
    log_info("sample",
             "unet {} of {}: {} x {} pixels, {} parameters, {} of {} steps, guidance {:g}",
             unet,
             segment.path,
             stage.image_size,
             stage.image_size,
             count_parameters(*decoder->unet(unet)).total,
             asked ? *asked : stage.sample_timesteps.value_or(stage.timesteps),
             stage.timesteps,
             options.cond_scale.at(static_cast<size_t>(unet - 1)));
  }
  const int64_t makers = has_made_conditions(command) ? tell_makers(command, root) : 0;
  for (int64_t unet = command.start_unet; unet <= last; ++unet) {
    const Segment& segment = cascade.segment_of(unet);
    Decoder decoder = segment.decoder;
    move_to_draw(decoder, device);
    batches[unet] = batch_bytes(command, segment, unet, device);
    decoder->to(at::kCPU);
  }
  tell_memory(command, cascade, makers, batches, device);
}

}  // namespace

void sample_decoder(const SampleCommand& command,
                    const Value& checkpoint,
                    const at::Device& device) {
  const Cascade cascade(command, checkpoint);
  const bool takes_encodings = cascade.is_text_conditioned();
  check_options_on(command,
                   {{kUnconditional, cascade.first_config().unconditional},
                    {kTakesEncodings, takes_encodings},
                    {kTakesNoEncodings, !takes_encodings}});
  const Cursor root(checkpoint, command.checkpoint_path);
  if (command.dry_run) return tell_cascade(command, cascade, root, device);
  const PictureReading reading = cascade.reading();
  const SampleInputs inputs =
      load_inputs(command,
                  has_made_conditions(command)
                      ? made_conditions(command, root, takes_encodings, reading.options, device)
                      : MadeConditions(),
                  reading);
  check_command(command, cascade, inputs);
  Timer timer;
  const ImageRange range =
      range_of(cascade.segment_of(command.stop_unet.value_or(cascade.unets())));
  const auto [lowest, highest] = range.bounds();
  const at::Tensor pictures = draw(command, cascade, inputs, device).clamp(lowest, highest);
  write_samples(pictures, inputs.texts, range, command);
  log_info(
      "sample",
      "{} in {}: {}/{}, {}",
      counted(inputs.rows, "image"),
      human_duration(timer.seconds()),
      command.out_folder,
      inputs.rows == 1 ? picture_name(0) : fmt::format("{} ..., {}", picture_name(0), kSheetFile),
      kArray);
}

}  // namespace dalle2
