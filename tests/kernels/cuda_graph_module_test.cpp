// SPDX-License-Identifier: MIT
#include <torch/cuda.h>
#include <catch2/catch.hpp>

#include "kernels/device_graph.h"
#include "support/message_of.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;

#ifdef DALLE2_WITH_CUDA_GRAPHS

TEST_CASE("the module makes graphs of CUDA, which need a GPU") {
  const GraphMaker make = graph_maker(c10::DeviceType::CUDA);
  if (!torch::cuda::is_available()) {
    CHECK_THROWS_WITH(make(nullptr), Contains("CUDA"));
    return;
  }
  const std::shared_ptr<DeviceGraph> graph = make(nullptr);
  REQUIRE(graph);
  CHECK(make(graph.get()) != graph);
  CHECK_THROWS(graph->begin_capture());  // on the default stream
}

#else

TEST_CASE("a program without the module for CUDA graphs says where there is one") {
  CHECK_THAT(
      test::message_of<ConfigError>([&] { load_cuda_graph_module(); }),
      Contains("libdalle2_cuda_graph.so: cannot open") && Contains("scripts/build.sh --cuda"));
}

#endif

TEST_CASE("a device without graphs has no maker") {
  CHECK_FALSE(graph_maker(c10::DeviceType::CPU));
}

}  // namespace
}  // namespace dalle2
