// SPDX-License-Identifier: MIT
// Tars built block by block: what the usual writers do not write, and what no tar may ask of us.
#include "base/error.h"
#include "io/tar.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>

using namespace dalle2;
using Catch::Contains;

namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

/// A header with a right checksum.
std::string header(const std::string& name,
                   char type,
                   size_t size,
                   const std::string& pieces = "") {
  std::string block(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    block.replace(at, text.size(), text);
  };
  const auto octal = [](size_t value) {
    char text[24];
    std::snprintf(text, sizeof(text), "%011zo", value);
    return std::string(text);
  };
  put(0, name);
  put(124, octal(size));
  block[156] = type;
  put(257,
      std::string("ustar\0"
                  "00",
                  8));
  put(386, pieces);
  put(148, "        ");
  size_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put(148, octal(sum).substr(5) + std::string(1, '\0'));
  return block;
}

std::string padded(std::string content) {
  content.resize((content.size() + 511) / 512 * 512, '\0');
  return content;
}

std::string file(const std::string& name, const std::string& content, char type = '0') {
  return header(name, type, content.size()) + padded(content);
}

/// A PAX header with these records.
std::string pax(const Members& records, char type = 'x') {
  std::string content;
  for (const auto& [key, value] : records) {
    const std::string rest = " " + key + "=" + value + "\n";
    size_t size = rest.size() + 1;
    while (std::to_string(size).size() + rest.size() != size) ++size;
    content += std::to_string(size) + rest;
  }
  return file("PaxHeaders/x", content, type);
}

Members read_all(const std::string& tar, TarLimits limits = {}) {
  size_t at = 0;
  TarReader reader(
      [&](char* buffer, size_t capacity) {
        const size_t size = std::min({capacity, tar.size() - at, size_t{700}});
        std::copy_n(tar.data() + at, size, buffer);
        at += size;
        return size;
      },
      "x.tar",
      limits);
  Members members;
  TarMember member;
  while (reader.next(member)) members.emplace_back(member.name, member.content);
  return members;
}

const std::string kEnd(1024, '\0');
const std::string kHoles =
    std::string(1000, '\0') + "abc" + std::string(2997, '\0') + "defgh" + std::string(995, '\0');

}  // namespace

TEST_CASE("the holes of sparse files are filled, in every way to note them") {
  const Members expected = {{"a.npy", kHoles}, {"b.txt", "b"}};
  const std::string stored = padded("abcdefgh");
  const std::string b = file("b.txt", "b") + kEnd;

  std::string gnu = "00000001750" + std::string(1, '\0') + "00000000003" + std::string(1, '\0') +
                    "00000007640" + std::string(1, '\0') + "00000000005" + std::string(1, '\0');
  gnu.resize(483 - 386, '\0');
  gnu += "00000011610";  // 5000
  CHECK(read_all(header("a.npy", 'S', 8, gnu) + stored + b) == expected);

  const std::pair<std::string, std::string> name = {"GNU.sparse.name", "a.npy"};
  const std::string own = header("GNUSparseFile.0/a.npy", '0', 8) + stored + b;
  CHECK(read_all(pax({{"GNU.sparse.size", "5000"},
                      {"GNU.sparse.numblocks", "2"},
                      {"GNU.sparse.offset", "1000"},
                      {"GNU.sparse.numbytes", "3"},
                      {"GNU.sparse.offset", "4000"},
                      {"GNU.sparse.numbytes", "5"},
                      name}) +
                 own) == expected);
  CHECK(read_all(pax({{"GNU.sparse.size", "5000"}, {"GNU.sparse.map", "1000,3,4000,5"}, name}) +
                 own) == expected);
  const std::string table = padded("2\n1000\n3\n4000\n5\n") + "abcdefgh";
  CHECK(read_all(pax({{"GNU.sparse.major", "1"},
                      {"GNU.sparse.minor", "0"},
                      {"GNU.sparse.realsize", "5000"},
                      name}) +
                 file("GNUSparseFile.0/a.npy", table) + b) == expected);
}

