// SPDX-License-Identifier: MIT
// `sample --text`: what a decoder draws from, made of texts by a CLIP and a prior.
#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/untrusted_text.h"
#include "checkpoint/convert.h"
#include "run/checkpoints/clip_weights.h"
#include "run/clip/clip_data.h"
#include "run/commands/sample_command.h"
#include "run/prior/prior_data.h"
#include "trainer/tensor_group.h"

namespace dalle2 {
namespace {

/// A text, or with "@" the lines of a file that are not empty. @throws ConfigError
std::vector<std::string> texts_of(const std::string& given) {
  std::vector<std::string> texts;
  if (given.starts_with("@")) {
    const std::string path = given.substr(1);
    std::ifstream in(path);
    if (!in) throw ConfigError("--text {}: {}: no such file", printable(given), printable(path));
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) texts.push_back(line);
    }
    if (texts.empty())
      throw ConfigError("--text {}: expected a text a line, got none", printable(given));
  } else {
    texts.push_back(given);
  }
  for (const std::string& text : texts) {
    if (is_utf8(text)) continue;
    throw ConfigError("--text {}: \"{}\" is not UTF-8", printable(given), printable(text));
  }
  return texts;
}

/// A drawing shows what the whole text says, or nothing is drawn. @throws ConfigError
void check_lengths(const std::vector<std::string>& texts,
                   const LoadedClip& clip,
                   const std::string& clip_path) {
  constexpr int64_t kEnclosing = 2;
  const int64_t room = clip.clip->max_text_len() - kEnclosing;
  for (const std::string& text : texts) {
    const int64_t tokens = std::ssize(clip.tokenizer->encode(text));
    if (tokens <= room) continue;
    throw ConfigError("--text: \"{}\" has {} tokens, and --clip {} takes {}\n  Shorten the text.",
                      printable(text),
                      tokens,
                      printable(clip_path),
                      room);
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
  const std::vector<std::string> texts = texts_of(*command.text);
  const LoadedClip clip = load_clip_file(*command.clip_path);
  check_lengths(texts, clip, *command.clip_path);
  DiffusionPrior prior =
      load_prior({.checkpoint_path = *command.prior_path}, read_checkpoint(*command.prior_path));
  const PriorConfig& config = prior->plan().config;
  check_clip_widths(config,
                    "--prior " + printable(*command.prior_path),
                    *clip.clip,
                    "--clip " + printable(*command.clip_path));
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
  TextConditions found{.image_embeds = {}, .text_encodings = at::cat(encodings)};
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
