// SPDX-License-Identifier: MIT
// Folders that are read or written: what is said where that cannot be.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "io/pictures/image.h"
#include "run/commands.h"
#include "run/pictures/pictures.h"
#include "support/broken_listing.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::BrokenListing;

/// Longer than any file system takes a name.
const std::string kLongName(300, 'x');

template <class Action>
std::string data_error_of(Action action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a file is written into a folder that is there, or into the working directory") {
  const test::TempDir folder;
  CHECK_NOTHROW(check_out_folder("--out", folder / "a.pth"));
  CHECK_NOTHROW(check_out_folder("--out", "a.pth"));
  CHECK_NOTHROW(check_out_folder("--out", ""));
  CHECK_NOTHROW(check_out_folder("--out", "/a.pth"));
}

TEST_CASE("a folder that is not there is a slip of the pen, and named with its option") {
  const test::TempDir folder;
  const std::string here = fs::current_path().string();
  CHECK_THROWS_WITH(check_out_folder("--out", "nowhere/deep/a.pth"),
                    Catch::Equals("--out nowhere/deep/a.pth: there is no folder nowhere/deep "
                                  "(relative to " +
                                  here + ")"));
  CHECK_THROWS_AS(check_out_folder("--out", "nowhere/a.pth"), ConfigError);
  CHECK_FALSE(fs::exists("nowhere"));
  std::ofstream(folder / "file") << "x";
  CHECK_THROWS_WITH(check_out_folder("--save", folder / "file/a.json"),
                    Contains("--save ") && Contains("there is no folder " + folder / "file"));
  CHECK_THROWS_AS(check_out_folder("--out", kLongName + "/a.pth"), ConfigError);
}

TEST_CASE("pictures of a folder that cannot be read are an error of ours") {
  const test::TempDir folder;
  CHECK_THROWS_WITH(load_pictures(folder / "absent"),
                    Catch::Equals(folder / "absent: no such file or folder"));
  CHECK_THROWS_WITH(
      load_pictures(folder.path()),
      Catch::Equals(folder.path() + ": no .png, .jpg, .jpeg or .webp in this folder"));
  CHECK_THROWS_AS(load_pictures(kLongName), DataError);
  std::ofstream(folder / "a.png") << "x";
  const BrokenListing broken;
  CHECK_THAT(data_error_of([&] { load_pictures(folder.path()); }),
             Contains("the folder \"" + folder.path() + "\" cannot be read: "));
}

TEST_CASE("pictures to sample from are read as those of the training were") {
  const test::TempDir folder;
  const std::string file = folder / "a.png";
  Image half{2, 1, {255, 0, 0, 0, 255, 0}};
  half.alpha = {255, 0};
  write_png(file, half);
  const auto values = [&](const PictureReading& reading) {
    const at::Tensor picture = (load_pictures(file, reading) * 255).round().to(at::kLong)[0];
    return std::vector<int64_t>(picture.const_data_ptr<int64_t>(),
                                picture.const_data_ptr<int64_t>() + picture.numel());
  };
  using Values = std::vector<int64_t>;
  CHECK(values({}) == Values{255, 0, 0, 255, 0, 0});
  CHECK(values({.options = {.ground = Rgb{255, 255, 255}}}) == Values{255, 255, 0, 255, 0, 255});
  CHECK(values({.options = {.ground = Rgb{255, 255, 255}}, .channels = 1}) == Values{76, 255});
  CHECK(values({.options = {.keep_alpha = true}, .channels = 4}) ==
        Values{255, 0, 0, 255, 0, 0, 255, 0});
}

TEST_CASE("averages in a folder that cannot be read are an error of ours") {
  const test::TempDir folder;
  std::ofstream(folder / "step00000001.pth") << "x";
  const EmaCommand command{
      .sigma = 0.1, .step = {}, .checkpoints = {folder.path()}, .out_path = folder / "out.pth"};
  const BrokenListing broken;
  CHECK_THAT(data_error_of([&] { run_ema(command); }),
             Contains("the folder \"" + folder.path() + "\" cannot be read: "));
}

}  // namespace
}  // namespace dalle2
