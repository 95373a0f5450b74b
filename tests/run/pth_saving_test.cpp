// SPDX-License-Identifier: MIT
#include "run/checkpoints/pth_saving.h"

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <future>

#include "checkpoint/archive/mapped_file.h"
#include "support/mapped_files.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

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
