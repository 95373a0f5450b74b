// SPDX-License-Identifier: MIT
#include "kernels/group_norm_silu.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "kernels/loops.h"

namespace dalle2::test {
namespace {

constexpr double kEps = 1e-5;

struct Case {
  int64_t batch, channels, height, width, groups;
  bool timed;
  at::ScalarType dtype;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

using Function = at::Tensor (*)(const GroupNormSiluInputs&, int64_t, double);

GroupNormSiluInputs drawn(const Case& c, at::ScalarType dtype) {
  torch::manual_seed(3);
  // Values that both types hold, far from zero: the sum of squares alone would lose digits.
  const auto draw = [&](at::IntArrayRef sizes, double shift) {
    return (at::randn(sizes) + shift).to(c.dtype).to(dtype).set_requires_grad(true);
  };
  GroupNormSiluInputs inputs;
  inputs.x = draw({c.batch, c.channels, c.height, c.width}, 5.0)
                 .detach()
                 .contiguous(c.format)
                 .set_requires_grad(true);
  // Parameters stay float32 under autocast.
  const at::ScalarType wide = dtype == at::kDouble ? dtype : at::kFloat;
  inputs.weight = at::randn({c.channels}).to(wide).set_requires_grad(true);
  inputs.bias = at::randn({c.channels}).to(wide).set_requires_grad(true);
  if (c.timed) inputs.scale_shift = draw({c.batch, 2 * c.channels}, 0.0);
  return inputs;
}

GroupNormSiluInputs in_double(const GroupNormSiluInputs& given) {
  const auto wide = [](const at::Tensor& t) {
    return t.defined() ? t.detach().to(at::kDouble).set_requires_grad(true) : t;
  };
  return {wide(given.x), wide(given.weight), wide(given.bias), wide(given.scale_shift)};
}

/// y, then the gradients of x, weight, bias and scale_shift, as float64.
std::vector<at::Tensor> answers(Function function, const Case& c, const GroupNormSiluInputs& in) {
  const at::Tensor y = function(in, c.groups, kEps);
  torch::manual_seed(4);
  const at::Tensor dy = at::randn(y.sizes()).to(c.dtype).to(y.scalar_type());
  std::vector<at::Tensor> leaves = {in.x, in.weight, in.bias};
  if (c.timed) leaves.push_back(in.scale_shift);
  std::vector<at::Tensor> found = {y.detach().to(at::kDouble)};
  for (const at::Tensor& grad : torch::autograd::grad({y}, leaves, {dy}))
    found.push_back(grad.to(at::kDouble));
  return found;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST_CASE("one operation of norm, scale, shift and SiLU is the chain of ATen's, in float64") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const bool timed = GENERATE(true, false);
  const Case c = GENERATE_COPY(Case{2, 8, 4, 4, 4, timed, dtype},
                               Case{1, 16, 3, 1, 2, timed, dtype},
                               Case{3, 24, 7, 5, 8, timed, dtype},
                               Case{2, 8, 96, 96, 2, timed, dtype},
                               Case{2, 8, 4, 4, 4, timed, dtype, at::MemoryFormat::ChannelsLast},
                               Case{1, 16, 3, 2, 2, timed, dtype, at::MemoryFormat::ChannelsLast},
                               Case{3, 24, 7, 5, 8, timed, dtype, at::MemoryFormat::ChannelsLast},
                               Case{2, 8, 96, 96, 2, timed, dtype, at::MemoryFormat::ChannelsLast});
  CAPTURE(c.batch, c.channels, c.height, c.width, timed, c10::toString(dtype));
  const GroupNormSiluInputs given = drawn(c, dtype);
  REQUIRE(has_group_norm_silu(given.x));
  const GroupNormSiluInputs exact = in_double(given);
  const auto found = answers(&group_norm_silu, c, given);
  const auto expected = answers(&group_norm_silu_plain, c, exact);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    // float32: the order of sums; bfloat16: what is stored has 8 digits.
    const bool stored = dtype == at::kBFloat16 && (i == 0 || i == 1 || i == 4);
    CHECK(difference(found[i], expected[i]) < (stored ? 4e-3 : 5e-6));
  }
}

TEST_CASE("the operation falls back on ATen's for what it has no loops for") {
  const at::Tensor x = at::randn({2, 8, 4, 4});
  CHECK(has_group_norm_silu(x));
  CHECK_FALSE(has_group_norm_silu(x.to(at::kDouble)));
  CHECK_FALSE(has_group_norm_silu(x.to(at::kHalf)));
  CHECK(has_group_norm_silu(x.contiguous(at::MemoryFormat::ChannelsLast)));
  CHECK_FALSE(has_group_norm_silu(x.transpose(2, 3).slice(2, 0, 4, 2)));
  const Case c{2, 8, 4, 4, 4, true, at::kDouble};
  CHECK(group_norm_silu(drawn(c, at::kDouble), 4, kEps).isfinite().all().item<bool>());
}

TEST_CASE("a NaN stays one, and large values do not become any") {
  at::Tensor x = at::randn({1, 8, 4, 4});
  const at::Tensor ones = at::ones({8});
  x[0][0][0][0] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor y = group_norm_silu({x, ones, ones, {}}, 4, kEps);
  CHECK(y.isnan().sum().item<int64_t>() == 32);  // its group
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(group_norm_silu({last, ones, ones, {}}, 4, kEps).isnan().sum().item<int64_t>() == 32);
  const at::Tensor large =
      group_norm_silu({at::randn({1, 8, 4, 4}), ones * 1e4, ones, {}}, 4, kEps);
  CHECK(large.isfinite().all().item<bool>());
  CHECK(large.min().item<double>() >= -0.3);  // the smallest value of SiLU
}

TEST_CASE("threads change no bit") {
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const Case c{5, 16, 64, 64, 8, true, at::kFloat, format};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = answers(&group_norm_silu, c, drawn(c, at::kFloat));
  at::set_num_threads(3);
  const auto three = answers(&group_norm_silu, c, drawn(c, at::kFloat));
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], three[i]));
}

