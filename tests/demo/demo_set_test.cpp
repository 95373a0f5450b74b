// SPDX-License-Identifier: MIT
#include "demo/demo_commands.h"
#include "demo/demo_images.h"

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/formats/npy.h"
#include "io/formats/webdataset.h"
#include "support/broken_listing.h"
#include "support/temp_dir.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <opencv2/imgproc.hpp>

#include <random>
#include <set>

using namespace dalle2;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

/// What demo_embedding() made it of: the largest value of each block. @param embedding [32]
DemoAttributes attributes_of_embedding(const std::vector<float>& embedding) {
  DemoAttributes attributes;
  auto begin = embedding.begin();
  for (const DemoAttribute& attribute : kDemoAttributes) {
    const auto end = begin + std::ssize(attribute.values);
    attributes.*attribute.member = static_cast<int>(std::max_element(begin, end) - begin);
    begin = end;
  }
  return attributes;
}

/// Shares of readings that are right.
struct Right {
  double shape = 0, colour = 0, size = 0, place = 0, ground = 0;
};

/// @param every of how many combinations one is drawn; 7 is prime to all numbers of values
template <class Spoil>
Right share_right(int side, size_t every, Spoil spoil) {
  Right right;
  std::vector<DemoAttributes> all;
  const std::vector<DemoAttributes> combinations = demo_combinations();
  for (size_t i = 0; i < combinations.size(); i += every) all.push_back(combinations[i]);
  std::mt19937 random(7);
  for (const DemoAttributes& truth : all) {
    const auto uniform = [&](double range) {
      return range * (static_cast<double>(random()) / 0x1p31 - 1);
    };
    const DemoVariation variation{uniform(0.015), uniform(0.015), 1 + uniform(0.04)};
    const DemoAttributes found =
        analyse_demo_image(spoil(draw_demo_image(truth, side, variation))).attributes;
    const double one = 1.0 / static_cast<double>(all.size());
    right.shape += found.shape == truth.shape ? one : 0;
    right.colour += found.colour == truth.colour ? one : 0;
    right.size += found.size == truth.size ? one : 0;
    right.place += found.place == truth.place ? one : 0;
    right.ground += found.ground == truth.ground ? one : 0;
  }
  return right;
}

/// Gaussian blur and noise, as a young model draws. @param sigma in pixels, @param noise in levels
Image spoiled(Image image, double sigma, double noise) {
  cv::Mat pixels(image.height, image.width, CV_8UC3, image.pixels.data());
  cv::GaussianBlur(pixels, pixels, cv::Size(0, 0), sigma);
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0, noise);
  for (uint8_t& value : image.pixels) {
    value = static_cast<uint8_t>(std::clamp(std::lround(value + normal(random)), 0L, 255L));
  }
  return image;
}

std::vector<GroupedSample> samples_of(const std::string& path) {
  std::vector<GroupedSample> samples;
  SampleReader reader(path);
  while (auto sample = reader.next()) {
    samples.push_back(std::move(*sample));
  }
  return samples;
}

}  // namespace

std::vector<float> row_of(const NpyArray& array, int64_t row) {
  std::vector<float> values(static_cast<size_t>(array.numel() / array.shape.at(0)));
  array.copy_row_float32(row, values.data());
  return values;
}

TEST_CASE(
    "there are 900 combinations, and the 64 held-out ones have every value of every attribute") {
  const std::vector<DemoAttributes> all = demo_combinations();
  std::set<std::string> captions;
  std::map<std::pair<int, int>, int>
      counts[2];  // (attribute, value) -> how often; trained, held out
  for (const DemoAttributes& a : all) {
    captions.insert(demo_caption(a));
    const int values[] = {a.shape, a.colour, a.size, a.place, a.ground};
    for (int i = 0; i < 5; ++i) {
      ++counts[is_held_out(a) ? 1 : 0][{i, values[i]}];
    }
  }
  CHECK(all.size() == 900);
  CHECK(captions.size() == 900);
  CHECK(counts[0].size() == 21);
  REQUIRE(counts[1].size() == 21);
  const auto held = std::count_if(all.begin(), all.end(), is_held_out);
  CHECK(held == 64);
  for (const auto& [value, count] : counts[1]) {
    INFO("attribute " << value.first << " value " << value.second << " is held out " << count
                      << " times");
    const double share = static_cast<double>(count) / (count + counts[0].at(value));
    CHECK(share > 0.05);
    CHECK(share < 0.15);
  }
}

