// SPDX-License-Identifier: MIT
// A folder of pictures as shards: data.folder.
#include "data/shards/picture_shards.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "data/loader_support.h"
#include "data/shards/captions.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/formats/webdataset.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

namespace dalle2::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

void add_picture(const TempDir& folder, const std::string& name, const std::string& caption = "") {
  const fs::path path = folder / name;
  write_file_atomically(path.string(), encode_png(busy_picture(6, 5)));
  if (!caption.empty())
    write_file_atomically(fs::path(path).replace_extension(".txt").string(), caption);
}

std::vector<GroupedSample> samples_of(const std::string& url, uint64_t offset = 0) {
  std::vector<GroupedSample> samples;
  const auto reader = open_shard(url, {}, {.offset = offset});
  while (auto sample = reader->next()) samples.push_back(std::move(*sample));
  return samples;
}

/// The members of all shards, as they are read one after the other.
Members members_of(const PictureShards& shards, const std::string& encoding = "windows-1252") {
  Members members;
  for (int64_t shard = 0; shard < shards.size(); ++shard) {
    TarMember member;
    for (const auto source = shards.open(shard, 0, encoding); source->next(member);)
      members.emplace_back(member.name, member.content);
  }
  return members;
}

/// A loader of all pictures of a folder.
struct FolderLoader {
  explicit FolderLoader(const TempDir& folder) {
    config.folder = folder.path();
    config.num_workers = 0;
    options.batch_size = 8;
    list = std::make_shared<const ShardList>(config);
    std::vector<uint32_t> positions(static_cast<size_t>(list->size()));
    std::iota(positions.begin(), positions.end(), 0);
    options.urls = ShardUrls(list, list->existing(positions));
  }
  ShardDataConfig config;
  LoaderOptions options;
  std::shared_ptr<const ShardList> list;
};

TEST_CASE("a picture of a folder is a sample with its caption, under a key with its place") {
  const TempDir folder;
  add_picture(folder, "b/tom.the.cat.png", "a cat\n\n");
  add_picture(folder, "a.PNG");
  write_file_atomically(folder / "notes.md", "no picture");
  const auto shards = PictureShards::of(folder.path(), FolderOrder::in_order);
  REQUIRE(shards->size() == 2);  // one picture each: few pictures make many small shards
  const auto first = samples_of(shards->url(0)), second = samples_of(shards->url(1));
  REQUIRE(first.size() == 1);
  REQUIRE(second.size() == 1);
  CHECK(first[0].key == "a_PNG_0000000000");
  CHECK(first[0].find({"txt"}) == nullptr);
  CHECK(second[0].key == "b/tom_the_cat_png_0000010000");
  CHECK(*second[0].find({"txt"}) == "a cat");
  CHECK(*second[0].find({"png"}) == read_file(folder / "b/tom.the.cat.png"));
}

TEST_CASE("pictures are cut into shards of about equal size, which open at any picture") {
  const TempDir folder;
  for (int i = 0; i < 250; ++i)
    add_picture(folder, fmt::format("{:03}.png", i), fmt::format("{}", i));
  const auto shards = PictureShards::of(folder.path(), FolderOrder::in_order);
  REQUIRE(shards->size() == 28);  // of 9 pictures, the last of 7
  std::vector<std::string> captions;
  for (int64_t i = 0; i < shards->size(); ++i) {
    CHECK(shard_number(shards->url(i)) == i);
    for (const GroupedSample& sample : samples_of(shards->url(i)))
      captions.push_back(*sample.find({"txt"}));
  }
  REQUIRE(captions.size() == 250);
  for (int i = 0; i < 250; ++i) CHECK(captions[static_cast<size_t>(i)] == std::to_string(i));
  const auto reader = open_shard(shards->url(1), {}, {});
  reader->next();
  REQUIRE(reader->next_offset() == uint64_t{1});
  const auto rest = samples_of(shards->url(1), *reader->next_offset());
  REQUIRE(rest.size() == 8);
  CHECK(rest[0].key == "010_png_0000010001");
}

