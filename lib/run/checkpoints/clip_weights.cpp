// SPDX-License-Identifier: MIT
#include "run/checkpoints/clip_weights.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/untrusted_text.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "dist/process_group.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/text/clip_vocabulary.h"
#include "model/clip/x_clip.h"
#include "model/pass_scopes.h"
#include "net/digest.h"
#include "optim/precision.h"
#include "trainer/clip_trainer.h"

namespace dalle2 {
namespace {

/// Captions that a vocabulary is trained on, at most: those of the first shards.
constexpr int64_t kMostCaptions = 1'000'000;

/// Of a caption's number, the beginning of its hash: other captions have another, as good as surely.
constexpr int64_t kNumberBytes = sizeof(int64_t);

ClipTokenizer train_vocabulary(int64_t tokens, const ShardData& data) {
  ClipVocabularyTrainer trainer;
  int64_t captions = 0;
  data.for_each_caption("train", [&](const std::string& caption) {
    trainer.add(caption);
    return ++captions < kMostCaptions;
  });
  ClipTokenizer tokenizer(trainer.merges(tokens), "/clip/tokenizer/train");
  if (tokenizer.vocab_size() != tokens) {
    throw ConfigError(
        "/clip/tokenizer/train: expected at most {}, which is all that the words of {} give; got "
        "{}",
        tokenizer.vocab_size(),
        counted(captions, "caption"),
        tokens);
  }
  log_info("data",
           "vocabulary: {} tokens, trained on {}",
           with_commas(tokens),
           counted(captions, "caption"));
  return tokenizer;
}

/// The reference's tokenizer makes no more of a text.
constexpr int64_t kMostBareTokens = 256;

LoadedClip frozen_clip(std::shared_ptr<ClipEncoderImpl> clip,
                       ClipTokenizer tokenizer,
                       TextFrame frame,
                       const std::string& path) {
  for (const at::Tensor& parameter : clip->parameters()) parameter.requires_grad_(false);
  clip->eval();
  check_finite(*clip, path);
  return {std::move(clip), std::make_shared<const ClipTokenizer>(std::move(tokenizer)), frame};
}

LoadedClip frozen_clip(const std::shared_ptr<ClipImpl>& clip,
                       ClipTokenizer tokenizer,
                       const std::string& path) {
  check_vocabulary(tokenizer, clip->config());
  return frozen_clip(clip, std::move(tokenizer), TextFrame::kEnclosed, path);
}

/// The vocabulary that lies in a file, or OpenAI's.
ClipTokenizer vocabulary_of(const std::optional<std::string>& merges, const std::string& path) {
  if (merges) return ClipTokenizer(*merges, path);
  return read_clip_vocabulary(find_clip_vocabulary(std::nullopt, printable(path), path));
}

ClipTokenizer tokenizer_of(const ClipFile& file, const std::string& path) {
  if (!file.merges && file.config.text_cfg.vocab_size != kClipVocabSize) {
    throw DataError(
        "{}: expected a text tower for OpenAI's vocabulary of {} tokens, or a vocabulary in the file, "
        "got a text tower for {} tokens and no vocabulary",
        printable(path),
        kClipVocabSize,
        file.config.text_cfg.vocab_size);
  }
  ClipTokenizer tokenizer = vocabulary_of(file.merges, path);
  if (file.is_open_clip) tokenizer.set_enclosing(kOpenClipWords);
  return tokenizer;
}

ClipTokenizer tokenizer_of(const XClipFile& file, const std::string& path) {
  ClipTokenizer tokenizer = vocabulary_of(file.merges, path);
  if (tokenizer.vocab_size() <= file.config.num_text_tokens) return tokenizer;
  throw DataError(
      "{}: num_text_tokens: expected at least {}, the tokens of {}, got {}: captions would have "
      "tokens that this CLIP does not know",
      printable(path),
      tokenizer.vocab_size(),
      file.merges ? "its vocabulary" : "OpenAI's vocabulary, which the reference's tokenizer has",
      file.config.num_text_tokens);
}

/// For a config with arguments of x-clip.
[[noreturn]] void throw_for_another(const std::string& path) {
  throw DataError(
      "{}: expected the state dict of a CLIP of x-clip, by \"make\": \"{}\", with tensors of "
      "text_transformer.* and visual_transformer.*, got another file\n  A CLIP of a run, of OpenAI, "
      "open_clip or Hugging Face needs neither \"make\" nor \"base_model_kwargs\".",
      printable(path),
      XClipConfig::kTag);
}

/// Of a file that no run wrote.
LoadedClip foreign_clip(const std::string& path, const ClipFileHints& hints) {
  RawClip raw = read_raw_clip(path);
  if (is_x_clip(raw.tensors)) {
    const XClipFile file = as_x_clip_file(std::move(raw), path, hints);
    ClipTokenizer tokenizer = tokenizer_of(file, path);
    auto clip = std::make_shared<XClipImpl>(file.config);
    load_state_dict(*clip, file.weights, /*prefix=*/"", /*strict=*/true, path);
    return frozen_clip(std::move(clip), std::move(tokenizer), TextFrame::kBare, path);
  }
  if (hints.arguments) throw_for_another(path);
  const ClipFile file = as_clip_file(std::move(raw), path, hints);
  ClipTokenizer tokenizer = tokenizer_of(file, path);
  auto clip = std::make_shared<ClipImpl>(file.config);
  load_state_dict(*clip, file.weights, /*prefix=*/"", /*strict=*/true, path);
  return frozen_clip(std::move(clip), std::move(tokenizer), path);
}

/// What a run wrote; none for another file, and for one that cannot be looked into, which is left to
/// read_clip_file(). @throws DataError for a run's file that is damaged
std::optional<Value> checkpoint_of_run(const std::string& path) {
  try {
    const Value outline = read_checkpoint_outline(path);
    const Cursor root(outline, path);
    if (!outline.is_dict() || !root.has("model") || !root.has("config")) return std::nullopt;
  } catch (const DataError&) {
    return std::nullopt;
  }
  return read_checkpoint(path);
}

/// Arguments that change what a CLIP computes, and that its weights do not tell; empty if they tell all.
std::string unseen_arguments(const ClipEncoderImpl& clip) {
  if (const auto* x_clip = dynamic_cast<const XClipImpl*>(&clip)) {
    const XClipConfig& config = x_clip->config();
    return fmt::format("heads {} {}, {} tokens, pictures of {} pixels",
                       config.text_heads,
                       config.visual_heads,
                       std::min(config.text_seq_len, kMostBareTokens),
                       config.visual_image_size);
  }
  if (const auto* plain = dynamic_cast<const ClipImpl*>(&clip)) {
    const ClipNetworkConfig &config = plain->config(), usual;
    std::string text = fmt::format("heads {} {}, {}, mean {}, deviation {}",
                                   config.text_cfg.heads,
                                   config.vision_cfg.heads(),
                                   config.quick_gelu ? "QuickGELU" : "GELU",
                                   fmt::join(config.image_mean, " "),
                                   fmt::join(config.image_std, " "));
    const auto others = [](const ClipNetworkConfig& of) {
      return fmt::format(", {} {} {}, eps {} {}",
                         of.image_resize_mode,
                         of.image_interpolation,
                         of.image_fill_color,
                         of.vision_cfg.norm_kwargs.eps,
                         of.text_cfg.norm_kwargs.eps);
    };
    // Of the usual ones the identities of earlier files do not tell.
    if (others(config) != others(usual)) text += others(config);
    return text;
  }
  return "";
}

void check_config_beside(const ClipFile& file, const std::string& out) {
  const std::filesystem::path beside =
      std::filesystem::path(out).parent_path() / kOpenClipConfigName;
  if (!std::filesystem::exists(beside)) return;
  const ParsedJson there = parse_untrusted_json(read_file(beside.string()));
  if (there.is_right() && there.value == open_clip_config_of(file.config)) return;
  throw ConfigError(
      "OUT {}: its folder has the {} of another model\n  open_clip looks for the config by this "
      "name. Give the model a folder of its own.",
      printable(out),
      kOpenClipConfigName);
}

}  // namespace

LoaderOptions clip_needs(const ClipNetworkConfig& config) {
  LoaderOptions needs;
  needs.need_captions = true;
  needs.check_batch = [side = config.vision_cfg.image_size](const Batch& batch) {
    naming_sample(batch, [&] { check_picture_size(batch.images, side); });
  };
  return needs;
}

void check_vocabulary(const ClipTokenizer& tokenizer, const ClipNetworkConfig& config) {
  if (tokenizer.vocab_size() == config.text_cfg.vocab_size) return;
  throw ConfigError("/clip/text_cfg/vocab_size: expected {}, as the vocabulary has, got {}",
                    tokenizer.vocab_size(),
                    config.text_cfg.vocab_size);
}

ClipTokenizer make_clip_tokenizer(const ClipModelConfig& config, const ShardData& data) {
  if (config.tokenizer.train) return train_vocabulary(*config.tokenizer.train, data);
  ClipTokenizer tokenizer =
      read_clip_vocabulary(find_clip_vocabulary(config.tokenizer.path, "/clip/tokenizer/path"));
  check_vocabulary(tokenizer, config);
  return tokenizer;
}

void LongCaptions::add(const std::vector<std::string>& cut, int64_t room) {
  if (cut.empty()) return;
  if (count_ == 0) {
    log_warning(
        "clip",
        "captions of more than {} are cut: the CLIP sees only their beginning, and one of your "
        "own takes more with a larger text_cfg.context_length. The first such caption: \"{}\"",
        counted(room, "token"),
        shown_caption(cut.front()));
  }
  const int64_t total = count_ + std::ssize(cut);
  for (int64_t round = 100; round <= total; round *= 10) {
    if (round > count_)
      log_warning("clip", "captions were cut {} times so far", with_commas(round));
  }
  count_ = total;
}

at::Tensor tokens_of(const std::vector<std::string>& texts,
                     const ClipTokenizer& tokenizer,
                     int64_t context_length,
                     TextFrame frame,
                     LongCaptions* long_captions) {
  at::Tensor tokens = at::zeros({std::ssize(texts), context_length}, at::kLong);
  std::vector<char> was_cut(texts.size());  // not bool: threads write to neighbours
  at::parallel_for(0, std::ssize(texts), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto place = static_cast<size_t>(i);
      bool is_long = false;
      const std::vector<int64_t> row =
          tokenizer.tokenize(texts[place], context_length, frame, &is_long);
      was_cut[place] = is_long ? 1 : 0;
      std::copy(row.begin(), row.end(), tokens.mutable_data_ptr<int64_t>() + i * context_length);
    }
  });
  if (long_captions != nullptr) {
    std::vector<std::string> cut;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (was_cut[i] != 0) cut.push_back(texts[i]);
    }
    long_captions->add(cut, context_length - enclosing_tokens(frame));
  }
  return tokens;
}

