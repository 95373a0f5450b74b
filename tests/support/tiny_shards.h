// SPDX-License-Identifier: MIT
// Shards of a few small pictures, with captions and embeddings that tell the sample.
#pragma once

#include "io/formats/npy.h"
#include "io/formats/tar.h"
#include "io/pictures/image.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

namespace dalle2::test {

/// A picture of one colour.
inline Image plain_picture(int width, int height, uint8_t red, uint8_t green, uint8_t blue) {
  Image image{width, height, {}};
  image.pixels.reserve(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  for (int i = 0; i < width * height; ++i) {
    image.pixels.insert(image.pixels.end(), {red, green, blue});
  }
  return image;
}

/// A picture in which no two neighbours are alike.
inline Image busy_picture(int width, int height, uint32_t seed = 1) {
  Image image{width, height, {}};
  uint32_t state = seed * 2654435761U + 12345;
  for (int i = 0; i < width * height * 3; ++i) {
    state = state * 1664525U + 1013904223U;
    image.pixels.push_back(static_cast<uint8_t>(state >> 24));
  }
  return image;
}

/// Members of a tar: name, content.
using Members = std::vector<std::pair<std::string, std::string>>;

inline void write_tar(const std::string& path, const Members& members, bool gzip = false) {
  TarWriter tar(path, gzip);
  for (const auto& [name, content] : members) tar.add(name, content);
  tar.commit();
}

/// Key of a sample: the number of its shard with five digits, its row with four.
inline std::string tiny_key(int64_t shard, int64_t row) {
  return fmt::format("{:05d}{:04d}", shard, row);
}

/// Members of one shard: a PNG of one colour, (row, shard, 7), and the caption "caption KEY\n".
inline Members tiny_members(int64_t shard, int64_t rows, int side = 4) {
  Members members;
  for (int64_t row = 0; row < rows; ++row) {
    const std::string key = tiny_key(shard, row);
    members.emplace_back(
        key + ".png",
        encode_png(
            plain_picture(side, side, static_cast<uint8_t>(row), static_cast<uint8_t>(shard), 7)));
    members.emplace_back(key + ".txt", "caption " + key + "\n");
  }
  return members;
}

/// One row an embedding, [rows, width]: shard + 1, row + 1, 1, 1, ...
inline void write_tiny_embeddings(const std::string& path,
                                  int64_t shard,
                                  int64_t rows,
                                  int64_t width = 3) {
  std::vector<float> values(static_cast<size_t>(rows * width), 1.0F);
  for (int64_t row = 0; row < rows; ++row) {
    values[static_cast<size_t>(row * width)] = static_cast<float>(shard + 1);
    values[static_cast<size_t>(row * width + 1)] = static_cast<float>(row + 1);
  }
  write_npy_float32(path, {rows, width}, values.data());
}

/// Shards 0 .. shards-1 in FOLDER/shards/00000.tar and so on, and their image embeddings in
/// FOLDER/img_emb/img_emb_00000.npy.
inline void write_tiny_shards(const std::string& folder,
                              int64_t shards,
                              int64_t rows,
                              int side = 4) {
  std::filesystem::create_directories(folder + "/shards");
  std::filesystem::create_directories(folder + "/img_emb");
  for (int64_t shard = 0; shard < shards; ++shard) {
    write_tar(fmt::format("{}/shards/{:05d}.tar", folder, shard), tiny_members(shard, rows, side));
    write_tiny_embeddings(fmt::format("{}/img_emb/img_emb_{:05d}.npy", folder, shard), shard, rows);
  }
}

}  // namespace dalle2::test
