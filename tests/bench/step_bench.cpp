// SPDX-License-Identifier: MIT
// Steps of a decoder's training on tensors in memory, for decoder_steps.py.
//
//   bench_step CONFIG no|bf16 STEPS [THREADS]   prints the figures of a step, as JSON; a step is one update of each unet
//   bench_step CONFIG no|bf16 STEPS THREADS profile|shapes   where the time goes, by operation (and the shapes of its inputs)
//   bench_step peaks no|bf16 THREADS            operations a second of a product and of a 3x3 convolution
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/random.h"
#include "support/host_counts.h"
#include "trainer/decoder_trainer.h"

namespace dalle2 {
namespace {

using nlohmann::json;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of all threads of the process.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Times {
  std::vector<double> wall, cpu;

  void add(const std::function<void()>& work) {
    const double wall_begin = wall_seconds(), cpu_begin = cpu_seconds();
    work();
    wall.push_back(wall_seconds() - wall_begin);
    cpu.push_back(cpu_seconds() - cpu_begin);
  }
};

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

class Bench {
 public:
  Bench(const std::string& path, bool bf16) {
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    LoadedDecoderConfig loaded = parse_decoder_config(text, path, {});
    loaded.config.train.mixed_precision = bf16 ? MixedPrecision::bf16 : MixedPrecision::no;
    torch::manual_seed(0);
    Decoder decoder(loaded.plan);
    trainer_ = std::make_unique<DecoderTrainer>(decoder, loaded.config.train, at::kCPU);
    const json config = json::parse(text);
    const json& unet = config["decoder"]["unets"][0];
    const auto batch = config["data"]["batch_size"].get<int64_t>();
    const int64_t side = config["decoder"].contains("image_size")
                             ? config["decoder"]["image_size"].get<int64_t>()
                             : config["decoder"]["image_sizes"].back().get<int64_t>();
    inputs_.images = at::rand({batch, 3, side, side});
    inputs_.image_embeds = at::randn({batch, unet["image_embed_dim"].get<int64_t>()});
    if (unet.contains("text_embed_dim")) {
      inputs_.text_encodings = at::randn({batch, 77, unet["text_embed_dim"].get<int64_t>()});
    }
  }

  void step() {
    ++number_;
    for (int64_t unet = 1; unet <= trainer_->num_unets(); ++unet) {
      trainer_->step(inputs_, unet, make_generator({0, "train", 0, number_}, at::kCPU));
      trainer_->update(unet);
    }
  }

 private:
  std::unique_ptr<DecoderTrainer> trainer_;
  DecoderInputs inputs_;
  int64_t number_ = 0;
};

/// Processor time of each operation on this thread, without that of the operations it calls.
class SelfTimes {
 public:
  static double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

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
    call->begin = thread_seconds();
    return call;
  }

  static void on_end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
    auto* const call = static_cast<Call*>(context);
    const double seconds = thread_seconds() - call->begin;
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

json figures(Bench& bench, int steps) {
  constexpr int kSkipped = 2;
  Times times;
  for (int i = 0; i < steps + kSkipped; ++i) {
    if (i < kSkipped) {
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

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) {
    std::cerr << "usage: bench_step CONFIG|peaks no|bf16 STEPS [THREADS [profile|shapes]]\n";
    return 2;
  }
  const bool bf16 = arguments[1] == "bf16";
  if (arguments[0] == "peaks") {
    std::cout << peaks(bf16, std::stoi(arguments[2])) << "\n";
    return 0;
  }
  at::set_num_threads(arguments.size() > 3 ? std::stoi(arguments[3]) : 2);
  Bench bench(arguments[0], bf16);
  if (arguments.size() > 4) {
    SelfTimes::with_shapes = arguments[4] == "shapes";
    profile(bench, std::stoi(arguments[2]));
  } else {
    std::cout << figures(bench, std::stoi(arguments[2])) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace dalle2

int main(int argc, char** argv) {
  return dalle2::run({argv + 1, argv + argc});
}
