// SPDX-License-Identifier: MIT
#include "dist/process_group.h"

#include <torch/cuda.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>

#include "dist/nccl_module.h"
#include "dist/ranks_in_threads.h"
#include "support/message_of.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;
using test::as_ranks;

TEST_CASE("a process that is alone gets its own values back") {
  ProcessGroup group;
  CHECK(group.is_alone());
  CHECK(group.is_main());
  CHECK(group.exchange({3, 4}, "x") == std::vector<std::vector<int64_t>>{{3, 4}});
  CHECK(group.sum({0.5}, "x") == std::vector<double>{0.5});
  CHECK(group.any(true, "x"));
  CHECK_FALSE(group.any(false, "x"));
  CHECK(group.gather_texts("a", "x") == std::vector<std::string>{"a"});
  const at::Tensor values = torch::ones({3});
  group.all_reduce(values, Reduction::kSum, "x");
  group.broadcast(values, "x");
  group.start_all_reduce(values, "x").wait();
  const at::Tensor whole = torch::zeros({3});
  group.all_gather(whole, values, "x");
  CHECK(whole.equal(torch::ones({3})));
}

TEST_CASE("values of all ranks arrive on all ranks") {
  std::atomic<int> checked = 0;
  as_ranks(3, [&](ProcessGroup& group) {
    const int rank = group.rank();
    const auto rows = group.exchange({rank, 10 * rank}, "numbers");
    const auto texts =
        group.gather_texts(std::string(static_cast<size_t>(5 * rank), 'x') + "!", "texts");
    const auto sums = group.sum({0.1 * rank, 1.0}, "sums");
    std::vector<bool> flags(130, false);
    flags[static_cast<size_t>(60 + rank)] = true;
    group.any(flags, "flags");
    std::vector<bool> expected(130, false);
    for (const size_t at : {60, 61, 62}) expected[at] = true;
    if (rows == std::vector<std::vector<int64_t>>{{0, 0}, {1, 10}, {2, 20}} &&
        texts == std::vector<std::string>{"!", "xxxxx!", "xxxxxxxxxx!"} &&
        sums == std::vector<double>{0.1 * 0 + 0.1 * 1 + 0.1 * 2, 3.0} && flags == expected &&
        group.text_of_main("from " + std::to_string(rank), "name") == "from 0" &&
        group.any(rank == 2, "any") && !group.any(false, "any")) {
      ++checked;
    }
  });
  CHECK(checked == 3);
}

TEST_CASE("all ranks hear rank 0's clock") {
  std::atomic<int> right = 0;
  as_ranks(2, [&](ProcessGroup& group) {
    group.barrier("begin");
    const double begin = group.heard_seconds();
    if (group.is_main()) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    // The other is there at once, and waits.
    group.barrier("pause");
    const double pause = group.heard_seconds();
    if (!group.is_main()) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    group.barrier("end");
    const double end = group.heard_seconds();
    for (const double each : {begin, pause, end}) {
      const auto us = std::llround(1e6 * each);
      for (const auto& row : group.exchange({us}, "clock")) right += row[0] == us ? 1 : 0;
    }
    right += pause - begin >= 0.3 ? 1 : 0;
    right += end - pause < 0.25 ? 1 : 0;
  });
  CHECK(right == 2 * (3 * 2 + 2));
}

