// SPDX-License-Identifier: MIT
#include "data/pictures/image_folder.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include "data/shards/picture_shards.h"
#include "io/files/atomic_file.h"
#include "io/formats/tar.h"
#include "support/broken_listing.h"
#include "support/captured_log.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

/// A picture whose red is its number.
void write_numbered(const std::string& path, uint8_t number, int side = 8) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  Image image{.width = side, .height = side, .pixels = {}};
  for (int i = 0; i < side * side; ++i)
    image.pixels.insert(image.pixels.end(), {number, static_cast<uint8_t>(i % 256), 7});
  write_png(path, image);
}

/// Ten pictures in three folders; the numbers follow the order of the paths.
void write_ten(const std::string& folder) {
  uint8_t number = 0;
  for (const char* name : {"a/0.png", "a/1.PNG", "a/2.jpg", "b/c/0.png", "b/c/1.png"})
    write_numbered(folder + "/" + name, number++);
  for (const char* name : {"b/x.jpeg", "d.png", "e.png", "f.webp", "g.png"})
    write_numbered(folder + "/" + name, number++);
  std::ofstream(folder + "/notes.txt") << "no picture";
  std::ofstream(folder + "/a/list.json") << "{}";
}

VaeDataConfig folder_config(const std::string& folder, double valid_frac = 0.2) {
  VaeDataConfig config;
  config.folder = folder;
  config.image_size = 8;
  config.batch_size = 4;
  config.valid_frac = valid_frac;
  return config;
}

std::vector<int64_t> numbers_of(const ImageBatch& batch) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < batch.size(); ++i)
    numbers.push_back(std::lround(batch.images[i][0][0][0].item<double>() * 255));
  return numbers;
}

std::vector<int64_t> numbers_of_epoch(ImageFolder& folder,
                                      const std::string& split,
                                      int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t row = 0; row < folder.rows(split); row += 3) {
    for (const int64_t number : numbers_of(*folder.batch(split, epoch, row, 3)))
      all.push_back(number);
  }
  return all;
}

TEST_CASE("what runs drew below the folder is none of its pictures") {
  const TempDir folder;
  write_ten(folder.path());
  write_numbered(folder / "runs/vae/images/10.png", 200);
  std::ofstream(folder / "runs/vae/run.json") << "{}";
  const CapturedLog log;
  CHECK(ImageFolder(folder_config(folder.path()), 3, 0).files() == 10);
  CHECK(log.count("left out folders of runs: " + (folder / "runs/vae")) == 1);
  CHECK(PictureShards(folder.path()).pictures() == 10);
}

TEST_CASE("a folder's pictures are divided as torch's random_split divides them") {
  const TempDir dir;
  write_ten(dir.path());
  for (const auto& [seed, validation] : {std::pair{int64_t{42}, std::set<int64_t>{3, 7}},
                                         std::pair{int64_t{7}, std::set<int64_t>{8, 2}}}) {
    VaeDataConfig config = folder_config(dir.path());
    config.random_split_seed = seed;
    ImageFolder folder(config, 3, /*seed=*/1);
    CHECK(folder.files() == 10);
    CHECK(folder.rows("train") == 8);
    CHECK(folder.rows("val") == 2);
    const std::vector<int64_t> val = numbers_of_epoch(folder, "val", 0);
    CHECK(std::set<int64_t>(val.begin(), val.end()) == validation);
    const std::vector<int64_t> train = numbers_of_epoch(folder, "train", 0);
    std::set<int64_t> all(train.begin(), train.end());
    CHECK(all.size() == 8);
    all.insert(val.begin(), val.end());
    CHECK(all.size() == 10);
  }
  ImageFolder undivided(folder_config(dir.path(), 0), 3, 1);
  CHECK(undivided.rows("train") == 10);
  CHECK(undivided.rows("val") == 10);
}

TEST_CASE("an epoch has an order of its own, and a batch does not hang on those before") {
  const TempDir dir;
  write_ten(dir.path());
  ImageFolder folder(folder_config(dir.path(), 0), 3, 1), other(folder_config(dir.path(), 0), 3, 1),
      of_other_seed(folder_config(dir.path(), 0), 3, 2);
  const std::vector<int64_t> first = numbers_of_epoch(folder, "train", 0);
  CHECK(numbers_of_epoch(folder, "train", 1) != first);
  CHECK(numbers_of_epoch(folder, "train", 0) == first);
  CHECK(numbers_of_epoch(of_other_seed, "train", 0) != first);
  const auto third = other.batch("train", 0, 6, 3);
  CHECK(numbers_of(*third) == std::vector<int64_t>(first.begin() + 6, first.begin() + 9));
  CHECK(at::equal(third->images, folder.batch("train", 0, 6, 3)->images));  // mirrored alike
  CHECK(numbers_of_epoch(folder, "val", 3) == numbers_of_epoch(other, "val", 0));
  CHECK_FALSE(folder.batch("train", 0, 10, 3).has_value());
}

