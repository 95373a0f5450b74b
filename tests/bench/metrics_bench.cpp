// SPDX-License-Identifier: MIT
// Metrics of given pictures, timed: see metrics.py.
//
//   bench_metrics METRICS INCEPTION PICTURES     METRICS: fid, or fid,is,kid; PICTURES: safetensors with
//                                                real and generated [n, 3, h, w] uint8
//   bench_metrics distance FEATURES                the distance of given features [n, d], three times
#include <fmt/ranges.h>
#include <torch/types.h>

#include <iostream>

#include "checkpoint/archive/safetensors.h"
#include "checkpoint/state_dict.h"
#include "metrics/feature_metrics.h"
#include "metrics/image_metrics.h"

namespace dalle2 {
namespace {

constexpr int64_t kBatch = 50;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int measure(const std::string& metrics, const std::string& inception, const std::string& pictures) {
  DecoderEvaluateConfig config;
  config.resize = NetworkResize::antialias;  // as torchmetrics
  config.FID.emplace().feature_extractor_weights_path = inception;
  if (metrics != "fid") {
    config.IS.emplace();
    config.KID.emplace().subset_size = 50;
  }
  const SafetensorsFile file = read_safetensors(pictures);
  const at::Tensor& real = *find_tensor(file.tensors, "real");
  const at::Tensor& generated = *find_tensor(file.tensors, "generated");
  ImageMetrics all(config, real.size(-1), at::kCPU, /*seed=*/0);
  auto begin = std::chrono::steady_clock::now();
  for (int64_t first = 0; first < real.size(0); first += kBatch) {
    const int64_t count = std::min(kBatch, real.size(0) - first);
    const auto part = [&](const at::Tensor& of) {
      return of.narrow(0, first, count).to(at::kFloat) / 255;
    };
    all.update(at::arange(first, first + count, at::kLong), part(real), part(generated));
  }
  const double update = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  const MetricValues found = all.compute();
  std::cout << fmt::format("{{\"update\": {}, \"compute\": {}", update, seconds_since(begin));
  for (const auto& [name, value] : found.values) {
    std::cout << fmt::format(", \"{}\": {}", name, value);
  }
  std::cout << "}" << std::endl;
  return 0;
}

int measure_distance(const std::string& features) {
  const SafetensorsFile file = read_safetensors(features);
  const at::Tensor real = find_tensor(file.tensors, "real")->clone();
  const at::Tensor generated = find_tensor(file.tensors, "generated")->clone();
  std::vector<double> seconds;
  double distance = 0;
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    distance = frechet_distance(real, generated);
    seconds.push_back(seconds_since(begin));
  }
  std::cout << fmt::format("{{\"seconds\": [{}], \"FID\": {}}}", fmt::join(seconds, ", "), distance)
            << std::endl;
  return 0;
}

}  // namespace
}  // namespace dalle2

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "distance") return dalle2::measure_distance(argv[2]);
  if (argc != 4) {
    std::cerr << "usage: bench_metrics METRICS INCEPTION PICTURES | distance FEATURES\n";
    return 2;
  }
  return dalle2::measure(argv[1], argv[2], argv[3]);
}
