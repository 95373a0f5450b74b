// SPDX-License-Identifier: MIT
#include "model/vae/quantizer.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

TEST_CASE("codes begin with the first pass that has vectors") {
  VaeConfig config;
  config.codebook_size = 8;
  config.lookup_free_quantization = false;
  config.vq_codebook_dim = 4;
  VectorQuantizerImpl quantizer(/*dim=*/4, config);
  quantizer.quantize_nothing();  // of a batch that cannot be read
  CHECK(quantizer.codebook().equal(torch::zeros({8, 4})));
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor map = torch::randn({2, 4, 8, 8}, random);
  quantizer.quantize(map, random);
  const at::Tensor codes = quantizer.codebook();
  CHECK(codes.isfinite().all().item<bool>());
  // They are means of some vectors each: none stays where it was, no two are the same.
  CHECK(codes.abs().sum(1).gt(0).all().item<bool>());
  CHECK(std::get<0>(at::unique_dim(codes, 0)).size(0) == 8);
}

TEST_CASE("a lookup-free quantiser computes its entropies only where gradients are wanted") {
  VaeConfig config;
  config.codebook_size = 16;
  const auto quantizer = make_quantizer(4, config);
  quantizer->train();
  const at::Tensor map = at::randn({2, 4, 3, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  const Quantized with_gradients = quantizer->quantize(map, {});
  CHECK(with_gradients.loss.item<double>() != 0);
  const torch::NoGradGuard no_grad;
  const Quantized without = quantizer->quantize(map, {});
  CHECK(without.loss.item<double>() == 0);
  CHECK(at::equal(without.map, with_gradients.map));
}

}  // namespace
}  // namespace dalle2
