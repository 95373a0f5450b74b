// SPDX-License-Identifier: MIT
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "bench_times.h"
#include "benches.h"

namespace dalle2 {
namespace {

enum Row { kThree, kConvolutions, kProducts, kAttention, kNorms, kElementwise, kUpdate, kCalls };
constexpr std::array<const char*, 8> kRowNames = {"3x3 convolutions",
                                                  "other convolutions",
                                                  "products",
                                                  "attention",
                                                  "norms",
                                                  "elementwise and copies",
                                                  "update",
                                                  "calls"};

template <class Value>
bool is_any_of(const Value& value, std::initializer_list<Value> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

double product_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), 1.0, [](double a, int64_t b) { return a * double(b); });
}

/// A tensor that an operation reads or writes.
struct Use {
  const void* storage = nullptr;
  std::vector<int64_t> sizes;
  bool is_half = false;
  double bytes = 0;  ///< without what expand() repeats

  bool is_map() const { return sizes.size() == 4; }
  double pixels() const { return static_cast<double>(sizes[0] * sizes[2] * sizes[3]); }
};

void add_uses(const c10::IValue& value, std::vector<Use>& uses) {
  if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) add_uses(each, uses);
  }
  if (!value.isTensor() || !value.toTensor().defined()) return;
  const at::Tensor& t = value.toTensor();
  int64_t elements = 1;
  for (int64_t d = 0; d < t.dim(); ++d) elements *= t.stride(d) == 0 ? 1 : t.size(d);
  uses.push_back({t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr,
                  t.sizes().vec(),
                  t.scalar_type() == at::kBFloat16,
                  static_cast<double>(elements * t.element_size())});
}

/// An operation of a step: of the dispatcher, one of our kernels, or a node of autograd.
struct Operation {
  std::string name, overload;
  int outer = -1;
  bool is_dispatched = false;
  std::vector<Use> inputs, outputs;
  int whole = -1;  ///< the operation that counts, of which this one is a part, or it itself
  Row row = kCalls;

  bool is_ours() const { return name.rfind("dalle2::", 0) == 0; }

  /// Whether it does more than to look at a tensor in another way or to ask for memory.
  bool works() const {
    if (name.rfind("aten::", 0) != 0 && !is_ours()) return false;
    if (name.rfind("aten::empty", 0) == 0 || contains(name, "new_empty") ||
        is_any_of<std::string_view>(name, {"aten::resize_", "aten::set_", "aten::detach_"})) {
      return false;
    }
    if (name.back() == '_' || contains(overload, "out")) return true;
    return std::any_of(outputs.begin(), outputs.end(), [&](const Use& output) {
      return std::none_of(inputs.begin(), inputs.end(), [&](const Use& input) {
        return input.storage == output.storage;
      });
    });
  }

  /// Of a convolution: [out, in, k, k]
  const Use& filters() const {
    return is_ours() ? inputs.back() : inputs.at(contains(name, "backward") ? 2 : 1);
  }

  Row own_row() const {
    for (const char* const part :
         {"aten::conv", "dalle2::winograd", "dalle2::unfolded", "dalle2::wide"}) {
      if (contains(name, part)) return filters().sizes[2] == 3 ? kThree : kConvolutions;
    }
    if (contains(name, "scaled_dot_product") || contains(name, "softmax") || name == "aten::bmm")
      return kAttention;
    if (contains(name, "group_norm") || contains(name, "layer_norm") ||
        contains(name, "vector_norm"))
      return kNorms;
    if (is_any_of<std::string_view>(name, {"aten::mm", "aten::addmm", "aten::mv"}))
      return kProducts;
    return name == kUpdateScope ? kUpdate : kElementwise;
  }

  double flop() const {
    switch (own_row()) {
      case kThree:
      case kConvolutions:
        return convolution_flop();
      case kAttention:
        if (!contains(name, "scaled_dot_product")) break;
        return attention_flop(contains(name, "backward"));
      default:
        break;
    }
    const size_t first = name == "aten::addmm" ? 1 : 0;
    const bool multiplies =
        is_any_of<std::string_view>(name, {"aten::mm", "aten::addmm", "aten::mv", "aten::bmm"});
    if (!multiplies || outputs.empty()) return 0;
    return 2 * product_of(outputs[0].sizes) * static_cast<double>(inputs.at(first).sizes.back());
  }