void ClipValidation::add(const at::Tensor& pairs, const std::vector<std::string>& captions) {
  if (!pairs.defined()) return;
  pairs_.push_back(pairs);
  for (const std::string& caption : captions) captions_ += sha256(caption).substr(0, kNumberBytes);
}

RetrievalSamples ClipValidation::gather(ProcessGroup& group) {
  const at::Tensor own = pairs_.empty() ? at::Tensor() : at::cat(pairs_);
  RetrievalSamples all;
  all.pairs = all_gather_rows(group, own, "features").rows;
  if (all.pairs.defined()) all.pairs = all.pairs.to(at::kCPU);
  std::string numbers;
  for (const std::string& of_rank : group.gather_texts(captions_, "numbers of captions"))
    numbers += of_rank;
  all.captions = at::empty({std::ssize(numbers) / kNumberBytes}, at::kLong);
  if (!numbers.empty())
    std::memcpy(all.captions.mutable_data_ptr(), numbers.data(), numbers.size());
  pairs_.clear();
  captions_.clear();
  return all;
}

std::string clip_sha256(const ClipEncoderImpl& clip) {
  const std::string unseen = unseen_arguments(clip), weights = weights_sha256(clip);
  Hash hash;
  hash.add(weights.data(), weights.size());
  hash.add(unseen.data(), unseen.size());
  return hash.hex();
}

