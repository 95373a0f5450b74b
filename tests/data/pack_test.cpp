// SPDX-License-Identifier: MIT
#include "data/shards/pack.h"

#include <fmt/ranges.h>
#include <png.h>
#include <signal.h>
#include <catch2/catch.hpp>

#include "base/stop_signal.h"
#include "data/loader_support.h"
#include "data/shards/shard_check.h"
#include "io/files/atomic_file.h"
#include "io/formats/webdataset.h"
#include "support/broken_listing.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const PackOptions kInOrder = {.deal = {.order = FolderOrder::in_order}};

std::vector<GroupedSample> samples_of(const std::string& path) {
  std::vector<GroupedSample> samples;
  SampleReader reader(path);
  while (auto sample = reader.next()) samples.push_back(std::move(*sample));
  return samples;
}

std::string rgba_png(const std::vector<uint8_t>& pixels, uint32_t width, uint32_t height) {
  png_image writer{};
  writer.version = PNG_IMAGE_VERSION;
  writer.format = PNG_FORMAT_RGBA;
  writer.width = width;
  writer.height = height;
  png_alloc_size_t size = 0;
  REQUIRE(png_image_write_to_memory(&writer, nullptr, &size, 0, pixels.data(), 0, nullptr) != 0);
  std::string file(size, '\0');
  REQUIRE(png_image_write_to_memory(&writer, file.data(), &size, 0, pixels.data(), 0, nullptr) !=
          0);
  return file;
}

/// Seven pictures (one of them broken), three captions, a text file without a picture and an svg.
void fill_folder(const TempDir& folder) {
  for (const char* name : {"a.png", "b/c.PNG", "b/d.png", "e.jpg", "f.png", "g.png"})
    write_file_atomically(folder / "in" + "/" + name, encode_png(busy_picture(6, 5)));
  write_file_atomically(folder / "in/h.jpeg", encode_jpeg(busy_picture(8, 8), 90));
  write_file_atomically(folder / "in/f.png", "broken");
  write_file_atomically(folder / "in/a.txt", "an a\nde=ein A\n");
  write_file_atomically(folder / "in/b/c.txt", "a c\n");
  write_file_atomically(folder / "in/h.txt", "\n");
  write_file_atomically(folder / "in/lonely.txt", "x");
  write_file_atomically(folder / "in/g.Txt", "x");
  write_file_atomically(folder / "in/x.svg", "x");
}

std::string text_of(const PackReport& report) {
  std::string text;
  for (const std::string& line : describe_pack(report)) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("links to files that are not there are reported and left out") {
  const TempDir folder;
  write_file_atomically(folder / "in/a.png", encode_png(busy_picture(6, 5)));
  write_file_atomically(folder / "in/b.png", encode_png(busy_picture(6, 5)));
  for (const char* name : {"in/b.txt", "in/c.png", "in/d.caption", "in/e"})
    std::filesystem::create_symlink("nowhere", folder / name);
  std::filesystem::create_symlink("a.png", folder / "in/f.png");
  const CapturedLog log;
  const PackReport report = pack_folder(folder / "in", folder / "out", kInOrder);
  CHECK(report.packed == 3);
  CHECK(report.without_caption == 3);
  CHECK(log.count("in: left out 4 links whose targets do not exist or cannot be reached: b.txt, "
                  "c.png, d.caption, e") == 1);
  CHECK(log.count("in: 1 picture is a link to files of the same folder, which count once more: "
                  "f.png") == 1);
}

TEST_CASE("a table of captions of any name is not told as passed over") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "in");
  write_file_atomically(folder / "in/a.png", encode_png(busy_picture(6, 5)));
  write_file_atomically(folder / "in/own.jsonl", R"({"file_name": "a.png", "text": "a cat"})");
  const PackReport report = pack_folder(folder / "in", folder / "out", kInOrder);
  CHECK(report.without_caption == 0);
  CHECK(text_of(report) == "1 of 1 picture in 1 shard\n");
}

