// SPDX-License-Identifier: MIT
#include "io/files/atomic_file.h"
#include "io/formats/webdataset.h"
#include "support/temp_dir.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace dalle2;

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
    SampleReader rest(file_source(path, offset), path, {}, offset);
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
