// SPDX-License-Identifier: MIT
// Steps of training and calls of sampling on tensors in memory, for decoder_steps.py, prior_steps.py and
// decoder_samples.py.
//
//   bench_step CONFIG no|bf16 STEPS [THREADS]   prints the figures of a training step, as JSON: one update of each
//                                               unet of a decoder, or of a prior
//   bench_step CONFIG no|bf16 STEPS 1 account   where its time goes, and the least that the machine needs
//   bench_step CONFIG no|bf16 serve THREADS     for each line with a number of seconds, steps for so long and prints the
//                                               fastest; at the end of its input, the other figures
//   bench_step sample CONFIG GIVEN SAMPLES no|bf16 TIMESTEPS COND_SCALE CALLS THREADS [account]   the same of a call of a
//                                               decoder's sampling; benches.h has the files
//   bench_step peaks no|bf16 THREADS            operations a second of a product and of a 3x3 convolution
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>

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
  for (const double end = wall_seconds() + 5; product.wall.size() < 15 && wall_seconds() < end;) {
    product.add([&] { at::mm(a, b); });
    convolution.add([&] { at::conv2d(x, w, {}, 1, 1); });
  }
  const double of_product = 2.0 * kSide * kSide * kSide;
  const double of_convolution = 2.0 * kBatch * kPixels * kChannels * kChannels * 9;
  const auto best = [&](const Times& times) {
    const std::vector<double>& seconds = threads == 1 ? times.cpu : times.wall;
    return *std::min_element(seconds.begin(), seconds.end());
  };
  return {{"gemm_gflops", 1e-9 * of_product / best(product)},
          {"conv_gflops", 1e-9 * of_convolution / best(convolution)}};
}

json counts_of(Bench& bench) {
  const test::HostCounts counts = test::host_counts_of([&] { bench.step(); });
  return {{"operations", counts.operations},
          {"allocations", counts.allocations},
          {"peak_mib", static_cast<double>(counts.peak_bytes) / (1 << 20)}};
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
  json found = counts_of(bench);
  found["wall_ms"] = 1e3 * median(times.wall);
  found["cpu_ms"] = 1e3 * median(times.cpu);
  return found;
}

void serve(Bench& bench) {
  constexpr int kSkipped = 2;
  for (int i = 0; i < kSkipped; ++i) bench.step();
  std::cout << "{}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const double end = wall_seconds() + std::stod(line);
    Times times;
    do {
      times.add([&] { bench.step(); });
    } while (wall_seconds() < end);
    const json found = {{"wall_ms", 1e3 * *std::min_element(times.wall.begin(), times.wall.end())},
                        {"cpu_ms", 1e3 * *std::min_element(times.cpu.begin(), times.cpu.end())}};
    std::cout << found << std::endl;
  }
  std::cout << counts_of(bench) << std::endl;
}

/// @param how account, or nothing: the figures are printed. @return the exit code
int measure(Bench& bench, int skipped, int steps, bool bf16, const std::string& how) {
  bool is_whole = true;
  if (how == "account") {
    const auto fastest = [](bool in_half) {
      const json found = peaks(in_half, 1);
      return 1e9 * std::max(found["gemm_gflops"].get<double>(), found["conv_gflops"].get<double>());
    };
    is_whole = print_account(bench, steps, {fastest(false), bf16 ? fastest(true) : 0.0});
  } else {
    std::cout << figures(bench, skipped, steps) << "\n";
  }
  bench.finish();
  return is_whole ? 0 : 1;
}

int run(const std::vector<std::string>& arguments) {
  const auto argument = [&](size_t place) {
    return place < arguments.size() ? arguments[place] : std::string();
  };
  constexpr size_t kOfSampling = 9;  // arguments without how to measure
  const bool samples = argument(0) == "sample";
  if (arguments.size() < (samples ? kOfSampling : 3)) {
    std::cerr << "usage: bench_step CONFIG|peaks no|bf16 STEPS|serve [THREADS [account]]\n"
                 "       bench_step sample CONFIG GIVEN SAMPLES no|bf16 TIMESTEPS COND_SCALE CALLS "
                 "THREADS [account]\n";
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
    return measure(*bench,
                   /*skipped=*/1,
                   std::stoi(arguments[7]),
                   arguments[4] == "bf16",
                   argument(kOfSampling));
  }
  const bool bf16 = arguments[1] == "bf16";
  if (arguments[0] == "peaks") {
    std::cout << peaks(bf16, std::stoi(arguments[2])) << "\n";
    return 0;
  }
  at::set_num_threads(arguments.size() > 3 ? std::stoi(arguments[3]) : 2);
  const auto bench = make_training_bench(arguments[0], bf16);
  if (arguments[2] == "serve") {
    serve(*bench);
    return 0;
  }
  return measure(*bench, /*skipped=*/2, std::stoi(arguments[2]), bf16, argument(4));
}

}  // namespace
}  // namespace dalle2

int main(int argc, char** argv) {
  return dalle2::run({argv + 1, argv + argc});
}
