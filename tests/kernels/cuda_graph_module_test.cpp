// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>
#include <memory>

#include "base/error.h"
#include "kernels/gpu/device_graph.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;

#ifdef DALLE2_WITH_CUDA_GRAPHS

TEST_CASE("the module makes graphs of CUDA, which record nothing without a GPU") {
  const GraphMaker make = graph_maker(c10::DeviceType::CUDA);
  const std::shared_ptr<DeviceGraph> graph = make(nullptr);
  REQUIRE(graph);
  CHECK(make(graph.get()) != graph);
  // On a GPU the current stream is the default one, which cannot be recorded.
  CHECK_THROWS(graph->begin_capture());
}

#else

TEST_CASE("a program without the module for CUDA graphs says where there is one") {
  CHECK_THROWS_AS(load_cuda_graph_module(), ConfigError);
  CHECK_THROWS_WITH(
      load_cuda_graph_module(),
      Contains("libdalle2_cuda_graph.so: cannot open") && Contains("scripts/build.sh --cuda"));
}

#endif

TEST_CASE("a device without graphs has no maker") {
  CHECK_FALSE(graph_maker(c10::DeviceType::CPU));
}

}  // namespace
}  // namespace dalle2
