// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_data.h"

#include <torch/torch.h>

#include <array>
#include <catch2/catch.hpp>

#include "dist/ranks_in_threads.h"

namespace dalle2::test {
namespace {

Batch batch_with(const std::vector<std::string>& captions,
                 const at::Tensor& images,
                 const at::Tensor& embeds) {
  Batch batch;
  batch.images = images;
  batch.image_embeds = embeds;
  batch.captions = captions;
  for (size_t i = 0; i < captions.size(); ++i) batch.keys.push_back("key " + std::to_string(i));
  return batch;
}

TEST_CASE("the examples are rank 0's on all ranks, whatever the others have read") {
  const at::Tensor images = at::arange(24, at::kFloat).view({2, 3, 2, 2});
  const at::Tensor embeds = at::arange(6, at::kFloat).view({2, 3});
  std::array<std::optional<Batch>, 3> found;
  as_ranks(3, [&](ProcessGroup& group) {
    std::optional<Batch> own;  // rank 2 could read none
    if (group.is_main()) own = batch_with({"a", ""}, images, embeds);
    if (group.rank() == 1) own = batch_with({""}, images.narrow(0, 1, 1), {});
    found[static_cast<size_t>(group.rank())] = batch_of_main(group, std::move(own));
  });
  for (const std::optional<Batch>& each : found) {
    REQUIRE(each);
    CHECK(at::equal(each->images, images));
    CHECK(at::equal(each->image_embeds, embeds));
    CHECK_FALSE(each->text_encodings.defined());
    CHECK(each->captions == std::vector<std::string>{"a", ""});
    CHECK(each->keys == std::vector<std::string>{"key 0", "key 1"});
  }
}

TEST_CASE("where rank 0 has no example no rank has") {
  std::array<bool, 2> found = {true, true};
  as_ranks(2, [&](ProcessGroup& group) {
    std::optional<Batch> own;
    if (!group.is_main()) own = batch_with({""}, at::zeros({1, 3, 2, 2}), {});
    found[static_cast<size_t>(group.rank())] = batch_of_main(group, std::move(own)).has_value();
  });
  CHECK(found == std::array<bool, 2>{false, false});
}

}  // namespace
}  // namespace dalle2::test
