// SPDX-License-Identifier: MIT
#include "io/pictures/resample.h"

#include <algorithm>
#include <cmath>

namespace dalle2 {
namespace {

constexpr double kPi = 3.14159265358979323846;

double box_filter(double x) {
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

double triangle_filter(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double hamming_filter(double x) {
  x = std::abs(x);
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x *= kPi;
  return std::sin(x) / x * (0.54 + 0.46 * std::cos(x));
}

double cubic_filter(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= kPi;
  return std::sin(x) / x;
}

double lanczos_filter(double x) {
  return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct Filter {
  double (*weight)(double);
  double support;
};

Filter filter_of(Interpolation mode) {
  switch (mode) {
    case Interpolation::kBox:
      return {box_filter, 0.5};
    case Interpolation::kHamming:
      return {hamming_filter, 1.0};
    case Interpolation::kBicubic:
      return {cubic_filter, 2.0};
    case Interpolation::kLanczos:
      return {lanczos_filter, 3.0};
    case Interpolation::kBilinear:
    case Interpolation::kNearest:
      break;
  }
  return {triangle_filter, 1.0};
}

/// The weights of one output pixel as shares of 1, then in fixed point.
void fix_weights(std::vector<double>& exact, size_t count, double sum, int32_t* weights) {
  for (size_t k = 0; k < count; ++k) {
    const double weight = (sum != 0.0 ? exact[k] / sum : exact[k]) * (1 << kFractionBits);
    weights[k] = static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
  }
}

}  // namespace

Taps make_taps(int in_size, double begin, double end, int out_size, Interpolation mode) {
  const Filter filter = filter_of(mode);
  const double scale = (end - begin) / out_size;
  const double filter_scale = std::max(scale, 1.0);  // shrinking widens the filter
  const double support = filter.support * filter_scale;
  const double inverse_scale = 1.0 / filter_scale;
  Taps taps;
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.most = (most + 3) / 4 * 4;
  taps.first.resize(static_cast<size_t>(out_size));
  taps.count.resize(static_cast<size_t>(out_size));
  taps.weights.resize(static_cast<size_t>(out_size) * static_cast<size_t>(taps.most));
  std::vector<double> exact(static_cast<size_t>(taps.most));
  for (int i = 0; i < out_size; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int last = std::min(static_cast<int>(centre + support + 0.5), in_size);
    const size_t count = static_cast<size_t>(std::max(last - first, 0));
    double sum = 0.0;
    for (size_t k = 0; k < count; ++k) {
      exact[k] = filter.weight((static_cast<int>(k) + first - centre + 0.5) * inverse_scale);
      sum += exact[k];
    }
    const size_t row = static_cast<size_t>(i);
    fix_weights(exact, count, sum, taps.weights.data() + row * static_cast<size_t>(taps.most));
    taps.first[row] = first;
    taps.count[row] = static_cast<int>(count);
  }
  return taps;
}

// Pillow adds the step up instead of multiplying, and so do we.
std::vector<int> nearest_pixels(int in_size, double begin, double end, int out_size) {
  const double step = (end - begin) / out_size;
  std::vector<int> pixels(static_cast<size_t>(out_size));
  double position = begin + step * 0.5;
  for (int& pixel : pixels) {
    pixel = std::clamp(static_cast<int>(position), 0, in_size - 1);
    position += step;
  }
  return pixels;
}

}  // namespace dalle2
