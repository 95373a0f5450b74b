// SPDX-License-Identifier: MIT
#include "run/device/device.h"

#include <c10/core/Device.h>
#include <dlfcn.h>
#include <torch/cuda.h>
#include <catch2/catch.hpp>
#include <fstream>

#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

using Catch::Contains;
using State = CudaLibrary::State;

/// A library that can be loaded, as it is loaded already.
std::filesystem::path path_of_c10() {
  Dl_info info{};
  REQUIRE(dladdr(reinterpret_cast<const void*>(&c10::DeviceTypeName), &info) != 0);
  return std::filesystem::canonical(info.dli_fname);
}

TEST_CASE("a folder without libtorch_cuda.so is a LibTorch for the CPU") {
  const test::TempDir folder;
  const CudaLibrary library = load_cuda_library(folder.path(), true);
  CHECK(library.state == State::absent);
  CHECK(library.path == folder / "libtorch_cuda.so");
  CHECK_THAT(cuda_library_text(library),
             Contains("only for the CPU, without CUDA (") &&
                 Contains(library.path.string() + " is absent"));
}

TEST_CASE("libtorch_cuda.so is left alone where there is no driver") {
  const test::TempDir folder;
  std::filesystem::create_symlink(path_of_c10(), folder / "libtorch_cuda.so");
  const CudaLibrary library = load_cuda_library(folder.path(), false);
  CHECK(library.state == State::no_driver);
  CHECK_THAT(cuda_library_text(library), Contains("no NVIDIA driver"));
}

TEST_CASE("a libtorch_cuda.so that cannot be loaded is told with the loader's reason") {
  const test::TempDir folder;
  std::ofstream(folder / "libtorch_cuda.so") << "not a library";
  const CudaLibrary library = load_cuda_library(folder.path(), true);
  CHECK(library.state == State::failed);
  CHECK_THAT(library.fault, Contains("libtorch_cuda.so"));
  CHECK_THAT(cuda_library_text(library), Contains("cannot be loaded: " + library.fault));
}

TEST_CASE("libtorch_cuda.so is loaded from the folder that is given") {
  const test::TempDir folder;
  std::filesystem::create_symlink(path_of_c10(), folder / "libtorch_cuda.so");
  const CudaLibrary library = load_cuda_library(folder.path(), true);
  CHECK(library.state == State::loaded);
  CHECK(library.fault.empty());
}

TEST_CASE("the program looks beside the libtorch_cpu.so that it runs with") {
  CHECK(std::filesystem::canonical(cuda_library().path.parent_path()) ==
        path_of_c10().parent_path());
}

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
