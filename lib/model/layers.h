// SPDX-License-Identifier: MIT
// Norms, convolutions and resamplers the networks are made of. Names of parameters are the file
// format. Legend: B batch, C channels, H W pixels, N tokens, D width.
#pragma once

#include <torch/nn.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/shared/layout.h"
#include "model/lora.h"

namespace dalle2 {

/// @throws DataError if `t` is defined and does not have one row for each sample of the batch;
/// `what` is its name in the message
void check_batch(const char* what, const at::Tensor& t, int64_t batch);

/// A module that only lends its name to those below: "downs" -> "downs.0" -> "downs.0.2".
std::shared_ptr<torch::nn::Module> add_group(torch::nn::Module& parent, const std::string& name);

/// A linear layer that can take an adapter, and whose weight may be held in a lower type.
class LinearLayerImpl : public torch::nn::LinearImpl, public LoraHost {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  /// [B, ..., in] -> [B, ..., out]
  at::Tensor forward(const at::Tensor& x);
  /// bmm of x with `view` of the weight, a function that makes [n, in, out] of [out, in].
  at::Tensor multiply(const at::Tensor& x,
                      const std::function<at::Tensor(const at::Tensor&)>& view) const;
};

/// A convolution whose weight may be held in a lower type.
class ConvLayerImpl : public torch::nn::Conv2dImpl {
 public:
  using torch::nn::Conv2dImpl::Conv2dImpl;
  /// [B, in, H, W] -> [B, out, H', W']
  at::Tensor forward(const at::Tensor& x);
};

/// A 1x1 convolution without bias over the pixels of a feature map, as tokens.
class TokenConvImpl : public ConvLayerImpl, public LoraHost {
 public:
  TokenConvImpl(int64_t in, int64_t out);
  /// [B, N, in] -> [B, N, out]
  at::Tensor forward(const at::Tensor& tokens);
};

/// A linear layer with or without a bias, initialised as torch does.
std::shared_ptr<LinearLayerImpl> make_linear(int64_t in, int64_t out, bool bias = true);

/// A convolution with a square kernel, initialised as torch does.
std::shared_ptr<ConvLayerImpl> make_conv(
    int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t padding = 0);

/// The same values, on the CPU with the channels of a pixel side by side: convolutions and their norms
/// then keep that order among themselves, where else each convolution reorders what goes in and comes
/// out. [B, C, H, W]
at::Tensor in_order_for_convolutions(const at::Tensor& x);
/// Lays the filters of a module that is not trained in that order, where drawing would hold copies that lie so beside them. The module
/// is where it is to compute, and no weight is a view.
void lay_filters_in_order(const torch::nn::Module& module);

/// 1e-5 for float32 and 1e-3 for everything else, float64 included: trained weights depend on it.
double norm_eps(at::ScalarType dtype);

/// x / max(|x|, 1e-12) over the last dimension; float16, which has no 1e-12, takes its smallest
/// normal number 2^-14, where upstream makes NaN of a zero vector.
at::Tensor l2_normalize(const at::Tensor& x);

/// LayerNorm over the last dimension with a gain `g` and no bias; eps by norm_eps.
class GainNormImpl : public torch::nn::Module {
 public:
  /// @param gain_shape shape of `g` in files: {D}, or {1, D, 1, 1} for the norm of a feature map
  explicit GainNormImpl(std::vector<int64_t> gain_shape, const NormLayout& layout = {});
  /// @param x [..., D]
  at::Tensor forward(const at::Tensor& x);

  at::Tensor g;

 private:
  bool by_max_;
};

/// Of tokens of that width.
std::shared_ptr<GainNormImpl> make_norm(int64_t width, const NormLayout& layout = {});

/// Convolutions of several kernel sizes side by side; their outputs are concatenated: half of the
/// width for the smallest kernel, then a quarter, ... and the remainder for the largest.
class CrossEmbedImpl : public torch::nn::Module {
 public:
  CrossEmbedImpl(int64_t in, int64_t out, std::vector<int64_t> kernels, int64_t stride);
  /// [B, in, H, W] -> [B, out, H / stride, W / stride]
  at::Tensor forward(const at::Tensor& x);

 private:
  std::vector<std::shared_ptr<ConvLayerImpl>> convs_;
};

/// Halves the side: pixels move into channels (channel slowest), then a 1x1 convolution.
class DownsampleImpl : public torch::nn::Module {
 public:
  DownsampleImpl(int64_t in, int64_t out);
  /// [B, in, H, W] -> [B, out, H/2, W/2]
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ConvLayerImpl> conv_;
};

/// Doubles the side: 1x1 convolution, SiLU, channels move into pixels. It starts as a nearest
/// enlargement: the four channels of a pixel square begin with the same weights.
class PixelShuffleUpsampleImpl : public torch::nn::Module {
 public:
  PixelShuffleUpsampleImpl(int64_t in, int64_t out);
  /// [B, in, H, W] -> [B, out, 2H, 2W]
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ConvLayerImpl> conv_;
};

/// Doubles the side: nearest enlargement, then a 3x3 convolution.
class NearestUpsampleImpl : public torch::nn::Module {
 public:
  NearestUpsampleImpl(int64_t in, int64_t out);
  /// [B, in, H, W] -> [B, out, 2H, 2W]
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ConvLayerImpl> conv_;
};

/// Sines and cosines of `t` at `dim` / 2 frequencies from 1 down to 1 / 10000. Computed in float32
/// at least: a timestep of 999 has no exact bfloat16.
/// @param t [B] floating point @return [B, dim], dtype of t
at::Tensor sinusoidal_embedding(const at::Tensor& t, int64_t dim);

}  // namespace dalle2
