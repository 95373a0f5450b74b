// SPDX-License-Identifier: MIT
// The order of the samples: mixed within windows, taken up exactly, the same for any number of
// ranks.
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "data/loader_support.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
using Keys = std::vector<std::string>;
using Batches = std::vector<Keys>;

namespace {

/// Shards with 1 to `most_rows` samples; some samples have a broken picture, some no picture, some
/// shards are packed. @return samples that can be used
size_t write_random_shards(const TempDir& folder,
                           int64_t shards,
                           int64_t most_rows,
                           uint32_t seed) {
  std::mt19937 random(seed);
  std::filesystem::create_directories(folder / "shards");
  size_t usable = 0;
  for (int64_t shard = 0; shard < shards; ++shard) {
    const int64_t rows = 1 + random() % most_rows;
    Members members = tiny_members(shard, rows);
    for (auto& [name, content] : members) {
      const bool picture = name.ends_with(".png") || name.ends_with(".jpg");
      if (!picture) continue;
      const auto fate = random() % 10;
      if (fate == 0) content = "no picture";
      if (fate == 1) name += ".txt2";  // another field: nothing to show
      usable += fate > 1;
    }
    write_tar(
        fmt::format("{}/shards/{:05d}.tar", folder.path(), shard), members, random() % 3 == 0);
  }
  return usable;
}

struct Epoch {
  Batches batches;
  std::vector<LoaderPosition> positions;  // behind each
};

Epoch read_epoch(ShardLoader& loader) {
  Epoch epoch;
  while (auto batch = loader.next()) {
    epoch.batches.push_back(batch->keys);
    epoch.positions.push_back(batch->position);
  }
  return epoch;
}

/// Several ranks in step: what they read, in the order (step, rank).
class Ranks {
 public:
  Ranks(const LoaderOptions& options, int world)
      : walk_(config_with(world % 3 * world), options, world) {}  // 0, 1 or 2 threads a rank

  void start(int64_t epoch, const LoaderPosition& position) { walk_.start_epoch(epoch, position); }

  /// One step of all ranks. @return false at the end of the epoch
  bool step(Keys& order) {
    const auto batches = walk_.next();
    if (!batches) return false;
    for (const Batch& batch : *batches) {
      order.insert(order.end(), batch.keys.begin(), batch.keys.end());
      empty_ += batch.size() == 0;
    }
    ++steps_;
    return true;
  }

  const LoaderPosition& position() const { return walk_.position(); }
  int64_t steps() const { return steps_; }
  int64_t empty() const { return empty_; }

 private:
  RankWalk walk_;
  int64_t steps_ = 0, empty_ = 0;
};

}  // namespace

TEST_CASE("samples are mixed within windows of the shuffle buffer, anew in each epoch") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 4, 25);
  LoaderOptions options = options_over(folder.path(), 4, 10);
  options.shuffle_buffer = 20;
  const auto keys = [&](int64_t epoch, int workers) {
    ShardLoader loader(config_with(workers), options);
    return keys_of_epoch(loader, epoch);
  };
  const Keys mixed = keys(0, 0);
  CHECK(keys(0, 3) == mixed);
  CHECK(keys(1, 0) != mixed);
  options.shuffle_buffer = 1;
  const Keys plain = keys(0, 0);
  REQUIRE(mixed.size() == 100);
  CHECK(mixed != plain);
  int64_t in_place = 0;
  for (size_t window = 0; window < 100; window += 20) {
    const auto part = [&](const Keys& all) {
      return std::set<std::string>(all.begin() + static_cast<long>(window),
                                   all.begin() + static_cast<long>(window) + 20);
    };
    CHECK(part(mixed) == part(plain));
  }
  for (size_t i = 0; i < 100; ++i) in_place += mixed[i] == plain[i];
  CHECK(in_place < 20);  // 5 expected of a uniform permutation, standard deviation 2.2
}

