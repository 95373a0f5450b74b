// SPDX-License-Identifier: MIT
#include "model/vae/quantizer.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>

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

constexpr double kUnitEps = 1e-6;    // of vectors brought to length 1
constexpr double kSmoothing = 1e-5;  // Laplace's, of counts of codes
constexpr double kSquaredDistanceEps = 1e-8;

/// [B, D, h, w] -> [N, D]
at::Tensor as_tokens(const at::Tensor& map) {
  return map.permute({0, 2, 3, 1}).flatten(0, 2);
}

/// [N, D] -> [B, D, h, w] as `like`
at::Tensor as_map(const at::Tensor& tokens, const at::Tensor& like) {
  return tokens.view({like.size(0), like.size(2), like.size(3), -1}).permute({0, 3, 1, 2});
}

at::Tensor as_indices(const at::Tensor& tokens, const at::Tensor& like) {
  return tokens.view({like.size(0), like.size(2), like.size(3)});
}

at::Tensor unit_length(const at::Tensor& x) {
  return x / x.norm(2, -1, /*keepdim=*/true).clamp_min(kUnitEps);
}

/// Gives `code` the gradients that turn and stretch `x` with it (Fifty et al. 2024, arXiv
/// 2410.06424, section 4.2): the value is that of `code`.
at::Tensor rotated_to(const at::Tensor& x, const at::Tensor& code) {
  const at::Tensor x_norm = x.norm(2, -1, true), code_norm = code.norm(2, -1, true);
  const at::Tensor from = (x / x_norm.clamp_min(kUnitEps)).detach();
  const at::Tensor to = (code / code_norm.clamp_min(kUnitEps)).detach();
  const at::Tensor between = unit_length(from + to);
  const at::Tensor turned =
      x - 2 * (x * between).sum(-1, true) * between + 2 * (x * from).sum(-1, true) * to;
  return turned * (code_norm / x_norm.clamp_min(kUnitEps)).detach();
}

/// `count` rows of `tokens`: different ones if there are enough.
at::Tensor drawn_rows(const at::Tensor& tokens, int64_t count, const at::Generator& generator) {
  const auto options = at::TensorOptions(at::kLong).device(generator.device());
  const at::Tensor rows = tokens.size(0) >= count
                              ? at::randperm(tokens.size(0), generator, options).narrow(0, 0, count)
                              : at::randint(tokens.size(0), {count}, generator, options);
  return tokens.index_select(0, rows.to(tokens.device()));
}

/// [N, K] larger for a nearer code; of unit vectors the cosine, else minus the distance.
at::Tensor nearness(const at::Tensor& tokens, const at::Tensor& codes, bool cosine) {
  const at::Tensor products = at::matmul(tokens, codes.t());
  if (cosine) return products;
  const at::Tensor squares = tokens.square().sum(-1, true) + codes.square().sum(-1) - 2 * products;
  return squares.clamp_min(kSquaredDistanceEps).sqrt().neg();
}

}  // namespace

at::Tensor counts_of_codes(const at::Tensor& indices, int64_t codes) {
  return at::zeros({codes}, indices.options()).scatter_add_(0, indices, at::ones_like(indices));
}

at::Tensor sign_codes(int64_t bits, const at::TensorOptions& options) {
  const at::Tensor numbers = at::arange(int64_t{1} << bits, options.dtype(at::kLong)).unsqueeze(1);
  const at::Tensor shifts = at::arange(bits - 1, -1, -1, options.dtype(at::kLong));
  return numbers.bitwise_right_shift(shifts).bitwise_and(1).to(options.dtype()).mul_(2).sub_(1);
}

CodeEntropies code_entropies(const at::Tensor& tokens) {
  const auto found = Entropies::apply(tokens);
  return {.per_token = found[0], .of_mean = found[1]};
}

std::shared_ptr<QuantizerImpl> make_quantizer(int64_t dim, const VaeConfig& config) {
  if (config.is_lookup_free()) {
    return std::make_shared<LookupFreeQuantizerImpl>(dim, config.codes(), config.lfq_kwargs);
  }
  return std::make_shared<VectorQuantizerImpl>(dim, config);
}

