// SPDX-License-Identifier: MIT
#include "run/clip/clip_data.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "dist/gather_rows.h"
#include "io/text/clip_vocabulary.h"
#include "net/digest.h"

namespace dalle2 {
namespace {

/// Captions that a vocabulary is trained on, at most: those of the first shards.
constexpr int64_t kMostCaptions = 1'000'000;

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

/// Texts that are the same have the same; that others do too is as good as impossible.
int64_t number_of(const std::string& text) {
  const std::string digest = sha256(text);
  int64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number;
}

bool has_word(const std::string& text, const std::string& word) {
  // Bytes above 127 are parts of letters.
  const auto is_letter = [](char c) {
    return (static_cast<unsigned char>(c) & 0x80U) != 0 ||
           std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_letter(text[at - 1]);
    if (begins && (end == text.size() || !is_letter(text[end]))) return true;
  }
  return false;
}

/// Numbers of all ranks in the order of the ranks. @param own one a row of this rank
at::Tensor gathered_numbers(ProcessGroup& group,
                            const std::vector<int64_t>& own,
                            const std::string& what) {
  std::string bytes(own.size() * sizeof(int64_t), '\0');
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<int64_t> all;
  for (const std::string& each : group.gather_texts(bytes, what)) {
    const size_t before = all.size();
    all.resize(before + each.size() / sizeof(int64_t));
    if (!each.empty()) std::memcpy(&all[before], each.data(), each.size());
  }
  return at::tensor(all, at::kLong);
}

}  // namespace

LoaderOptions clip_needs() {
  LoaderOptions needs;
  needs.need_captions = true;
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
          tokenizer.tokenize(texts[place], context_length, LongText::kCut, frame, &is_long);
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

int64_t class_of_caption(const std::string& caption, const std::vector<std::string>& classes) {
  const std::string text = lower_case(caption);
  std::vector<std::pair<std::string, int64_t>> named;
  for (size_t i = 0; i < classes.size(); ++i) {
    std::string name = lower_case(classes[i]);
    if (has_word(text, name)) named.emplace_back(std::move(name), static_cast<int64_t>(i));
  }
  const auto all = named;
  std::erase_if(named, [&](const auto& each) {
    return std::any_of(all.begin(), all.end(), [&](const auto& other) {
      return other.second != each.second && has_word(other.first, each.first);
    });
  });
  return named.size() == 1 ? named.front().second : -1;
}

void ClipValidation::add(const at::Tensor& pairs,
                         const std::vector<std::string>& captions,
                         const ClipEvaluateConfig& config) {
  if (!pairs.defined()) return;
  pairs_.push_back(pairs);
  for (const std::string& caption : captions) {
    captions_.push_back(number_of(caption));
    labels_.push_back(class_of_caption(caption, config.classes));
  }
}

RetrievalSamples ClipValidation::gather(ProcessGroup& group) {
  const at::Tensor own = pairs_.empty() ? at::Tensor() : at::cat(pairs_);
  RetrievalSamples all;
  all.pairs = all_gather_rows(group, own, "features").rows;
  if (all.pairs.defined()) all.pairs = all.pairs.to(at::kCPU);
  all.captions = gathered_numbers(group, captions_, "numbers of captions");
  all.labels = gathered_numbers(group, labels_, "classes of samples");
  pairs_.clear();
  captions_.clear();
  labels_.clear();
  return all;
}

std::vector<std::string> texts_of_class(const std::string& name, const ClipEvaluateConfig& config) {
  std::vector<std::string> texts;
  for (std::string text : config.templates) {
    texts.push_back(text.replace(text.find("{}"), 2, name));
  }
  return texts;
}

void check_class_texts(const ClipEvaluateConfig& config,
                       const ClipTokenizer& tokenizer,
                       int64_t context_length) {
  for (const std::string& name : config.classes) {
    for (const std::string& text : texts_of_class(name, config)) {
      const int64_t tokens =
          std::ssize(tokenizer.encode(text)) + enclosing_tokens(TextFrame::kEnclosed);
      if (tokens <= context_length) continue;
      throw ConfigError(
          "/evaluate/classes: \"{}\" has {} tokens, and /clip/text_cfg/context_length is {}\n  "
          "Shorten "
          "the name, or the text of /evaluate/templates.",
          printable(text),
          tokens,
          context_length);
    }
  }
}

at::Tensor class_features(const ClipEvaluateConfig& config,
                          const ClipTokenizer& tokenizer,
                          int64_t context_length,
                          const std::function<at::Tensor(const at::Tensor& tokens)>& features_of) {
  std::vector<at::Tensor> classes;
  for (const std::string& name : config.classes) {
    const at::Tensor features =
        features_of(tokens_of(texts_of_class(name, config), tokenizer, context_length));
    const at::Tensor mean = features.mean(0);
    classes.push_back(mean / mean.norm());
  }
  return classes.empty() ? at::Tensor() : at::stack(classes);
}

}  // namespace dalle2