  double bytes() const {
    const auto sum = [](const std::vector<Use>& uses) {
      return std::accumulate(
          uses.begin(), uses.end(), 0.0, [](double a, const Use& use) { return a + use.bytes; });
    };
    const double read = sum(inputs);
    if (contains(name, "adam_update_")) return 2 * read - inputs[0].bytes;  // not the gradients
    const bool overwrites =
        contains(overload, "out") ||
        is_any_of<std::string_view>(
            name, {"aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_"});
    return read + (overwrites ? 0 : sum(outputs));
  }

  std::string with_shapes() const {
    std::string found = name;
    for (const Use& use : inputs) found += " " + c10::str(at::IntArrayRef(use.sizes));
    return found;
  }

 private:
  double convolution_flop() const {
    const Use &map = inputs[0], &weights = filters();
    if (contains(name, "winograd")) {  // 36 products of a tile of 4x4 pixels
      const auto tiles = [](int64_t side) { return static_cast<double>((side + 3) / 4); };
      return 2 * 36 * static_cast<double>(map.sizes[0]) * tiles(map.sizes[2]) *
             tiles(map.sizes[3]) * product_of(weights.sizes) / 9;
    }
    const bool backward = contains(name, "backward");
    const double of_a_pixel = 2 * product_of(weights.sizes);
    if (is_ours()) return of_a_pixel * map.pixels() * (backward ? 2 : 1);
    // The pixels of the smaller map, which a transposed convolution reads and another one writes.
    const Use& other = backward ? inputs.at(1) : outputs.at(0);
    const auto results = std::count_if(
        outputs.begin(), outputs.end(), [](const Use& output) { return output.is_map(); });
    return of_a_pixel * std::min(map.pixels(), other.pixels()) * static_cast<double>(results);
  }

  double attention_flop(bool backward) const {
    const size_t first = backward ? 1 : 0;
    const std::vector<int64_t>& keys = inputs.at(first + 1).sizes;
    const double one = 2 * product_of(inputs[first].sizes) * static_cast<double>(keys.end()[-2]);
    return one * (backward ? 5 : 2);  // it computes the weights of the values again
  }
};

/// What LibTorch records of a piece of work.
class Recorder {
 public:
  /// The operations with the shapes of what they read and write, in the order in which they begin.
  static std::vector<Operation> survey(const std::function<void()>& work) {
    operations_.clear();
    open_ = -1;
    with_callbacks(&on_named_begin, &on_named_end, true, work);
    return std::move(operations_);
  }

  /// @param counts of each record, without those within one that counts, which are not made: whether it counts
  /// @param clocked false: only records @return processor seconds of each that counts
  static std::vector<double> times(const std::vector<bool>& counts,
                                   bool clocked,
                                   const std::function<void()>& work) {
    counts_ = counts;
    clocked_ = clocked;
    next_ = 0;
    wall_ = 0;
    times_.clear();
    with_callbacks(&on_begin, &on_end, false, work);
    if (next_ != counts.size()) throw std::runtime_error("two steps have not the same operations");
    return times_;
  }

 private:
  using Begin = std::unique_ptr<at::ObserverContext> (*)(const at::RecordFunction&);
  using End = void (*)(const at::RecordFunction&, at::ObserverContext*);

  static void with_callbacks(Begin begin, End end, bool named, const std::function<void()>& work) {
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end)
            .needsInputs(named)
            .needsOutputs(named)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
    work();
    at::removeCallback(handle);
  }

  static std::unique_ptr<at::ObserverContext> on_named_begin(const at::RecordFunction& function) {
    Operation found;
    found.name = function.name();
    if (const auto name = function.operator_name()) found.overload = name->overload_name;
    found.outer = open_;
    found.is_dispatched = function.scope() == at::RecordScope::FUNCTION;
    for (const c10::IValue& input : function.inputs()) add_uses(input, found.inputs);
    open_ = static_cast<int>(operations_.size());
    operations_.push_back(std::move(found));
    return nullptr;
  }

  static void on_named_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
    Operation& ended = operations_[static_cast<size_t>(open_)];
    for (const c10::IValue& output : function.outputs()) add_uses(output, ended.outputs);
    open_ = ended.outer;
  }

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& /*function*/) {
    is_open_ = next_ < counts_.size() && counts_[next_];
    ++next_;
    if (!is_open_) return nullptr;
    at::enableRecordFunction(false);
    if (clocked_) begin_ = now();
    return nullptr;
  }

  static void on_end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
    if (!is_open_) return;
    if (clocked_) times_.push_back(now() - begin_);
    at::enableRecordFunction(true);
    is_open_ = false;
  }

  /// Processor time. Its clock is a call of the system, which slows what follows; so only long times, in which other programs
  /// may have worked, are taken from it.
  static double now() {
    constexpr double kLong = 5e-4;
    const double wall = wall_seconds(), seconds = wall - wall_;
    now_ = seconds > kLong ? seconds_of(CLOCK_THREAD_CPUTIME_ID) : now_ + seconds;
    wall_ = seconds > kLong ? wall_seconds() : wall;
    return now_;
  }

  static inline std::vector<Operation> operations_;
  static inline int open_ = -1;
  static inline std::vector<bool> counts_;
  static inline std::vector<double> times_;
  static inline size_t next_ = 0;
  static inline bool clocked_ = false, is_open_ = false;
  static inline double begin_ = 0, now_ = 0, wall_ = 0;
};

