// SPDX-License-Identifier: MIT
#include "dist/nccl_module.h"

#include <torch/cuda.h>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "support/message_of.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("LibTorch's watchdog of NCCL neither ends the process nor leaves a report") {
  ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", 1);
  leave_failures_to_our_watch();
  for (const std::string name : {"ASYNC_ERROR_HANDLING",
                                 "RETHROW_CUDA_ERRORS",
                                 "DUMP_ON_TIMEOUT",
                                 "WAIT_TIMEOUT_DUMP_MILSEC",
                                 "ENABLE_MONITORING",
                                 "DESYNC_DEBUG",
                                 "PROPAGATE_ERROR",
                                 "BLOCKING_WAIT"}) {
    CAPTURE(name);
    const char* const value = std::getenv(("TORCH_NCCL_" + name).c_str());
    REQUIRE(value != nullptr);
    CHECK(std::string(value) == "0");
  }
}

#ifdef DALLE2_WITH_NCCL

TEST_CASE("the module brings NCCL, which asks for a GPU") {
  MakeNcclGroup* const make_group = load_nccl_module();
  c10::intrusive_ptr<c10d::Backend> made;
  const auto make_alone = [&] {
    make_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(5), made);
  };
  if (torch::cuda::is_available()) {
    make_alone();
    CHECK(made->getBackendName() == "nccl");
  } else {
    CHECK_THROWS_WITH(make_alone(), Contains("no GPUs found"));
    CHECK_FALSE(made);
  }
}

#else

TEST_CASE("a program without the module says where there is one") {
  CHECK_THAT(test::message_of<ConfigError>([&] { load_nccl_module(); }),
             Contains("the module for it cannot be loaded: libdalle2_nccl.so: cannot open") &&
                 Contains("scripts/build.sh --cuda") && Contains("DALLE2_GROUP=gloo"));
}

#endif

}  // namespace
}  // namespace dalle2
