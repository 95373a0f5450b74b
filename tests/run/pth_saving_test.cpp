// SPDX-License-Identifier: MIT
#include "run/checkpoints/run_checkpoints.h"

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

#include "base/log.h"
#include "checkpoint/archive/mapped_file.h"
#include "support/mapped_files.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

TEST_CASE("work in the background runs beside the caller, one piece after the other") {
  std::atomic<bool> may_end = false;
  std::vector<int> order;
  PthSaving job;
  job.start(true, {}, [&](const auto&) {
    while (!may_end) std::this_thread::yield();
    order.push_back(1);
  });
  job.check();  // does not wait
  CHECK(order.empty());
  may_end = true;
  job.start(true, {}, [&](const auto&) { order.push_back(2); });  // waits for the first
  job.wait();
  CHECK(order == std::vector<int>{1, 2});
  job.wait();  // nothing to wait for
}

TEST_CASE("an error of work in the background comes to the caller once") {
  PthSaving job;
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  CHECK_THROWS_WITH(job.wait(), "disk full");
  job.wait();
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  CHECK_THROWS_WITH(job.start(true, {}, [](const auto&) {}), "disk full");
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  const auto check_until_thrown = [&] {
    for (int i = 0; i < 10000; ++i) {
      job.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  CHECK_THROWS_WITH(check_until_thrown(), "disk full");
}

TEST_CASE("an error that nobody asked for is logged when the job goes") {
  std::string logged;
  set_log_sink([&](LogLevel level, const std::string&, const std::string& text) {
    if (level == LogLevel::kError) logged = text;
  });
  {
    PthSaving job;
    job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  }
  set_log_sink({});
  CHECK(logged == "disk full");
}

TEST_CASE("a save in the background gives back the space of scratch files when it is over") {
  const test::TempDir folder;
  const std::string part = folder / "scratch.part", file = folder / "saved.pth";
  const at::Tensor expected = at::arange(1000, at::kFloat);
  PthSaving saving;
  std::promise<void> go_on;
  {
    ScratchFile scratch(folder / "scratch");
    scratch.append(expected);
    saving.start(/*in_background=*/true,
                 {Value(scratch.tensor({1000}, at::kFloat))},
                 [&, begin = go_on.get_future().share()](const auto& writers) {
                   begin.wait();
                   writers.front()(file);
                 });
  }
  CHECK(test::maps_removed_file(part));
  go_on.set_value();
  saving.wait();
  CHECK_FALSE(test::maps_removed_file(part));
  CHECK(at::equal(Cursor(read_pth(file)).as_tensor(), expected));
}

}  // namespace
}  // namespace dalle2
