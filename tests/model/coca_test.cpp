// SPDX-License-Identifier: MIT
// CoCas of random configurations against coca-pytorch, vit-pytorch and dalle2-pytorch's adapter.
#include "model/clip/coca.h"

#include <set>

#include "adapter_case.h"
#include "base/error.h"

namespace dalle2::test {
namespace {

using Catch::Contains;
using CocaCase = AdapterCase<CocaImpl, CocaConfig>;
constexpr size_t kLeastCocas = 20;

template <class Check>
void for_each_coca(const Check& check) {
  for_each_adapter_case<CocaCase>("coca", kLeastCocas, check);
}

TEST_CASE("the tensors of a CoCa have coca-pytorch's names, in its order") {
  for_each_coca([](CocaCase& one) { expect_names(one); });
}

TEST_CASE("the table of tokens of a CoCa is one tensor with two names") {
  const CocaCase one(fixture_files(fixture_folder("coca"), kLeastCocas).front());
  const StateDict tensors = state_dict(*one.clip);
  CHECK(find_tensor(tensors, "token_emb.weight")->data_ptr() ==
        find_tensor(tensors, "to_logits.1.weight")->data_ptr());
  std::set<const void*> parameters;  // as Python counts them, which numbers an optimizer's state
  for (const at::Tensor& parameter : one.clip->parameters()) {
    CHECK(parameters.insert(parameter.data_ptr()).second);
  }
}

TEST_CASE("embeddings, encodings and cosines of a CoCa are those of the reference") {
  for_each_coca([](CocaCase& one) {
    const torch::NoGradGuard no_grad;
    const ClipTexts texts = one.clip->embed_text(one.tokens);
    const at::Tensor images = expect_embeddings(one, texts);
    one.expect(one.clip->similarity(images, texts.embed), "similarity");
    CHECK(images.size(1) == one.clip->embed_dim());
    CHECK(texts.encodings.size(2) == one.clip->text_width());
  });
}

TEST_CASE("in a model a CoCa is frozen, and drops no patches while that trains") {
  for_each_coca([](CocaCase& one) { expect_frozen(one, "clip.clip.text_cls_token"); });
}

TEST_CASE("the end of a text of a CoCa moves with what fills it up, so nothing is left out") {
  const CocaCase one(fixture_files(fixture_folder("coca"), kLeastCocas).front());
  expect_filling_is_seen(one);
}

TEST_CASE("a CoCa says what pictures it takes") {
  const CocaCase one(fixture_files(fixture_folder("coca"), kLeastCocas).front());
  const int64_t side = one.clip->image_size();
  CHECK(side == one.fixture.json.at("config").at("img_encoder").at("image_size").get<int64_t>());
  CHECK_THROWS_AS(one.clip->embed_image(at::zeros({1, 3, side - 1, side - 1})), DataError);
  CHECK_THROWS_WITH(
      one.clip->embed_image(at::zeros({1, 3, side - 1, side - 1})),
      Contains(fmt::format("CLIP got pictures of shape [1, 3, {0}, {0}]", side - 1)) &&
          Contains(fmt::format("with H at least {}", side)));
}

}  // namespace
}  // namespace dalle2::test
