// SPDX-License-Identifier: MIT
#include "checkpoint/archive/zip_archive.h"

#include "checkpoint_test_tools.h"

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

uint64_t number_at(const std::string& bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  }
  return value;
}

}  // namespace

// PKWARE APPNOTE 6.3.10, sections 4.3.14 to 4.3.16.
TEST_CASE("an archive of more members than 16 bits count has a zip64 directory") {
  constexpr size_t kMembers = 65'600;
  const test::TempDir folder;
  const std::string path = folder / "a.zip";
  {
    AtomicFile file(path);
    ZipWriter writer(file);
    for (size_t i = 0; i < kMembers; ++i) writer.add("m" + std::to_string(i), "x");
    writer.finish();
    file.commit();
  }
  const MappedFile file(path);
  const std::vector<ZipMember> members = read_zip(file);
  REQUIRE(members.size() == kMembers);
  CHECK(members.back().name == "m65599");
  CHECK(members.back().size == 1);

  const std::string bytes = test::read_bytes(path);
  const size_t end = bytes.size() - 22, locator = end - 20, record = locator - 56;
  CHECK(bytes.substr(end, 4) == "PK\x05\x06");
  CHECK(number_at(bytes, end + 8, 2) == 0xffff);
  CHECK(number_at(bytes, end + 10, 2) == 0xffff);
  CHECK(bytes.substr(locator, 4) == "PK\x06\x07");
  CHECK(number_at(bytes, locator + 8, 8) == record);
  CHECK(number_at(bytes, locator + 16, 4) == 1);
  CHECK(bytes.substr(record, 4) == "PK\x06\x06");
  CHECK(number_at(bytes, record + 4, 8) == 44);  // what follows this number
  CHECK(number_at(bytes, record + 24, 8) == kMembers);
  CHECK(number_at(bytes, record + 32, 8) == kMembers);
  const uint64_t size = number_at(bytes, record + 40, 8), begin = number_at(bytes, record + 48, 8);
  CHECK(begin + size == record);
  CHECK(bytes.substr(begin, 4) == "PK\x01\x02");
}

}  // namespace dalle2
