// SPDX-License-Identifier: MIT
// What all kinds of `sample` share, and image embeddings of a prior.
#include "run/commands/sample_command.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/timer.h"
#include "checkpoint/convert.h"
#include "config/decoder/decoder_run_config.h"
#include "config/decoder/pipeline_config.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "run/device/device.h"
#include "run/kinds.h"
#include "run/pictures/pictures.h"
#include "tracker/places/remote_file.h"
#include "trainer/tensor_group.h"

namespace dalle2 {
namespace {

constexpr int64_t kDefaultCandidates = 2;

/// Puts the files and the defaults of --pipeline where the options are that it stands for.
/// @throws ConfigError, DataError
void take_pipeline(SampleCommand& command) {
  const PipelineConfig pipeline = load_pipeline_config(*command.pipeline_path);
  const std::vector<CascadeFile> told = std::exchange(command.upsamplers, {});
  const auto existing = [&](const std::string& path) {
    if (path.find(':') != std::string::npos || std::filesystem::exists(path)) return path;
    throw DataError(
        "{} names {}: no such file\n  Paths in it are relative to the working directory, {}.",
        *command.pipeline_path,
        path,
        std::filesystem::current_path().string());
  };
  std::vector<PipelineSource> sources = pipeline.decoder.unet_sources;
  const auto lowest = [](const PipelineSource& source) {
    return *std::min_element(source.unet_numbers.begin(), source.unet_numbers.end());
  };
  std::sort(sources.begin(), sources.end(), [&](const auto& a, const auto& b) {
    return lowest(a) < lowest(b);
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
  if (!told.empty() && told.size() != command.upsamplers.size()) {
    throw ConfigError(
        "--upsampler-written-by: expected one for each of {} of {} after the first, got {}",
        counted(std::ssize(command.upsamplers), "decoder's file"),
        *command.pipeline_path,
        told.size());
  }
  for (size_t i = 0; i < told.size(); ++i) command.upsamplers[i].written_by = told[i].written_by;
  if (command.cond_scale.empty()) command.cond_scale = scales;
  if (command.timesteps.empty()) command.timesteps = steps;
  if (!pipeline.prior || !command.text || command.image_path || command.prior_path) return;
  command.prior_path = existing(pipeline.prior->load_model_from.path);
  if (const auto& config = pipeline.prior->load_config_from; config && !command.prior_config_path)
    command.prior_config_path = config->path;
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
  if (command.text_encodings_path) {
    text.encodings = load_npy_tensor(*command.text_encodings_path, 3);
  }
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

}  // namespace

ModelSource source_of(const SampleCommand& command) {
  return {.checkpoint_path = command.checkpoint_path,
          .config_path = command.config_path,
          .use_ema = command.use_ema,
          .lora = {.files = command.lora_paths, .scales = command.lora_scale},
          .written_by = command.written_by};
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
  throw ConfigError("{}: expected one value, or one for each of the {} unets of {}, got {}",
                    option,
                    unets,
                    checkpoint_path,
                    given);
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

void make_out_folder(const SampleCommand& command) {
  std::error_code error, ignored;
  std::filesystem::create_directories(command.out_folder, error);
  if (!std::filesystem::is_directory(command.out_folder, ignored)) {
    throw ConfigError("--out {}: this folder cannot be made: {}",
                      command.out_folder,
                      error ? error.message() : "a file of that name is there");
  }
  std::vector<std::string> names = names_in_folder(command.out_folder);
  std::erase_if(names,
                [](const std::string& n) { return n.starts_with('.') || n.ends_with(".part"); });
  if (names.empty() || command.overwrite) return;
  std::sort(names.begin(), names.end());
  throw ConfigError(
      "--out {}: expected a new or empty folder, but it holds {}\n  Choose another folder, or add "
      "--overwrite: files with the names of the output are replaced, and nothing is removed.",
      command.out_folder,
      short_list(names));
}

void check_finite(const at::Tensor& samples,
                  const SampleCommand& command,
                  const char* what,
                  int64_t begin) {
  if (at::isfinite(samples).all().item<bool>()) return;
  log_live("");
  throw NonFiniteError(
      "{} {}-{} hold values that are not finite: nothing was written\n"
      "  The weights of {} may be damaged or diverged, or --cond-scale is far too large.",
      what,
      begin,
      begin + samples.size(0) - 1,
      command.checkpoint_path);
}

void run_sample(const SampleCommand& asked) {
  SampleCommand command = asked;
  if (command.pipeline_path) take_pipeline(command);
  if (command.prior_path) command.facts["--prior"] = true;
  command.facts[kVariesPicture] = starts_from_picture(command);
  command.facts[kEnlarges] = command.start_unet > 1;
  command.facts[kGuided] = std::any_of(command.cond_scale.begin(),
                                       command.cond_scale.end(),
                                       [](double scale) { return scale != 1; });
  check_options("sample", command.facts);
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
  // What names do not tell is taken for a decoder: its loading says what does not fit.
  const RunKind& kind = run_kind_of(found.empty() ? TrainDecoderConfig::kKind : found);
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

at::Tensor draw_image_embeds(DiffusionPrior prior,
                             const TextEmbedding& texts,
                             const SampleCommand& command,
                             double cond_scale,
                             std::optional<int64_t> timesteps,
                             const at::Device& device) {
  PriorSampleOptions options;
  options.cond_scale = cond_scale;
  options.timesteps = timesteps;
  options.num_samples_per_text = command.candidates.value_or(kDefaultCandidates);
  const PriorPlan& plan = prior->plan();
  const int64_t all = plan.config.timesteps;
  const int64_t wanted = timesteps.value_or(plan.config.sample_timesteps.value_or(all));
  tell_of_own_ddim(plan.layout, wanted < all, "the prior");
  if (cond_scale != 1 && !prior->net()->drops()) {
    log_info("sample",
             "guidance of the prior has no effect: dalle2-pytorch {} never dropped its conditions",
             to_text(plan.config.written_by));
  }
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
    check_finite(parts.back(), command, "embeddings", range.begin);
  }
  log_live("");
  return at::cat(parts).contiguous();
}

void sample_prior(const SampleCommand& command, const Value& checkpoint, const at::Device& device) {
  const std::pair<const char*, size_t> numbers[] = {{"--cond-scale", command.cond_scale.size()},
                                                    {"--timesteps", command.timesteps.size()}};
  for (const auto& [option, given] : numbers) {
    if (given > 1) throw ConfigError("{}: a prior takes one number, got {}", option, given);
  }
  DiffusionPrior prior = load_prior(source_of(command), checkpoint);
  const PriorConfig& config = prior->plan().config;
  check_options_on(command, {{kTakesEncodings, config.condition_on_text_encodings}});
  const TextEmbedding texts = load_texts(command, config);
  make_out_folder(command);
  prior->to(device);
  const int64_t rows = texts.embeds.size(0);
  Timer timer;
  const at::Tensor embeds = draw_image_embeds(
      prior,
      texts,
      command,
      command.cond_scale.empty() ? 1 : command.cond_scale.front(),
      command.timesteps.empty() ? std::nullopt : std::optional(command.timesteps.front()),
      device);  // [N, D]
  const std::string path = (std::filesystem::path(command.out_folder) / kEmbeds).string();
  write_npy_float32(path, embeds.sizes().vec(), embeds.const_data_ptr<float>());
  log_info("sample",
           "{} in {}: {}",
           counted(rows, "image embedding"),
           human_duration(timer.seconds()),
           path);
}

}  // namespace dalle2