/// Gives each operation its row. The outermost one that computes counts, unless it is of several rows.
void classify(std::vector<Operation>& operations) {
  std::vector<bool> is_mixed(operations.size());
  for (size_t i = operations.size(); i-- > 0;) {
    const Operation& each = operations[i];
    if (each.outer >= 0 && (is_mixed[i] || each.own_row() != kElementwise))
      is_mixed[static_cast<size_t>(each.outer)] = true;
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    Operation& each = operations[i];
    const int outer = each.outer < 0 ? -1 : operations[static_cast<size_t>(each.outer)].whole;
    const Row row = each.own_row();
    if (outer >= 0) {
      each.whole = outer;
    } else if (row != kElementwise || (each.works() && !is_mixed[i])) {
      each.whole = static_cast<int>(i);
      each.row = row;
    }
  }
}

struct Sums {
  double seconds = 0, flop = 0, bytes = 0, least = 0;
  int64_t calls = 0;

  void operator+=(const Sums& more) {
    seconds += more.seconds;
    flop += more.flop;
    bytes += more.bytes;
    least += more.least;
    calls += more.calls;
  }
  double gap() const { return seconds - least; }
};

/// Bytes a second of an addition, by the bytes of its three tensors, which lie in a cache that holds them.
std::map<double, double> measure_memory() {
  constexpr int64_t kOfARepeat = 1 << 22;
  std::map<double, double> found;
  for (int64_t bytes = 1 << 17; bytes <= 1 << 27; bytes *= 4) {
    const at::Tensor a = at::ones({bytes / 12}), b = at::ones({bytes / 12});
    at::Tensor c = at::ones({bytes / 12});
    const int64_t repeats = std::max<int64_t>(1, kOfARepeat / bytes);
    Times times;
    for (int i = 0; i < 40; ++i) {
      times.add([&] {
        for (int64_t k = 0; k < repeats; ++k) at::add_out(c, a, b);
      });
    }
    found[static_cast<double>(bytes)] = static_cast<double>(bytes * repeats) /
                                        *std::min_element(times.cpu.begin(), times.cpu.end());
  }
  return found;
}

double seconds_for(double bytes, const std::map<double, double>& memory) {
  double best = memory.rbegin()->second;
  for (auto rate = memory.lower_bound(bytes); rate != memory.end(); ++rate)
    best = std::max(best, rate->second);
  return bytes / best;
}

/// The mean over the faster half of the steps, of each of their times.
std::vector<double> mean_of_faster(std::vector<std::vector<double>> steps) {
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; });
  steps.resize((steps.size() + 1) / 2);
  std::vector<double> mean(steps[0].size());
  for (const std::vector<double>& step : steps) {
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += step[i] / static_cast<double>(steps.size());
  }
  return mean;
}

/// Processor seconds.
struct Measured {
  double step = 0;
  std::vector<double> counted;  ///< of each operation that counts
  double calls = 0;             ///< all else of a step with clocks, less what records cost
};

/// Steps alternate: as they are, recorded, and with clocks.
Measured measure(Bench& bench, int steps, const std::vector<bool>& counts) {
  std::vector<std::vector<double>> plain, recorded, clocked;
  for (int i = 0; i < steps; ++i) {
    Times times;
    std::vector<double> counted;
    times.add([&] { bench.step(); });
    times.add([&] { Recorder::times(counts, false, [&] { bench.step(); }); });
    times.add([&] { counted = Recorder::times(counts, true, [&] { bench.step(); }); });
    plain.push_back({times.cpu[0]});
    recorded.push_back({times.cpu[1]});
    counted.insert(counted.begin(), times.cpu[2]);
    clocked.push_back(counted);
  }
  std::vector<double> counted = mean_of_faster(clocked);
  Measured found;
  found.step = mean_of_faster(plain)[0];
  found.calls = counted[0] - (mean_of_faster(recorded)[0] - found.step);
  found.counted.assign(counted.begin() + 1, counted.end());
  for (const double each : found.counted) found.calls -= each;
  return found;
}