TEST_CASE("what is read ahead is what is asked for, or is read again") {
  const TempDir dir;
  write_ten(dir.path());
  ImageFolder folder(folder_config(dir.path(), 0), 3, 1), plain(folder_config(dir.path(), 0), 3, 1);
  folder.read_ahead("train", 0, 4, 4);
  CHECK(at::equal(folder.batch("train", 0, 4, 4)->images, plain.batch("train", 0, 4, 4)->images));
  folder.read_ahead("train", 0, 0, 4);
  CHECK(at::equal(folder.batch("train", 1, 4, 4)->images, plain.batch("train", 1, 4, 4)->images));
  folder.read_ahead("train", 0, 10, 4);  // behind the end
  CHECK_FALSE(folder.batch("train", 0, 10, 4).has_value());
}

TEST_CASE("the number of threads changes neither the pictures nor their order") {
  const TempDir dir;
  write_ten(dir.path());
  std::ofstream(dir.path() + "/e.png") << "nothing";
  VaeDataConfig config = folder_config(dir.path(), 0);
  config.num_workers = 0;
  ImageFolder expected(config, 3, 1);
  const auto first = expected.batch("train", 0, 0, 10), second = expected.batch("train", 1, 0, 10);
  for (const int64_t threads : {1, 3, 20}) {
    CAPTURE(threads);
    config.num_workers = threads;
    ImageFolder folder(config, 3, 1);
    folder.read_ahead("train", 0, 0, 10);
    CHECK(at::equal(folder.batch("train", 0, 0, 10)->images, first->images));
    CHECK(at::equal(folder.batch("train", 1, 0, 10)->images, second->images));
  }
}

TEST_CASE("files that are no pictures are left out and told") {
  const TempDir dir;
  write_ten(dir.path());
  ImageFolder all(folder_config(dir.path(), 0), 3, 1);
  std::vector<int64_t> expected = numbers_of(*all.batch("train", 0, 0, 10));
  for (const auto& [name, number] : {std::pair("e.png", 7), std::pair("a/0.png", 0)}) {
    std::ofstream(dir.path() + "/" + name) << "nothing";
    std::erase(expected, number);
  }
  ImageFolder folder(folder_config(dir.path(), 0), 3, 1);
  const auto batch = folder.batch("train", 0, 0, 10);
  CHECK(batch->rows == 10);
  CHECK(batch->size() == 8);
  CHECK(numbers_of(*batch) == expected);
  CHECK(batch->drops.total() == 2);
}

/// The pictures 0 to 4 in a tar and 5 to 9 as files.
void write_half_as_tar(const std::string& folder, bool gzip = false) {
  const TempDir plain;
  TarWriter tar(folder + "/a.tar", gzip);
  for (int i = 0; i < 10; ++i) {
    const std::string path = fmt::format("{}/{}.png", i < 5 ? plain.path() : folder, i);
    write_numbered(path, static_cast<uint8_t>(i));
    if (i >= 5) continue;
    tar.add(fmt::format("{}.png", i), read_file(path));
    tar.add(fmt::format("{}.txt", i), "a caption");
  }
  tar.commit();
}

