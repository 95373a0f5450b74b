// SPDX-License-Identifier: MIT
// A config struct is declared once: `void fields(auto& f)` names each member with its doc line and
// its limits, the default is the member's initialiser. Visitors over it read, dump, document and
// describe.
//
//   struct SplitConfig {
//     double train = 0.75;
//     void fields(auto& f) { D2_FIELD(train, "Share of the shards to train on.", within(0, 1)); }
//   };
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
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
  using value_type = T;
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

/// Declares an enum whose values have the names in JSON that they have here.
#define D2_ENUM(Enum, ...)         \
  enum class Enum { __VA_ARGS__ }; \
  template <>                      \
  inline constexpr std::array enum_names<Enum> = {D2_AGAIN(D2_NAMES(__VA_ARGS__))}
// "a", "b", ...: each pass over the text takes the next name.
#define D2_NAMES(name, ...) #name __VA_OPT__(, D2_MORE_NAMES D2_NOTHING()(__VA_ARGS__))
#define D2_MORE_NAMES() D2_NAMES
#define D2_NOTHING
#define D2_AGAIN(...) D2_AGAIN2(D2_AGAIN2(D2_AGAIN2(__VA_ARGS__)))
#define D2_AGAIN2(...) D2_AGAIN1(D2_AGAIN1(D2_AGAIN1(__VA_ARGS__)))
#define D2_AGAIN1(...) __VA_ARGS__

D2_ENUM(LossType, l1, l2, huber);

D2_ENUM(BetaSchedule, cosine, linear, quadratic, jsd, sigmoid);

/// How the times of a training step are drawn.
D2_ENUM(TimestepScheme, uniform, logit_normal, mode);

/// What a sample's loss is weighted with by its noise level (Esser et al. 2024).
D2_ENUM(LossWeighting, none, sigma_sqrt, cosmap);

/// Whose rule the averaged weights follow: ema-pytorch's EMA or diffusers' EMAModel.
D2_ENUM(EmaKind, ema_pytorch, diffusers);

/// How the first matrix of a low-rank adapter begins; the second is zero.
D2_ENUM(LoraInit, gaussian, kaiming);

/// Types that a frozen network may be held in.
D2_ENUM(FrozenDtype, fp32, bf16, fp16);

/// Types in which gradients are added up over processes.
D2_ENUM(ReduceDtype, fp32, bf16);

/// Types of what is trained: moments and averages are float32 too.
D2_ENUM(TrainableDtype, fp32);

/// Arithmetic of matrix products and convolutions; weights, gradients, moments and averages are
/// float32 in any case.
D2_ENUM(MixedPrecision, no, fp16, bf16);

/// Where float32 on an NVIDIA GPU is TF32.
D2_ENUM(Tf32, no, convolutions, all);

/// What a run does after too many updates that had to be skipped.
D2_ENUM(NonFiniteAction, stop, roll_back);

/// Red, green and blue, 0 to 255; in JSON "white", "black" or a list of three.
struct Colour {
  std::array<int64_t, 3> rgb = {255, 255, 255};
  bool operator==(const Colour&) const = default;
};

/// What a unet predicts: the noise, the clean image, or v (Salimans & Ho 2022).
enum class Objective { eps, x_start, v };

/// Upper limits of the counts in a config: far above what anybody trains, so that a slip of the pen is a
/// message and not a machine without memory.
namespace most {

inline constexpr double kTimesteps = 100'000;        ///< of a noise schedule, and when sampling
inline constexpr double kDim = 16'384;               ///< base width of a network
inline constexpr double kWidth = 65'536;             ///< of embeddings, conditions, channels
inline constexpr double kDimMult = 1'024;            ///< width of a resolution in base widths
inline constexpr double kLayers = 1'024;             ///< of a network, or of one of its resolutions
inline constexpr double kHeads = 1'024;              ///< of an attention
inline constexpr double kHeadWidth = 4'096;          ///< of an attention
inline constexpr double kTokens = 65'536;            ///< of a text, or made from a condition
inline constexpr double kKernel = 1'023;             ///< side of a kernel, pixels
inline constexpr double kImageSide = 16'384;         ///< of a picture that a network sees, pixels
inline constexpr double kBatch = 1'048'576;          ///< samples at once
inline constexpr double kGroup = 65'536;             ///< batches of an update
inline constexpr double kRanks = 65'536;             ///< processes of a run
inline constexpr double kThreads = 1'024;            ///< that load data
inline constexpr double kBuffer = 10'000'000;        ///< samples held in memory
inline constexpr double kPictures = 65'536;          ///< drawn for the logs
inline constexpr double kEpochs = 1e9;               ///< and other events of a run
inline constexpr double kSteps = 1e12;               ///< of an optimizer
inline constexpr double kSamples = 1e15;             ///< seen in a run, or numbers of shards
inline constexpr double kSeconds = 1e12;             ///< between two events
inline constexpr double kImagePixels = 178'956'970;  ///< Pillow's limit of a picture

}  // namespace most