TEST_CASE("a sparse file that lies is refused before it takes memory") {
  const auto sparse = [](const std::string& size, const std::string& map) {
    return pax({{"GNU.sparse.size", size}, {"GNU.sparse.map", map}}) + file("a.npy", "abc") + kEnd;
  };
  CHECK(read_all(sparse("10", "2,3")) == Members{{"a.npy", std::string("\0\0abc\0\0\0\0\0", 10)}});
  for (const auto& [size, map] : Members{{"10", "8,3"},
                                         {"10", "2,4"},
                                         {"10", "2"},
                                         {"10", "x,3"},
                                         {"10", "999999999999999999,3"},
                                         {"900000000", "2,3"}}) {
    CHECK_THROWS_WITH(read_all(sparse(size, map)), Contains("sparse file a.npy is damaged"));
  }
  CHECK_THROWS_WITH(read_all(sparse("1000000000000", "2,3")), Contains("1000000000000 bytes"));
}

TEST_CASE("folders and links with a content, and kinds that nobody knows, are passed over") {
  const std::string b = file("b.txt", "b") + kEnd;
  const Members expected = {{"b.txt", "b"}};
  for (const char type : {'1', '2', '3', '4', '5', '6', 'V', 'Z'}) {
    INFO("type " << type);
    CHECK(read_all(file("a.jpg", std::string(700, 'x'), type) + b) == expected);
  }
  // A link that tells the size of its target without having a content.
  CHECK(read_all(header("a.jpg", '1', 700) + b) == expected);
  CHECK(read_all(file("old/", "", '\0') + b) == expected);
  CHECK(read_all(file("a.txt", "a", '\0') + file("c.txt", "c", '7') + b) ==
        Members{{"a.txt", "a"}, {"c.txt", "c"}, {"b.txt", "b"}});
}

TEST_CASE("names of PAX and GNU headers are taken byte for byte") {
  const std::string accent = "cafe\xcc\x81.txt";  // not composed
  const std::string latin = "caf\xe9.txt";        // no UTF-8
  CHECK(read_all(pax({{"path", accent}}) + file("x", "1") +
                 file("././@LongLink", latin + '\0', 'L') + file("y", "2") + file("z/", "3") +
                 kEnd) == Members{{accent, "1"}, {latin, "2"}, {"z/", "3"}});
  CHECK(read_all(pax({{"size", "3"}}) + header("a", '0', 9) + padded("123") + kEnd) ==
        Members{{"a", "123"}});
  CHECK(read_all(pax({{"comment", "of all"}}, 'g') + file("a", "1") + kEnd) == Members{{"a", "1"}});
}

TEST_CASE("damaged headers are told with member and place") {
  const std::string a = file("a.txt", "a");
  std::string broken = file("b.txt", "b");
  broken[5] = '!';
  CHECK_THROWS_WITH(read_all(a + broken + kEnd),
                    Contains("x.tar: damaged or truncated tar: a header's checksum is wrong") &&
                        Contains("at byte 1024") && Contains("after the member a.txt"));
  CHECK_THROWS_WITH(read_all(a + broken.substr(0, 300)), Contains("its last header is cut"));
  CHECK_THROWS_WITH(read_all(a + file("PaxHeaders/x", "99 path=x\n", 'x') + a),
                    Contains("a PAX header is damaged"));
  CHECK_THROWS_WITH(read_all(a + pax({{"path", "b"}}) + kEnd),
                    Contains("an extended header without a member"));
  CHECK_THROWS_WITH(read_all(a + pax({{"size", "-1"}}) + a), Contains("the size -1"));
  CHECK_THROWS_WITH(read_all(a + header("L", 'L', size_t{1} << 30) + kEnd),
                    Contains("an extended header of 1073741824 bytes"));
  CHECK_THROWS_WITH(read_all("This is a page that tells of an error." + std::string(600, ' ')),
                    Contains("it does not begin with a header"));
}
