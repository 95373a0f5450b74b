// SPDX-License-Identifier: MIT
// Which pictures lie together in a shard, and so in a split.
#include "data/shards/deal.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "data/shards/pack.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/formats/webdataset.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

namespace dalle2::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

/// A nested set: `sizes` pictures in each top folder, in subfolders of five.
std::vector<std::string> nested_paths(const std::vector<int64_t>& sizes) {
  std::vector<std::string> paths;
  for (size_t top = 0; top < sizes.size(); ++top) {
    for (int64_t i = 0; i < sizes[top]; ++i)
      paths.push_back(fmt::format("kind{}/sub{}/{:03}.png", top, i / 5, i));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string top_of(const std::string& path) {
  return path.substr(0, path.find('/'));
}

size_t count(const std::vector<std::vector<size_t>>& shards) {
  std::set<size_t> all;
  for (const auto& shard : shards) all.insert(shard.begin(), shard.end());
  return all.size();
}

TEST_CASE("a shard of a mixed set has the share of each folder, to a picture for each level") {
  const auto paths = nested_paths({30, 70, 300});
  const auto shards = deal(paths, {.per_shard = 40});
  REQUIRE(shards.size() == 10);
  CHECK(count(shards) == paths.size());
  for (const auto& shard : shards) {
    std::map<std::string, int> found;
    for (const size_t picture : shard) ++found[top_of(paths[picture])];
    CHECK(std::abs(found["kind0"] - 3) <= 1);
    CHECK(std::abs(found["kind1"] - 7) <= 1);
    CHECK(std::abs(found["kind2"] - 30) <= 1);
  }
  CHECK(deal(paths, {.per_shard = 40}) == shards);
  CHECK(deal(paths, {.seed = 1, .per_shard = 40}) != shards);
}

TEST_CASE("in order, pictures keep the order of their paths") {
  const auto paths = nested_paths({5, 6});
  const auto shards = deal(paths, {.order = FolderOrder::in_order, .per_shard = 4});
  CHECK(shards == std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10}});
}

TEST_CASE("together, a lowest folder lies in one shard and the shards are about equal") {
  auto paths = nested_paths({20, 23, 41, 80, 150, 482});
  for (int i = 0; i < 7; ++i) paths.push_back(fmt::format("loose{}.png", i));
  std::sort(paths.begin(), paths.end());
  const auto shards = deal(paths, {.order = FolderOrder::together, .per_shard = 80});
  REQUIRE(shards.size() == 11);
  CHECK(count(shards) == paths.size());
  std::map<std::string, std::set<size_t>> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    CHECK(shards[i].size() >= 68);
    CHECK(shards[i].size() <= 78);
    for (const size_t picture : shards[i]) {
      const std::string& path = paths[picture];
      places[path.find('/') == std::string::npos ? path : path.substr(0, path.rfind('/'))].insert(
          i);
    }
  }
  for (const auto& [folder, of] : places) CHECK(of.size() == 1);
}

TEST_CASE("what cannot be dealt is refused with the reason") {
  CHECK_THROWS_WITH(deal({"a/1.png", "a/2.png"}, {.order = FolderOrder::together}),
                    Contains("expected several lowest folders, found a/ with all 2 pictures"));
  CHECK_THROWS_WITH(deal(nested_paths({30}), {.per_shard = 11, .index_width = 1}),
                    Contains("11 samples per shard: expected 1 to 10"));
  std::vector<std::string> paths;
  for (int i = 0; i < 11; ++i) paths.push_back(fmt::format("a/{:02}.png", i));
  paths.push_back("b/0.png");
  CHECK_THROWS_WITH(deal(paths, {.order = FolderOrder::together, .per_shard = 6, .index_width = 1}),
                    Contains("a shard would hold 11 pictures; expected at most 10"));
}

