// SPDX-License-Identifier: MIT
// Thousands of files damaged in ways that wires, disks and editors do not even think of, each of which is
// read or refused within seconds.
#pragma once

#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <vector>

#include <zlib.h>

#include "base/error.h"
#include "io/files/atomic_file.h"

namespace dalle2::test {

/// The contents of the files with this extension in a folder of the source tree, sorted by name.
/// @param at_least how many there must be
inline std::vector<std::string> files_in(const std::string& folder,
                                         const std::string& extension,
                                         size_t at_least) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(DALLE2_SOURCE_DIR) / folder)) {
    if (entry.path().extension() == extension) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= at_least);
  for (std::string& file : files) file = read_file(file);
  return files;
}

/// A damaged file, and how many of its first bytes are as they were.
struct Mutation {
  std::string file;
  size_t intact = 0;
};

class Mutator {
 public:
  /// @param files whole ones of one kind: jpg, png, webp, npy, tar, checkpoints and their parts, or
  /// text of any grammar
  Mutator(std::vector<std::string> files, std::string kind)
      : files_(std::move(files)), kind_(std::move(kind)) {}

  const std::string& whole(uint64_t number) const { return files_[number % files_.size()]; }

  /// The mutation of that number: the same at every call.
  Mutation make(uint64_t seed, uint64_t number) {
    std::seed_seq sequence{seed, number};
    random_.seed(sequence);
    const std::string& whole = files_[number % files_.size()];
    Mutation mutation{whole, 0};
    const size_t changes = below(2) == 0 ? 1 : 1 + below(4);
    for (size_t i = 0; i < changes && !mutation.file.empty(); ++i) change(mutation.file);
    const size_t common = std::min(whole.size(), mutation.file.size());
    while (mutation.intact < common && whole[mutation.intact] == mutation.file[mutation.intact]) {
      ++mutation.intact;
    }
    return mutation;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  /// Flips, overwrites, cuts, repeats, erases, splices, or lies about a length.
  void change(std::string& file) {
    const size_t at = below(below(3) == 0 ? std::min<size_t>(file.size(), 64) : file.size());
    switch (below(9)) {
      case 0:
        file[at] = static_cast<char>(file[at] ^ (1 << below(8)));
        break;
      case 1:
        file[at] = static_cast<char>(random_());
        break;
      case 2:
        file[at] = static_cast<char>(below(2) == 0 ? 0xff : 0);
        break;
      case 3:
        file.resize(at);
        break;
      case 4:
        file.insert(at, file.substr(at, below(40)));
        break;
      case 5:
        file.erase(at, 1 + below(40));
        break;
      case 6:
        splice(file, at);
        break;
      default:
        change_length(file, at);
        break;
    }
  }

  /// The head of this file and the tail of another.
  void splice(std::string& file, size_t at) {
    const std::string& other = files_[below(files_.size())];
    file.resize(at);
    const size_t from = kind_ == "tar" ? below(other.size()) / 512 * 512 : below(other.size());
    file.append(other, from, std::string::npos);
  }

  void change_length(std::string& file, size_t at) {
    if (kind_ == "tar") {
      change_tar_header(file, at / 512 * 512);
    } else if (kind_ == "png") {
      change_png_chunk(file);
    } else if (kind_ == "jpg") {
      const size_t marker = file.find('\xff', at);
      put(file, marker == std::string::npos ? at : marker + 2, big_endian(number(), 2));
    } else if (kind_ == "npy") {
      const size_t digit = file.find_first_of("0123456789", std::min<size_t>(at, 80));
      put(file, below(2) == 0 ? 8 : digit, below(2) == 0 ? "9" : "0");
    } else if (kind_ == "zip_archive" || kind_ == "pickled_value" || kind_ == "checkpoint_file") {
      put(file, at, little_endian(number(), 1 << below(4)));
    } else if (kind_ != "webp") {
      file.insert(at, token());
    } else {
      put(file, below(2) == 0 ? 4 : 16 + below(14), little_endian(number(), 4));
    }
  }

  /// What means something to one grammar or another, once or very often.
  std::string token() {
    static const std::vector<std::string> tokens = {"{",        "}",
                                                    "[",        "]",
                                                    "\"",       "'",
                                                    ":",        "::",
                                                    ",",        "\n",
                                                    "\t",       "\\",
                                                    "/",        "..",
                                                    "$",        "${A}",
                                                    "%",        "%00",
                                                    "&lt;",     "&amp;",
                                                    "<Key>",    "</Key>",
                                                    "href=",    "pipe:",
                                                    "://",      "@",
                                                    "?",        "=",
                                                    "\\ud800",  "\\udc00",
                                                    "\\u0000",  "1e999",
                                                    "-0",       "9",
                                                    "NaN",      "null",
                                                    "true",     "\xed\xa0\x80",
                                                    "\xc0\xaf", "\xff",
                                                    "\x1b",     "<Contents>",
                                                    "!r",       "z",
                                                    "#"};
    std::string text = tokens[below(tokens.size())];
    if (below(20) == 0) {
      const std::string once = text;
      for (size_t times = below(3000); times > 0; --times) text += once;
    }
    return text;
  }

  /// Another size, type or name in a header whose checksum is right again.
  void change_tar_header(std::string& file, size_t at) {
    if (at + 512 > file.size()) return;
    char size[13];
    switch (below(5)) {
      case 0:
        std::snprintf(size, sizeof(size), "%011llo", static_cast<unsigned long long>(number()));
        put(file, at + 124, std::string(size, 12));
        break;
      case 1:
        put(file, at + 124, std::string("\x80\x00\x00\x00", 4) + big_endian(number() << 20, 8));
        break;
      case 2:
        file[at + 156] = "0123456789xgLKSXVZ"[below(18)];
        break;
      case 3:
        put(file, at + below(100), "/");
        break;
      default:
        file[at + below(512)] = static_cast<char>(random_());
        break;
    }
    put(file, at + 148, "        ");
    unsigned sum = 0;
    for (size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(file[i]);
    char text[9];
    std::snprintf(text, sizeof(text), "%06o", sum);
    put(file, at + 148, std::string(text, 7) + " ");
  }

  /// Another length, or another byte under a checksum that is right again.
  void change_png_chunk(std::string& file) {
    size_t at = 8;
    for (size_t hops = below(4); hops > 0 && at + 12 < file.size(); --hops) {
      const size_t length = length_at(file, at);
      if (length > file.size() || at + 24 + length > file.size()) break;
      at += 12 + length;
    }
    if (at + 12 > file.size()) return;
    const size_t length = length_at(file, at);
    if (below(3) == 0 || length == 0 || length > file.size() - at - 12) {
      put(file, at, big_endian(number(), 4));
      return;
    }
    file[at + 8 + below(length)] = static_cast<char>(random_());
    const uLong sum = crc32(
        0, reinterpret_cast<const Bytef*>(file.data() + at + 4), static_cast<uInt>(length + 4));
    put(file, at + 8 + length, big_endian(sum, 4));
  }

  /// Small, large, or at the edges of what fits.
  uint64_t number() {
    constexpr uint64_t kEdges[] = {
        0, 1, 2, 3, 511, 512, 513, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
    return below(2) == 0 ? kEdges[below(std::size(kEdges))] : random_() % 100000;
  }

  static void put(std::string& file, size_t at, const std::string& bytes) {
    if (at < file.size()) file.replace(at, std::min(bytes.size(), file.size() - at), bytes);
    // A replacement that is longer than the rest makes the file longer, as an editor would.
  }
  static size_t length_at(const std::string& file, size_t at) {
    size_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(file[at + i]);
    return value;
  }
  static std::string big_endian(uint64_t value, int size) {
    std::string bytes = little_endian(value, size);
    std::reverse(bytes.begin(), bytes.end());
    return bytes;
  }
  static std::string little_endian(uint64_t value, int size) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
    return bytes;
  }

  std::vector<std::string> files_;
  std::string kind_;
  std::mt19937 random_;
};

struct Outcome {
  int64_t accepted = 0, refused = 0;
};

inline int64_t mutation_setting(const char* name, int64_t without) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : without;
}

/// Reads DALLE2_MUTATIONS mutated files (or `usual`) of a kind. `read` gets the mutation and the
/// whole file, and refuses by one of our errors; anything else it throws fails the test. A file
/// that takes longer than 30 s, on a busy machine under sanitizers, ends the test by SIGALRM.
inline Outcome survive(const std::string& kind,
                       const std::vector<std::string>& files,
                       int64_t usual,
                       const std::function<void(const Mutation&, const std::string&)>& read) {
  using Clock = std::chrono::steady_clock;
  constexpr unsigned kSecondsPerFile = 30;
  const int64_t rounds = mutation_setting("DALLE2_MUTATIONS", usual);
  const uint64_t seed = static_cast<uint64_t>(mutation_setting("DALLE2_MUTATION_SEED", 20));
  Mutator mutator(files, kind);
  Outcome outcome;
  double longest = 0;
  for (int64_t number = 0; number < rounds; ++number) {
    INFO(kind << " mutation " << number << " of seed " << seed);
    const Mutation mutation = mutator.make(seed, static_cast<uint64_t>(number));
    const Clock::time_point begin = Clock::now();
    alarm(kSecondsPerFile);
    try {
      read(mutation, mutator.whole(static_cast<uint64_t>(number)));
      ++outcome.accepted;
    } catch (const Error&) {
      ++outcome.refused;
    }
    alarm(0);
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  if (std::getenv("DALLE2_MUTATIONS") != nullptr) {
    std::printf("%s: %ld files mutated, %ld read, %ld refused, the longest took %.0f ms\n",
                kind.c_str(),
                static_cast<long>(rounds),
                static_cast<long>(outcome.accepted),
                static_cast<long>(outcome.refused),
                1000 * longest);
    std::fflush(stdout);
  }
  return outcome;
}

}  // namespace dalle2::test