int64_t LoadedClip::text_len() const {
  const int64_t most = clip->max_text_len();
  return frame == TextFrame::kEnclosed ? most : std::min(most, kMostBareTokens);
}

at::Tensor LoadedClip::tokens_of(const std::vector<std::string>& texts, LongCaptions* cut) const {
  return dalle2::tokens_of(texts, *tokenizer, text_len(), frame, cut);
}

void LoadedClip::hold_in(torch::nn::Module& model) const {
  model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(clip));
}

at::Tensor LoadedClip::embed_images(const at::Tensor& images) const {
  const NoGradPass no_grad;
  const at::Device device = clip->parameters().front().device();
  const Autocast autocast(device.type(), precision);
  std::vector<at::Tensor> parts;
  for (const ChunkRange& range : chunk_ranges(images.size(0), max_batch_size))
    parts.push_back(clip->embed_image(images.narrow(0, range.begin, range.length).to(device)));
  return at::cat(parts);
}

TextEmbedding LoadedClip::embed_tokens(const at::Tensor& tokens) const {
  const NoGradPass no_grad;
  const at::Device device = clip->parameters().front().device();
  const Autocast autocast(device.type(), precision);
  std::vector<at::Tensor> embeds, encodings;
  for (const ChunkRange& range : chunk_ranges(tokens.size(0), max_batch_size)) {
    const ClipTexts part = clip->embed_text(tokens.narrow(0, range.begin, range.length).to(device));
    embeds.push_back(part.embed);
    encodings.push_back(part.encodings);
  }
  return {at::cat(embeds), at::cat(encodings)};
}