std::string row_text(const std::string& name, const Sums& sums, double step) {
  return fmt::format("| {} | {:.2f} | {:.1f} | {} | {:.2f} | {:.0f} | {:.2f} | {:.2f} | {:.1f} |\n",
                     name,
                     1e3 * sums.seconds,
                     1e2 * sums.seconds / step,
                     sums.calls,
                     1e-9 * sums.flop,
                     1e-6 * sums.bytes,
                     1e3 * sums.least,
                     1e3 * sums.gap(),
                     1e2 * sums.gap() / step);
}

}  // namespace

bool print_account(Bench& bench, int steps, const MachineRates& rates) {
  constexpr int kWarm = 3;
  constexpr size_t kLines = 30;
  constexpr double kMostLeft = 0.05;
  for (int i = 0; i < kWarm; ++i) bench.step();
  std::vector<Operation> operations = Recorder::survey([&] { bench.step(); });
  classify(operations);
  std::vector<bool> counts;
  for (size_t i = 0; i < operations.size(); ++i) {
    const bool is_whole = operations[i].whole == static_cast<int>(i);
    if (is_whole || operations[i].whole < 0) counts.push_back(is_whole);
  }
  const Measured measured = measure(bench, steps, counts);
  const std::map<double, double> memory = measure_memory();

  std::map<std::pair<Row, std::string>, Sums> lines;
  size_t number = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& each = operations[i];
    if (each.whole != static_cast<int>(i)) continue;
    Sums sums{measured.counted[number++], each.flop(), each.bytes(), 0, 1};
    for (size_t k = i + 1;
         each.row == kUpdate && k < operations.size() && operations[k].whole == each.whole;
         ++k) {
      if (operations[k].is_ours() || operations[k].own_row() == kNorms)
        sums.bytes += operations[k].bytes();
    }
    const bool in_half =
        !each.inputs.empty() && each.inputs.back().is_half && !contains(each.name, "winograd");
    sums.least = std::max(sums.flop / (in_half ? rates.in_half : rates.in_float),
                          seconds_for(sums.bytes, memory));
    lines[{each.row, each.with_shapes()}] += sums;
  }

  std::array<Sums, kRowNames.size()> rows;
  for (const auto& [line, sums] : lines) rows[line.first] += sums;
  rows[kCalls].seconds = measured.calls;
  Sums all;
  for (const Sums& row : rows) all += row;
  all.calls = rows[kCalls].calls =
      std::count_if(operations.begin(), operations.end(), [](const Operation& each) {
        return each.is_dispatched;
      });
  fmt::print("One thread; {:.0f} GFLOP/s in fp32, {:.0f} in bf16; memory, GB/s:",
             1e-9 * rates.in_float,
             1e-9 * rates.in_half);
  for (const auto& [bytes, rate] : memory)
    fmt::print(" {:.0f} for {:.1f} MB,", 1e-9 * rate, 1e-6 * bytes);
  fmt::print(
      "\n\n| | ms | % | calls | GFLOP | MB | least ms | gap ms | gap % |\n|---|---|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < rows.size(); ++i)
    fmt::print("{}", row_text(kRowNames[i], rows[i], measured.step));
  const double left = measured.step - all.seconds;
  fmt::print("{}", row_text("left over", {left}, measured.step));
  all.seconds = measured.step;
  fmt::print("{}\nThe largest gaps:\n", row_text("step", all, measured.step));
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [line, sums] : lines) {
    const std::string name = std::string(kRowNames[line.first]) + ": " + line.second;
    order.emplace_back(sums.gap(), row_text(name, sums, measured.step));
  }
  std::sort(order.rbegin(), order.rend());
  order.resize(std::min(order.size(), kLines));
  for (const auto& [gap, text] : order) fmt::print("{}", text);
  fmt::print("figure account.left_over = {:.3f}\n", left / measured.step);
  return std::abs(left) <= kMostLeft * measured.step;
}

}  // namespace dalle2