TEST_CASE("a folder as shards follows folder_order, and each order has its own shards") {
  const TempDir folder;
  for (const std::string& path : nested_paths({10, 10}))
    write_file_atomically(folder / path, encode_png(busy_picture(6, 5)));
  const auto first = [&](FolderOrder order) {
    return PictureShards::of(folder.path(), order)->picture(0, 0).source;
  };
  CHECK(first(FolderOrder::in_order) == "kind0/sub0/000.png");
  CHECK(PictureShards::of(folder.path(), FolderOrder::together)->size() == 4);
  const auto mixed = PictureShards::of(folder.path());
  REQUIRE(mixed->size() == 20);  // few pictures: one a shard
  CHECK_THAT(mixed->url(3), Contains("folder:mixed:" + folder.path() + "/000003."));
  CHECK(open_shard(mixed->url(3))->next().has_value());
  CHECK(picture_of(mixed->url(3), "x_0000030000") == mixed->picture(3, 0).path.string());
}

void write_set(const TempDir& folder) {
  for (const std::string& path : nested_paths({12, 28})) {
    write_file_atomically(folder / ("in/" + path), encode_png(busy_picture(6, 5)));
    write_file_atomically(folder / ("in/" + path.substr(0, path.size() - 4) + ".txt"), path);
  }
  pack_folder(folder / "in",
              folder / "sorted",
              {.deal = {.order = FolderOrder::in_order, .per_shard = 10}});
  for (int shard = 0; shard < 4; ++shard) {
    std::vector<float> rows;
    for (int i = 0; i < 10; ++i)
      rows.insert(rows.end(), {static_cast<float>(shard), static_cast<float>(i)});
    write_npy_float32(fmt::format("{}/img_emb/img_emb_{:06}.npy", folder / "sorted", shard),
                      {10, 2},
                      rows.data());
  }
}

TEST_CASE("packed shards are mixed with all members and their rows of embeddings") {
  const TempDir folder;
  write_set(folder);
  write_file_atomically(folder / "sorted/notes.json", "{}");
  const PackReport report = mix_shards(folder / "sorted", folder / "mixed", {});
  CHECK(report.packed == 40);
  CHECK(report.shards == 10);
  CHECK(report.arrays == 10);
  CHECK(report.absent_rows == 0);
  CHECK(describe_pack(report) == std::vector<std::string>{"40 of 40 samples in 10 shards",
                                                          "10 files of rows, 0 rows absent"});
  CHECK(read_file(folder / "mixed/notes.json") == "{}");
  CHECK_FALSE(fs::exists(folder / "mixed/shards.part"));
  const auto sorted = nested_paths({12, 28});
  std::set<std::string> captions;
  for (int shard = 0; shard < 10; ++shard) {
    SampleReader reader(fmt::format("{}/{:06}.tar", folder / "mixed", shard));
    const NpyArray rows =
        read_npy(fmt::format("{}/img_emb/img_emb_{:06}.npy", folder / "mixed", shard));
    REQUIRE(rows.shape == std::vector<int64_t>{4, 2});
    const std::vector<float> values = rows.to_float32();
    int of_first = 0;
    for (size_t i = 0; const auto sample = reader.next(); ++i) {
      CHECK(sample->key == fmt::format("{:06}{:04}", shard, i));
      CHECK(sample->fields.contains("png"));
      const std::string caption = *sample->find({"txt"});
      captions.insert(caption);
      of_first += caption.starts_with("kind0") ? 1 : 0;
      const auto old = std::find(sorted.begin(), sorted.end(), caption) - sorted.begin();
      CHECK(values[2 * i] == static_cast<float>(old / 10));
      CHECK(values[2 * i + 1] == static_cast<float>(old % 10));
    }
    CHECK(std::abs(of_first - 1) <= 1);
  }
  CHECK(captions.size() == 40);
}

