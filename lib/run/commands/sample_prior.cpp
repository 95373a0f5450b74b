// SPDX-License-Identifier: MIT
// dalle2-train sample of a prior: image embeddings from text embeddings.
#include <torch/types.h>

#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "base/timer.h"
#include "io/formats/npy.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands/sample_command.h"
#include "run/pictures/pictures.h"
#include "run/pictures/row_noise.h"
#include "trainer/tensor_group.h"

namespace dalle2 {
namespace {

constexpr int64_t kDefaultCandidates = 2;

/// Options that only a decoder knows would do nothing.
void refuse_decoder_options(const SampleCommand& command) {
  const auto refuse = [&](bool given, const char* option) {
    if (!given) return;
    throw ConfigError(
        "{}: {} no effect on {}, which is of a prior; it draws image embeddings from --text-embeds "
        "and --text-encodings\n  For pictures, give a decoder as --checkpoint.",
        option,
        std::string_view(option).find(" and ") == std::string_view::npos ? "has" : "have",
        command.checkpoint_path);
  };
  refuse(command.image_embeds_path.has_value(), "--image-embeds");
  refuse(command.num.has_value(), "--num");
  refuse(command.text || command.clip_path || command.prior_path || command.prior_cond_scale,
         "--text, --clip, --prior and --prior-cond-scale");
  refuse(command.to || command.from_text || command.theta, "--to, --from-text and --theta");
  refuse(!command.init_noise_paths.empty(), "--init-noise");
  refuse(command.start_unet != 1 || command.stop_unet, "--start-unet and --stop-unet");
  refuse(command.image_path.has_value(), "--image");
  refuse(command.inpaint_image_path || command.inpaint_mask_path, "--inpaint-image");
  refuse(command.sampler != "auto", "--sampler");
  refuse(command.inpaint_resample_times.has_value(), "--inpaint-resample-times");
  refuse(command.cfg_rescale != 0, "--cfg-rescale");
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
  if (!config.condition_on_text_encodings && text.encodings.defined()) {
    throw ConfigError(
        "--text-encodings: has no effect on {}, which is not conditioned on text encodings "
        "(/prior/condition_on_text_encodings is false)",
        command.checkpoint_path);
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

at::Tensor draw_image_embeds(DiffusionPrior prior,
                             const TextEmbedding& texts,
                             const SampleCommand& command,
                             const PriorDraw& draw,
                             const at::Device& device) {
  PriorSampleOptions options;
  options.cond_scale = draw.cond_scale;
  options.timesteps = draw.timesteps;
  options.num_samples_per_text = command.candidates.value_or(kDefaultCandidates);
  const int64_t rows = texts.embeds.size(0);
  std::vector<at::Tensor> parts;
  for (const ChunkRange& range : chunk_ranges(rows, command.batch_size)) {
    options.text = on_device(chunk_of(texts, range), device);
    options.noise =
        noise_by_row(command.seed, range.begin, range.length, device, options.num_samples_per_text);
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
  refuse_decoder_options(command);
  const auto refuse_many = [](const char* option, size_t given) {
    if (given > 1) throw ConfigError("{}: a prior takes one number, got {}", option, given);
  };
  refuse_many("--cond-scale", command.cond_scale.size());
  refuse_many("--timesteps", command.timesteps.size());
  DiffusionPrior prior = load_prior(source_of(command), checkpoint);
  const TextEmbedding texts = load_texts(command, prior->plan().config);
  make_out_folder(command);
  prior->to(device);
  PriorDraw draw;
  if (!command.cond_scale.empty()) draw.cond_scale = command.cond_scale.front();
  if (!command.timesteps.empty()) draw.timesteps = command.timesteps.front();
  const int64_t rows = texts.embeds.size(0);
  Timer timer;
  const at::Tensor embeds = draw_image_embeds(prior, texts, command, draw, device);  // [N, D]
  const std::string path = (std::filesystem::path(command.out_folder) / kEmbeds).string();
  write_npy_float32(path, embeds.sizes().vec(), embeds.const_data_ptr<float>());
  log_info("sample",
           "{} in {}: {}",
           counted(rows, "image embedding"),
           human_duration(timer.seconds()),
           path);
}

}  // namespace dalle2
