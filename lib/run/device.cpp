// SPDX-License-Identifier: MIT
#include "run/device.h"

#include <torch/cuda.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

constexpr size_t kMostDigits = 4;

/// N of "cuda:N"; none of "cuda". @throws ConfigError for anything else
std::optional<int64_t> gpu_number(const std::string& name, const std::string& pointer) {
  if (name == "cuda") return std::nullopt;
  const std::string digits = name.starts_with("cuda:") ? name.substr(5) : "";
  const bool good =
      !digits.empty() && digits.size() <= kMostDigits &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!good) {
    throw ConfigError("{}: expected \"cpu\", \"cuda\" or \"cuda:N\", got \"{}\"", pointer, name);
  }
  return std::stoll(digits);
}

}  // namespace

at::Device choose_device(const std::string& name, const std::string& pointer, bool allow_fallback) {
  if (name == "cpu") return at::kCPU;
  const std::optional<int64_t> number = gpu_number(name, pointer);
  if (torch::cuda::is_available()) {
    const auto count = static_cast<int64_t>(torch::cuda::device_count());
    if (number && *number >= count) {
      throw ConfigError("{}: \"{}\" was asked for, but this machine has {}: cuda:0{}",
                        pointer,
                        name,
                        count == 1 ? "one GPU" : fmt::format("{} GPUs", count),
                        count == 1 ? "" : fmt::format(" to cuda:{}", count - 1));
    }
    return number ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*number))
                  : at::Device(at::kCUDA);
  }
  if (!allow_fallback) {
    throw ConfigError(
        "{}: \"{}\" was asked for, but no usable GPU was found (driver, or a build without CUDA)",
        pointer,
        name);
  }
  log_info("train", "no usable GPU: running on the CPU ({} says \"{}\")", pointer, name);
  return at::kCPU;
}

}  // namespace dalle2
