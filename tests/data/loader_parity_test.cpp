// SPDX-License-Identifier: MIT
// The reference's loader and ours over the same shards.
#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "data/data_fixture.h"
#include "data/loader/loader.h"
#include "support/captured_log.h"

using namespace dalle2;
using namespace dalle2::test;

namespace {

at::Tensor npy_tensor(const std::string& name) {
  const NpyArray array = read_npy(data_fixture(name));
  return torch::tensor(array.to_float32()).view(array.shape);
}

TransformConfig sized_step(TransformKind kind, int64_t size) {
  TransformConfig config;
  config.kind = kind;
  config.size = {size};
  return config;
}

}  // namespace

TEST_CASE("keys, captions, pictures and embeddings equal the reference's bit for bit") {
  ShardDataConfig config;
  config.img_embeddings_url = data_fixture("img_emb");
  config.text_embeddings_url = data_fixture("text_emb");
  config.preprocessing = {sized_step(TransformKind::Resize, 22),
                          sized_step(TransformKind::CenterCrop, 20),
                          TransformConfig{}};
  LoaderOptions options;
  options.batch_size = 4;
  std::vector<std::string> urls;
  for (const char* shard : {"002", "000", "009", "003", "001"})
    urls.push_back(data_fixture("shards/") + shard + ".tar");
  options.urls = std::move(urls);
  options.need_captions = options.need_image_embeds = options.need_text_encodings = true;
  const auto stream = data_json("stream.json");
  for (const int64_t workers : {0, 3}) {
    config.num_workers = workers;
    CapturedLog log;
    ShardLoader loader(config, options);
    loader.start_epoch(0);
    std::vector<at::Tensor> images, image_embeds, text_encodings;
    for (const auto& expected : stream) {
      const auto batch = loader.next();
      REQUIRE(batch);
      CHECK(batch->keys == expected["keys"].get<std::vector<std::string>>());
      CHECK(batch->captions == expected["captions"].get<std::vector<std::string>>());
      images.push_back(batch->images);
      image_embeds.push_back(batch->image_embeds);
      text_encodings.push_back(batch->text_encodings);
    }
    CHECK_FALSE(loader.next());
    // Equal, not near: the decoder and the resampling are Pillow's to the bit.
    CHECK(at::cat(images).equal(npy_tensor("images.npy")));
    CHECK(at::cat(image_embeds).equal(npy_tensor("image_embeds.npy")));
    CHECK(at::cat(text_encodings).equal(npy_tensor("text_encodings.npy")));
    CHECK(loader.dropped() == DropCounts{{"broken picture", 1},
                                         {"no image embedding", 1},
                                         {"shard without embeddings", 2},
                                         {"zero image embedding", 1},
                                         {"zero text embedding", 1}});
  }
}