TEST_CASE("a folder of pictures and captions becomes shards, and what is left out is reported") {
  const TempDir folder;
  fill_folder(folder);
  PackOptions options = kInOrder;
  options.deal.per_shard = 3;
  std::vector<int64_t> done;
  const PackReport report =
      pack_folder(folder / "in", folder / "out", options, [&](int64_t pictures, int64_t total) {
        CHECK(total == 7);
        done.push_back(pictures);
      });
  CHECK(done == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(report.found == 7);
  CHECK(report.packed == 6);
  CHECK(report.without_caption == 4);
  CHECK(report.shards == 3);
  REQUIRE(report.skipped.size() == 1);
  CHECK(report.skipped[0].path == "f.png");
  CHECK_THAT(report.skipped[0].reason, Contains("neither JPEG, PNG nor WebP"));
  CHECK(report.lonely_captions == std::vector<std::string>{"g.Txt", "lonely.txt"});
  CHECK_THAT(
      text_of(report),
      Contains(
          "2 caption files were skipped, each without a picture of its name: g.Txt, lonely.txt\n"));

  const auto first = samples_of(folder / "out/000000.tar");
  REQUIRE(first.size() == 3);
  CHECK(first[0].key == "0000000000");
  CHECK(first[0].fields.at("txt") == "an a\nde=ein A");
  CHECK(first[1].fields.at("png") == encode_png(busy_picture(6, 5)));
  CHECK(first[1].fields.at("json") == R"({"source":"b/c.PNG","bytes":)" +
                                          std::to_string(encode_png(busy_picture(6, 5)).size()) +
                                          R"(,"ground":null})");
  // e.jpg is a PNG by content; the place of the broken f.png stays empty.
  const auto second = samples_of(folder / "out/000001.tar");
  REQUIRE(second.size() == 2);
  CHECK(second[0].fields.contains("png"));
  CHECK(second[1].key == "0000010002");
  CHECK(samples_of(folder / "out/000002.tar")[0].fields.contains("jpg"));

  const auto lines = describe_pack(report);
  CHECK_THAT(lines[0], Catch::Equals("6 of 7 pictures in 3 shards"));
  CHECK_THAT(lines.back(), Contains("left out: f.png"));
}

TEST_CASE("twenty pictures that are left out have a line each, and the rest a number") {
  const auto lines_of = [](size_t count) {
    PackReport report;
    for (size_t i = 0; i < count; ++i) report.skipped.push_back({"p" + std::to_string(i), "why"});
    std::vector<std::string> lines = describe_pack(report);
    std::erase_if(lines, [](const std::string& line) { return !line.starts_with("left out: "); });
    return lines;
  };
  CHECK(lines_of(20).size() == 20);
  CHECK(lines_of(20).back() == "left out: p19 (why)");
  CHECK(lines_of(1021).size() == 21);
  CHECK(lines_of(1021).back() == "left out: 1,001 more");
}

TEST_CASE("a folder whose listing breaks off is not packed") {
  const TempDir folder;
  fill_folder(folder);
  const BrokenListing broken;
  CHECK_THROWS_WITH(pack_folder(folder / "in", folder / "out", kInOrder),
                    Contains("in: the folder cannot be read: Input/output error"));
  CHECK_FALSE(fs::exists(folder / "out/000000.tar"));
}

TEST_CASE("a set that is there is replaced as a whole, and only if that is asked for") {
  const TempDir folder;
  fill_folder(folder);
  PackOptions options = kInOrder;
  options.deal.per_shard = 2;
  pack_folder(folder / "in", folder / "out", options);
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder / "out"))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  };
  options.deal.per_shard = 4;
  const std::string first = read_file(folder / "out/000000.tar");
  CHECK_THROWS_WITH(pack_folder(folder / "in", folder / "out", options),
                    Contains("found 000000.tar to 000003.tar\n") && Contains("--overwrite"));
  CHECK(read_file(folder / "out/000000.tar") == first);
  options.overwrite = true;
  const PackReport report = pack_folder(folder / "in", folder / "out", options);
  CHECK(report.shards == 2);
  CHECK_THAT(text_of(report), Contains("removed: 000000.tar to 000003.tar\n"));
  CHECK(names() == std::vector<std::string>{"000000.tar", "000001.tar"});
  CHECK(samples_of(folder / "out/000000.tar").size() == 4);

  // Of pictures that are all broken there is no shard that could take its place.
  write_file_atomically(folder / "broken/a.png", "broken");
  CHECK(pack_folder(folder / "broken", folder / "out", options).packed == 0);
  CHECK(names() == std::vector<std::string>{"000000.tar", "000001.tar"});
}

