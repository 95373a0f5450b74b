// SPDX-License-Identifier: MIT
#include "io/formats/webdataset.h"

#include <zlib.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/fixture_folder.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;
using nlohmann::json;

namespace {

/// The bytes that make_webdataset.py writes as the characters U+0000 to U+00FF.
std::string bytes_of(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = static_cast<unsigned char>(text[i]);
    if (value >= 0x80) value = (value & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 63);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

bool is_content(const std::string& content, const json& expected) {
  if (expected.is_string()) return content == bytes_of(expected);
  const Bytef* const bytes = reinterpret_cast<const Bytef*>(content.data());
  return content.size() == expected[0].get<size_t>() &&
         crc32(0, bytes, static_cast<uInt>(content.size())) == expected[1].get<uLong>();
}

void check_sample(const GroupedSample& sample, const json& expected) {
  CHECK(sample.key == bytes_of(expected.at("key")));
  CHECK(sample.fields.size() == expected.at("fields").size());
  for (const auto& [field, content] : expected.at("fields").items()) {
    INFO("field " << field);
    const auto found = sample.fields.find(bytes_of(field));
    const bool there = found != sample.fields.end();
    CHECK(there);
    CHECK((!there || is_content(found->second, content)));
  }
}

/// A shard of these members.
class ListedMembers : public MemberSource {
 public:
  explicit ListedMembers(std::vector<TarMember> members) : members_(std::move(members)) {}
  bool next(TarMember& member) override {
    if (next_ == members_.size()) return false;
    member = members_[next_++];
    return true;
  }
  std::optional<uint64_t> member_offset() const override { return std::nullopt; }

 private:
  std::vector<TarMember> members_;
  size_t next_ = 0;
};

SampleReader reader_of(std::vector<TarMember> members, MemberWarning warn = {}) {
  return SampleReader(std::make_unique<ListedMembers>(std::move(members)), std::move(warn));
}

}  // namespace

TEST_CASE("random tars fall into samples as with webdataset 1.0.2", "[parity]") {
  const std::string folder = test::fixture_folder("webdataset");
  const json all = json::parse(read_file(folder + "/cases.json"));
  REQUIRE(all.size() >= 17);
  for (const json& one : all) {
    int duplicates = 0;
    size_t found = 0;
    for (const std::string name : one.at("files")) {
      INFO(name);
      SampleReader reader(folder + "/" + name, [&](const std::string& text) {
        duplicates += text.find("second time") != std::string::npos ? 1 : 0;
      });
      while (const std::optional<GroupedSample> sample = reader.next()) {
        INFO("sample " << found << ", key " << sample->key);
        if (found < one.at("samples").size()) check_sample(*sample, one.at("samples")[found]);
        ++found;
      }
    }
    INFO(one.at("files"));
    CHECK(found == one.at("samples").size());
    CHECK(duplicates == one.at("warnings").get<int>());
  }
}

TEST_CASE("names split at the first dot of the base name") {
  const auto split = [](const char* name) {
    const auto parts = split_member_name(name);
    return parts ? parts->first + "|" + parts->second : std::string("none");
  };
  CHECK(split("000012.jpg") == "000012|jpg");
  CHECK(split("a.seg.png") == "a|seg.png");
  CHECK(split("v1.2/x.y/k.JPG") == "v1.2/x.y/k|JPG");
  CHECK(split("./i.jpg") == "./i|jpg");
  CHECK(split("m.") == "m|");
  CHECK(split("README") == "none");
  CHECK(split(".hidden") == "none");
  CHECK(split("x.y/nodot") == "none");
  CHECK(split("dir/.hidden") == "dir/|hidden");
  CHECK(split("") == "none");
  CHECK(is_meta_member("__x__"));
  CHECK(is_meta_member("__x__/a.jpg"));
  CHECK_FALSE(is_meta_member("a/__x__/b.jpg"));
  CHECK_FALSE(is_meta_member("__x__.jpg"));
}

TEST_CASE("a field given twice and a key that comes back are told") {
  std::vector<std::string> warnings;
  SampleReader reader =
      reader_of({{"a.jpg", "1"}, {"a.JPG", "2"}, {"b.jpg", "3"}, {"a.txt", "4"}, {"b.txt", "5"}},
                [&](const std::string& text) { warnings.push_back(text); });
  const auto first = reader.next();
  REQUIRE(first);
  CHECK(first->fields.at("jpg") == "1");
  while (reader.next()) {
  }
  REQUIRE(warnings.size() == 2);
  CHECK_THAT(warnings[0], Contains("a.JPG") && Contains("\"jpg\""));
  CHECK_THAT(warnings[1], Contains("the key a ") && Contains("--sort=name"));
}

TEST_CASE("a sample without a field says what it has instead") {
  std::vector<TarMember> members;
  for (const char* field : {"txt", "v0.png", "v1.png", "v2.JPG", "v3.png"})
    members.push_back({std::string("photo.") + field, "x"});
  members.push_back({"one.a.webp", "x"});
  SampleReader reader = reader_of(std::move(members));
  const auto dotted = reader.next();
  REQUIRE(dotted);
  CHECK(no_field_text(*dotted) ==
        "no field jpg, jpeg, png, webp or jfif; it has the fields v0.png to v1.png, v2.jpg, v3.png "
        "(a key ends at the first dot of the name: replace the others)");
  CHECK(no_field_text(*dotted, std::array{"json"}) == "no field json");
  const auto one = reader.next();
  REQUIRE(one);
  CHECK(
      no_field_text(*one, std::array{"webp"}) ==
      "no field webp; it has the field a.webp (a key ends at the first dot of the name: replace the "
      "others)");
}

namespace {

/// Samples whose names need PAX headers, lie in folders, or are followed by members without a sample.
void write_shard(const std::string& path, bool gzip) {
  TarWriter tar(path, gzip);
  tar.add("__info__", "of the whole shard");
  for (int i = 0; i < 9; ++i) {
    const std::string folder = i % 3 == 1 ? std::string(180, 'd') + "/" : "";
    const std::string key = folder + (i % 3 == 2 ? "é" : "k") + std::to_string(i);
    tar.add(key + ".jpg", std::string(static_cast<size_t>(700 * i), 'p'));
    tar.add(key + ".txt", "caption " + std::to_string(i));
    if (i % 4 == 0) tar.add("no_dot", "of no sample");
  }
  tar.commit();
}

std::vector<GroupedSample> rest_of(SampleReader& reader) {
  std::vector<GroupedSample> samples;
  while (auto sample = reader.next()) samples.push_back(std::move(*sample));
  return samples;
}

}  // namespace

TEST_CASE("a shard opened at the offset of a sample goes on with that sample") {
  const test::TempDir folder;
  const std::string path = folder / "shard.tar";
  write_shard(path, /*gzip=*/false);
  const std::string bytes = read_file(path);
  SampleReader all(path);
  const std::vector<GroupedSample> samples = rest_of(all);
  REQUIRE(samples.size() == 9);
  CHECK(all.at_end());
  CHECK_FALSE(all.next_offset());

  SampleReader reader(path);
  CHECK_FALSE(reader.next_offset());
  for (size_t passed = 1; passed < samples.size(); ++passed) {
    REQUIRE(reader.next());
    REQUIRE(reader.next_offset());
    const uint64_t offset = *reader.next_offset();
    SampleReader rest(
        std::make_unique<TarReader>(file_source(path, offset), path, TarLimits{}, offset));
    for (size_t i = passed; i < samples.size(); ++i) {
      const auto sample = rest.next();
      REQUIRE(sample);
      CHECK(sample->key == samples[i].key);
      CHECK(sample->fields == samples[i].fields);
      // Offsets are of the whole shard, wherever the reading began.
      if (i == passed) {
        SampleReader again(path);
        for (size_t j = 0; j <= i; ++j) again.next();
        CHECK(rest.next_offset() == again.next_offset());
      }
    }
    CHECK_FALSE(rest.next());
  }
}

TEST_CASE("a packed shard has no offsets") {
  const test::TempDir folder;
  const std::string path = folder / "shard.tar";
  write_shard(path, /*gzip=*/true);
  SampleReader reader(path);
  while (reader.next()) CHECK_FALSE(reader.next_offset());
}
