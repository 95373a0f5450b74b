// SPDX-License-Identifier: MIT
#include "run/device/device.h"

#include <torch/cuda.h>
#include <catch2/catch.hpp>

#include "support/captured_log.h"

namespace dalle2 {
namespace {

using Catch::Contains;

TEST_CASE("without a GPU cuda falls back to the CPU with a line, or is refused") {
  CHECK(choose_device("cpu", "/train/device", WithoutGpu::kError).is_cpu());
  if (torch::cuda::is_available()) return;
  test::CapturedLog log;
  CHECK(choose_device("cuda:3", "/train/device", WithoutGpu::kWarn).is_cpu());
  REQUIRE(log.lines().size() == 1);
  CHECK(log.lines()[0].level == LogLevel::kWarning);
  CHECK(
      log.lines()[0].text ==
      "there is no usable GPU: " + cuda_library_text(cuda_library()) +
          ". This runs on the CPU, although /train/device is \"cuda:3\"; set it to \"cpu\" if that "
          "is what you want");
  CHECK(choose_device("cuda:3", "/train/device", WithoutGpu::kQuiet).is_cpu());
  CHECK(log.lines().size() == 1);
  CHECK_THROWS_WITH(choose_device("cuda", "--device", WithoutGpu::kError),
                    "--device: \"cuda\" was requested, but no CUDA device was found: " +
                        cuda_library_text(cuda_library()) +
                        "\n  Use --device cpu, which is slower.");
  CHECK_THROWS_WITH(choose_device("cuda", "/train/device", WithoutGpu::kError),
                    Contains("\n  Set it to \"cpu\" to train on the CPU."));
}

}  // namespace
}  // namespace dalle2
