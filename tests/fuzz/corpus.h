// SPDX-License-Identifier: MIT
// What the tests of damaged files share: the inputs that coverage-guided runs kept, and mutations of
// them and of whole files.
#pragma once

#include <fstream>

#include "support/survive.h"

namespace dalle2::test {

using Files = std::vector<std::string>;
using Parser = std::function<void(const std::string&)>;

inline std::string from_base64(const std::string& line) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int waiting = 0;
  for (const char letter : line.substr(0, line.find('='))) {
    bits = bits << 6 | static_cast<uint32_t>(digits.find(letter));
    waiting += 6;
    if (waiting < 8) continue;
    waiting -= 8;
    bytes += static_cast<char>(bits >> waiting & 255);
  }
  return bytes;
}

/// What coverage-guided runs found worth keeping: an input a line.
inline Files corpus(const std::string& parser) {
  Files files;
  std::ifstream lines(std::filesystem::path(DALLE2_SOURCE_DIR) / "tests/fuzz/corpus" /
                      (parser + ".base64"));
  for (std::string line; std::getline(lines, line);) files.push_back(from_base64(line));
  return files;
}

/// @param least inputs that the corpus has to hold @return how many are taken
inline size_t read_corpus(const std::string& parser, const Parser& read, size_t least = 20) {
  size_t taken = 0;
  const Files files = corpus(parser);
  INFO(parser);
  CHECK(files.size() >= least);
  for (const std::string& file : files) {
    try {
      read(file);
      ++taken;
    } catch (const Error&) {
    }
  }
  return taken;
}

inline void damage(const std::string& parser, Files files, const Parser& read) {
  INFO(parser);
  // The whole ones are right.
  for (const std::string& file : files) CHECK_NOTHROW(read(file));
  for (const std::string& file : corpus(parser)) {
    try {
      read(file);
    } catch (const Error&) {
    }
    files.push_back(file);
  }
  const auto read_mutation = [&](const Mutation& mutation, const std::string&) {
    read(mutation.file);
  };
  CHECK(survive(parser, files, 2000, read_mutation).accepted > 0);
}

}  // namespace dalle2::test
