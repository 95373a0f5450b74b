// SPDX-License-Identifier: MIT
#include "run/device/device.h"

#include <c10/core/Device.h>
#include <dlfcn.h>
#include <catch2/catch.hpp>

#include <fstream>

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

}  // namespace
}  // namespace dalle2