TEST_CASE("an epoch resumes exactly after any batch, however it is mixed, and again after that") {
  const auto [buffer, shuffle, resample] = GENERATE(std::array<int, 3>{1, 0, 0},
                                                    std::array<int, 3>{1, 1, 0},
                                                    std::array<int, 3>{7, 1, 0},
                                                    std::array<int, 3>{16, 1, 0},
                                                    std::array<int, 3>{1000, 1, 0},
                                                    std::array<int, 3>{9, 0, 1});
  CAPTURE(buffer, shuffle, resample);
  const TempDir folder;
  const size_t usable = write_random_shards(folder, 6, 12, 3);
  const CapturedLog log;
  LoaderOptions options = options_over(folder.path(), 6, 3);
  options.shuffle = shuffle != 0;
  options.resample = resample != 0;
  options.shuffle_buffer = buffer;
  const auto read = [&](const LoaderPosition& from, int workers, size_t most) {
    ShardLoader loader(config_with(workers), options);
    loader.start_epoch(2, from);
    Epoch epoch;
    while (epoch.batches.size() < most) {
      auto batch = loader.next();
      if (!batch) break;
      epoch.batches.push_back(batch->keys);
      epoch.positions.push_back(batch->position);
    }
    return epoch;
  };
  const size_t most = resample ? 40 : 1000;
  const Epoch whole = read({}, 2, most);
  if (!resample) CHECK(flat(whole.batches).size() == usable);
  for (size_t cut = 0; cut < whole.batches.size(); ++cut) {
    const auto expected = [&](size_t from) {
      return Batches(whole.batches.begin() + static_cast<long>(from), whole.batches.end());
    };
    const Epoch rest =
        read(whole.positions[cut], static_cast<int>(cut % 3), most - std::min(most, cut + 1));
    CHECK(rest.batches == expected(cut + 1));
    // And once more, two batches later.
    if (rest.positions.size() > 2)
      CHECK(read(rest.positions[1], 1, most - cut - 3).batches == expected(cut + 3));
  }
}

TEST_CASE("a resumed epoch reads nothing of the shards before its window") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 8);
  LoaderOptions options = options_over(folder.path(), 3, 4);
  ShardLoader whole(config_with(0), options);
  whole.start_epoch(0);
  whole.next();
  whole.next();
  const auto third = whole.next();  // half of shard 1
  REQUIRE(third);
  const ShardPlace place = third->position.lanes[0].window_start;
  CHECK(place.shard == 1);
  CHECK(place.sample == 4);
  CHECK(place.offset > 0);
  // What lies before is damaged now, and is not noticed.
  std::filesystem::remove(options.urls[0]);
  std::string shard = read_file(options.urls[1]);
  std::fill_n(shard.begin(), place.offset, '#');
  std::filesystem::remove(options.urls[1]);
  write_file_atomically(options.urls[1], shard);
  const CapturedLog log;
  ShardLoader rest(config_with(1), options);
  rest.start_epoch(0, third->position);
  CHECK(flat(keys_of(rest)).size() == 12);
  CHECK(rest.dropped().empty());
}

TEST_CASE("an epoch resumes in a replaced shard after the same number of samples, with a warning") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 8);
  const LoaderOptions options = options_over(folder.path(), 3, 4);
  ShardLoader whole(config_with(0), options);
  whole.start_epoch(0);
  const Epoch epoch = read_epoch(whole);
  // Samples of twice the size: the byte at which the fifth began is now that of the third.
  Members longer = tiny_members(1, 8);
  for (auto& [name, content] : longer) {
    if (name.ends_with(".txt")) content.resize(2500, '.');
  }
  write_tar(options.urls[1], longer);
  CapturedLog log;
  ShardLoader rest(config_with(1), options);
  rest.start_epoch(0, epoch.positions[2]);
  const Keys expected = flat(Batches(epoch.batches.begin() + 3, epoch.batches.end()));
  CHECK(flat(keys_of(rest)) == expected);
  CHECK(log.count(
            "train: 00001.tar has 33,792 bytes, and had 17,408 when the epoch was interrupted") ==
        1);
}

TEST_CASE(
    "a shard that cannot be read at a resume is reported, and takes no other sample with it") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 6, 8);
  LoaderOptions options = options_over(folder.path(), 6, 4);
  options.shuffle = true;
  options.shuffle_buffer = 20;
  ShardDataConfig config = config_with(1);
  ShardLoader whole(config, options);
  whole.start_epoch(0);
  const Epoch epoch = read_epoch(whole);
  const size_t cut = GENERATE(range(size_t{0}, size_t{10}));
  // Any shard of which something is still to come.
  const std::string lost =
      epoch.batches[cut + 1][GENERATE(size_t{0}, size_t{1}, size_t{2})].substr(0, 5);
  const std::string path = fmt::format("{}/shards/{}.tar", folder.path(), lost);
  LoaderPosition position = epoch.positions[cut];
  const auto [gone, knows_size] =
      GENERATE(table<bool, bool>({{true, true}, {false, true}, {false, false}}));
  if (!knows_size) {  // as of a shard of a server
    for (LanePosition& lane : position.lanes) lane.window_start.bytes = lane.window_end.bytes = 0;
  }
  if (gone) {
    std::filesystem::remove(path);
  } else {  // packed meanwhile: the byte means nothing any more
    write_tar(path, tiny_members(std::stoll(lost), 8), /*gzip=*/true);
  }
  CapturedLog log;
  ShardLoader rest(config, options);
  rest.start_epoch(0, position);
  Keys expected;
  for (size_t i = cut + 1; i < epoch.batches.size(); ++i) {
    for (const std::string& key : epoch.batches[i]) {
      if (!gone || key.substr(0, 5) != lost) expected.push_back(key);
    }
  }
  Keys keys = flat(keys_of(rest));
  if (gone) {  // later windows reach further, now that there are fewer samples
    std::sort(keys.begin(), keys.end());
    std::sort(expected.begin(), expected.end());
  }
  CHECK(keys == expected);
  CHECK(rest.dropped() == (gone ? DropCounts{{"absent shard", 1}} : DropCounts{}));
}