TEST_CASE("shards of other pictures have other names, and are not read for the earlier ones") {
  const TempDir folder;
  for (const char* name : {"a.png", "b.png"}) add_picture(folder, name);
  const std::string first = PictureShards(folder.path(), FolderOrder::in_order).url(0);
  const std::string second = PictureShards(folder.path(), FolderOrder::in_order).url(1);
  add_picture(folder, "aa.png");
  const PictureShards now(folder.path(), FolderOrder::in_order);
  CHECK(now.url(0) == first);
  CHECK(now.pictures() == 3);
  const std::string names = now.names();
  fs::rename(folder / "b.png", folder / "c.png");
  CHECK(PictureShards(folder.path()).names() != names);
  fs::rename(folder / "c.png", folder / "b.png");
  CHECK(PictureShards(folder.path()).names() == names);
  CHECK(now.url(1) != second);
  CHECK_THROWS_WITH(open_shard(second),
                    Contains(folder.path() + ": the pictures of the folder have changed"));
}

TEST_CASE("links that lead nowhere are left out with one warning") {
  const TempDir folder;
  for (const char* name : {"b.png", "c.jpg"}) fs::create_symlink("nowhere", folder / name);
  CHECK_THROWS_WITH(
      PictureShards(folder.path()),
      Contains("found no jpg, jpeg, png or webp file in the folder or below it, but 2 "
               "links whose targets do not exist or cannot be reached: b.png, c.jpg."));
  for (const char* name : {"a.txt", "d.txt"}) fs::create_symlink("nowhere", folder / name);
  fs::create_symlink("loop.png", folder / "loop.png");
  add_picture(folder, "a.png");
  write_file_atomically(folder / "d.TXT", "a text");
  add_picture(folder, "d.png");
  const CapturedLog log;
  const PictureShards shards(folder.path(), FolderOrder::in_order);
  CHECK(shards.pictures() == 2);
  CHECK(log.lines().size() == 1);
  CHECK(log.count(folder.path() +
                  ": left out 5 links whose targets do not exist or cannot be reached: ") == 1);
  // Reading says nothing more, and a caption in capitals is found behind such a link.
  std::vector<std::string> read;
  for (const auto& [name, content] : members_of(shards))
    read.push_back(fs::path(name).extension().string() + (content == "a text" ? "!" : ""));
  CHECK(read == std::vector<std::string>{".png", ".png", ".txt!"});
  CHECK(log.lines().size() == 1);
}

TEST_CASE("messages name the folder and the picture, not shards that are only made up") {
  const TempDir folder;
  for (const char* name : {"a.png", "b.png"}) write_file_atomically(folder / name, "no picture");
  FolderLoader over(folder);
  CHECK(std::string(over.list->key()) == "/data/folder");
  CHECK(over.list->shown() == folder.path());
  const CapturedLog log;
  ShardLoader loader(over.config, over.options);
  CHECK_THROWS_WITH(
      first_of(loader),
      Contains("(" + folder.path() + " (virtual shard 0) ...): left out: 2 broken pictures") &&
          Contains("The warnings name the pictures"));
  CHECK(log.count("train: left out (broken picture): " + (folder / "b.png") + ": ") == 1);
  over.config.img_embeddings_url = folder / "img_emb";
  write_tiny_embeddings(folder / "img_emb/7.npy", 7, 1);
  over.options.need_image_embeds = true;
  CHECK_THROWS_WITH(ShardLoader(over.config, over.options),
                    Contains("first shard " + folder.path() + " (virtual shard 0)"));
  CHECK(shown_shard("https://me:secret@host/00000.tar") == "https://host/00000.tar");
}

TEST_CASE("a folder without pictures is an error that names it") {
  const TempDir folder;
  write_file_atomically(folder / "a.txt", "text");
  CHECK_THROWS_WITH(PictureShards(folder.path()),
                    Contains(folder.path()) && Contains("no jpg, jpeg, png or webp file"));
  CHECK_THROWS_AS(PictureShards(folder / "absent"), DataError);
}