TEST_CASE("shards are mixed if all of them can be read, and replace others only if asked to") {
  const TempDir folder;
  write_set(folder);
  write_file_atomically(folder / "used/000077.tar", "x");
  CHECK_THROWS_WITH(mix_shards(folder / "sorted", folder / "used", {}),
                    Contains("used: expected a folder without shards, found 000077.tar"));
  CHECK(mix_shards(folder / "sorted", folder / "used", {}, /*overwrite=*/true).removed ==
        std::vector<std::string>{"000077.tar"});
  int64_t written = 0;
  CHECK_THROWS_WITH(mix_shards(folder / "sorted",
                               folder / "mixed",
                               {.index_width = 6},
                               /*overwrite=*/false,
                               [&](int64_t done, int64_t) { written = done; }),
                    Contains("Give their number with --index-width"));
  CHECK(written == 0);
  fs::remove(folder / "sorted/img_emb/img_emb_000002.npy");
  CHECK(mix_shards(folder / "sorted", folder / "fewer", {}).absent_rows == 10);
  fs::resize_file(folder / "sorted/000001.tar", 3000);
  CHECK_THROWS_WITH(mix_shards(folder / "sorted", folder / "mixed", {}),
                    Contains("000001.tar") && Contains("Mend or remove this shard"));
  CHECK_FALSE(fs::exists(folder / "mixed"));
}

std::vector<std::string> differences(const std::vector<std::string>& urls) {
  return check_shards({.urls = urls}).split_differences;
}

TEST_CASE("the splits of shards packed in order differ, those of mixed ones do not") {
  const TempDir folder;
  for (const std::string& path : nested_paths({60, 60, 60})) {
    const int side = path.starts_with("kind0") ? 6 : 40;
    write_file_atomically(folder / ("in/" + path), encode_png(busy_picture(side, side)));
  }
  pack_folder(folder / "in", folder / "sorted", {.deal = {.order = FolderOrder::in_order}});
  const auto found = differences(shards_in_folder(folder / "sorted"));
  REQUIRE(found.size() == 3);  // top folder and side, and the pictures, which are all equal
  CHECK_THAT(found[0], Contains("the splits differ by shorter side: "));
  CHECK_THAT(found[1],
             Contains("the splits differ by top folder: kind") &&
                 Contains(" of the 60 samples in ") &&
                 Contains("a mixed set has about 6; `dalle2-train shards make --from"));
  CHECK_THAT(found[2], Contains("in another split too, as the same file"));
  const auto report = check_shards({.urls = shards_in_folder(folder / "sorted")});
  CHECK(describe_check(report).back() == found[2]);
  for (int64_t seed = 0; seed < 20; ++seed) {
    const std::string out = folder / fmt::format("mixed{}", seed);
    pack_folder(folder / "in", out, {.deal = {.seed = seed, .per_shard = seed % 2 == 0 ? 0 : 7}});
    const auto lines = differences(shards_in_folder(out));
    CAPTURE(seed, lines);
    CHECK(lines.size() == 1);  // the equal files
  }
  CHECK(differences(PictureShards::of(folder / "in")->urls()).size() == 1);
}

TEST_CASE("splits are compared by class and transparency, and small groups do not count alone") {
  std::vector<ShardTraits> shards(20);
  const auto add = [&](size_t shard, const char* property, const char* value, int64_t count) {
    shards[shard].values[property][value] += count;
  };
  for (size_t i = 0; i < shards.size(); ++i) {
    add(i, "class", i < 10 ? "0" : "1", 10);
    add(i, "transparency", i == 3 ? "transparent" : "opaque", 10);
    add(i, "top folder", fmt::format("single{}", i).c_str(), 10);
  }
  const auto found = compare_splits(shards);
  CAPTURE(found);
  CHECK(std::any_of(found.begin(), found.end(), [](const std::string& line) {
    return line.starts_with("the splits differ by class: ");
  }));
  CHECK(std::none_of(found.begin(), found.end(), [](const std::string& line) {
    return line.find("top folder") != line.npos || line.find("transparency") != line.npos;
  }));
  CHECK(compare_splits(std::vector<ShardTraits>(2)).empty());
  std::vector<ShardTraits> in_order(9);
  for (size_t i = 0; i < in_order.size(); ++i)
    in_order[i].values["class"][std::to_string(i / 3)] = 10;
  CHECK(compare_splits(in_order).size() == 1);
  for (uint64_t i = 0; i < 100; ++i) in_order[i < 92 ? 0 : i - 91].pictures.insert(i);
  CHECK_THAT(compare_splits(in_order).back(), Contains("the shards have very different sizes: "));
}

}  // namespace
}  // namespace dalle2::test