TEST_CASE("bad shards of an epoch count on when it is taken up") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 5, 4);
  for (const char* shard : {"00000", "00003"})
    std::filesystem::remove(fmt::format("{}/shards/{}.tar", folder.path(), shard));
  LoaderOptions options = options_over(folder.path(), 5, 4);
  ShardDataConfig config = config_with(0);
  config.max_bad_fraction = 0.3;
  const CapturedLog log;
  ShardLoader loader(config, options);
  const LoaderPosition first = first_of(loader).position;
  ShardLoader rest(config, options);
  rest.start_epoch(0, first);
  CHECK_THROWS_WITH(keys_of(rest), Contains("2 of 5 shards cannot be read"));
}

TEST_CASE("an epoch keeps the windows it was begun with, and its position knows its shards") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 4, 10);
  LoaderOptions options = options_over(folder.path(), 3, 5);
  options.shuffle_buffer = 8;
  options.shard_names = shard_names_hash(options.urls);
  ShardLoader whole(config_with(0), options);
  whole.start_epoch(0);
  const Epoch epoch = read_epoch(whole);
  options.shuffle_buffer = 3;
  ShardLoader rest(config_with(0), options);
  rest.start_epoch(0, epoch.positions[2]);
  CHECK(keys_of(rest) == Batches(epoch.batches.begin() + 3, epoch.batches.end()));

  const LoaderPosition& position = epoch.positions[2];
  CHECK(position.shard_names == options.shard_names);
  CHECK_FALSE(other_shards(position, options.urls, options.shard_names));
  const ShardUrls more = {
      options.urls[0], options.urls[1], options.urls[2], folder / "shards/00003.tar"};
  CHECK_THAT(other_shards(position, more, shard_names_hash(more)).value_or(""),
             Contains("the names of the 4 shards"));
  const ShardUrls others = {
      folder / "shards/00000.tar", folder / "shards/00001.tar", folder / "shards/00003.tar"};
  CHECK_THAT(other_shards(position, others, shard_names_hash(others)).value_or(""),
             Contains("the names of the 3 shards"));
  // In another place they are the same.
  const ShardUrls moved = {"/else/00000.tar", "/else/00001.tar", "/else/00002.tar"};
  CHECK_FALSE(other_shards(position, moved, shard_names_hash(moved)));
}

TEST_CASE("ranks take equal numbers of steps, and each sample comes once over all of them") {
  const TempDir folder;
  const int64_t shards = GENERATE(3, 8, 13);
  const size_t usable = write_random_shards(folder, shards, 9, static_cast<uint32_t>(shards));
  const CapturedLog log;
  LoaderOptions options = options_over(folder.path(), shards, 2);
  options.shuffle = true;
  options.shuffle_buffer = 5;
  for (const int world : {1, 2, 3, 4, 5}) {
    Ranks ranks(options, world);
    ranks.start(0, {});
    Keys order;
    while (ranks.step(order)) {
    }
    CAPTURE(world);
    CHECK(order.size() == usable);
    CHECK(std::set<std::string>(order.begin(), order.end()).size() == usable);
    if (world == 1) CHECK(ranks.empty() == 0);
  }
}

TEST_CASE("a rank that fails ends the step of all") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 8, 4);
  for (const char* shard : {"00004", "00005"}) {  // all of rank 2
    write_file_atomically(fmt::format("{}/shards/{}.tar", folder.path(), shard), "no tar");
  }
  ShardDataConfig config = config_with(GENERATE(0, 4));
  config.max_bad_fraction = 0.5;
  const CapturedLog log;
  RankWalk walk(config, options_over(folder.path(), 8, 2), 4);
  walk.start_epoch(0);
  CHECK_THROWS_WITH(walk.next(), Contains("2 of 2 shards cannot be read"));
}