TEST_CASE("captions of a folder come from files of the same name, then from its tables") {
  const TempDir folder;
  for (const char* name : {"a.png", "b.png", "c.png", "d/a.png", "d/b.png", "d/e/f.png", "g/h.png"})
    add_picture(folder, name);
  const auto write = [&](const char* name, const std::string& text) {
    write_file_atomically(folder / name, text);
  };
  write("a.caption", "of a file\n");
  write("b.json", R"({"caption": "of JSON", "text": "not this"})");
  write("c.JSON", R"({"width": 3})");
  write("metadata.jsonl",
        "\xef\xbb\xbf{\"file_name\": \"./c.png\", \"text\": \"of a line\"}\n{}\n"
        "{\"file_name\": \"d/e/f.png\", \"text\": \"from the top\"}\n"
        "{\"file_name\": \"a.png\", \"text\": \"not this\"}\n");
  write("metadata.csv", "file_name,text\na.png,not this\n");
  write("d/METADATA.CSV",
        "id,text,file_name\r\n1,\"a \"\"red\"\" car, old\r\nand big\",a.png\r\n2,a 5\" disk,b.png");
  write("g/own.jsonl", R"({"file_name": "h.png", "caption": "of the only table"})");
  const auto captions_of = [&] {
    std::map<std::string, std::string> captions;
    for (const auto& [name, content] : members_of(PictureShards(folder.path()))) {
      const auto parts = split_member_name(name).value();
      if (parts.second == "txt")
        captions[parts.first.substr(0, parts.first.find("_png"))] = content;
    }
    return captions;
  };
  CHECK(captions_of() ==
        std::map<std::string, std::string>{{"a", "of a file"},
                                           {"b", "of JSON"},
                                           {"c", "of a line"},
                                           {"d/a", "a \"red\" car, old\r\nand big"},
                                           {"d/b", "a 5\" disk"},
                                           {"d/e/f", "from the top"},
                                           {"g/h", "of the only table"}});
  write("g/other.jsonl", "{}\n");  // which of the two counts is not known
  write("d/METADATA.CSV", "path,label\na.png,1\n");
  const CapturedLog log;
  CHECK(captions_of().size() == 4);
  CHECK(log.count((folder / "d/METADATA.CSV") +
                  ": line 1: expected the columns file_name and text, separated by commas, "
                  "semicolons or tabs, got path,label") == 1);
  for (const char* name : {"metadata.csv", "g/own.jsonl", "g/other.jsonl"})
    CHECK(log.count((folder / name) + ": no captions are read from it: the table of a folder is") ==
          1);
  CHECK(log.lines().size() == 6);  // and two about a row without a name
}

TEST_CASE("table rows and JSON files without a usable caption are reported") {
  const TempDir folder;
  for (const char* name : {"a.png", "b.png", "s/c.png"}) add_picture(folder, name);
  write_file_atomically(folder / "metadata.csv",
                        "file_name,text\na.png,one\na.png,two\ns\\c.png,of Windows\nb,x\n"
                        "/b.png,x\nb.png,red, green\n\nb.png\nb.png,\"open\nb.png,lost\n");
  const FolderCaptions captions;
  const std::filesystem::path top = folder.path();
  const CapturedLog log;
  CHECK(captions.of(top / "a.png", "a.png", "UTF-8") == "two");
  CHECK(captions.of(top / "s/c.png", "s/c.png", "UTF-8") == "of Windows");
  CHECK_FALSE(captions.of(top / "b.png", "b.png", "UTF-8"));
  const std::string table = folder / "metadata.csv";
  for (const char* said :
       {": left out (repeated row): line 3: a.png has an earlier row too, which is left out",
        ": left out (unmatched row): line 5: b is no path of a file below the table's folder",
        ": left out (malformed row): line 7: expected 2 values as in line 1, got 3: a text with",
        ": line 10: a quote begins here that has no end",
        ": left out: 2 malformed rows, 1 repeated row, 2 unmatched rows"}) {
    CAPTURE(said);
    CHECK(log.count(table + said) == 1);
  }
  write_file_atomically(folder / "b.json", R"({"caption": 5})");
  CHECK_THROWS_WITH(captions.of(top / "b.png", "b.png", "UTF-8"),
                    Contains("b.json: \"caption\": expected a text, got number"));
  for (int epoch = 0; epoch < 12; ++epoch) members_of(PictureShards(folder.path()));
  CHECK(log.count("\n  Others like it are not named.") == 1);
}

