// SPDX-License-Identifier: MIT
#include "kernels/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/cpu/Utils.h>
#include <torch/torch.h>
#include <array>
#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu_algorithms.h"
#include "kernels/loops.h"
#include "kernels/winograd.h"

namespace dalle2::test {
namespace {

struct ConvolutionCase {
  ConvolutionAlgorithm algorithm;
  int64_t batch, in, out, height, width, kernel;
  bool channels_last;
  bool transposed = false;

  int64_t stride() const { return algorithm == ConvolutionAlgorithm::kHalving ? 2 : 1; }
  int64_t padding() const { return (kernel - 1) / 2; }
};

ConvolutionAlgorithm chosen_for(const ConvolutionCase& c, const ConvolutionInputs& in) {
  return c.transposed ? transposed_algorithm_for(in, c.stride(), c.padding())
                      : algorithm_for(in, c.stride(), c.padding());
}

/// Whether all three operations are ours, none of them LibTorch's.
bool all_is_ours(const ConvolutionCase& c) {
  if (c.algorithm != ConvolutionAlgorithm::kHalving) {
    return c.algorithm == ConvolutionAlgorithm::kWinograd ||
           c.algorithm == ConvolutionAlgorithm::kWide;
  }
  const int64_t wide = c.transposed ? c.out : c.in, other = c.transposed ? c.in : c.out;
  const int64_t halves = c.transposed ? 1 : 2;
  const auto tiles_in = [&](int64_t side) { return (side / halves + 3) / 4; };
  return 4 * wide + other <= 8 * c.batch * tiles_in(c.height) * tiles_in(c.width);
}

at::Tensor ours(const ConvolutionCase& c, const ConvolutionInputs& in) {
  return c.transposed ? transposed_convolution(in, c.stride(), c.padding())
                      : convolution(in, c.stride(), c.padding());
}

at::Tensor by_aten(const ConvolutionCase& c, const ConvolutionInputs& in) {
  return c.transposed ? at::conv_transpose2d(in.x, in.weight, in.bias, c.stride(), c.padding())
                      : at::conv2d(in.x, in.weight, in.bias, c.stride(), c.padding());
}

/// Whether this processor has the loops of this algorithm. Others take ATen's convolution.
bool has_loops_for(const ConvolutionCase& c) {
  return !is_by_tiles(c.algorithm) || loops::best().fast_shapes.channels_per_tile > 0;
}

ConvolutionInputs drawn_convolution(const ConvolutionCase& c, at::ScalarType dtype, bool bias) {
  torch::manual_seed(5);
  const auto format =
      c.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const auto leaf = [&](const at::Tensor& t) {
    return t.to(dtype).detach().set_requires_grad(true);
  };
  ConvolutionInputs inputs;
  inputs.x = leaf(at::randn({c.batch, c.in, c.height, c.width}).contiguous(format));
  const int64_t filters = c.transposed ? c.in : c.out, channels = c.transposed ? c.out : c.in;
  inputs.weight = leaf(at::randn({filters, channels, c.kernel, c.kernel}).contiguous(format));
  if (bias) inputs.bias = leaf(at::randn({c.out}));
  return inputs;
}

/// y and the gradients of x, weight and bias.
std::vector<at::Tensor> values_and_gradients(const ConvolutionCase& c,
                                             const ConvolutionInputs& in,
                                             bool plain) {
  const at::Tensor y = plain ? by_aten(c, in) : ours(c, in);
  torch::manual_seed(6);
  const at::Tensor dy = at::randn(y.sizes()).to(y.scalar_type());
  std::vector<at::Tensor> leaves = {in.x, in.weight};
  if (in.bias.defined()) leaves.push_back(in.bias);
  std::vector<at::Tensor> found = {y.detach()};
  for (const at::Tensor& grad : torch::autograd::grad({y}, leaves, {dy})) found.push_back(grad);
  return found;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

// Sides that no tile divides, and one that does; more output maps than a tile of them, and fewer; few tiles for their weights, and many.
const std::vector<ConvolutionCase> kCases = {
    {ConvolutionAlgorithm::kTokens, 2, 24, 40, 5, 3, 1, true},
    {ConvolutionAlgorithm::kUnfolded, 2, 24, 40, 5, 3, 3, true},
    {ConvolutionAlgorithm::kUnfolded, 1, 16, 8, 4, 4, 5, true},
    {ConvolutionAlgorithm::kWinograd, 2, 32, 48, 21, 18, 3, true},
    {ConvolutionAlgorithm::kWinograd, 1, 16, 96, 32, 32, 3, true},
    {ConvolutionAlgorithm::kWinograd, 3, 80, 16, 17, 70, 3, true},
    {ConvolutionAlgorithm::kHalving, 2, 32, 48, 22, 18, 4, true},
    {ConvolutionAlgorithm::kHalving, 1, 16, 96, 32, 32, 4, true},
    {ConvolutionAlgorithm::kHalving, 3, 80, 16, 34, 70, 4, true},
    {ConvolutionAlgorithm::kHalving, 2, 32, 64, 32, 28, 4, true},
    {ConvolutionAlgorithm::kHalving, 1, 96, 16, 32, 32, 4, true},
    {ConvolutionAlgorithm::kHalving, 2, 48, 32, 11, 9, 4, true, /*transposed=*/true},
    {ConvolutionAlgorithm::kHalving, 2, 96, 96, 15, 13, 4, true, /*transposed=*/true},
    {ConvolutionAlgorithm::kHalving, 1, 16, 96, 16, 16, 4, true, /*transposed=*/true},
    {ConvolutionAlgorithm::kHalving, 1, 96, 16, 16, 16, 4, true, /*transposed=*/true},
    {ConvolutionAlgorithm::kHalving, 3, 16, 80, 17, 35, 4, true, /*transposed=*/true},
    {ConvolutionAlgorithm::kWide, 2, 3, 6, 19, 37, 15, false},
    {ConvolutionAlgorithm::kWide, 2, 6, 4, 40, 64, 11, false},
    {ConvolutionAlgorithm::kWide, 1, 1, 9, 13, 33, 13, false},
    {ConvolutionAlgorithm::kPlain, 2, 6, 4, 40, 64, 9, false},  // too small for loops along rows
};

TEST_CASE("each algorithm of a convolution gives at::conv2d and its gradients, in float64") {
  for (const ConvolutionCase& c : kCases) {
    for (const bool bias : {true, false}) {
      const ConvolutionInputs given = drawn_convolution(c, at::kFloat, bias);
      CAPTURE(static_cast<int>(c.algorithm), c.in, c.out, c.height, c.width, c.kernel, bias);
      if (has_loops_for(c)) CHECK(chosen_for(c, given) == c.algorithm);
      const auto found = values_and_gradients(c, given, false);
      const auto expected = values_and_gradients(c, drawn_convolution(c, at::kDouble, bias), true);
      REQUIRE(found.size() == expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        // float32 and another order of sums: up to 3e-6 with tiles, 1e-6 without.
        CHECK(relative_difference(found[i], expected[i]) < 4e-6);
      }
    }
  }
}

TEST_CASE("under autocast a convolution computes in bfloat16, with gradients in float32") {
  for (const ConvolutionCase& c : kCases) {
    const ConvolutionInputs given = drawn_convolution(c, at::kFloat, true);
    CAPTURE(static_cast<int>(c.algorithm));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto found = values_and_gradients(c, given, false);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    const auto expected = values_and_gradients(c, drawn_convolution(c, at::kDouble, true), true);
    CHECK(found[0].scalar_type() == at::kBFloat16);
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      if (i > 0) CHECK(found[i].scalar_type() == at::kFloat);
      // bfloat16 has 8 bits. Without instructions for it, ATen sums the 15x15 case less exactly: 1.6e-2.
      CHECK(relative_difference(found[i], expected[i]) < 2e-2);
    }
  }
}

TEST_CASE("tiles of bfloat16 maps are those of the same numbers in float32, rounded at the end") {
  for (const ConvolutionCase& c : kCases) {
    if (!is_by_tiles(c.algorithm) || c.transposed || !has_loops_for(c)) continue;
    torch::manual_seed(6);
    const auto map = [&](int64_t channels, int64_t of) {
      at::Tensor t = at::randn({c.batch, channels, c.height / of, c.width / of}).to(at::kBFloat16);
      t[0][1][2][3] = std::numeric_limits<float>::quiet_NaN();
      t[0][0][c.height / of - 1][0] = std::numeric_limits<float>::infinity();
      return t.contiguous(at::MemoryFormat::ChannelsLast);
    };
    const at::Tensor x = map(c.in, 1), dy = map(c.out, c.stride()), bias = at::randn({c.out});
    const at::Tensor w =
        at::randn({c.out, c.in, c.kernel, c.kernel}).contiguous(at::MemoryFormat::ChannelsLast);
    // The compiler may fuse other products with sums: a last bit of float32, which rarely changes one of bfloat16.
    const auto check = [](const at::Tensor& found, const at::Tensor& in_float, double step) {
      const at::Tensor expected = in_float.to(found.scalar_type());
      const at::Tensor equal = found.eq(expected).logical_or(found.isnan() & expected.isnan());
      CHECK(at::allclose(found.to(at::kFloat),
                         expected.to(at::kFloat),
                         /*rtol=*/step,
                         /*atol=*/1e-4,
                         /*equal_nan=*/true));
      if (found.scalar_type() == at::kBFloat16)
        CHECK(equal.to(at::kFloat).mean().item<double>() > 0.999);
    };
    constexpr double kStep = 0x1p-7;  // of bfloat16
    if (c.algorithm == ConvolutionAlgorithm::kHalving) {
      check(winograd_halving(x, w, bias), winograd_halving(x.to(at::kFloat), w, bias), kStep);
      check(winograd_doubling(dy, w, {}), winograd_doubling(dy.to(at::kFloat), w, {}), kStep);
      check(winograd_halving_weight_gradient(x, dy, w),
            winograd_halving_weight_gradient(x.to(at::kFloat), dy.to(at::kFloat), w),
            1e-5);
      continue;
    }
    check(winograd_convolution(x, w, bias), winograd_convolution(x.to(at::kFloat), w, bias), kStep);
    check(winograd_pixel_gradient(dy, w), winograd_pixel_gradient(dy.to(at::kFloat), w), kStep);
    check(winograd_weight_gradient(x, dy, w),
          winograd_weight_gradient(x.to(at::kFloat), dy.to(at::kFloat), w),
          1e-5);
  }
}

TEST_CASE("under autocast, maps with many tiles use them unless the processor has AMX") {
  const at::Tensor x = at::randn({4, 32, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor w = at::randn({32, 32, 3, 3});
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto amx = capabilities.find("amx_bf16");
  const bool has_amx = amx != capabilities.end() && amx->second.toBool();
  const bool has_tiles = loops::best().fast_shapes.channels_per_tile > 0 && !has_amx;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto algorithm = [&](at::ScalarType type, const at::Tensor& weight) {
    at::autocast::set_autocast_dtype(at::kCPU, type);
    return algorithm_for({x, weight, {}}, 1, 1);
  };
  const auto in_half = algorithm(at::kBFloat16, w);
  const auto of_frozen = algorithm(at::kBFloat16, w.to(at::kBFloat16));
  const auto in_fp16 = algorithm(at::kHalf, w);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK((in_half == ConvolutionAlgorithm::kWinograd) == has_tiles);
  CHECK(of_frozen == ConvolutionAlgorithm::kPlain);
  CHECK(in_fp16 == ConvolutionAlgorithm::kPlain);
}

#ifdef _OPENMP
TEST_CASE("loops of ours run on several threads") {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::array<std::thread::id, 2> ids;
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ids[static_cast<size_t>(i)] = std::this_thread::get_id();
  });
  at::set_num_threads(threads);
  CHECK(ids[0] != ids[1]);
}
#elif defined(__GNUC__) && !defined(__clang__)
#error \
    "g++ without -fopenmp: at::parallel_for would use one thread (scripts/cmake/find_torch.cmake)"
#endif

TEST_CASE("threads change no bit of a convolution") {
  const int threads = at::get_num_threads();
  for (const ConvolutionCase& c : kCases) {
    CAPTURE(static_cast<int>(c.algorithm));
    // Products of LibTorch split their sums by threads.
    if (!all_is_ours(c)) continue;
    if (!has_loops_for(c)) continue;
    ConvolutionInputs given = drawn_convolution(c, at::kFloat, false);
    if (c.algorithm == ConvolutionAlgorithm::kWide) given.x = given.x.detach();
    const auto gradients = [&] {
      const at::Tensor y = ours(c, given);
      std::vector<at::Tensor> inputs = {given.weight};
      if (given.x.requires_grad()) inputs.push_back(given.x);
      std::vector<at::Tensor> found = torch::autograd::grad({y.sin().sum()}, inputs);
      found.push_back(y.detach());
      return found;
    };
    at::set_num_threads(1);
    const auto one = gradients();
    at::set_num_threads(3);
    const auto three = gradients();
    at::set_num_threads(threads);
    for (size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], three[i]));
  }
}