TextEmbedding LoadedClip::embed_captions(const std::vector<std::string>& captions) const {
  const at::Device device = clip->parameters().front().device();
  at::Tensor tokens = clip->trimmed(tokens_of(captions, &long_captions));
  if (!device.is_cpu()) tokens = tokens.pin_memory().to(device, /*non_blocking=*/true);
  return embed_tokens(tokens);
}

LoadedRunClip load_clip(const ModelSource& source, const Value& checkpoint) {
  ShardDataConfig data;
  const std::shared_ptr<ClipImpl> clip = load_clip_model(source, checkpoint, &data);
  const Cursor root(checkpoint, source.checkpoint_path);
  const std::optional<Cursor> merges = root.find(kClipMergesKey);
  if (!merges) {
    throw DataError(
        "{}: no entry \"{}\": expected the vocabulary that this CLIP was trained with\n  Name a "
        "checkpoint.pth or model.pth of a run.",
        printable(source.checkpoint_path),
        kClipMergesKey);
  }
  LoadedRunClip loaded{
      frozen_clip(
          clip, ClipTokenizer(merges->as_string(), merges->where()), source.checkpoint_path),
      clip};
  loaded.trained_on = std::move(data);
  return loaded;
}

std::string clip_file_of(const std::string& model) {
  constexpr std::array kOpenAiNames = {"RN50",
                                       "RN101",
                                       "RN50x4",
                                       "RN50x16",
                                       "RN50x64",
                                       "ViT-B/32",
                                       "ViT-B/16",
                                       "ViT-L/14",
                                       "ViT-L/14@336px"};
  if (path_exists(model)) return model;
  if (std::ranges::find(kOpenAiNames, model) == kOpenAiNames.end())
    throw ConfigError(
        "{}: no such file\n  Give the file of a CLIP. Of a model of open_clip it is "
        "open_clip_model.safetensors, with its open_clip_config.json beside it.",
        printable(model));
  std::string name = model + ".pt";
  for (char& c : name) c = c == '/' || c == '@' ? '-' : c;
  const char* const home = std::getenv("HOME");
  const std::filesystem::path file =
      std::filesystem::path(home == nullptr ? "." : home) / ".cache" / "clip" / name;
  if (path_exists(file)) return file.string();
  std::string vocabulary;
  try {
    find_clip_vocabulary(std::nullopt, "Its vocabulary is missing too", file.string());
  } catch (const ConfigError& error) {
    vocabulary = fmt::format("\n  {}", error.what());
  }
  throw ConfigError(
      "{}: no such file, and OpenAI's model of this name is not at {}\n  Put it there "
      "(`clip.load` of their package does), or name the file of a CLIP.{}",
      printable(model),
      printable(file.string()),
      vocabulary);
}

