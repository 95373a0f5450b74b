// SPDX-License-Identifier: MIT
#include "run/clip/clip_data.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/gather_rows.h"
#include "io/text/clip_vocabulary.h"
#include "net/digest.h"
#include "trainer/clip_trainer.h"

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

/// Numbers of captions of all ranks in the order of the ranks. @param own one a row of this rank
at::Tensor gathered_numbers(ProcessGroup& group, const std::vector<int64_t>& own) {
  std::string bytes(own.size() * sizeof(int64_t), '\0');
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<int64_t> all;
  for (const std::string& each : group.gather_texts(bytes, "numbers of captions")) {
    const size_t before = all.size();
    all.resize(before + each.size() / sizeof(int64_t));
    if (!each.empty()) std::memcpy(&all[before], each.data(), each.size());
  }
  return at::tensor(all, at::kLong);
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

void ClipValidation::add(const at::Tensor& pairs, const std::vector<std::string>& captions) {
  if (!pairs.defined()) return;
  pairs_.push_back(pairs);
  for (const std::string& caption : captions) captions_.push_back(number_of(caption));
}

RetrievalSamples ClipValidation::gather(ProcessGroup& group) {
  const at::Tensor own = pairs_.empty() ? at::Tensor() : at::cat(pairs_);
  RetrievalSamples all;
  all.pairs = all_gather_rows(group, own, "features").rows;
  if (all.pairs.defined()) all.pairs = all.pairs.to(at::kCPU);
  all.captions = gathered_numbers(group, captions_);
  pairs_.clear();
  captions_.clear();
  return all;
}

}  // namespace dalle2