TEST_CASE("a caption says the attributes") {
  CHECK(demo_caption({2, 0, 1, 0, 0}) == "a large red triangle on the left, white ground");
  CHECK(demo_caption({4, 5, 0, 4, 2}) == "a small cyan ring in the centre, black ground");
}

TEST_CASE("an embedding holds exactly the attributes") {
  for (const DemoAttributes& a : demo_combinations()) {
    const std::vector<float> embedding = demo_embedding(a);
    CHECK(embedding.size() == 32);
    CHECK(std::count(embedding.begin(), embedding.end(), 10.0F) == 5);
    CHECK(std::count(embedding.begin(), embedding.end(), 0.0F) == 27);
    CHECK(attributes_of_embedding(embedding) == a);
  }
}

TEST_CASE("true drawings are read right, all of them, and blurred and noisy ones too") {
  for (const int side : {32, 64}) {
    for (const bool spoils : {false, true}) {
      const Right right = share_right(side, side == 32 ? 1 : 7, [=](Image image) {
        return spoils ? spoiled(std::move(image), side / 40.0, 10) : image;
      });
      INFO("side " << side << ", spoiled " << spoils << ": shape " << right.shape);
      CHECK(right.colour == Approx(1));
      CHECK(right.size == Approx(1));
      CHECK(right.place == Approx(1));
      CHECK(right.ground == Approx(1));
      CHECK(right.shape >= 0.98);
    }
  }
}

TEST_CASE("an empty or random picture is not read as a drawing") {
  Image image{32, 32, std::vector<uint8_t>(3 * 32 * 32, 128)};
  DemoReading reading = analyse_demo_image(image);
  CHECK(reading.attributes == DemoAttributes{-1, -1, -1, -1, 1});
  CHECK(reading.shape_match == 0);
  std::mt19937 random(1);
  for (uint8_t& value : image.pixels) {
    value = static_cast<uint8_t>(random());
  }
  reading = analyse_demo_image(image);
  CHECK(reading.shape_match < 0.5);
  const DemoReading drawn = analyse_demo_image(draw_demo_image({2, 0, 1, 0, 0}, 32));
  CHECK(drawn.shape_match > 0.8);
}

TEST_CASE(
    "demo shards hold pictures, captions and embeddings that agree, and the held-out split apart") {
  const test::TempDir folder;
  const DemoShardReport report = write_demo_shards({folder / "demo", 100, 32, 5});
  CHECK(report.shards == 16);
  int64_t pictures = 0;
  for (int shard = 0; shard < 16; ++shard) {
    const std::string number = fmt::format("{:06d}", shard);
    const NpyArray embeddings = read_npy(folder / ("demo/img_emb/img_emb_" + number + ".npy"));
    const std::vector<GroupedSample> samples = samples_of(folder / ("demo/" + number + ".tar"));
    CHECK(embeddings.shape == std::vector<int64_t>{static_cast<int64_t>(samples.size()), 32});
    for (const GroupedSample& sample : samples) {
      CHECK(sample.key.substr(0, 6) == number);
      const DemoAttributes truth =
          attributes_of_embedding(row_of(embeddings, std::stoi(sample.key.substr(6))));
      CHECK_FALSE(is_held_out(truth));
      CHECK(sample.fields.at("txt") == demo_caption(truth));
      const DemoAttributes found =
          analyse_demo_image(decode_image(sample.fields.at("jpg"), sample.key)).attributes;
      CHECK(found == truth);
      ++pictures;
    }
  }
  CHECK(pictures == 100);
}