TEST_CASE("second derivatives are those of ATen's operations, in float64") {
  const bool timed = GENERATE(true, false);
  const Case c{2, 8, 5, 4, 4, timed, at::kFloat, at::MemoryFormat::ChannelsLast};
  const auto second = [&](Function function, at::ScalarType dtype) {
    const GroupNormSiluInputs in = drawn(c, dtype);
    std::vector<at::Tensor> leaves = {in.x, in.weight, in.bias};
    if (timed) leaves.push_back(in.scale_shift);
    const at::Tensor y = function(in, c.groups, kEps);
    const auto first = torch::autograd::grad({y.sin().sum()}, leaves, {}, true, true);
    at::Tensor norms = at::zeros({}, dtype);
    for (const at::Tensor& each : first) norms = norms + each.square().sum();
    return torch::autograd::grad({norms}, leaves);
  };
  const auto found = second(&group_norm_silu, at::kFloat);
  const auto expected = second(&group_norm_silu_plain, at::kDouble);
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(difference(found[i].to(at::kDouble), expected[i]) < 1e-5);  // float32, twice as deep
  }
}

TEST_CASE("a norm alone is ATen's with its gradients, in float64, whatever the order of the map") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const Case c{3, 24, 7, 5, 8, false, dtype, format};
  const Function ours = [](const GroupNormSiluInputs& in, int64_t groups, double eps) {
    return group_norm_of_map(in.x, in.weight, in.bias, groups, eps);
  };
  const GroupNormSiluInputs given = drawn(c, dtype);
  const auto found = answers(ours, c, given), expected = answers(ours, c, in_double(given));
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    // float32: the order of sums; bfloat16: what is stored has 8 digits.
    CHECK(difference(found[i], expected[i]) < (dtype == at::kBFloat16 ? 4e-3 : 5e-6));
  }
}

#ifdef DALLE2_X86_LOOPS
TEST_CASE("the variable that holds LibTorch to a smaller instruction set holds our loops too") {
  const char* const variable = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string held = variable == nullptr ? "" : variable;
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const loops::Table* expected = &loops::baseline();
  if (has_avx2 && held != "default") expected = &loops::avx2();
  if (has_avx512 && held.empty()) expected = &loops::avx512();
  CHECK(&loops::best() == expected);
}
#endif

TEST_CASE("the loops of every instruction set of this processor agree") {
  std::vector<const loops::Table*> tables = {&loops::baseline(), &loops::best()};
#ifdef DALLE2_X86_LOOPS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    tables.push_back(&loops::avx2());
#endif
  const bool silu = GENERATE(true, false);
  constexpr int64_t kRows = 7, kWidth = 35;
  const at::Tensor x = at::randn({kRows, kWidth}), columns = at::randn({4, kWidth});
  std::vector<at::Tensor> found;
  for (const loops::Table* const table : tables) {
    const auto column = [&](int64_t i) { return columns[i].const_data_ptr<float>(); };
    const loops::Columns z{column(0), column(1), column(2)};
    const loops::Rows rows{kRows, kWidth};
    at::Tensor y = at::empty_like(x), dz = at::empty_like(x), dx = at::empty_like(x);
    at::Tensor sums = at::empty({4, kWidth});
    const auto sum = [&](int64_t i) { return sums[i].mutable_data_ptr<float>(); };
    const float* const from = x.const_data_ptr<float>();
    const auto& loop = table->rows_norm_float;
    loop.sums(rows, from, z.center, sum(0), sum(1));
    loop.forward(rows, z, silu, from, y.mutable_data_ptr<float>());
    float* const to_dz = dz.mutable_data_ptr<float>();
    loop.backward_sums(rows, z, silu, y.const_data_ptr<float>(), from, to_dz, sum(2), sum(3));
    loop.backward(rows, z, column(3), to_dz, from, dx.mutable_data_ptr<float>());
    found.push_back(at::cat({y, dz, dx, sums}));
  }
  for (const at::Tensor& each : found) CHECK(at::allclose(each, found[0], 1e-5, 1e-6));
}

}  // namespace
}  // namespace dalle2::test
