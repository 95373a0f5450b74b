// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "demo/demo_commands.h"
#include "demo/demo_images.h"
#include "io/files/atomic_file.h"
#include "support/broken_listing.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;
using Catch::Equals;

namespace {

/// A truth of two pictures in a folder.
void put_truth(const test::TempDir& folder) {
  test::put_file(folder / "truth.json", R"([
    {"shape": "ring", "colour": "blue", "size": "large", "place": "left", "ground": "black"},
    {"shape": "cross", "colour": "red", "size": "small", "place": "top", "ground": "white"}])");
}
const DemoAttributes kFirst{4, 2, 1, 0, 2}, kSecond{3, 0, 0, 2, 0};

}  // namespace

TEST_CASE("the grid shows what was asked for beside what was drawn, twice enlarged") {
  const test::TempDir folder;
  put_truth(folder);
  std::filesystem::create_directories(folder / "drawn");
  write_png(folder / "drawn/0.png", draw_demo_image(kFirst, 16));
  write_png(folder / "drawn/1.png", draw_demo_image(kFirst, 16));
  run_demo_score({folder / "drawn", folder.path(), folder / "grid.png"});
  const Image grid = decode_image(read_file(folder / "grid.png"), "grid.png");
  REQUIRE(grid.width == 2 * (4 * 18 + 2));
  REQUIRE(grid.height == 2 * (18 + 2));
  const Image cells[] = {draw_demo_image(kFirst, 16),
                         draw_demo_image(kFirst, 16),
                         draw_demo_image(kSecond, 16),
                         draw_demo_image(kFirst, 16)};
  int wrong = 0;
  for (int y = 0; y < grid.height; ++y) {
    for (int x = 0; x < grid.width; ++x) {
      const int left = x / 2 % 18 - 2, top = y / 2 % 18 - 2, cell = x / 2 / 18;
      for (int c = 0; c < 3; ++c) {
        const int expected =
            left < 0 || top < 0 || cell > 3 || y / 2 >= 18
                ? 0
                : cells[cell].pixels[static_cast<size_t>((top * 16 + left) * 3 + c)];
        wrong += grid.pixels[static_cast<size_t>((y * grid.width + x) * 3 + c)] != expected;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK_THROWS_WITH(run_demo_score({folder / "drawn", folder.path(), folder / "0.tar"}),
                    Contains("--grid: expected the name of a picture"));
}

TEST_CASE("drawings that do not belong to the truth are refused") {
  const test::TempDir folder;
  put_truth(folder);
  std::filesystem::create_directories(folder / "drawn");
  write_png(folder / "drawn/0.png", draw_demo_image(kFirst, 16));
  const DemoScoreCommand command{folder / "drawn", folder.path(), folder / "grid.png"};
  CHECK_THROWS_WITH(run_demo_score(command), Contains("holds 1 pictures"));
  write_png(folder / "drawn/1.png", draw_demo_image(kSecond, 32));
  CHECK_THROWS_AS(run_demo_score(command), DataError);
  CHECK_THROWS_WITH(run_demo_score(command), Contains("sides of 16 and 32 pixels"));
  test::put_file(folder / "truth.json", R"([{"shape": "star"}])");
  CHECK_THROWS_WITH(run_demo_score(command), Contains("\"star\" is not an attribute"));
  test::put_file(folder / "truth.json", R"([{"shape": 3}])");
  CHECK_THROWS_WITH(run_demo_score(command), Contains("expected the truth.json of `shards demo`"));
}

TEST_CASE("drawings in a folder that cannot be read are an error of ours") {
  const test::TempDir folder;
  const std::string long_name(300, 'x');  // longer than any file system takes
  test::put_file(folder / "truth.json", "[]");
  CHECK_THROWS_WITH(run_demo_score({long_name, folder.path(), folder / "grid.png"}),
                    Equals(long_name + ": no such folder (--drawn)"));
  const test::BrokenListing broken;
  CHECK_THROWS_WITH(run_demo_score({folder.path(), folder.path(), folder / "grid.png"}),
                    Contains("the folder \"" + folder.path() + "\" cannot be read: "));
}