TEST_CASE("the order over all ranks stays when the number of ranks changes within the epoch") {
  const TempDir folder;
  const size_t usable = write_random_shards(folder, 13, 9, 5);
  const CapturedLog log;
  LoaderOptions options = options_over(folder.path(), 13, 2);
  options.shuffle = true;
  options.shuffle_buffer = 6;
  const auto order_of = [&](const std::vector<std::pair<int, int>>& worlds_and_steps) {
    Keys order;
    LoaderPosition position;
    for (const auto& [world, steps] : worlds_and_steps) {
      Ranks ranks(options, world);
      ranks.start(1, position);
      while (ranks.steps() < steps && ranks.step(order)) {
      }
      position = ranks.position();
    }
    return order;
  };
  const int all = 1000;
  const Keys order = order_of({{4, all}});
  CHECK(order.size() == usable);
  CHECK(order_of({{4, 2}, {2, 3}, {1, all}}) == order);
  CHECK(order_of({{4, 1}, {1, 3}, {2, 2}, {4, all}}) == order);
  CHECK(order_of({{4, 1}, {3, 3}, {5, 2}, {1, all}}) == order);
  CHECK(order_of({{4, 2}, {2, 1}, {2, 1}, {1, 1}, {1, all}}) == order);
  const Keys of_two = order_of({{2, all}});
  CHECK(order_of({{2, 3}, {1, 3}, {2, all}}) == of_two);
  CHECK(of_two != order);  // an epoch's lanes are those it was begun with
}

namespace dalle2::test {
namespace {

/// Key by place, of one share of the first `count` samples.
std::map<std::pair<int64_t, int64_t>, std::string> share_of(LoaderOptions options,
                                                            int64_t count,
                                                            const RankInfo& share,
                                                            int64_t workers,
                                                            DropCounts* dropped = nullptr) {
  options.most_samples = count;
  options.share = share;
  options.may_be_empty = true;
  ShardLoader loader(config_with(workers), options);
  loader.start_epoch(0);
  std::map<std::pair<int64_t, int64_t>, std::string> found;
  while (const auto batch = loader.next()) {
    REQUIRE(batch->places.size() == batch->keys.size());
    for (size_t i = 0; i < batch->keys.size(); ++i)
      found[{batch->places[i].shard, batch->places[i].sample}] = batch->keys[i];
  }
  if (dropped) *dropped = loader.dropped();
  return found;
}

TEST_CASE("the shares of the first samples are even, and have each of them once") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 5, 7);
  const LoaderOptions options = options_over(folder.path(), 5, 4);
  for (const int64_t workers : {0, 2}) {
    for (const int world : {1, 2, 3, 8}) {
      for (const int64_t count : {1, 20, 1000}) {
        INFO(world << " shares of " << count);
        const int64_t expected = std::min<int64_t>(count, 35);
        std::map<std::pair<int64_t, int64_t>, std::string> all;
        for (int rank = 0; rank < world; ++rank) {
          const auto own = share_of(options, count, {rank, world}, workers);
          const auto size = static_cast<int64_t>(own.size());
          CHECK(size <= expected / world + 2);
          CHECK(size >= expected / world - 1);
          for (const auto& [place, key] : own) {
            CHECK(key == tiny_key(place.first, place.second));
            CHECK(all.emplace(place, key).second);
          }
        }
        REQUIRE(static_cast<int64_t>(all.size()) == expected);
        CHECK(all.rbegin()->first == std::pair{(expected - 1) / 7, (expected - 1) % 7});
      }
    }
  }
}

TEST_CASE("a shard that one rank cannot read takes no sample from another share, or to another") {
  const TempDir whole, torn;
  write_tiny_shards(whole.path(), 3, 5);  // an odd number: a shard less moves an even count
  write_tiny_shards(torn.path(), 3, 5);
  std::filesystem::remove(torn / "shards/00001.tar");
  const auto options = options_over(whole.path(), 3, 4);
  const auto expected = share_of(options, 15, {1, 2}, 0);
  const CapturedLog log;
  const auto found = share_of(options_over(torn.path(), 3, 4), 15, {1, 2}, 0);
  CHECK(found.size() == 4);
  for (const auto& [place, key] : found) CHECK(expected.at(place) == key);
}

TEST_CASE("the pictures of other shares are not decoded") {
  const TempDir folder;
  Members members = tiny_members(0, 8);
  members.at(2 * 3).second = "no picture";  // of sample 3
  std::filesystem::create_directories(folder / "shards");
  write_tar(folder / "shards/00000.tar", members);
  const CapturedLog log;
  DropCounts dropped;
  CHECK(share_of(options_over(folder.path(), 1, 4), 8, {0, 2}, 0, &dropped).size() == 4);
  CHECK(dropped.empty());
  CHECK(share_of(options_over(folder.path(), 1, 4), 8, {1, 2}, 0, &dropped).size() == 3);
  CHECK(dropped == DropCounts{{drop::kBrokenPicture, 1}});
}

TEST_CASE("a share without a sample says nothing, where the first share has some") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 1, 3);
  const CapturedLog log;
  CHECK(share_of(options_over(folder.path(), 1, 4), 1, {1, 2}, 0).empty());
  CHECK(log.lines().empty());
}

}  // namespace
}  // namespace dalle2::test
