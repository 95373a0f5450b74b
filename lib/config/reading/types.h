// SPDX-License-Identifier: MIT
// Value types of the configuration.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dalle2 {

template <class T>
struct OptionalTraits {
  static constexpr bool is_optional = false;
  using Value = T;
};
template <class T>
struct OptionalTraits<std::optional<T>> {
  static constexpr bool is_optional = true;
  using Value = T;
};

/// A value, or one for each unet (or resolution): `1e-4` or `[1e-4, 2e-4]` in JSON. Of an optional
/// T the whole may be null, and so may each entry.
template <class T>
class OneOrMany {
 public:
  using Value = typename OptionalTraits<T>::Value;
  static constexpr bool is_optional = OptionalTraits<T>::is_optional;

  OneOrMany(T value)
      : values_{std::move(value)}, is_one_(true) {}  // NOLINT(google-explicit-constructor)
  OneOrMany(std::vector<T> values) : values_(std::move(values)), is_one_(false) {}  // NOLINT
  OneOrMany(std::nullopt_t) requires is_optional : OneOrMany(T()) {}                // NOLINT
  OneOrMany(Value value) requires is_optional : OneOrMany(T(std::move(value))) {}   // NOLINT
  OneOrMany(const std::vector<Value>& values) requires is_optional                  // NOLINT
      : OneOrMany(std::vector<T>(values.begin(), values.end())) {}

  /// True if it was given as a single value.
  bool is_one() const { return is_one_; }
  /// How many values were given: 1 for a single value.
  size_t size() const { return values_.size(); }
  const std::vector<T>& values() const { return values_; }
  /// The value for `index`: the single one, or the array's entry (std::out_of_range past its end).
  T at(size_t index) const { return is_one_ ? values_[0] : values_.at(index); }

  bool operator==(const OneOrMany&) const = default;

 private:
  std::vector<T> values_;
  bool is_one_;
};

/// An option that has one value a run, beside those that have one or many (see train_options.h).
template <class T>
using Single = T;

/// The value of an option for network `index` of a run, whether or not each may have its own.
template <class T>
T value_for(const T& value, size_t /*index*/) {
  return value;
}
template <class T>
T value_for(const OneOrMany<T>& value, size_t index) {
  return value.at(index);
}

/// The JSON names of an enum's values, in the order of their declaration.
template <class E>
inline constexpr std::array<const char*, 0> enum_names{};

enum class LossType { l1, l2, huber };
template <>
inline constexpr std::array enum_names<LossType> = {"l1", "l2", "huber"};

enum class BetaSchedule { cosine, linear, quadratic, jsd, sigmoid };
template <>
inline constexpr std::array enum_names<BetaSchedule> = {
    "cosine", "linear", "quadratic", "jsd", "sigmoid"};

/// How the times of a training step are drawn.
enum class TimestepScheme { uniform, logit_normal, mode };
template <>
inline constexpr std::array enum_names<TimestepScheme> = {"uniform", "logit_normal", "mode"};

/// What a sample's loss is weighted with by its noise level (Esser et al. 2024).
enum class LossWeighting { none, sigma_sqrt, cosmap };
template <>
inline constexpr std::array enum_names<LossWeighting> = {"none", "sigma_sqrt", "cosmap"};

/// Whose rule the averaged weights follow: ema-pytorch's EMA or diffusers' EMAModel.
enum class EmaKind { ema_pytorch, diffusers };
template <>
inline constexpr std::array enum_names<EmaKind> = {"ema_pytorch", "diffusers"};

/// How the first matrix of a low-rank adapter begins; the second is zero.
enum class LoraInit { gaussian, kaiming };
template <>
inline constexpr std::array enum_names<LoraInit> = {"gaussian", "kaiming"};

/// Types that a frozen network may be held in.
enum class FrozenDtype { fp32, bf16, fp16 };
template <>
inline constexpr std::array enum_names<FrozenDtype> = {"fp32", "bf16", "fp16"};

/// Types in which gradients are added up over processes.
enum class ReduceDtype { fp32, bf16 };
template <>
inline constexpr std::array enum_names<ReduceDtype> = {"fp32", "bf16"};

/// Types of what is trained: moments and averages are float32 too.
enum class TrainableDtype { fp32 };
template <>
inline constexpr std::array enum_names<TrainableDtype> = {"fp32"};

/// Arithmetic of matrix products and convolutions; weights, gradients, moments and averages are
/// float32 in any case.
enum class MixedPrecision { no, fp16, bf16 };
template <>
inline constexpr std::array enum_names<MixedPrecision> = {"no", "fp16", "bf16"};

/// Where float32 on an NVIDIA GPU is TF32.
enum class Tf32 { no, convolutions, all };
template <>
inline constexpr std::array enum_names<Tf32> = {"no", "convolutions", "all"};

/// What a run does after too many updates that had to be skipped.
enum class NonFiniteAction { stop, roll_back };
template <>
inline constexpr std::array enum_names<NonFiniteAction> = {"stop", "roll_back"};

/// Red, green and blue, 0 to 255; in JSON "white", "black" or a list of three.
struct Colour {
  std::array<int64_t, 3> rgb = {255, 255, 255};
  bool operator==(const Colour&) const = default;
};

/// What a unet predicts: the noise, the clean image, or v (Salimans & Ho 2022).
enum class Objective { eps, x_start, v };

}  // namespace dalle2
