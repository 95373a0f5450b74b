// SPDX-License-Identifier: MIT
// The demo set: pictures of one shape on a plain ground whose whole truth is five attributes, so
// that what a decoder draws can be checked against what it was asked for.
#pragma once

#include "io/pictures/image.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dalle2 {

inline constexpr std::array<const char*, 5> kDemoShapes = {
    "circle", "square", "triangle", "cross", "ring"};
inline constexpr std::array<const char*, 6> kDemoColours = {
    "red", "green", "blue", "yellow", "purple", "cyan"};
inline constexpr std::array<const char*, 2> kDemoSizes = {"small", "large"};
inline constexpr std::array<const char*, 5> kDemoPlaces = {
    "left", "right", "top", "bottom", "centre"};
inline constexpr std::array<const char*, 3> kDemoGrounds = {"white", "grey", "black"};

/// Indices into the lists above; -1 where a picture could not be read.
struct DemoAttributes {
  int shape = 0, colour = 0, size = 0, place = 0, ground = 0;
  bool operator==(const DemoAttributes&) const = default;
};

/// All 900 combinations, in a fixed order.
std::vector<DemoAttributes> demo_combinations();
/// True for the 64 combinations that no training shard ever holds. Every value of every attribute
/// occurs in both parts.
bool is_held_out(const DemoAttributes& attributes);

/// "a large red triangle on the left, white ground"
std::string demo_caption(const DemoAttributes& attributes);

inline constexpr int kDemoEmbeddingSize = 32;
/// Of the values that are not zero: the embedding is then as long as one of CLIP's in the scale of a
/// prior, sqrt(512). A network that reads it begins with small weights; values of 1 it would hear
/// late, behind the timestep.
inline constexpr float kDemoEmbeddingStrength = 10;
/// One value in each of five blocks (shape, colour, size, place, ground), then zeros: [32].
std::vector<float> demo_embedding(const DemoAttributes& attributes);
/// The largest value of each block. @param embedding [32]
DemoAttributes attributes_of_embedding(const std::vector<float>& embedding);

/// Small differences between drawings of the same attributes.
struct DemoVariation {
  double shift_x = 0, shift_y = 0;  ///< as a part of the side
  double scale = 1;
};
/// Draws without steps at the edges. @param side pixels, at least 8
Image draw_demo_image(const DemoAttributes& attributes,
                      int side,
                      const DemoVariation& variation = {});

/// What a picture shows, by plain image analysis.
struct DemoReading {
  DemoAttributes attributes;  ///< all but `ground` are -1 on an empty picture
  double shape_match = 0;     ///< overlap of the shape with the best drawing of one, 0 to 1
};
/// Reads a square picture of at least 8 pixels a side, a slightly blurred or noisy one too.
DemoReading analyse_demo_image(const Image& image);

struct DemoShardOptions {
  std::string out;     ///< folder, created
  int64_t num = 8000;  ///< pictures in the training shards
  int image_side = 64;
  uint64_t seed = 0;
  bool overwrite = false;  ///< remove the shards and embeddings that the folder holds
};
struct DemoShardReport {
  int64_t shards = 0;  ///< of the training set; numbers 0 to shards - 1
  int64_t pictures = 0;
  int64_t held_out = 0;
  std::vector<std::string> removed;  ///< what the folder held, by its name in it
};
/// Pictures written so far, and of how many.
using DemoProgress = std::function<void(int64_t done, int64_t total)>;

/// Writes `out/000000.tar ...` (jpg and txt; keys of 6 digits for the shard and 4 for the row),
/// `out/img_emb/img_emb_000000.npy ...` (row = the last 4 digits of the key), and the held-out
/// combinations, one picture each, as `out/heldout/` with the same layout and `truth.json`, a list
/// of {key, caption, shape, colour, size, place, ground} in the order of the rows. There are at
/// least 16 shards, so that the usual splits have each a shard. Same options, same bytes.
/// @throws ConfigError (fewer pictures than shards, a side out of 16 to 1024, or shards or
/// embeddings that are in the folder already, without `overwrite`), and as AtomicFile
DemoShardReport write_demo_shards(const DemoShardOptions& options,
                                  const DemoProgress& progress = {});

}  // namespace dalle2
