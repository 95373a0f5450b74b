// SPDX-License-Identifier: MIT
// CLIPs of x-clip of random configurations against x-clip and dalle2-pytorch's adapter.
#include "model/clip/x_clip.h"

#include "adapter_case.h"
#include "base/error.h"

namespace dalle2::test {
namespace {

using XClipCase = AdapterCase<XClipImpl, XClipConfig>;
constexpr size_t kLeastXClips = 8;

template <class Check>
void for_each_x_clip(const Check& check) {
  for_each_adapter_case<XClipCase>("x_clip", kLeastXClips, check);
}

TEST_CASE("the tensors of an x-clip's CLIP have its names, in its order") {
  for_each_x_clip([](XClipCase& one) { expect_names(one); });
}

TEST_CASE("embeddings and encodings of an x-clip's CLIP are those of the reference's adapter") {
  for_each_x_clip([](XClipCase& one) {
    const torch::NoGradGuard no_grad;
    const ClipTexts texts = one.clip->embed_text(one.tokens);
    const at::Tensor images = expect_embeddings(one, texts);
    CHECK(one.clip->similarity(images, texts.embed).equal((images * texts.embed).sum(-1)));
  });
}

TEST_CASE("in a model an x-clip's CLIP is frozen, and drops no patches while that trains") {
  for_each_x_clip([](XClipCase& one) { expect_frozen(one, "clip.clip.temperature"); });
}

TEST_CASE("an x-clip's CLIP sees what fills up a text, so nothing of it is left out") {
  const XClipCase one(fixture_files(fixture_folder("x_clip"), kLeastXClips).front());
  expect_filling_is_seen(one);
  CHECK_THROWS_AS(one.clip->embed_image(at::zeros({1, 3, 1, 1})), DataError);
}

}  // namespace
}  // namespace dalle2::test
