// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pth.h"

#include <functional>
#include "base/error.h"
#include "base/little_endian.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint_test_tools.h"
#include "io/files/disk_io.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

/// What the check says of these bytes, without the path; "" if it finds nothing.
std::string fault_of_bytes(const TempDir& folder, const std::string& bytes) {
  const std::string path = folder / "network.pt";
  put_file(path, bytes);
  try {
    return check_script_file(MappedFile(path)) ? "" : "no program";
  } catch (const DataError& error) {
    return std::string(error.what()).substr(path.size() + 2);
  }
}

std::string bytes_of_network(const std::string& name) {
  return read_file(fixture_folder("feature_networks") + "/" + name);
}

/// The archive with other bytes in a stored member, and its CRC-32 as it has to be for them.
std::string with_member(const TempDir& folder,
                        std::string archive,
                        const std::string& name,
                        const std::function<void(std::string&)>& change) {
  const std::string path = folder / "whole.pt";
  put_file(path, archive);
  const MappedFile file(path);
  for (const ZipMember& member : read_zip(file, Packing::kStoredOrDeflated)) {
    if (member.name != name) continue;
    std::string content = archive.substr(member.offset, member.size);
    change(content);
    REQUIRE(content.size() == member.size);
    archive.replace(member.offset, member.size, content);
    const uint32_t crc = crc32_of(0, content.data(), content.size());
    const std::string old_crc(reinterpret_cast<const char*>(&member.crc), sizeof crc);
    for (size_t at = archive.find(old_crc); at != std::string::npos;
         at = archive.find(old_crc, at + 1)) {
      archive.replace(at, sizeof crc, reinterpret_cast<const char*>(&crc), sizeof crc);
    }
    return archive;
  }
  FAIL("no member " << name);
  return archive;
}

TEST_CASE("networks that torch.jit.save() wrote are whole, their compressed code too") {
  const TempDir folder;
  for (const char* name :
       {"ours.pt", "frozen.pt", "stylegan.pt", "encoder.pt", "lpips.pt", "few.pt"}) {
    INFO(name);
    CHECK(fault_of_bytes(folder, bytes_of_network(name)) == "");
  }
  CHECK(fault_of_bytes(folder, bytes_of_network("weights.pth")) == "no program");
  CHECK(fault_of_bytes(folder, "no archive at all") == "no program");
}

TEST_CASE("a network that is cut off is refused, wherever it ends") {
  const TempDir folder;
  const std::string whole = bytes_of_network("encoder.pt");
  for (size_t size = 4; size < whole.size(); size += 13) {
    INFO(size);
    CHECK(fault_of_bytes(folder, whole.substr(0, size)).starts_with("damaged archive: "));
  }
}

TEST_CASE("a network with damaged contents is refused, in its weights and in its code") {
  const TempDir folder;
  const std::string path = folder / "whole.pt";
  const std::string whole = bytes_of_network("encoder.pt");
  put_file(path, whole);
  const MappedFile file(path);
  int deflated = 0;
  for (const ZipMember& member : read_zip(file, Packing::kStoredOrDeflated)) {
    deflated += member.is_deflated ? 1 : 0;
    for (const uint64_t at : {uint64_t{0}, member.packed_size / 2, member.packed_size * 3 / 4}) {
      INFO(member.name << " at " << at);
      std::string damaged = whole;
      damaged[member.offset + at] = static_cast<char>(damaged[member.offset + at] ^ 0x10);
      CHECK(fault_of_bytes(folder, damaged)
                .starts_with("damaged archive: the content of member '" + member.name + "'"));
    }
  }
  CHECK(deflated == 2);
}

TEST_CASE("compressed members are refused in a checkpoint, and anywhere above 64 MiB") {
  const TempDir folder;
  const std::string path = folder / "whole.pt";
  std::string bytes = bytes_of_network("encoder.pt");
  put_file(path, bytes);
  const MappedFile file(path);
  CHECK_THROWS_WITH(read_zip(file),
                    Catch::Contains("is compressed or encrypted: expected plain "
                                    "members, as torch.save() writes them."));
  for (const ZipMember& member : read_zip(file, Packing::kStoredOrDeflated)) {
    if (!member.is_deflated) continue;
    const auto sizes = [&](uint64_t size) {  // as they stand in both of its headers
      std::string fields;
      append_little_endian(fields, member.packed_size, 4);
      append_little_endian(fields, size, 4);
      return fields;
    };
    const std::string own = sizes(member.size), other = sizes(uint64_t{65} << 20);
    for (size_t at = bytes.find(own); at != std::string::npos; at = bytes.find(own, at + 1))
      bytes.replace(at, own.size(), other);
  }
  CHECK_THAT(
      fault_of_bytes(folder, bytes),
      Catch::Contains(", of 65.0 MiB, is compressed or encrypted: expected plain members, or "
                      "compressed ones of 64.0 MiB at most, as "));
}

TEST_CASE("a record that is shorter than its tensor is refused") {
  const TempDir folder;
  const std::string longer =
      with_member(folder, bytes_of_network("ours.pt"), "ours/data.pkl", [](std::string& pickle) {
        const size_t at = pickle.find(std::string("M\x00\x03", 3));  // 64 * 12 elements
        REQUIRE(at != std::string::npos);
        pickle[at + 2] = '\x06';
      });
  CHECK(fault_of_bytes(folder, longer) ==
        "ours/data.pkl: expected 1536 elements of 4 bytes in the record \"ours/data/0\", got 3072 "
        "bytes");
  const std::string missing =
      with_member(folder, bytes_of_network("ours.pt"), "ours/data.pkl", [](std::string& pickle) {
        const size_t at =
            pickle.find(std::string("\x01\x00\x00\x00"
                                    "0",
                                    5));  // the key "0"
        REQUIRE(at != std::string::npos);
        pickle[at + 4] = '9';
      });
  CHECK(fault_of_bytes(folder, missing) ==
        "ours/data.pkl: the record \"ours/data/9\" of a tensor is missing");
}

}  // namespace
}  // namespace dalle2::test
