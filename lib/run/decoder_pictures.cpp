// SPDX-License-Identifier: MIT
#include "run/decoder_pictures.h"

#include <torch/types.h>

#include "io/image.h"
#include "model/resize.h"
#include "run/pictures.h"

namespace dalle2 {

void DecoderPictures::load() {
  const int64_t count = config_.train.n_sample_images;
  for (Batch& batch : data_.examples("train", count)) {
    training_.push_back({std::move(batch), "Train: ", "Train Samples"});
  }
  for (Batch& batch : data_.examples("test", count)) {
    test_.push_back({std::move(batch), "Test: ", "Test Samples"});
  }
}

void DecoderPictures::draw_all() {
  for (const Examples& examples : test_) draw(examples);
  draw_training_samples();
}

void DecoderPictures::draw_training_samples() {
  for (const Examples& examples : training_) draw(examples);
}

void DecoderPictures::draw(const Examples& examples) {
  const DecoderInputs inputs = to_inputs(examples.batch, session_.device());
  const std::vector<int64_t> unets = trainer_.trained_parts();
  DecoderSampleOptions options;
  options.image_embeds = inputs.image_embeds;
  options.text_encodings = inputs.text_encodings;
  options.batch_size = examples.batch.size();
  options.cond_scale = config_.train.cond_scale;
  options.start_at_unet = unets.front();
  options.stop_at_unet = unets.back();
  if (options.start_at_unet > 1) options.image = inputs.images;
  // The same noise every time, so that the pictures of two epochs show what training changed.
  options.generator = session_.generator("sample " + examples.section, /*epoch=*/0, /*step=*/0);
  options.on_step = [&](int64_t unet, size_t step, size_t steps) {
    session_.throw_if_stop_asked();
    session_.progress().stage(fmt::format(
        "drawing {}: unet {}, step {}/{}", examples.section, unet - 1, step + 1, steps));
  };
  const at::Tensor drawn =
      trainer_.sample(options, /*use_non_ema=*/false, config_.data.batch_size).cpu();
  const at::Tensor real =
      resize_image_to(examples.batch.images, drawn.size(-1), std::make_pair(0.0, 1.0));

  std::vector<LogImage> pairs;
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < drawn.size(0); ++i) {
    const std::vector<at::Tensor> pair = {real[i], drawn[i].clamp(0, 1)};
    all.insert(all.end(), pair.begin(), pair.end());
    pairs.push_back({encode_png(to_picture(image_grid(pair, 2))),
                     examples.caption_prefix + examples.batch.captions[static_cast<size_t>(i)]});
  }
  session_.progress().pause();
  Tracker& tracker = session_.tracker();
  tracker.log_images(pairs, examples.section, trainer_.first_steps());
  // All pairs on one sheet, four pairs a row.
  tracker.log_images({{encode_png(to_picture(image_grid(all, 8))), "real | drawn, in pairs"}},
                     examples.section + " Grid",
                     trainer_.first_steps());
}

}  // namespace dalle2