TEST_CASE("other convolutions are at::conv2d") {
  const at::Tensor x = at::randn({1, 32, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor w = at::randn({32, 32, 3, 3});
  const bool has_tiles = loops::best().fast_shapes.channels_per_tile > 0;
  CHECK((algorithm_for({x, w, {}}, 1, 1) == ConvolutionAlgorithm::kWinograd) == has_tiles);
  CHECK(algorithm_for({x, w, {}}, 2, 1) == ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x, w, {}}, 1, 0) == ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x.to(at::kDouble), w.to(at::kDouble), {}}, 1, 1) ==
        ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x.contiguous(), w, {}}, 1, 1) == ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x, at::randn({24, 32, 3, 3}), {}}, 1, 1) == ConvolutionAlgorithm::kPlain);
  // Too few pixels for what their weights would cost.
  CHECK(algorithm_for({at::randn({1, 1024, 20, 20}).contiguous(at::MemoryFormat::ChannelsLast),
                       at::randn({1024, 1024, 3, 3}),
                       {}},
                      1,
                      1) == ConvolutionAlgorithm::kPlain);
  const at::Tensor y = convolution({x, w, {}}, 2, 1);
  CHECK(at::equal(y, at::conv2d(x, w, {}, 2, 1)));
  const at::Tensor halving = at::randn({32, 32, 4, 4});
  CHECK((algorithm_for({x, halving, {}}, 2, 1) == ConvolutionAlgorithm::kHalving) == has_tiles);
  CHECK(algorithm_for({x, halving, {}}, 2, 0) == ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x, halving, {}}, 4, 1) == ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x.narrow(2, 0, 31).contiguous(at::MemoryFormat::ChannelsLast), halving, {}},
                      2,
                      1) == ConvolutionAlgorithm::kPlain);
  CHECK(algorithm_for({x, at::randn({24, 32, 4, 4}), {}}, 2, 1) == ConvolutionAlgorithm::kPlain);
  const at::Tensor twice = at::randn({32, 24, 4, 4});
  CHECK(at::equal(transposed_convolution({x, twice, {}}, 2, 1),
                  at::conv_transpose2d(x, twice, {}, 2, 1)));
}