LookupFreeQuantizerImpl::LookupFreeQuantizerImpl(int64_t dim,
                                                 int64_t codes,
                                                 const LookupFreeConfig& config)
    : config_(config) {
  const int64_t bits = std::countr_zero(static_cast<uint64_t>(codes));
  mask_ = register_buffer("mask", at::pow(2, at::arange(bits - 1, -1, -1, at::kLong)));
  if (bits == dim) return;
  project_in_ = register_module("project_in", make_linear(dim, bits));
  project_out_ = register_module("project_out", make_linear(bits, dim));
}

Quantized LookupFreeQuantizerImpl::quantize(const at::Tensor& map,
                                            const at::Generator& /*generator*/) {
  const at::Tensor tokens = as_tokens(map);
  const at::Tensor x = project_in_ ? project_in_->forward(tokens) : tokens;
  const at::Tensor values = x.to(at::kFloat);
  const at::Tensor is_positive = values > 0;
  const at::Tensor signs = is_positive.to(at::kFloat) * 2 - 1;
  Quantized result;
  result.indices = as_indices((is_positive * mask_).sum(-1), map);
  result.loss = at::zeros({}, values.options().requires_grad(false));
  at::Tensor passed = signs;
  if (is_training()) passed = values + (signs - values).detach();
  // A training pass without gradients is the discriminator's, which has no use for the loss.
  if (is_training() && at::GradMode::is_enabled()) {
    const CodeEntropies entropies = code_entropies(values);
    result.loss = config_.entropy_loss_weight *
                  (entropies.per_token - config_.diversity_gamma * entropies.of_mean);
    if (config_.commitment_loss_weight > 0) {
      result.loss = result.loss + config_.commitment_loss_weight * at::mse_loss(values, signs);
    }
  }
  passed = passed.to(x.scalar_type());
  result.map = as_map(project_out_ ? project_out_->forward(passed) : passed, map);
  return result;
}

VectorQuantizerImpl::VectorQuantizerImpl(int64_t dim, const VaeConfig& config) : config_(config) {
  const int64_t codes = config.codes(), width = config.vq_codebook_dim;
  if (width != dim) {
    project_in_ = register_module("project_in", make_linear(dim, width));
    project_out_ = register_module("project_out", make_linear(width, dim));
  }
  const auto book = add_group(*this, "_codebook");
  at::Tensor embed = at::zeros({1, codes, width});
  if (!config.vq_kmeans_init) {
    torch::nn::init::kaiming_uniform_(embed);
    if (config.vq_use_cosine_sim) embed = unit_length(embed);
  }
  initted_ = book->register_buffer("initted", at::scalar_tensor(!config.vq_kmeans_init, at::kBool));
  cluster_size_ = book->register_buffer("cluster_size", at::ones({1, codes}));
  embed_avg_ = book->register_buffer("embed_avg", embed.clone());
  embed_ = book->register_buffer("embed", embed);
}

Quantized VectorQuantizerImpl::quantize(const at::Tensor& map, const at::Generator& generator) {
  const at::Tensor tokens = as_tokens(map);
  at::Tensor x = (project_in_ ? project_in_->forward(tokens) : tokens).to(at::kFloat);
  if (config_.vq_use_cosine_sim) x = unit_length(x);
  Quantized result;
  result.loss = at::zeros({}, x.options().requires_grad(false));
  at::Tensor code, indices;
  {
    const torch::NoGradGuard no_grad;
    begin_codes(x.detach(), generator);
    indices = nearness(x.detach(), codebook(), config_.vq_use_cosine_sim).argmax(-1);
    code = codebook().index_select(0, indices);
    if (is_training()) take_notes(x.detach(), indices);
  }
  at::Tensor passed = code;
  if (is_training()) {
    if (x.requires_grad()) {
      passed = config_.vq_rotation_trick && map.size(1) > 1 ? rotated_to(x, code)
                                                            : x + (code - x).detach();
    }
    result.loss = config_.vq_commitment_weight * at::mse_loss(x, code);
  }
  passed = passed.to(tokens.scalar_type());
  result.map = as_map(project_out_ ? project_out_->forward(passed) : passed, map);
  result.indices = as_indices(indices, map);
  return result;
}

