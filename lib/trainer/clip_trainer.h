// SPDX-License-Identifier: MIT
// Training of a CLIP: its joint loss, its evaluation, the vocabulary that goes with its weights. What
// all trainers share, such as updates and state, is in trainer/trainer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/clip/clip_run_config.h"
#include "model/clip/clip.h"
#include "trainer/joint_loss.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// A batch on the device. S: side of the pictures that the model sees, L: its context length.
struct ClipInputs {
  at::Tensor images;  ///< [B, 3, S, S] in [0, 1]
  at::Tensor tokens;  ///< [B, L] int64

  int64_t size() const { return images.defined() ? images.size(0) : 0; }
  void tensors(const auto& f) {
    f(images);
    f(tokens);
  }
};

struct ClipEvaluation {
  at::Tensor loss;   ///< []
  at::Tensor pairs;  ///< [B, 2, D] float32, by pair_features()
};

/// @param images [B, 3, H, W] @throws DataError unless both sides are `side`
void check_picture_size(const at::Tensor& images, int64_t side);

/// Its one part is the whole model. Usage:
///   ClipTrainer trainer(clip, config, device);
///   trainer.step(batches);  // of a whole update, on all ranks
///   trainer.update();
class ClipTrainer : public Trainer {
 public:
  ClipTrainer(std::shared_ptr<ClipImpl> clip,
              const ClipTrainConfig& config,
              const at::Device& device);

  /// Gradients of a whole update from its batches on this rank, some of which may be empty.
  /// @param dropout_seed of adapters, another one for each update and rank
  /// @return [] the loss of all samples of all ranks together, detached; undefined without samples
  at::Tensor step(const std::vector<ClipInputs>& batches, uint64_t dropout_seed = 0);
  /// Of a batch of this rank, at least one sample, without gradients and in eval mode.
  ClipEvaluation evaluate(const ClipInputs& batch) const;
  /// exp(logit_scale): what the cosines are multiplied by. Waits for the device.
  double logit_scale() const;

  const ClipImpl& clip() const { return *clip_; }
  /// The vocabulary that the weights were trained with, as ClipTokenizer::merges() has it; empty until
  /// it is known. A checkpoint and a model file hold it, and loading one gives it.
  const std::string& merges() const { return merges_; }
  void set_merges(std::string merges) { merges_ = std::move(merges); }
  /// Whether the weights came from a file that has no vocabulary.
  bool has_weights_without_vocabulary() const { return merges_.empty() && has_taken_weights_; }

  void take_companions(const Cursor& root) override;

 private:
  Extras companions() const override;
  /// @param seed of the masks of adapters' dropout; none: nothing is dropped
  JointLoss joint_loss(const std::vector<ClipInputs>& batches,
                       const std::optional<DropoutSeed>& seed) const;

  std::shared_ptr<ClipImpl> clip_;
  std::string merges_;
  bool has_taken_weights_ = false;
};

}  // namespace dalle2
