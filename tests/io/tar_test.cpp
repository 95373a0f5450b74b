// SPDX-License-Identifier: MIT
#include "io/formats/tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;

namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

Members read_all(const std::string& path, TarLimits limits = {}) {
  Members members;
  TarReader reader(path, limits);
  TarMember member;
  while (reader.next(member)) members.emplace_back(member.name, member.content);
  CHECK_FALSE(reader.next(member));
  return members;
}

void write_all(const std::string& path, const Members& members, bool gzip = false) {
  TarWriter writer(path, gzip);
  for (const auto& [name, content] : members) writer.add(name, content);
  writer.commit();
}

const Members kMembers = {{"0001.jpg", std::string(700, 'j')},
                          {"0001.txt", "a cat\n"},
                          {"folder/" + std::string(200, 'n') + ".json", "{}"},
                          {"empty.cls", ""},
                          {"höhe_日本.txt", std::string("\0\xff", 2)},
                          {"big.npy", std::string(300'000, 'b')}};

/// An archive by libarchive, in memory.
class MadeArchive {
 public:
  explicit MadeArchive(int (*set_format)(archive*), int (*add_filter)(archive*) = nullptr) {
    if (add_filter != nullptr) add_filter(handle_);
    set_format(handle_);
    archive_write_open_memory(handle_, out_.data(), out_.size(), &used_);
  }
  void add(const char* name,
           const std::string& content,
           unsigned type = AE_IFREG,
           const std::function<void(archive_entry*)>& change = {}) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_size(entry, static_cast<int64_t>(content.size()));
    archive_entry_set_filetype(entry, type);
    archive_entry_set_perm(entry, 0644);
    if (change) change(entry);
    archive_write_header(handle_, entry);
    archive_write_data(handle_, content.data(), content.size());
    archive_entry_free(entry);
  }
  std::string bytes() {
    archive_write_close(handle_);
    archive_write_free(handle_);
    return out_.substr(0, used_);
  }

 private:
  archive* handle_ = archive_write_new();
  std::string out_ = std::string(1 << 20, '\0');
  size_t used_ = 0;
};

/// A tar with a 7.txt ("hello") through another of libarchive's filters, or these bytes in its place.
std::string packed_with(int (*add_filter)(archive*), const std::optional<std::string>& raw = {}) {
  MadeArchive made(raw ? archive_write_set_format_raw : archive_write_set_format_ustar, add_filter);
  made.add("7.txt", raw.value_or("hello"));
  return made.bytes();
}

/// A tar with a 7.txt ("hello") and 400,000 zero bytes behind it, by `zstd -19 --check`: libarchive
/// writes no checksum.
constexpr std::string_view kZstdWithChecksum(
    "\x28\xb5\x2f\xfd\x04\x68\x04\x02\x00\x72\x02\x09\x11\xb0\xa9\x03\x00\x5d\x39\x44"
    "\x74\x49\xca\x77\x1f\xe5\xad\x03\x79\x0a\x1f\x63\x48\xb9\x1d\x8d\x4c\xea\x0b\x46"
    "\xbb\xbb\xe8\x66\xd7\x73\x65\xc0\x0a\x20\x60\x37\x0f\xf7\xfd\x79\x99\x43\x9d\xa7"
    "\x89\x63\xc0\x6c\x6f\x30\x27\x1c\x14\xc0\x76\x12\x70\x02\x00\x10\x00\x02\x00\x10"
    "\x00\x03\x14\x02\x00\xe7\x3b\x33\x4e",
    89);

}  // namespace

TEST_CASE("a written tar reads back, plain and gzip, with long and foreign names") {
  const test::TempDir folder;
  for (const bool gzip : {false, true}) {
    write_all(folder / "a.tar", kMembers, gzip);
    CHECK(read_all(folder / "a.tar") == kMembers);
    CHECK(read_file(folder / "a.tar").starts_with("\x1f\x8b") == gzip);
    write_all(folder / "b.tar", kMembers, gzip);
    CHECK(read_file(folder / "a.tar") == read_file(folder / "b.tar"));
  }
}

TEST_CASE("every packing that webdataset knows is told by content, and zstd too") {
  const test::TempDir folder;
  for (int (*filter)(archive*) : {archive_write_add_filter_none,
                                  archive_write_add_filter_gzip,
                                  archive_write_add_filter_bzip2,
                                  archive_write_add_filter_xz,
                                  archive_write_add_filter_zstd}) {
    test::put_file(folder / "x.tar", packed_with(filter));
    CHECK(read_all(folder / "x.tar") == Members{{"7.txt", "hello"}});
  }
}

TEST_CASE("a tar that is not committed leaves nothing") {
  const test::TempDir folder;
  {
    TarWriter writer(folder / "a.tar");
    writer.add("x", std::string(500'000, 'x'));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  {
    setenv("DALLE2_FAIL_AT", "write:1:enospc", 1);
    TarWriter writer(folder / "a.tar");
    const auto fill = [&] {
      writer.add("x", std::string(500'000, 'x'));
      writer.commit();
    };
    CHECK_THROWS_AS(fill(), ResourceError);
    unsetenv("DALLE2_FAIL_AT");
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a truncated tar gives its whole members, then an error with file, member and offset") {
  const test::TempDir folder;
  for (const bool gzip : {false, true}) {
    std::string noise(8000, ' ');
    std::mt19937 random(1);
    for (char& byte : noise) byte = static_cast<char>(random());
    write_all(folder / "a.tar",
              {{"1.jpg", noise.substr(4000)}, {"1.txt", "one"}, {"2.jpg", noise.substr(0, 4000)}},
              gzip);
    std::string content = read_file(folder / "a.tar");
    content.resize(gzip ? content.size() - 2000 : content.size() - 4000);
    test::put_file(folder / "cut.tar", content);
    TarReader reader(folder / "cut.tar");
    TarMember member;
    CHECK(reader.next(member));
    CHECK(reader.next(member));
    CHECK(member.content == "one");
    CHECK_THROWS_WITH(reader.next(member),
                      Contains("cut.tar") && Contains("1.txt") &&
                          Contains(gzip ? "gzip" : "2.jpg") && Contains("at byte 5632"));
    CHECK_FALSE(reader.next(member));  // it is done, not stuck
  }
}

TEST_CASE("what is no tar is refused by name") {
  const test::TempDir folder;
  CHECK_THROWS_WITH(TarReader(folder / "absent.tar"),
                    Contains("absent.tar") && Contains("No such file"));
  CHECK_THROWS_AS(TarReader(folder / "absent.tar"), DataError);
  CHECK_THROWS_WITH(TarReader(folder.path()), Contains("is a folder, a file is expected"));
  TarMember member;
  for (const std::string& content : {std::string(3000, 'x'),
                                     std::string("\x1f\x8bgarbage..............."),
                                     std::string("\x89PNG\r\n\x1a\n")}) {
    test::put_file(folder / "no.tar", content);
    CHECK_THROWS_AS(TarReader(folder / "no.tar").next(member), DataError);
  }
}

TEST_CASE("an empty file is named as such, and a tar without members is none") {
  const test::TempDir folder;
  TarMember member;
  test::put_file(folder / "empty.tar", "");
  CHECK_THROWS_WITH(TarReader(folder / "empty.tar").next(member),
                    Contains("empty.tar") && Contains("it is empty"));
  write_all(folder / "none.tar", {});
  CHECK(read_all(folder / "none.tar").empty());
}

TEST_CASE("a tar without its end marker may have been cut, which shows behind its last member") {
  const test::TempDir folder;
  const auto has_end = [&](const std::string& content) {
    test::put_file(folder / "x.tar", content);
    TarReader reader(folder / "x.tar");
    CHECK(reader.has_end_marker());  // nothing is known yet
    TarMember member;
    while (reader.next(member)) {
    }
    return reader.has_end_marker();
  };
  for (const bool gzip : {false, true}) {
    write_all(folder / "a.tar", {{"1.jpg", std::string(700, 'j')}, {"1.txt", "one"}}, gzip);
    CHECK(has_end(read_file(folder / "a.tar")));
  }
  for (int (*filter)(archive*) : {archive_write_add_filter_bzip2,
                                  archive_write_add_filter_xz,
                                  archive_write_add_filter_zstd}) {
    CHECK(has_end(packed_with(filter)));
  }
  write_all(folder / "a.tar", {{"1.jpg", std::string(700, 'j')}, {"1.txt", "one"}});
  const std::string whole = read_file(folder / "a.tar");
  REQUIRE(whole.size() == 512 * (3 + 2 + 2));
  CHECK_FALSE(has_end(whole.substr(0, 512 * 5)));
  CHECK_FALSE(has_end(whole.substr(0, 512 * 3)));
  CHECK(has_end(whole.substr(0, 512 * 6)));  // a lone zero block ends it, too
  CHECK(has_end(whole + std::string(10240 - whole.size(), '\0')));
  CHECK(has_end(whole + "what some writers leave there"));
  CHECK(has_end(whole.substr(0, 512 * 6) + std::string(3000, 'x')));
  CHECK(has_end(std::string(1024, '\0')));
  TarMember member;
  TarReader from_member(
      file_source(folder / "a.tar", 512 * 3), "a.tar", {}, /*first_byte=*/512 * 3);
  CHECK(from_member.next(member));
  CHECK_FALSE(from_member.next(member));
  CHECK(from_member.has_end_marker());
}

namespace {

/// A tar as bsdtar writes it, whose "1.jpg" has `data` bytes of content and then a hole up to `size`.
void write_sparse(const std::string& path, int64_t size, int64_t data) {
  std::string content(static_cast<size_t>(size), '\0');
  content.replace(0, static_cast<size_t>(data), static_cast<size_t>(data), 'x');
  MadeArchive made(archive_write_set_format_pax);
  made.add("0.jpg", "zero");
  made.add("1.jpg", content, AE_IFREG, [&](archive_entry* entry) {
    archive_entry_sparse_add_entry(entry, data > 0 ? 0 : size, data);
  });
  made.add("2.jpg", "two");
  test::put_file(path, made.bytes());
}

std::string unread_of(const std::string& path) {
  TarReader reader(path);
  CHECK(reader.unread().empty());  // nothing is known yet
  for (TarMember member; reader.next(member);) {
  }
  reader.check_rest();
  return reader.unread();
}

std::string behind(const std::string& bytes) {
  return "data behind the end of the tar (" + bytes + " bytes, another tar?): not read";
}

}  // namespace

TEST_CASE("the hole at the end of a sparse member is zeros, and the members behind it are read") {
  const test::TempDir folder;
  for (const int64_t data : {0, 512, 4096}) {
    write_sparse(folder / "a.tar", 1 << 20, data);
    REQUIRE(std::filesystem::file_size(folder / "a.tar") < 20'000);
    const std::string hole((1 << 20) - static_cast<size_t>(data), '\0');
    CHECK(read_all(folder / "a.tar") ==
          Members{{"0.jpg", "zero"},
                  {"1.jpg", std::string(static_cast<size_t>(data), 'x') + hole},
                  {"2.jpg", "two"}});
    const TarList list = list_tar(folder / "a.tar");
    REQUIRE(list.places.size() == 3);
    CHECK(read_tar_member(folder / "a.tar", list.places[1].offset).content.size() == 1 << 20);
  }
  CHECK_THROWS_WITH(read_all(folder / "a.tar", {.member_bytes = 1000}), Contains("announces"));
}

TEST_CASE("data behind the end of a tar is counted, and padding is none") {
  const test::TempDir folder;
  for (const bool gzip : {false, true}) {
    write_all(folder / "a.tar", {{"1.txt", "one"}}, gzip);
    const std::string one = read_file(folder / "a.tar");
    std::string all = one;
    for (const std::string& told : {std::string(), behind("2,048"), behind("4,096")}) {
      test::put_file(folder / "x.tar", all);
      CHECK(unread_of(folder / "x.tar") == told);
      CHECK(read_all(folder / "x.tar").size() == 1);
      if (!gzip) CHECK(list_tar(folder / "x.tar").unread == told);
      all += one;
    }
    if (gzip) continue;
    for (const size_t padding : {512, 8192, 600'000}) {  // more than is read at once
      const std::string padded = one + std::string(padding, '\0');
      test::put_file(folder / "x.tar", padded);
      CHECK(unread_of(folder / "x.tar").empty());
      CHECK(list_tar(folder / "x.tar").unread.empty());
      test::put_file(folder / "x.tar", padded + one);
      CHECK(unread_of(folder / "x.tar") == behind("2,048"));
      CHECK(list_tar(folder / "x.tar").unread == behind("2,048"));
    }
    test::put_file(folder / "x.tar", one + std::string(5 << 20, 'x'));
    CHECK_THAT(unread_of(folder / "x.tar"), Contains("(1,048,576 bytes or more, another tar?)"));
  }
}

TEST_CASE("a tar that ends behind the headers of a long name is damaged") {
  const test::TempDir folder;
  write_all(folder / "a.tar", {{"1.txt", "one"}, {std::string(300, 'n') + ".txt", "two"}});
  const std::string whole = read_file(folder / "a.tar");
  for (size_t blocks = 3; blocks < 5; ++blocks) {
    test::put_file(folder / "x.tar", whole.substr(0, 512 * blocks));
    TarReader reader(folder / "x.tar");
    TarMember member;
    CHECK(reader.next(member));
    CHECK_THROWS_AS(reader.next(member), DataError);
  }
}

TEST_CASE("gzip of several members, read in crumbs, is one stream") {
  const test::TempDir folder;
  write_all(folder / "a.tar", {{"a", std::string(5000, 'a')}}, /*gzip=*/true);
  const std::string one = read_file(folder / "a.tar");
  const std::string both = one + one + std::string(100, '\0');
  size_t at = 0;
  const ByteSource crumbs = [&](char* buffer, size_t capacity) {
    const size_t size = std::min({capacity, both.size() - at, size_t{3}});
    std::copy_n(both.data() + at, size, buffer);
    at += size;
    return size;
  };
  const ByteSource unpacked = gunzip_source(crumbs, "crumbs");
  std::string content;
  char buffer[700];
  while (const size_t got = unpacked(buffer, sizeof(buffer))) content.append(buffer, got);
  CHECK(content.size() % 1024 == 0);
  CHECK(content.substr(0, content.size() / 2) == content.substr(content.size() / 2));
  CHECK(unpacked(buffer, sizeof(buffer)) == 0);
}

TEST_CASE("links, folders and devices are passed over, and links are told") {
  const test::TempDir folder;
  MadeArchive made(archive_write_set_format_gnutar);
  made.add("d", "", AE_IFDIR);
  made.add(
      "a.jpg", "", AE_IFLNK, [](auto* entry) { archive_entry_set_symlink(entry, "/etc/passwd"); });
  made.add("b.jpg", "", AE_IFREG, [](auto* entry) { archive_entry_set_hardlink(entry, "c.jpg"); });
  made.add("p.jpg", "", AE_IFIFO);
  made.add("c.jpg", "");
  test::put_file(folder / "a.tar", made.bytes());
  CHECK(read_all(folder / "a.tar") == Members{{"c.jpg", ""}});
  const std::string told =
      "2 links in the tar (a.jpg, ...): not read, pack with tar -h --hard-dereference";
  CHECK(unread_of(folder / "a.tar") == told);
  CHECK(list_tar(folder / "a.tar").unread == told);
  CHECK(list_tar(folder / "a.tar").places.size() == 1);
}

TEST_CASE("checksums behind the last member are compared, whatever it is packed with") {
  const test::TempDir folder;
  write_all(folder / "plain.tar", {{"7.txt", "hello"}});
  // Its end lies blocks before the end of what is packed, as padding of big records has it.
  const std::string tar = read_file(folder / "plain.tar") + std::string(400'000, '\0');
  struct Packing {
    const char* name;
    std::string content;
    size_t checksum;  // its last byte, from the end
  };
  for (const Packing& packing :
       {Packing{"gzip", packed_with(archive_write_add_filter_gzip, tar), 5},
        Packing{"bzip2", packed_with(archive_write_add_filter_bzip2, tar), 3},
        Packing{"xz", packed_with(archive_write_add_filter_xz, tar), 28},
        Packing{"zstd", std::string(kZstdWithChecksum), 1}}) {
    INFO(packing.name);
    std::string content = packing.content;
    const auto read_to_end = [&] {
      test::put_file(folder / "x.tar", content);
      TarReader reader(folder / "x.tar");
      TarMember member;
      CHECK(reader.next(member));
      CHECK(member.content == "hello");
      CHECK_FALSE(reader.next(member));
      reader.check_rest();
    };
    read_to_end();
    content[content.size() - packing.checksum] ^= 1;
    CHECK_THROWS_WITH(read_to_end(),
                      Contains(fmt::format("x.tar: damaged {} data: ", packing.name)));
  }
}

TEST_CASE("decompression bombs and giant members are refused") {
  const test::TempDir folder;
  write_all(folder / "a.tar", {{"zeros.npy", std::string(30 << 20, '\0')}}, /*gzip=*/true);
  CHECK(read_all(folder / "a.tar").size() == 1);
  CHECK_THROWS_WITH(read_all(folder / "a.tar", {.suspicious_bytes = 1 << 20}),
                    Contains("bomb") && Contains("zeros.npy") && Contains("200 times"));
  CHECK_THROWS_WITH(read_all(folder / "a.tar", {.member_bytes = 1000}),
                    Contains("zeros.npy") && Contains("31457280") && Contains("1000"));
}

TEST_CASE("an error of the stream comes out as it went in") {
  TarMember member;
  CHECK_THROWS_AS(
      TarReader([](char*, size_t) -> size_t { throw NetworkError("the cable is loose"); },
                "http://x/1.tar")
          .next(member),
      NetworkError);
}
