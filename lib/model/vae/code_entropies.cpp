// SPDX-License-Identifier: MIT
#include "model/vae/code_entropies.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace dalle2 {
namespace {

constexpr double kSharpness = 200.0;  // twice the inverse temperature of 100
constexpr double kLeastLogged = 1e-5;
/// Numbers of a slice of tokens times codes: on a CPU they stay in the cache, on a GPU they are few
/// kernels.
int64_t slice_size(const at::Device& device) {
  return int64_t{1} << (device.is_cpu() ? 19 : 25);
}

/// Of the bits of a half: its codes, and each token's distribution over them.
struct Half {
  at::Tensor codes;      // [K, bits]
  at::Tensor log_share;  // [N, K]
  at::Tensor share;      // [N, K]
  explicit Half(const at::Tensor& tokens)
      : codes(sign_codes(tokens.size(1), tokens.options())),
        log_share((at::matmul(tokens, codes.t()) * kSharpness).log_softmax(-1)),
        share(log_share.exp()) {}
  int64_t size() const { return codes.size(0); }

  /// From sums [N, K] of share times gradient over the codes of the other half. @return [N, bits]
  at::Tensor gradient(const at::Tensor& sums) const {
    const at::Tensor all = sums.sum(-1, /*keepdim=*/true);
    return at::matmul(sums - share * all, codes) * kSharpness;
  }
};

std::pair<Half, Half> halves(const at::Tensor& tokens) {
  const int64_t first = tokens.size(1) / 2;
  return {Half(tokens.narrow(1, 0, first)), Half(tokens.narrow(1, first, tokens.size(1) - first))};
}

/// Calls f(first token, shares [n, A, B], their logarithms, which are at least that of
/// kLeastLogged) for slices of the tokens.
void for_slices(const Half& a, const Half& b, const auto& f) {
  const int64_t tokens = a.share.size(0);
  const int64_t of_slice =
      std::max<int64_t>(slice_size(a.share.device()) / (a.size() * b.size()), 1);
  for (int64_t first = 0; first < tokens; first += of_slice) {
    const int64_t n = std::min(of_slice, tokens - first);
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, first, n).unsqueeze(2); };
    const auto columns = [&](const at::Tensor& x) { return x.narrow(0, first, n).unsqueeze(1); };
    f(first,
      rows(a.share) * columns(b.share),
      (rows(a.log_share) + columns(b.log_share)).clamp_min_(std::log(kLeastLogged)));
  }
}

/// Derivative of -p log p by p, with the bounded logarithm.
at::Tensor slope(const at::Tensor& p, const at::Tensor& log_p) {
  return -(log_p + p.gt(kLeastLogged).to(p.scalar_type()));
}

at::Tensor bounded_log(const at::Tensor& p) {
  return p.clamp_min(kLeastLogged).log();
}

struct Entropies : torch::autograd::Function<Entropies> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& tokens) {
    const auto [a, b] = halves(tokens);
    const auto count = static_cast<double>(tokens.size(0));
    at::Tensor sum = at::zeros({}, tokens.options());
    for_slices(a, b, [&](int64_t, const at::Tensor& p, const at::Tensor& log_p) {
      sum -= (p * log_p).sum();
    });
    const at::Tensor mean = at::matmul(a.share.t(), b.share) / count;  // [A, B]
    context->save_for_backward({tokens});
    return {sum / count, -(mean * bounded_log(mean)).sum()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outer) {
    const at::Tensor tokens = context->get_saved_variables()[0];
    const auto [a, b] = halves(tokens);
    const auto count = static_cast<double>(tokens.size(0));
    at::Tensor of_a = at::empty_like(a.share), of_b = at::empty_like(b.share);
    for_slices(a, b, [&](int64_t first, const at::Tensor& p, const at::Tensor& log_p) {
      const at::Tensor part = p * slope(p, log_p);
      of_a.narrow(0, first, p.size(0)).copy_(part.sum(2));
      of_b.narrow(0, first, p.size(0)).copy_(part.sum(1));
    });
    const at::Tensor mean = at::matmul(a.share.t(), b.share) / count;
    const at::Tensor of_mean = slope(mean, bounded_log(mean)) * (outer[1] / count);  // [A, B]
    of_a = of_a * (outer[0] / count) + a.share * at::matmul(b.share, of_mean.t());
    of_b = of_b * (outer[0] / count) + b.share * at::matmul(a.share, of_mean);
    return {at::cat({a.gradient(of_a), b.gradient(of_b)}, 1)};
  }
};

}  // namespace

at::Tensor sign_codes(int64_t bits, const at::TensorOptions& options) {
  const at::Tensor numbers = at::arange(int64_t{1} << bits, options.dtype(at::kLong)).unsqueeze(1);
  const at::Tensor shifts = at::arange(bits - 1, -1, -1, options.dtype(at::kLong));
  return numbers.bitwise_right_shift(shifts).bitwise_and(1).to(options.dtype()).mul_(2).sub_(1);
}

CodeEntropies code_entropies(const at::Tensor& tokens) {
  const auto found = Entropies::apply(tokens);
  return {.per_token = found[0], .of_mean = found[1]};
}

}  // namespace dalle2