TEST_CASE("a picture is packed whatever its caption is, and the caption as UTF-8") {
  const TempDir folder;
  const std::vector<std::pair<std::string, std::string>> captions = {
      {"a", "caf\xe9"},
      {"b", "\xff\xfe" + std::string("c\0a\0t\0", 6)},
      {"c",
       "\xef\xbb\xbf"
       "a dog\r\n"},
      {"d", "\x81\x8d"},
      {"e", " \xc2\xa0\n"},
      {"f", "\na frog\nune grenouille\n"}};
  for (const auto& [name, caption] : captions) {
    write_file_atomically(folder / "in" + "/" + name + ".png", encode_png(busy_picture(6, 5)));
    write_file_atomically(folder / "in" + "/" + name + ".txt", caption);
  }
  const auto texts = [&](PackOptions options) {
    options.deal.per_shard = 6;
    options.overwrite = true;
    const PackReport report = pack_folder(folder / "in", folder / "out", options);
    std::vector<std::string> packed;
    for (const GroupedSample& sample : samples_of(folder / "out/000000.tar"))
      packed.push_back(sample.find({"txt"}) == nullptr ? "none" : *sample.find({"txt"}));
    std::sort(packed.begin(), packed.end());
    return std::make_pair(packed, text_of(report));
  };
  using Texts = std::vector<std::string>;
  const CapturedLog log;
  const auto [all, told] = texts({});
  CHECK(all == Texts{"\na frog\nune grenouille", "a dog", "café", "cat", "none", "none"});
  CHECK_THAT(told,
             Contains("6 of 6 pictures in 1 shard") && Contains("2 have no caption\n") &&
                 Contains("\nused all the same: 1 caption of an assumed "
                          "encoding, 1 caption of several lines, 1 picture whose caption has no "
                          "text, 1 unreadable caption\n"));
  CHECK(log.count("a.png: its caption is not UTF-8, and is read as windows-1252") == 1);
  CHECK(log.count("d.png: its caption is neither UTF-8 nor windows-1252") == 1);
  CHECK(log.count("f.png: its caption has 2 lines, and all are used") == 1);
  const auto first = texts({.captions = {.caption_lines = CaptionLines::first}});
  CHECK(first.first == Texts{"a dog", "a frog", "café", "cat", "none", "none"});
  CHECK_THAT(first.second, !Contains("several lines"));
  CHECK(texts({.captions = {.caption_encoding = "koi8-r"}}).first[2] == "cafИ");
  CHECK_THAT(texts({.need_captions = true}).second,
             Contains("left out: e.png (its caption is empty)"));
  CHECK_THROWS_WITH(
      texts({.captions = {.caption_encoding = "windows-1521"}}),
      Contains("--caption-encoding: ICU has no encoding \"windows-1521\"; common ones are"));
}

TEST_CASE("a signal ends the packing, and the folder is as it was") {
  const TempDir folder;
  fill_folder(folder);
  const PackOptions options{.deal = {.order = FolderOrder::in_order, .per_shard = 2}};
  install_stop_signals();
  const PackReport report =
      pack_folder(folder / "in", folder / "out", options, [](int64_t done, int64_t) {
        if (done == 3) raise(SIGTERM);
      });
  CHECK(report.stopped);
  CHECK(report.packed == 3);
  CHECK_FALSE(fs::exists(folder / "out"));
  clear_stop_request();
  uninstall_stop_signals();
}

TEST_CASE("options choose captions and digits, and the default size gives every split shards") {
  const TempDir folder;
  fill_folder(folder);
  PackOptions options = kInOrder;
  options.need_captions = true;
  options.captions.caption_lines = CaptionLines::first;
  options.deal.index_width = 2;
  const PackReport report = pack_folder(folder / "in", folder / "out", options);
  CHECK(report.packed == 2);
  CHECK(report.shards == 2);  // of the two pictures with captions, a tenth each
  CHECK(report.skipped.size() == 5);
  CHECK(report.skipped[0].reason == "no caption");
  CHECK(samples_of(folder / "out/000000.tar")[0].fields.at("txt") == "an a");
  CHECK(samples_of(folder / "out/000001.tar")[0].key == "00000100");
  options.deal.per_shard = 101;
  CHECK_THROWS_WITH(pack_folder(folder / "in", folder / "out", options),
                    Contains("expected 1 to 100"));
  CHECK_THROWS_WITH(pack_folder(folder / "absent", folder / "out", kInOrder),
                    Contains("cannot be read"));
  fs::create_directories(folder / "empty");
  CHECK_THROWS_WITH(pack_folder(folder / "empty", folder / "out", kInOrder),
                    Contains("no jpg, jpeg, png"));
}

TEST_CASE("no shard is empty: left-out pictures do not count, and broken ones alone make none") {
  const TempDir folder;
  fill_folder(folder);
  PackOptions options = kInOrder;
  options.need_captions = true;
  options.deal.per_shard = 1;
  PackReport report = pack_folder(folder / "in", folder / "out", options);
  CHECK(report.found == 7);
  CHECK(report.packed == 2);
  CHECK(report.shards == 2);
  CHECK(samples_of(folder / "out/000000.tar").size() == 1);
  CHECK(samples_of(folder / "out/000001.tar").size() == 1);
  CHECK_FALSE(fs::exists(folder / "out/000002.tar"));

  // Without the option all seven have a place; f.png, the fifth, is broken.
  options.need_captions = false;
  report = pack_folder(folder / "in", folder / "all", options);
  CHECK(report.shards == 6);
  CHECK_FALSE(fs::exists(folder / "all/000004.tar"));
  CHECK(samples_of(folder / "all/000005.tar").size() == 1);

  fs::create_directories(folder / "bare");
  write_file_atomically(folder / "bare/a.png", encode_png(busy_picture(6, 5)));
  options.need_captions = true;
  CHECK_THROWS_WITH(pack_folder(folder / "bare", folder / "none", options),
                    Contains("none of 1 picture has a caption") && Contains("--need-captions"));
}