LoadedClip load_clip_file(const std::string& name, const ClipFileHints& hints) {
  const std::string path = clip_file_of(name);
  const std::optional<Value> checkpoint = checkpoint_of_run(path);
  if (checkpoint && hints.arguments) throw_for_another(path);
  if (checkpoint && (hints.config_path || hints.quick_gelu || hints.heads)) {
    throw ConfigError(
        "{}: --clip-config, \"quick_gelu\" and \"heads\" have no effect on the CLIP of a run, whose "
        "file holds its config: leave them out",
        printable(path));
  }
  LoadedClip loaded =
      checkpoint ? load_clip({.checkpoint_path = path}, *checkpoint) : foreign_clip(path, hints);
  log_info("clip",
           "{}: embeddings of {} values, pictures of {} pixels, {} tokens; {}",
           printable(path),
           loaded.clip->embed_dim(),
           loaded.clip->image_size(),
           loaded.text_len(),
           unseen_arguments(*loaded.clip));
  return loaded;
}

ConvertReport convert_to_open_clip(const std::string& in, const std::string& out) {
  is_safetensors_name(out);
  ClipFile file;
  if (const std::optional<Value> checkpoint = checkpoint_of_run(in)) {
    const LoadedRunClip own = load_clip({.checkpoint_path = in}, *checkpoint);
    file = {.config = own.network->config(),
            .weights = state_dict(*own.network),
            .merges = own.tokenizer->merges()};
  } else {
    file = read_clip_file(in);
    check_finite(file.weights, in);
  }
  check_config_beside(file, out);
  write_clip_file(out, file);
  return {.tensor_count = file.weights.size(), .replaced = {}};
}

std::shared_ptr<LoadedClip> open_clip_of(const std::optional<ClipConfig>& config,
                                         const std::string& pointer) {
  if (!config) return nullptr;
  LoadedClip clip = load_clip_file(config->model,
                                   {.arguments = config->base_model_kwargs,
                                    .quick_gelu = config->quick_gelu,
                                    .heads = config->heads});
  clip.name = fmt::format("{} ({})", pointer, printable(config->model));
  return std::make_shared<LoadedClip>(std::move(clip));
}

void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipEncoderImpl& clip,
                       const std::string& clip_name) {
  if (prior.image_embed_dim != clip.embed_dim()) {
    throw DataError(
        "{}: expected embeddings of {} values, as {} makes, got a prior of {}\n  Name the CLIP that "
        "the prior's embeddings were made with.",
        prior_name,
        clip.embed_dim(),
        clip_name,
        prior.image_embed_dim);
  }
  if (prior.condition_on_text_encodings && clip.text_width() != prior.image_embed_dim) {
    throw DataError("{}: is conditioned on text encodings of {} values, and those of {} have {}",
                    prior_name,
                    prior.image_embed_dim,
                    clip_name,
                    clip.text_width());
  }
}

TextEmbedding as_prior_takes(TextEmbedding texts, const PriorConfig& prior) {
  if (!prior.condition_on_text_encodings) return {.embeds = texts.embeds, .encodings = {}};
  const int64_t length = std::min(texts.encodings.size(1), prior.net.text_len());
  texts.encodings = texts.encodings.narrow(1, 0, length);
  return texts;
}

}  // namespace dalle2