/// What a value has to satisfy beyond its type. In lists the numeric limits hold for each entry.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;   ///< `low` itself is not allowed
  bool high_open = false;  ///< `high` itself is not allowed
  bool not_empty_ = false;
  size_t most = 0;              ///< entries of a list at most; 0 is any
  size_t least = 0;             ///< entries of a list at least
  bool false_is_null_ = false;  ///< false switches an optional value off, as null does
  bool one_is_list_ = false;    ///< a single value is a list of one
  bool fetched_ =
      false;  ///< a path of this machine, `http(s):`, `s3:`, `hf:` or `pipe:`; others cannot be read
  size_t numbered_words = 0;        ///< an integer below it stands for the word of that index
  std::vector<std::string> words;   ///< the values that a string may have
  bool placeholders_ = false;       ///< a target that may hold the placeholders of the kind of run
  const char* other_key = nullptr;  ///< a required value gives way to the value of this key ...
  bool other_given = false;         ///< ... which is given
  /// What is wrong with a text, for forms that the rest cannot say; nothing if it is right.
  std::optional<std::string> (*text_fault_)(const std::string&) = nullptr;

  Limits up_to(double value) && { return high = value, std::move(*this); }
  Limits below(double value) && { return high = value, high_open = true, std::move(*this); }
  Limits entries(size_t count) && { return least = most = count, std::move(*this); }
  Limits entries(size_t at_least, size_t at_most) && {
    return least = at_least, most = at_most, std::move(*this);
  }
  Limits not_empty() && { return not_empty_ = true, std::move(*this); }
  Limits fetched() && { return fetched_ = true, std::move(*this); }
  Limits one_is_list() && { return one_is_list_ = true, std::move(*this); }
  Limits index_is_word(size_t count) && { return numbered_words = count, std::move(*this); }
  Limits placeholders() && { return placeholders_ = true, std::move(*this); }
  Limits or_else(const char* key, bool is_given) && {
    return other_key = key, other_given = is_given, std::move(*this);
  }
};

inline Limits any_value() {
  return {};
}
inline Limits at_least(double value) {
  Limits limits;
  limits.low = value;
  return limits;
}
inline Limits above(double value) {
  Limits limits = at_least(value);
  limits.low_open = true;
  return limits;
}
inline Limits within(double low, double high) {
  return at_least(low).up_to(high);
}
inline Limits not_empty() {
  return Limits{}.not_empty();
}
inline Limits one_of(std::vector<std::string> words) {
  Limits limits;
  limits.words = std::move(words);
  return limits;
}
/// A text in which `fault` finds nothing wrong.
inline Limits text_without(std::optional<std::string> (*fault)(const std::string&)) {
  Limits limits = not_empty();
  limits.text_fault_ = fault;
  return limits;
}
/// A path, or false or null for none.
inline Limits path_or_off(std::optional<std::string> (*fault)(const std::string&) = nullptr) {
  Limits limits = text_without(fault);
  limits.false_is_null_ = true;
  return limits;
}

/// What becomes of a key that a section does not know. One near a known key is an error in any
/// case.
enum class UnknownKeys { warn, fatal };

/// A JSON object that is passed on as it is.
struct RawJson {
  std::string text;
  bool operator==(const RawJson&) const = default;
};

/// Names a member for every visitor; the JSON key is the member's name.
#define D2_FIELD(member, ...) f.field(#member, member, __VA_ARGS__)
/// The same for a member without a default.
#define D2_REQUIRED(member, ...) f.required(#member, member, __VA_ARGS__)

/// A key that other kinds have and this one has not: an error, with this text.
struct RefusedKey {
  const char* key;
  const char* text;
};

/// A visitor that only looks at the fields.
struct IgnoresRules {
  void check(bool, const std::string&, const std::string&) {}
  void rule(const std::string&, const std::optional<std::string>&) {}
  void note(bool, const std::string&, const std::string&) {}
};

struct FieldsProbe {};
/// A struct that declares its members with `fields`.
template <class T>
concept Reflected = requires(T& value, FieldsProbe& probe) {
  value.fields(probe);
};

/// How the alternatives of a std::variant are told apart: by the tag at `key` of the object; specialised
/// beside each variant.
template <class Variant>
struct TagTraits;

/// Whether T is an instance of a template, such as std::vector.
template <class T, template <class...> class Of>
inline constexpr bool is_of = false;
template <class... T, template <class...> class Of>
inline constexpr bool is_of<Of<T...>, Of> = true;

template <class T>
inline constexpr bool takes_null = OptionalTraits<T>::is_optional;
template <class T>
inline constexpr bool takes_null<OneOrMany<T>> = OptionalTraits<T>::is_optional;

/// "64" is the number 64 in JSON.
inline bool is_number_name(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

/// The names of E as JSON: `"l1" "l2"`.
template <class E>
std::string enum_list() {
  std::string text;
  for (const char* name : enum_names<E>) {
    text += text.empty() ? "" : " ";
    text += is_number_name(name) ? name : fmt::format("\"{}\"", name);
  }
  return text;
}

inline std::string word_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += fmt::format("{}\"{}\"", text.empty() ? "" : " ", word);
  }
  return text;
}

/// What a value of T has to be: "an integer", "one of "l1" "l2"", "a list".
template <class T>
std::string expectation(const Limits& limits) {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, int64_t>)
    return "an integer";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else if constexpr (std::is_same_v<T, std::string>) {
    if (!limits.words.empty()) return "one of " + word_list(limits.words);
    return limits.false_is_null_ ? "a path, or false or null for none" : "a string";
  } else if constexpr (std::is_same_v<T, Colour>)
    return "\"white\", \"black\" or a list of three integers from 0 to 255";
  else if constexpr (std::is_enum_v<T>)
    return "one of " + enum_list<T>();
  else if constexpr (is_of<T, std::vector>)
    return "a list";
  else if constexpr (is_of<T, OneOrMany>)
    return fmt::format("{} or a list", expectation<typename T::value_type>(limits));
  else if constexpr (OptionalTraits<T>::is_optional)
    return expectation<typename OptionalTraits<T>::Value>(limits);
  else
    return "an object";
}

}  // namespace dalle2