TEST_CASE("second derivatives of a convolution are those of at::conv2d") {
  for (const ConvolutionCase& c : kCases) {
    CAPTURE(static_cast<int>(c.algorithm));
    const auto second = [&](at::ScalarType dtype, bool plain) {
      const ConvolutionInputs in = drawn_convolution(c, dtype, true);
      const at::Tensor y = plain ? by_aten(c, in) : ours(c, in);
      // As a gradient penalty: of the norm of the gradient at the pixels.
      const auto first =
          torch::autograd::grad({y.sin().sum()}, {in.x}, {}, true, /*create_graph=*/true);
      return torch::autograd::grad({first[0].square().sum()}, {in.weight, in.x});
    };
    const auto found = second(at::kFloat, false), expected = second(at::kDouble, true);
    for (size_t i = 0; i < found.size(); ++i)
      CHECK(relative_difference(found[i], expected[i]) < 1e-4);
  }
}

/// Whether the kernel lists `flag` for the first processor.
bool kernel_lists(const std::string& flag) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("flags")) return (line + " ").find(" " + flag + " ") != line.npos;
  }
  return false;
}

TEST_CASE("what a processor has is what the system says of it") {
  for (const char* const capability : {"avx2", "avx512_bf16", "amx_bf16"}) {
    INFO(capability);
    CHECK(at::cpu::get_cpu_capabilities().contains(capability));
    CHECK(cpu_has(capability) == kernel_lists(capability));
  }
  CHECK_FALSE(cpu_has("no such thing"));
}

}  // namespace
}  // namespace dalle2::test
