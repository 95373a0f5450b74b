// SPDX-License-Identifier: MIT
// `sample --text`: a CLIP's embeddings of texts, and a prior's image embeddings for them.
#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "base/untrusted_text.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/convert.h"
#include "io/text/clip_tokenizer.h"
#include "run/checkpoints/model_weights.h"
#include "run/clip/clip_data.h"
#include "run/commands/sample_clip.h"
#include "run/prior/prior_data.h"
#include "trainer/tensor_group.h"

namespace dalle2 {

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

SampleClip::SampleClip(const SampleCommand& command, const at::Device& device)
    : command_(command), device_(device), clip_(load_clip_file(command.clip_path.value())) {
  clip_.clip->to(device);
}

void SampleClip::check_lengths(const char* option, const std::vector<std::string>& texts) const {
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
}

ClipTexts SampleClip::embed_texts(const char* option, const std::vector<std::string>& texts) const {
  check_lengths(option, texts);
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = clip_.tokens_of(texts);
  std::vector<at::Tensor> embeds, encodings, masks;
  for (const ChunkRange& range : chunk_ranges(tokens.size(0), command_.batch_size)) {
    const ClipTexts made =
        clip_.clip->embed_text(tokens.narrow(0, range.begin, range.length).to(device_));
    embeds.push_back(made.embed.cpu());
    encodings.push_back(made.encodings.cpu());
    masks.push_back(made.mask.cpu());
  }
  return {at::cat(embeds), at::cat(encodings), at::cat(masks)};
}

/// A prior of this version says of which CLIP its embeddings were. @param root of the prior's file
static void warn_of_other_clip(const Cursor& root,
                               const SampleCommand& command,
                               const SampleClip& clip) {
  const std::string own = clip_identity_in(root);
  if (own.empty()) return;
  const std::string given = clip_sha256(clip.network());
  if (own == given) return;
  log_warning(
      "sample",
      "--prior {}: trained with the embeddings of another CLIP: its identity, a SHA-256, is {}, and "
      "that of --clip {} is {}: the pictures will not match the texts\n  Name the CLIP that the "
      "prior's embeddings were made with; for one of x-clip, give the same arguments.",
      *command.prior_path,
      short_clip_identity(own),
      *command.clip_path,
      short_clip_identity(given));
}

at::Tensor drawn_by_prior(const SampleCommand& command,
                          const SampleClip& clip,
                          const ClipTexts& texts,
                          const at::Device& device) {
  const Value checkpoint = read_checkpoint(*command.prior_path);
  DiffusionPrior prior = load_prior({.checkpoint_path = *command.prior_path}, checkpoint);
  const PriorConfig& config = prior->plan().config;
  check_clip_widths(config,
                    "--prior " + printable(*command.prior_path),
                    clip.network(),
                    "--clip " + printable(*command.clip_path));
  warn_of_other_clip(Cursor(checkpoint, *command.prior_path), command, clip);
  prior->to(device);
  TextEmbedding of_prior{texts.embed, {}};
  if (config.condition_on_text_encodings) {
    of_prior.encodings =
        texts.encodings.narrow(1, 0, std::min(texts.encodings.size(1), config.net.text_len()));
  }
  const at::Tensor embeds = draw_image_embeds(
      prior,
      of_prior,
      command,
      {.cond_scale = command.prior_cond_scale.value_or(1.0), .timesteps = std::nullopt},
      device);
  if (!at::isfinite(embeds).all().item<bool>()) {
    throw NonFiniteError(
        "--prior {}: its image embeddings are not finite: nothing was written\n"
        "  Its weights may be damaged or diverged, or --prior-cond-scale is far too large.",
        printable(*command.prior_path));
  }
  return embeds;
}

}  // namespace dalle2