TEST_CASE("the pictures of a tar are those of a folder") {
  const TempDir dir;
  write_half_as_tar(dir.path());
  ImageFolder folder(folder_config(dir.path(), 0), 3, 1);
  CHECK(folder.files() == 10);
  std::vector<int64_t> numbers = numbers_of_epoch(folder, "train", 0);
  CHECK(numbers != numbers_of_epoch(folder, "train", 1));
  std::sort(numbers.begin(), numbers.end());
  CHECK(numbers == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(folder.batch("train", 0, 0, 10)->drops.total() == 0);
}

TEST_CASE("a tar that was cut gives the pictures before the cut, and one that is packed none") {
  const TempDir dir;
  write_half_as_tar(dir.path());
  const std::string tar = dir.path() + "/a.tar";
  // A header, a picture of a block or two, a header, a caption: the third picture's header is whole.
  const uint64_t third = list_tar(tar).places.at(4).offset;
  std::filesystem::resize_file(tar, third + 512 + 20);
  {
    const CapturedLog log;
    ImageFolder folder(folder_config(dir.path(), 0), 3, 1);
    CHECK(folder.files() == 8);  // the third one is listed, and found to be broken when it is read
    CHECK(log.count("a.tar: ") == 1);
    CHECK(log.count("3 pictures before that are used") == 1);
    CHECK(folder.batch("train", 0, 0, 10)->drops.total() == 1);
  }
  write_half_as_tar(dir.path(), /*gzip=*/true);
  const CapturedLog log;
  ImageFolder folder(folder_config(dir.path(), 0), 3, 1);
  CHECK(folder.files() == 5);
  CHECK(log.count("a.tar: it is packed: unpack it first: 0 pictures before that are used") == 1);
}

TEST_CASE("transparent pictures lie on the ground, or keep their transparency as a channel") {
  const TempDir dir;
  Image image{.width = 4, .height = 4, .pixels = std::vector<uint8_t>(48, 100)};
  image.alpha.assign(16, 0);
  image.alpha[5] = 255;
  write_png(dir.path() + "/one.PNG", image);
  VaeDataConfig config = folder_config(dir.path(), 0);
  config.image_size = 4;
  config.preprocessing.emplace(1);  // ToTensor alone
  const auto bytes = [&](int64_t channels) {
    ImageFolder folder(config, channels, 1);
    return (folder.batch("train", 0, 0, 1)->images * 255).round().to(at::kLong)[0].flatten(1);
  };
  CHECK(at::equal(bytes(3), at::full({3, 16}, 100, at::kLong)));
  at::Tensor alpha = at::zeros({16}, at::kLong);
  alpha[5] = 255;
  CHECK(at::equal(bytes(4)[3], alpha));
  CHECK(at::equal(bytes(4).narrow(0, 0, 3), at::full({3, 16}, 100, at::kLong)));
  config.ground = Colour{{10, 20, 30}};
  CHECK(bytes(3)[1][4].item<int64_t>() == 20);
  CHECK(bytes(3)[2][5].item<int64_t>() == 100);
  CHECK(bytes(1)[0][4].item<int64_t>() == 18);  // Pillow's luma of the ground
  CHECK(at::equal(bytes(4)[3], alpha));
  ImageFolder folder(config, 3, 1);
  CHECK(folder.first_pictures().transparent == 1);
}

TEST_CASE("pictures of kinds that are not read are counted, those in tars too") {
  const TempDir dir;
  write_numbered(dir.path() + "/a.jfif", 3);
  for (const char* name : {"b.BMP", "c.gif", "d/e.gif", "f.heic", "g.tif"})
    write_numbered(dir.path() + "/" + name, 4);
  TarWriter tar(dir.path() + "/t.tar");
  tar.add("x.avif", "x");
  tar.add("y.jfif", read_file(dir.path() + "/a.jfif"));
  tar.commit();
  const std::string said =
      "left out 6 pictures of kinds that are not read (1 .avif, 1 .bmp, 2 .gif, 1 .heic, 1 .tif): "
      "convert them to PNG or JPEG";
  {
    const CapturedLog log;
    ImageFolder folder(folder_config(dir.path(), 0), 3, 1);
    CHECK(folder.files() == 2);
    CHECK(log.count(said) == 1);
    CHECK(folder.batch("train", 0, 0, 2)->size() == 2);
  }
  std::filesystem::remove(dir.path() + "/t.tar");
  {
    const CapturedLog log;
    CHECK(PictureShards(dir.path()).pictures() == 1);
    CHECK(log.count("left out 5 pictures of kinds that are not read") == 1);
    CHECK(log.count("passed over") == 0);
  }
  for (const char* name : {"h.jpx", "i.JPX", "noext", "a.txt", "b.caption"})
    write_numbered(dir.path() + "/" + name, 4);
  {
    const CapturedLog log;
    CHECK(PictureShards(dir.path()).pictures() == 1);
    CHECK(
        log.count(
            "passed over 3 files with names of no kind of data that is read (2 .jpx, 1 without extension)") ==
        1);
  }
  std::filesystem::remove(dir.path() + "/a.jfif");
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(ImageFolder(folder_config(dir.path(), 0), 3, 1),
                    Contains("or below it, but 5 pictures of kinds that are not read"));
  CHECK_THROWS_WITH(PictureShards(dir.path()),
                    Contains("or below it, but 5 pictures of kinds that are not read"));
}

TEST_CASE("a folder that has no picture for training is refused") {
  const TempDir dir;
  const auto fault = [](const VaeDataConfig& config) {
    return message_of<DataError>([&] { ImageFolder(config, 3, 1); });
  };
  CHECK(
      fault(folder_config(dir.path())) ==
      dir.path() +
          ": found no jpg, jpeg, png or webp file, nor a tar of them, in the folder or below it.");
  CHECK_THAT(fault(folder_config(dir.path() + "/absent")),
             Catch::StartsWith(dir.path() + "/absent: the folder cannot be read: "));
  std::filesystem::create_symlink("nowhere", dir.path() + "/link.png");
  CHECK_THAT(
      fault(folder_config(dir.path())),
      Catch::EndsWith(
          "below it, but 1 link whose target does not exist or cannot be reached: link.png."));
  write_numbered(dir.path() + "/one.png", 1);
  {
    const BrokenListing broken;
    CHECK(fault(folder_config(dir.path())) ==
          dir.path() + ": the folder cannot be read: Input/output error.");
  }
  CHECK(
      fault(folder_config(dir.path(), 0.05)) ==
      "/data/valid_frac: 0.05 of 1 pictures leaves none for training: give another share, or 0 to "
      "validate with the training pictures");
}

}  // namespace
}  // namespace dalle2::test
