// SPDX-License-Identifier: MIT
#include "io/tar_sparse.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace dalle2 {
namespace {

const std::string* find(const PaxRecords& records, const char* key) {
  const auto found = records.find(key);
  return found == records.end() ? nullptr : &found->second;
}

/// Whole numbers between commas.
std::optional<std::vector<uint64_t>> numbers(std::string_view text) {
  std::vector<uint64_t> values;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto value = decimal(text.substr(0, comma));
    if (!value) {
      return std::nullopt;
    }
    values.push_back(*value);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

/// PAX 0.1 has one list "place,length,...", PAX 0.0 a list of each.
std::optional<TarPieces> pieces_of(const PaxRecords& records) {
  TarPieces pieces;
  if (const std::string* map = find(records, "GNU.sparse.map")) {
    const auto values = numbers(*map);
    if (!values || values->size() % 2 != 0) {
      return std::nullopt;
    }
    for (size_t i = 0; i < values->size(); i += 2) {
      pieces.emplace_back((*values)[i], (*values)[i + 1]);
    }
    return pieces;
  }
  const std::string* places = find(records, "GNU.sparse.offset");
  const std::string* lengths = find(records, "GNU.sparse.numbytes");
  const auto begins = numbers(places != nullptr ? *places : "");
  const auto sizes = numbers(lengths != nullptr ? *lengths : "");
  if (!begins || !sizes || begins->size() != sizes->size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < begins->size(); ++i) {
    pieces.emplace_back((*begins)[i], (*sizes)[i]);
  }
  return pieces;
}

/// Takes a line with a number from the front of `text`.
std::optional<uint64_t> take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  const auto value = decimal(text.substr(0, end));
  text.remove_prefix(end + 1);
  return value;
}

/// Takes the table of PAX 1.0 from the front of `stored`: a count, then places and lengths, a line
/// each, filled up to a whole block.
std::optional<TarPieces> take_table(std::string_view& stored) {
  const size_t all = stored.size();
  const auto count = take_line(stored);
  TarPieces pieces;
  for (uint64_t i = 0; count && i < *count; ++i) {
    const auto begin = take_line(stored);
    const auto size = take_line(stored);
    if (!begin || !size) {
      return std::nullopt;
    }
    pieces.emplace_back(*begin, *size);
  }
  const size_t padding = (kTarBlock - (all - stored.size()) % kTarBlock) % kTarBlock;
  if (!count || padding > stored.size()) {
    return std::nullopt;
  }
  stored.remove_prefix(padding);
  return pieces;
}

}  // namespace

std::optional<SparseFile> sparse_file(const TarHeader& header,
                                      const PaxRecords& records,
                                      bool& damaged) {
  damaged = false;
  if (header.type == 'S') {
    return SparseFile{header.real_bytes, header.pieces, false};
  }
  const std::string* real = find(records, "GNU.sparse.realsize");
  if (real == nullptr) {
    real = find(records, "GNU.sparse.size");
  }
  if (real == nullptr) {
    return std::nullopt;
  }
  const auto size = decimal(*real);
  const bool in_content = find(records, "GNU.sparse.major") != nullptr;
  const auto pieces = in_content ? TarPieces{} : pieces_of(records);
  damaged = !size || !pieces;
  if (damaged) {
    return std::nullopt;
  }
  return SparseFile{*size, *pieces, in_content};
}

std::optional<std::string> fill_holes(std::string_view stored, SparseFile file) {
  if (file.pieces_in_content) {
    auto pieces = take_table(stored);
    if (!pieces) {
      return std::nullopt;
    }
    file.pieces = *std::move(pieces);
  }
  std::string content(file.real_bytes, '\0');
  for (const auto& [begin, size] : file.pieces) {
    if (size > stored.size() || begin > content.size() || size > content.size() - begin) {
      return std::nullopt;
    }
    std::memcpy(content.data() + begin, stored.data(), size);
    stored.remove_prefix(size);
  }
  return content;
}

}  // namespace dalle2