TEST_CASE("the held-out split is one shard with its truth, row by row") {
  const test::TempDir folder;
  write_demo_shards({folder / "demo", 16, 32, 1});
  const NpyArray embeddings = read_npy(folder / "demo/heldout/img_emb/img_emb_000000.npy");
  const std::vector<GroupedSample> samples = samples_of(folder / "demo/heldout/000000.tar");
  const nlohmann::json truth = nlohmann::json::parse(read_file(folder / "demo/heldout/truth.json"));
  REQUIRE(truth.size() == samples.size());
  CHECK(embeddings.shape.at(0) == static_cast<int64_t>(samples.size()));
  std::set<std::string> captions;
  for (size_t i = 0; i < samples.size(); ++i) {
    const DemoAttributes a = attributes_of_embedding(row_of(embeddings, static_cast<int64_t>(i)));
    CHECK(is_held_out(a));
    CHECK(truth[i].at("key") == samples[i].key);
    CHECK(truth[i].at("caption") == demo_caption(a));
    CHECK(truth[i].at("shape") == kDemoShapes[static_cast<size_t>(a.shape)]);
    CHECK(truth[i].at("place") == kDemoPlaces[static_cast<size_t>(a.place)]);
    captions.insert(demo_caption(a));
  }
  CHECK(captions.size() == samples.size());
}

TEST_CASE("a demo set is not written over shards that are there") {
  const test::TempDir folder;
  fs::create_directories(folder / "mine/heldout");
  test::put_file(folder / "mine/notes.txt", "mine");
  write_demo_shards({folder / "mine", 16, 16, 1});  // other files do not matter
  const std::string shard = read_file(folder / "mine/000003.tar");
  for (int i = 0; i < 15; ++i) fs::remove(folder / fmt::format("mine/{:06}.tar", i));
  CHECK_THROWS_AS(write_demo_shards({folder / "mine", 16, 16, 2}), ConfigError);
  CHECK_THROWS_WITH(
      write_demo_shards({folder / "mine", 16, 16, 2}),
      Contains("--out " + folder / "mine") &&
          Contains("found 000015.tar, img_emb/img_emb_000000.npy to img_emb/img_emb_000015.npy, "
                   "heldout/000000.tar, heldout/img_emb/img_emb_000000.npy, heldout/truth.json, "
                   "heldout/captions.txt\n") &&
          Contains("--overwrite"));
  CHECK_FALSE(fs::exists(folder / "mine/000003.tar"));  // refused before anything is written
  {
    const test::BrokenListing broken;
    CHECK_THROWS_WITH(write_demo_shards({folder / "mine", 16, 16, 2}),
                      Contains("mine/: the folder cannot be read: Input/output error"));
  }
  test::put_file(folder / "mine/img_emb/mine.npy", "mine");
  const auto report = write_demo_shards({folder / "mine", 16, 16, 1, /*overwrite=*/true});
  CHECK(report.removed.size() == 22);
  CHECK(read_file(folder / "mine/000003.tar") == shard);
  CHECK_FALSE(fs::exists(folder / "mine/img_emb/mine.npy"));
  CHECK(read_file(folder / "mine/notes.txt") == "mine");
}

TEST_CASE("the same options write the same bytes, another seed others") {
  const test::TempDir folder;
  write_demo_shards({folder / "a", 40, 16, 3});
  write_demo_shards({folder / "b", 40, 16, 3});
  write_demo_shards({folder / "c", 40, 16, 4});
  CHECK(read_file(folder / "a/000007.tar") == read_file(folder / "b/000007.tar"));
  CHECK(read_file(folder / "a/000007.tar") != read_file(folder / "c/000007.tar"));
  CHECK_THROWS_AS(write_demo_shards({folder / "d", 15, 32, 0}), ConfigError);
}