/// Read from the device only where the buffer has changed: once it has begun, and after a load.
bool VectorQuantizerImpl::has_begun() {
  const Seen now = {initted_.const_data_ptr(), initted_._version()};
  if (seen_ != now) {
    begun_ = initted_.item<bool>();
    seen_ = now;
  }
  return begun_;
}

VectorQuantizerImpl::Drawer VectorQuantizerImpl::drawer(int64_t own_tokens) const {
  if (ranks_.size == 1) return {own_tokens > 0, own_tokens};
  const std::vector<int64_t> held = ranks_.exchange(own_tokens);
  for (size_t rank = 0; rank < held.size(); ++rank) {
    if (held[rank] > 0) return {static_cast<int>(rank) == ranks_.rank, held[rank]};
  }
  return {false, 0};
}

at::Tensor VectorQuantizerImpl::drawn_by(const Drawer& drawer,
                                         const at::Tensor& tokens,
                                         int64_t count,
                                         const at::Generator& generator) const {
  at::Tensor rows = drawer.is_own ? drawn_rows(tokens, count, generator)
                                  : at::zeros({count, tokens.size(1)}, tokens.options());
  sum_over_ranks(rows);
  return rows;
}

void VectorQuantizerImpl::begin_codes(const at::Tensor& tokens, const at::Generator& generator) {
  if (has_begun()) return;
  const int64_t codes = config_.codes();
  const Drawer first = drawer(tokens.size(0));
  if (first.tokens == 0) return;  // no rank has any yet
  at::Tensor means = drawn_by(first, tokens, codes, generator);
  at::Tensor counts;
  for (int64_t round = 0; round < config_.vq_kmeans_iters; ++round) {
    const at::Tensor places = nearness(tokens, means, config_.vq_use_cosine_sim).argmax(-1);
    counts = counts_of_codes(places, codes);
    at::Tensor sums = at::zeros_like(means).index_add_(0, places, tokens);
    sum_over_ranks(counts);
    sum_over_ranks(sums);
    at::Tensor next = sums / counts.clamp_min(1).unsqueeze(1);
    if (config_.vq_use_cosine_sim) next = unit_length(next);
    means = at::where(counts.eq(0).unsqueeze(1), means, next);
  }
  cluster_size_.select(0, 0).copy_(counts);
  embed_avg_.select(0, 0).copy_(means * counts.unsqueeze(1));
  embed_.select(0, 0).copy_(mean_codes());
  initted_.copy_(means.isfinite().all());  // else the next batch begins them
}

void VectorQuantizerImpl::quantize_nothing() {
  const torch::NoGradGuard no_grad;
  begin_codes(at::zeros({0, codebook().size(1)}, codebook().options()), /*generator=*/{});
}

void VectorQuantizerImpl::take_notes(const at::Tensor& tokens, const at::Tensor& indices) {
  const int64_t codes = config_.codes();
  const at::Tensor counts = counts_of_codes(indices, codes).to(at::kFloat);
  const at::Tensor sums =
      at::zeros({codes, tokens.size(1)}, tokens.options()).index_add_(0, indices, tokens);
  noted_counts_ = noted_counts_.defined() ? noted_counts_ + counts : counts;
  noted_sums_ = noted_sums_.defined() ? noted_sums_ + sums : sums;
  if (config_.vq_threshold_ema_dead_code == 0) return;
  noted_tokens_ = noted_tokens_.defined() ? at::cat({noted_tokens_, tokens}) : tokens;
}

