// SPDX-License-Identifier: MIT
// The demo set on disk.
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "demo/demo_commands.h"
#include "demo/demo_images.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "io/formats/tar.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

namespace dalle2 {
namespace {

constexpr int64_t kFewestShards = 16;  // two ranks still have each a shard for every split
constexpr int64_t kMostRows = 10'000;  // 4 digits of a key
constexpr int kJpegQuality = 95;

/// Draws that are the same with every standard library.
class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}
  /// Uniform in [low, high).
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[engine_() % i]);
  }

 private:
  std::mt19937_64 engine_;
};

struct Picture {
  std::string key;
  DemoAttributes attributes;
  DemoVariation variation;
};

/// One tar and its embeddings.
void write_shard(const std::string& folder,
                 int64_t shard,
                 const std::vector<Picture>& pictures,
                 int side,
                 const std::function<void()>& one_done) {
  TarWriter tar(fmt::format("{}/{:06d}.tar", folder, shard));
  std::vector<float> embeddings;
  for (const Picture& picture : pictures) {
    const Image image = draw_demo_image(picture.attributes, side, picture.variation);
    tar.add(picture.key + ".jpg", encode_jpeg(image, kJpegQuality));
    tar.add(picture.key + ".txt", demo_caption(picture.attributes));
    const std::vector<float> embedding = demo_embedding(picture.attributes);
    embeddings.insert(embeddings.end(), embedding.begin(), embedding.end());
    one_done();
  }
  write_npy_float32(fmt::format("{}/img_emb/img_emb_{:06d}.npy", folder, shard),
                    {static_cast<int64_t>(pictures.size()), kDemoEmbeddingSize},
                    embeddings.data());
  tar.commit();
}

void write_truth(const std::string& path, const std::vector<Picture>& pictures) {
  nlohmann::ordered_json truth = nlohmann::ordered_json::array();
  for (const Picture& picture : pictures) {
    truth.push_back({{"key", picture.key}, {"caption", demo_caption(picture.attributes)}});
    for (const DemoAttribute& attribute : kDemoAttributes) {
      const int value = picture.attributes.*attribute.member;
      truth.back()[attribute.name] = attribute.values[static_cast<size_t>(value)];
    }
  }
  write_file_atomically(path, truth.dump(1) + "\n");
}

/// A line each, for `sample --text @FILE`.
void write_captions(const std::string& path, const std::vector<Picture>& pictures) {
  std::string lines;
  for (const Picture& picture : pictures) lines += demo_caption(picture.attributes) + "\n";
  write_file_atomically(path, lines);
}

/// The combinations over and over, each round in another order.
class Deck {
 public:
  Deck(std::vector<DemoAttributes> combinations, Draws& draws)
      : combinations_(std::move(combinations)), next_(combinations_.size()), draws_(draws) {}

  Picture deal(int64_t shard, int64_t row) {
    if (next_ == combinations_.size()) {
      draws_.shuffle(combinations_);
      next_ = 0;
    }
    Picture picture{fmt::format("{:06d}{:04d}", shard, row), combinations_[next_++], {}};
    picture.variation.shift_x = draws_.between(-0.015, 0.015);
    picture.variation.shift_y = draws_.between(-0.015, 0.015);
    picture.variation.scale = draws_.between(0.96, 1.04);
    return picture;
  }

 private:
  std::vector<DemoAttributes> combinations_;
  size_t next_;
  Draws& draws_;
};

constexpr const char* kTruthFile = "heldout/truth.json";
constexpr const char* kCaptionsFile = "heldout/captions.txt";
/// Of `shards embed`: it would say of which CLIP the demo's embeddings are.
constexpr const char* kEmbeddingsManifest = "embeddings.json";

/// Files that lie where the set's go, by their names in the folder.
std::vector<std::string> earlier_files(const std::string& out) {
  std::vector<std::string> found;
  for (const auto& [below, ending] : {std::pair{"", ".tar"},
                                      std::pair{"img_emb/", ".npy"},
                                      std::pair{"heldout/", ".tar"},
                                      std::pair{"heldout/img_emb/", ".npy"}}) {
    for (const std::string& name : names_ending(out + "/" + below, ending)) {
      found.push_back(below + name);
    }
  }
  for (const std::string& name : numbered_arrays(out)) {  // of other commands
    if (std::ranges::find(found, name) == found.end()) found.push_back(name);
  }
  for (const char* name : {kTruthFile, kCaptionsFile, kEmbeddingsManifest}) {
    if (path_exists(out + "/" + name)) found.emplace_back(name);
  }
  return found;
}

}  // namespace

DemoShardReport write_demo_shards(const DemoShardOptions& options) {
  if (options.num < kFewestShards) {
    throw ConfigError(
        "--num {}: expected at least {}, a picture for each shard", options.num, kFewestShards);
  }
  DemoShardReport report;
  report.removed = earlier_files(options.out);
  if (!options.overwrite && !report.removed.empty()) {
    // It may be somebody's only copy, and shards of two calls make no set.
    throw ConfigError(
        "--out {}: expected a folder without shards and embeddings, found {}\n"
        "  Give another folder, or remove these with --overwrite.",
        options.out,
        short_list(report.removed));
  }
  for (const std::string& name : report.removed) remove_file(options.out + "/" + name);
  std::vector<DemoAttributes> train = demo_combinations(), held_out;
  std::copy_if(train.begin(), train.end(), std::back_inserter(held_out), is_held_out);
  std::erase_if(train, is_held_out);
  report.shards = std::max(kFewestShards, (options.num + kMostRows - 1) / kMostRows);
  report.held_out = static_cast<int64_t>(held_out.size());
  int64_t done = 0;
  const auto one_done = [&] {
    log_live(fmt::format(
        "{} of {}", with_commas(++done), counted(options.num + report.held_out, "picture")));
  };
  Draws draws(options.seed);
  const auto write = [&](Deck& deck, const std::string& folder, int64_t shard, int64_t rows) {
    std::vector<Picture> pictures;
    for (int64_t row = 0; row < rows; ++row) pictures.push_back(deck.deal(shard, row));
    write_shard(folder, shard, pictures, options.image_side, one_done);
    return pictures;
  };
  Deck deck(std::move(train), draws);
  for (int64_t shard = 0; shard < report.shards; ++shard) {
    const int64_t begin = options.num * shard / report.shards,
                  end = options.num * (shard + 1) / report.shards;
    write(deck, options.out, shard, end - begin);
  }
  Deck held_out_deck(std::move(held_out), draws);
  const std::string folder = options.out + "/heldout";
  const std::vector<Picture> held_out_pictures = write(held_out_deck, folder, 0, report.held_out);
  write_truth(options.out + "/" + kTruthFile, held_out_pictures);
  write_captions(options.out + "/" + kCaptionsFile, held_out_pictures);
  return report;
}

void run_shards_demo(const DemoShardOptions& options) {
  const DemoShardReport report = write_demo_shards(options);
  log_live("");
  if (!report.removed.empty()) std::printf("removed: %s\n", short_list(report.removed).c_str());
  std::printf("%s in %s: %s/{}.tar, embeddings in %s/img_emb\n",
              counted(options.num, "picture").c_str(),
              counted(report.shards, "shard").c_str(),
              options.out.c_str(),
              options.out.c_str());
  std::printf("%ld combinations that no shard holds: %s/heldout, their truth in truth.json\n",
              static_cast<long>(report.held_out),
              options.out.c_str());
}

}  // namespace dalle2