TEST_CASE("transparent pictures are laid on a ground, and opaque pictures stay as they are") {
  const TempDir folder;
  std::vector<uint8_t> picture;
  for (int i = 0; i < 16; ++i) picture.insert(picture.end(), {200, 20, 10, 0});
  picture[4 * (1 * 4 + 2) + 3] = 255;
  const std::vector<uint8_t> black = {0, 0, 0, 51};
  std::copy(black.begin(), black.end(), picture.begin() + 4 * (3 * 4 + 3));
  write_file_atomically(folder / "in/clear.png", rgba_png(picture, 4, 4));
  for (size_t i = 3; i < picture.size(); i += 4) picture[i] = 255;
  write_file_atomically(folder / "in/opaque.png", rgba_png(picture, 4, 4));
  PackOptions options = kInOrder;
  options.ground = Rgb{255, 255, 255};
  options.deal.per_shard = 10;
  const PackReport report = pack_folder(folder / "in", folder / "out", options);
  CHECK(report.grounded == 1);
  const auto samples = samples_of(folder / "out/000000.tar");
  const Image white = decode_image(samples[0].fields.at("png"), "clear");
  const auto pixel = [&](size_t x, size_t y) {
    return std::vector<uint8_t>(white.pixels.begin() + static_cast<long>(3 * (4 * y + x)),
                                white.pixels.begin() + static_cast<long>(3 * (4 * y + x) + 3));
  };
  CHECK(pixel(0, 0) == std::vector<uint8_t>{255, 255, 255});
  CHECK(pixel(2, 1) == std::vector<uint8_t>{200, 20, 10});
  CHECK(pixel(3, 3) == std::vector<uint8_t>{204, 204, 204});
  CHECK(samples[1].fields.at("png") == read_file(folder / "in/opaque.png"));
  CHECK(report.pictures.transparent == 0);

  options.ground.reset();
  const PackReport as_they_are = pack_folder(folder / "in", folder / "clear", options);
  CHECK(as_they_are.pictures.transparent == 1);
  CHECK(as_they_are.grounded == 0);
  CHECK(samples_of(folder / "clear/000000.tar")[0].fields.at("png") ==
        read_file(folder / "in/clear.png"));
  CHECK_THAT(fmt::format("{}", fmt::join(describe_pack(as_they_are), "\n")),
             Contains("1 picture is transparent in part: training sees the colours stored there, "
                      "often black; data.ground or `shards make --ground` lays them on a colour"));
  CheckOptions check;
  check.urls = {folder / "clear/000000.tar", folder / "out/000000.tar"};
  const CheckReport checked = check_shards(check);
  CHECK(checked.shards[0].pictures.transparent == 1);
  CHECK(checked.shards[1].pictures.transparent == 0);
  CHECK_THAT(fmt::format("{}", fmt::join(describe_check(checked), "\n")),
             Contains("1 picture is transparent in part: training sees the colours stored there, "
                      "often black; data.ground or `shards make --ground` lays them on a colour"));
}

TEST_CASE("packed shards load, and the check finds nothing wrong with them") {
  const TempDir folder;
  for (int i = 0; i < 20; ++i) {
    const std::string path = folder / "in/" + std::to_string(i);
    write_file_atomically(path + ".png",
                          encode_png(plain_picture(4, 4, static_cast<uint8_t>(i), 0, 0)));
    write_file_atomically(path + ".txt", "number " + std::to_string(i));
  }
  pack_folder(folder / "in", folder / "out", kInOrder);
  const CheckReport check = check_shards({.urls = shards_in_folder(folder / "out")});
  CHECK(check.shards.size() == 10);
  CHECK(check.usable == 20);
  const std::vector<std::string> lines = describe_check(check);
  CHECK(std::count(lines.begin(), lines.end(), "in all: 10 shards, 10 of them without fault") == 1);

  ShardDataConfig config = config_with(2);
  config.webdataset_base_url = folder / "out/{}.tar";
  config.end_shard = 9;
  LoaderOptions options;
  const auto list = std::make_shared<const ShardList>(config);
  options.urls = shard_urls(list, split_shards(config.splits, *list, 0, {}).train, "train");
  options.need_captions = true;
  ShardLoader loader(config, options);
  CHECK(keys_of_epoch(loader).size() == 16);
}