void VectorQuantizerImpl::learn(const at::Generator& generator, const at::Tensor& was_skipped) {
  const torch::NoGradGuard no_grad;
  if (!noted_counts_.defined()) {  // this rank had no samples
    noted_counts_ = at::zeros_like(cluster_size_.select(0, 0));
    noted_sums_ = at::zeros_like(codebook());
  }
  sum_over_ranks(noted_counts_);
  sum_over_ranks(noted_sums_);
  // From what is not finite nothing is learned either. The host need not know.
  at::Tensor learns = noted_sums_.sum().isfinite();
  if (was_skipped.defined()) learns = learns.logical_and(was_skipped.eq(0));
  const at::Tensor counts = at::where(learns, noted_counts_, cluster_size_.select(0, 0));
  const at::Tensor sums = at::where(learns, noted_sums_, embed_avg_.select(0, 0));
  cluster_size_.select(0, 0).lerp_(counts, 1 - config_.vq_decay);
  embed_avg_.select(0, 0).lerp_(sums, 1 - config_.vq_decay);
  embed_.select(0, 0).copy_(at::where(learns, mean_codes(), codebook()));
  if (config_.vq_threshold_ema_dead_code > 0) replace_dead(learns, generator);
  noted_counts_.reset();
  noted_sums_.reset();
  noted_tokens_.reset();
}

/// [K, d] of the moving averages.
at::Tensor VectorQuantizerImpl::mean_codes() const {
  const at::Tensor sizes = cluster_size_.select(0, 0);
  const at::Tensor total = sizes.sum();
  const double codes = static_cast<double>(config_.codes());
  const at::Tensor smoothed = (sizes + kSmoothing) / (total + codes * kSmoothing) * total;
  const at::Tensor means = embed_avg_.select(0, 0) / smoothed.unsqueeze(1);
  return config_.vq_use_cosine_sim ? unit_length(means) : means;
}

void VectorQuantizerImpl::replace_dead(const at::Tensor& learns, const at::Generator& generator) {
  at::Tensor tokens = noted_tokens_.defined()
                          ? noted_tokens_
                          : at::zeros({0, codebook().size(1)}, embed_.options());
  if (config_.vq_use_cosine_sim) tokens = unit_length(tokens);
  const Drawer drawer = this->drawer(tokens.size(0));
  if (drawer.tokens >= config_.codes()) {
    replace_dead_on_device(learns, drawer, tokens, generator);
  } else if (learns.item<bool>()) {
    replace_counted_dead(drawer, tokens, generator);
  }
}

/// With a vector for each code the host need not know how many are dead.
void VectorQuantizerImpl::replace_dead_on_device(const at::Tensor& learns,
                                                 const Drawer& drawer,
                                                 const at::Tensor& tokens,
                                                 const at::Generator& generator) {
  const double least = config_.vq_threshold_ema_dead_code;
  const at::Tensor sizes = cluster_size_.select(0, 0), codes = embed_.select(0, 0);
  const at::Tensor dead = sizes.lt(least).logical_and(learns);  // [K]
  const at::Tensor rows = drawn_by(drawer, tokens, config_.codes(), generator);
  const at::Tensor samples = rows.index_select(0, (dead.cumsum(0) - 1).clamp_min(0));
  const at::Tensor is_dead = dead.unsqueeze(1);
  codes.copy_(at::where(is_dead, samples, codes));
  embed_avg_.select(0, 0).copy_(at::where(is_dead, samples * least, embed_avg_.select(0, 0)));
  sizes.masked_fill_(dead, least);
}

/// Dead codes may be more than there are vectors on the first rank that has any.
void VectorQuantizerImpl::replace_counted_dead(const Drawer& drawer,
                                               const at::Tensor& tokens,
                                               const at::Generator& generator) {
  const double least = config_.vq_threshold_ema_dead_code;
  at::Tensor dead = cluster_size_.select(0, 0).lt(least).nonzero().squeeze(1);
  if (dead.numel() == 0) return;
  if (dead.numel() > drawer.tokens) {  // the rest follows with later batches
    at::Tensor order = at::zeros({dead.numel()}, dead.options());
    if (drawer.is_own) {
      order = at::randperm(
                  dead.numel(), generator, at::TensorOptions(at::kLong).device(generator.device()))
                  .to(dead.device());
    }
    sum_over_ranks(order);
    dead = std::get<0>(dead.index_select(0, order.narrow(0, 0, drawer.tokens)).sort());
  }
  const at::Tensor samples = drawn_by(drawer, tokens, dead.numel(), generator);
  embed_.select(0, 0).index_copy_(0, dead, samples);
  embed_avg_.select(0, 0).index_copy_(0, dead, samples * least);
  cluster_size_.select(0, 0).index_fill_(0, dead, least);
}

}  // namespace dalle2
