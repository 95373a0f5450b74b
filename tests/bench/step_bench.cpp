// SPDX-License-Identifier: MIT
// Steps of training and calls of sampling on tensors in memory, for decoder_steps.py, prior_steps.py and
// decoder_samples.py.
//
//   bench_step CONFIG no|bf16 STEPS [THREADS]   prints the figures of a training step, as JSON: one update of each
//                                               unet of a decoder, or of a prior
//   bench_step CONFIG no|bf16 STEPS THREADS profile|shapes   where the time goes, by operation (and the shapes of its inputs)
//   bench_step sample CONFIG GIVEN SAMPLES no|bf16 TIMESTEPS COND_SCALE CALLS THREADS [profile|shapes]   the same of a call of a
//                                               decoder's sampling; benches.h has the files
//   bench_step peaks no|bf16 THREADS            operations a second of a product and of a 3x3 convolution
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench_times.h"
#include "benches.h"
#include "support/host_counts.h"

namespace dalle2 {
namespace {

using nlohmann::json;

json peaks(bool bf16, int threads) {
  at::set_num_threads(threads);
  const torch::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(bf16 ? at::kBFloat16 : at::kFloat);
  constexpr int64_t kSide = 1024, kChannels = 128, kPixels = 64 * 64, kBatch = 4;
  const at::Tensor a = at::randn({kSide, kSide}, options), b = at::randn({kSide, kSide}, options);
  const at::Tensor x = at::randn({kBatch, kChannels, 64, 64}, options);
  const at::Tensor w = at::randn({kChannels, kChannels, 3, 3}, options);
  Times product, convolution;
  for (int i = 0; i < 15; ++i) {
    product.add([&] { at::mm(a, b); });
    convolution.add([&] { at::conv2d(x, w, {}, 1, 1); });
  }
  const double of_product = 2.0 * kSide * kSide * kSide;
  const double of_convolution = 2.0 * kBatch * kPixels * kChannels * kChannels * 9;
  const auto best = [](const std::vector<double>& times) {
    return *std::min_element(times.begin(), times.end());
  };
  return {{"gemm_gflops", 1e-9 * of_product / best(product.wall)},
          {"conv_gflops", 1e-9 * of_convolution / best(convolution.wall)}};
}

/// Processor time of each operation on this thread, without that of the operations it calls.
class SelfTimes {
 public:
  struct Call : at::ObserverContext {
    std::string name;
    double begin = 0, within = 0;
    Call* outer = nullptr;
  };

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
    auto call = std::make_unique<Call>();
    call->name = name_of(function);  // its inputs are gone at the end
    call->outer = open_;
    open_ = call.get();
    call->begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return call;
  }

  static void on_end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
    auto* const call = static_cast<Call*>(context);
    const double seconds = seconds_of(CLOCK_THREAD_CPUTIME_ID) - call->begin;
    auto& [total, count] = times_[call->name];
    total += seconds - call->within;
    ++count;
    open_ = call->outer;
    if (open_ != nullptr) open_->within += seconds;
  }

  static void print(int steps) {
    std::vector<std::pair<double, std::string>> rows;
    double all = 0;
    for (const auto& [name, time] : times_) {
      rows.emplace_back(time.first, name);
      all += time.first;
    }
    std::sort(rows.rbegin(), rows.rend());
    fmt::print("{:>9} {:>6} {:>7}\n", "ms", "%", "calls");
    for (const auto& [seconds, name] : rows) {
      if (seconds < 0.003 * all) break;
      fmt::print("{:9.2f} {:6.1f} {:7} {}\n",
                 1e3 * seconds / steps,
                 1e2 * seconds / all,
                 times_[name].second / steps,
                 name);
    }
    fmt::print("{:9.2f}  all\n", 1e3 * all / steps);
  }

  static inline bool with_shapes = false;

 private:
  static std::string name_of(const at::RecordFunction& function) {
    std::string name = function.name();
    if (!with_shapes) return name;
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor() && input.toTensor().defined())
        name += " " + c10::str(input.toTensor().sizes());
    }
    return name;
  }

  static inline Call* open_ = nullptr;
  static inline std::map<std::string, std::pair<double, int>> times_;
};

void profile(Bench& bench, int steps) {
  bench.step();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&SelfTimes::on_begin, &SelfTimes::on_end)
          .needsInputs(SelfTimes::with_shapes)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  for (int i = 0; i < steps; ++i) bench.step();
  at::removeCallback(handle);
  SelfTimes::print(steps);
}

json figures(Bench& bench, int skipped, int steps) {
  Times times;
  for (int i = 0; i < steps + skipped; ++i) {
    if (i < skipped) {
      bench.step();
    } else {
      times.add([&] { bench.step(); });
    }
  }
  const test::HostCounts counts = test::host_counts_of([&] { bench.step(); });
  return {{"wall_ms", 1e3 * median(times.wall)},
          {"cpu_ms", 1e3 * median(times.cpu)},
          {"operations", counts.operations},
          {"allocations", counts.allocations},
          {"peak_mib", static_cast<double>(counts.peak_bytes) / (1 << 20)}};
}

/// @param how profile or shapes; else the figures are printed
void measure(Bench& bench, int skipped, int steps, const std::string& how) {
  if (how.empty()) {
    std::cout << figures(bench, skipped, steps) << "\n";
  } else {
    SelfTimes::with_shapes = how == "shapes";
    profile(bench, steps);
  }
  bench.finish();
}

int run(const std::vector<std::string>& arguments) {
  const auto argument = [&](size_t place) {
    return place < arguments.size() ? arguments[place] : std::string();
  };
  constexpr size_t kOfSampling = 9;  // arguments without how to measure
  const bool samples = argument(0) == "sample";
  if (arguments.size() < (samples ? kOfSampling : 3)) {
    std::cerr << "usage: bench_step CONFIG|peaks no|bf16 STEPS [THREADS [profile|shapes]]\n"
                 "       bench_step sample CONFIG GIVEN SAMPLES no|bf16 TIMESTEPS COND_SCALE CALLS "
                 "THREADS [profile|shapes]\n";
    return 2;
  }
  if (samples) {
    at::set_num_threads(std::stoi(arguments[8]));
    const auto bench = make_sampling_bench({.config_path = arguments[1],
                                            .given_path = arguments[2],
                                            .samples_path = arguments[3],
                                            .timesteps = std::stoi(arguments[5]),
                                            .cond_scale = std::stod(arguments[6]),
                                            .bf16 = arguments[4] == "bf16"});
    measure(*bench, /*skipped=*/1, std::stoi(arguments[7]), argument(kOfSampling));
    return 0;
  }
  const bool bf16 = arguments[1] == "bf16";
  if (arguments[0] == "peaks") {
    std::cout << peaks(bf16, std::stoi(arguments[2])) << "\n";
    return 0;
  }
  at::set_num_threads(arguments.size() > 3 ? std::stoi(arguments[3]) : 2);
  const auto bench = make_training_bench(arguments[0], bf16);
  measure(*bench, /*skipped=*/2, std::stoi(arguments[2]), argument(4));
  return 0;
}

}  // namespace
}  // namespace dalle2

int main(int argc, char** argv) {
  return dalle2::run({argv + 1, argv + argc});
}