TEST_CASE("a table whose head has no comma is separated by semicolons, or else by tabs") {
  const TempDir folder;
  for (const char* name : {"a.png", "b/c.png"}) add_picture(folder, name);
  write_file_atomically(folder / "metadata.csv",
                        "file_name;text\ra.png;\"small, red; \"\"old\"\"\"\r;\r");
  write_file_atomically(folder / "b/metadata.csv", "file_name\ttext\nc.png\tone, two; three\n");
  const FolderCaptions captions;
  const std::filesystem::path top = folder.path();
  CHECK(captions.of(top / "a.png", "a.png", "UTF-8") == "small, red; \"old\"");
  CHECK(captions.of(top / "b/c.png", "b/c.png", "UTF-8") == "one, two; three");
}

TEST_CASE("captions in JSON are read in the encoding of the captions") {
  const TempDir folder;
  for (const char* name : {"a.png", "b.png"}) add_picture(folder, name);
  // Shift-JIS: the second byte of this letter is a backslash.
  const std::string letter = "\x95\x5c";
  write_file_atomically(folder / "a.json", R"({"caption": ")" + letter + "\"}");
  write_file_atomically(folder / "captions.jsonl",
                        R"({"file_name": "b.png", "text": ")" + letter + "\x81\x41\"}\n");
  const auto captions_in = [&](const std::string& encoding) {
    std::vector<std::string> captions;
    const PictureShards shards(folder.path(), FolderOrder::in_order);
    for (const auto& [name, content] : members_of(shards, encoding)) {
      if (name.ends_with(".txt")) captions.push_back(content);
    }
    return captions;
  };
  const CapturedLog log;
  CHECK(captions_in("shift_jis") == std::vector<std::string>{"\u8868", "\u8868\u3001"});
  CHECK(log.count((folder / "a.json") +
                  ": not UTF-8; it and others like it are read as shift_jis (caption_encoding)") ==
        1);
  CHECK(log.lines().size() == 1);
  CHECK(captions_in("windows-1252").empty());
  CHECK(log.count((folder / "captions.jsonl") +
                  ": its caption is neither UTF-8 nor windows-1252: caption_encoding names "
                  "another\n  None of its captions is used.") == 1);
}

TEST_CASE("a picture without a caption is reported with what it lacks") {
  const TempDir folder;
  for (const char* name : {"a.png", "b.png", "c.png"}) add_picture(folder, name);
  for (const char* name : {"a.tags", "b.tags", "notes", "d.tar"})
    write_file_atomically(folder / name, "x");
  write_file_atomically(folder / "c.txt", "\n");
  const CapturedLog log;
  FolderLoader over(folder);
  over.options.need_captions = true;
  ShardLoader loader(over.config, over.options);
  CHECK_THROWS_AS(first_of(loader), DataError);
  CHECK(
      log.count("passed over 4 files with names of no kind of data that is read (2 .tags, 1 .tar, "
                "1 without extension)") == 1);
  CHECK(log.count((folder / "a.png") + ": no a.txt beside it") == 1);
  CHECK(log.count((folder / "c.png") + ": its caption is empty") == 1);
}

TEST_CASE("a folder of Parquet files without pictures is told where help is") {
  const TempDir folder;
  write_file_atomically(folder / "data/train-0.parquet", "PAR1");
  CHECK_THROWS_WITH(PictureShards(folder.path()),
                    Contains("below it, but Parquet files: docs/data.md says how"));
}

}  // namespace
}  // namespace dalle2::test
