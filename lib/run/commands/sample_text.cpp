// SPDX-License-Identifier: MIT
// `sample --text`: what a decoder draws from, made of texts by a CLIP and a prior.
#include <torch/types.h>

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/convert.h"
#include "io/files/atomic_file.h"
#include "run/clip/clip_data.h"
#include "run/commands/sample_command.h"

namespace dalle2 {
namespace {

/// A text, or with "@" the lines of a file.
std::vector<std::string> texts_of(const std::string& given) {
  if (!given.starts_with("@")) return {given};
  const std::string path = given.substr(1);
  std::ifstream in(path);
  if (!in) throw ConfigError("--text {}: {}: no such file", printable(given), printable(path));
  std::vector<std::string> texts;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) texts.push_back(line);
  }
  return texts;
}

void check_texts(const std::vector<std::string>& texts, const std::string& given) {
  if (texts.empty()) throw ConfigError("--text {}: expected a text, got none", printable(given));
  for (const std::string& text : texts) {
    if (!is_utf8(text)) {
      throw ConfigError("--text {}: {}: not UTF-8", printable(given), printable(text));
    }
  }
}

void check_widths(const SampleCommand& command, const ClipImpl& clip, const PriorConfig& prior) {
  if (prior.image_embed_dim != clip.embed_dim()) {
    throw DataError(
        "--prior {}: expected embeddings of {} values, as --clip {} makes, got a prior of {}\n  Name "
        "the CLIP that the prior's embeddings were made with.",
        *command.prior_path,
        clip.embed_dim(),
        *command.clip_path,
        prior.image_embed_dim);
  }
  if (prior.condition_on_text_encodings && clip.text_width() != prior.image_embed_dim) {
    throw DataError(
        "--prior {}: is conditioned on text encodings of {} values, and those of --clip {} have {}",
        *command.prior_path,
        prior.image_embed_dim,
        *command.clip_path,
        clip.text_width());
  }
}

}  // namespace

TextConditions conditions_of_texts(const SampleCommand& command, const at::Device& device) {
  const auto needed = [&](const std::optional<std::string>& path, const char* option) {
    if (path) return;
    throw ConfigError(
        "{} is missing: --text needs a CLIP (--clip) and a prior (--prior), trained on embeddings of "
        "that CLIP",
        option);
  };
  needed(command.clip_path, "--clip");
  needed(command.prior_path, "--prior");
  std::vector<std::string> texts = texts_of(*command.text);
  check_texts(texts, *command.text);
  const LoadedClip clip =
      load_clip({.checkpoint_path = *command.clip_path}, read_checkpoint(*command.clip_path));
  DiffusionPrior prior =
      load_prior({.checkpoint_path = *command.prior_path}, read_checkpoint(*command.prior_path));
  const PriorConfig& config = prior->plan().config;
  check_widths(command, *clip.clip, config);
  clip.clip->to(device);
  prior->to(device);
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> embeds, encodings;
  const at::Tensor tokens = tokens_of(texts, *clip.tokenizer, clip.clip->max_text_len());
  for (const ChunkRange& range : chunk_ranges(tokens.size(0), command.batch_size)) {
    const ClipTexts made =
        clip.clip->embed_text(tokens.narrow(0, range.begin, range.length).to(device));
    embeds.push_back(made.embed.cpu());
    encodings.push_back(made.encodings.cpu());
  }
  TextConditions found{.text_encodings = at::cat(encodings)};
  TextEmbedding of_prior{at::cat(embeds), {}};
  if (config.condition_on_text_encodings) {
    of_prior.encodings = found.text_encodings.narrow(
        1, 0, std::min(found.text_encodings.size(1), config.net.text_len()));
  }
  // Each picture of a text has a draw of its own.
  const int64_t pictures = command.num.value_or(1);
  if (pictures > 1) {
    of_prior.tensors([&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.repeat_interleave(pictures, 0);
    });
    found.text_encodings = found.text_encodings.repeat_interleave(pictures, 0);
  }
  found.image_embeds = draw_image_embeds(
      prior,
      of_prior,
      command,
      {.cond_scale = command.prior_cond_scale.value_or(1.0), .timesteps = std::nullopt},
      device);
  return found;
}

}  // namespace dalle2