TEST_CASE("tensors are added up, spread and gathered") {
  std::atomic<int> checked = 0;
  as_ranks(2, [&](ProcessGroup& group) {
    const float rank = static_cast<float>(group.rank());
    const at::Tensor sum = torch::full({4}, rank + 1);
    group.all_reduce(sum, Reduction::kSum, "sum");
    const at::Tensor most = torch::full({2}, rank);
    group.all_reduce(most, Reduction::kMax, "max");
    const at::Tensor spread = torch::full({3}, rank + 7);
    group.broadcast(spread, "spread");
    const at::Tensor whole = torch::empty({4});
    group.all_gather(whole, torch::full({2}, rank), "gather");
    // In place: each has its part where it belongs.
    const at::Tensor parts = torch::full({4}, -1.0F);
    parts.narrow(0, 2 * group.rank(), 2).fill_(rank + 5);
    group.all_gather(parts, parts.narrow(0, 2 * group.rank(), 2), "gather in place");
    const at::Tensor for_one = torch::arange(4, at::kFloat) * (rank + 1);
    group.start_reduce(for_one, "sum for one", 1).wait();
    const bool right = sum.equal(torch::full({4}, 3.0F)) && most.equal(torch::ones({2})) &&
                       spread.equal(torch::full({3}, 7.0F)) &&
                       whole.equal(torch::tensor({0.0F, 0.0F, 1.0F, 1.0F})) &&
                       parts.equal(torch::tensor({5.0F, 5.0F, 6.0F, 6.0F})) &&
                       (group.is_main() || for_one.equal(torch::arange(4, at::kFloat) * 3));
    if (right) ++checked;
  });
  CHECK(checked == 2);
}

/// Whether parts of a tensor that are summed by themselves give the same bits as all of it.
bool sums_alike(ProcessGroup& group) {
  constexpr int64_t kFirst = 3001, kAll = 10'007;
  const at::Tensor own = torch::randn(
      {kAll}, at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(group.rank())));
  const at::Tensor whole = own.clone(), first = own.slice(0, 0, kFirst).clone(),
                   rest = own.slice(0, kFirst).clone();
  group.all_reduce(whole, Reduction::kSum, "whole");
  group.start_reduce(first, "for rank 0", 0).wait();
  group.start_reduce(rest, "for rank 1", 1).wait();
  if (group.rank() == 0) return first.equal(whole.slice(0, 0, kFirst));
  return group.rank() > 1 || rest.equal(whole.slice(0, kFirst));
}

TEST_CASE("over Gloo parts of a sum have the bits of the whole with two ranks, not with three") {
  std::atomic<int> alike = 0, said = 0;
  as_ranks(2, [&](ProcessGroup& group) {
    alike += sums_alike(group) ? 1 : 0;
    said += group.sums_depend_on_place() ? 0 : 1;
  });
  CHECK(alike == 2);
  CHECK(said == 2);
  std::atomic<int> unlike = 0;
  as_ranks(3, [&](ProcessGroup& group) {
    unlike += sums_alike(group) ? 0 : 1;
    said += group.sums_depend_on_place() ? 1 : 0;
  });
  CHECK(unlike == 2);
  CHECK(said == 5);
}

TEST_CASE("a rank whose GPU was not found is named, not waited for") {
  const auto device_of = [](int rank) {
    return GroupOptions{.device = rank == 1 ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0)};
  };
  CHECK_THROWS_WITH(as_ranks(
                        3, [](ProcessGroup&) {}, device_of),
                    Catch::StartsWith("rank 1 computes on: cpu ") &&
                        Catch::Contains("; rank 0 on: cuda ") &&
                        Catch::Contains("look at the GPUs of that machine"));
}

TEST_CASE("two ranks on one GPU are an error before NCCL connects") {
  const auto ids = [](const std::vector<std::string>& of_ranks) {
    return [of_ranks](int rank) {
      return GroupOptions{.device = at::Device(at::kCUDA, 0),
                          .device_id = of_ranks[static_cast<size_t>(rank)]};
    };
  };
  CHECK_THROWS_WITH(as_ranks(
                        3, [](ProcessGroup&) {}, ids({"GPU-a", "GPU-b", "GPU-a"})),
                    Catch::StartsWith("ranks 0 and 2 are on the same GPU: GPU-a (cuda ") &&
                        Catch::Contains("set DALLE2_GROUP=gloo"));
}

TEST_CASE("ranks that meet in different operations are told so, by name") {
  const auto meet = [](ProcessGroup& group) {
    group.exchange({1}, group.is_main() ? "losses" : "samples of the step");
  };
  CHECK_THAT(test::message_of<NetworkError>([&] { as_ranks(2, meet); }),
             Contains("rank 0 is in \"losses\" while rank 1 is in another operation"));
}

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
