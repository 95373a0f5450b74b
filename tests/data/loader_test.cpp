// SPDX-License-Identifier: MIT
#include "data/loader/loader.h"

#include <torch/torch.h>

#include <fmt/ranges.h>
#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>

#include "data/data_fixture.h"
#include "data/in_parallel.h"
#include "data/loader_support.h"
#include "data/shards/shard_check.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
using Keys = std::vector<std::string>;

TEST_CASE("a batch holds pictures, captions and keys in the order of the shards") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 3);
  ShardLoader loader(config_with(2), options_over(folder.path(), 2, 4));
  const Batch first = first_of(loader);
  CHECK(first.keys == Keys{tiny_key(0, 0), tiny_key(0, 1), tiny_key(0, 2), tiny_key(1, 0)});
  CHECK(first.captions[3] == "caption 000010000\n");
  CHECK(first.images.sizes() == at::IntArrayRef({4, 3, 4, 4}));
  CHECK(first.images.dtype() == torch::kFloat);
  CHECK(first.images[2][0][0][0].item<float>() == 2.0F / 255.0F);
  CHECK(first.images[3][1][3][3].item<float>() == 1.0F / 255.0F);
  CHECK(first.images[3][2][1][2].item<float>() == 7.0F / 255.0F);
  CHECK_FALSE(first.image_embeds.defined());
  CHECK_FALSE(first.text_encodings.defined());
  REQUIRE(first.position.lanes.size() == 1);
  // Behind the one sample of shard 1.
  CHECK(first.position.lanes[0].window_start.shard == 1);
  CHECK(first.position.lanes[0].window_start.sample == 1);
  const auto last = loader.next();
  REQUIRE(last);
  CHECK(last->size() == 2);
  CHECK(last->images.sizes() == at::IntArrayRef({2, 3, 4, 4}));
  CHECK(last->images.is_contiguous());
  CHECK_FALSE(loader.next());
  CHECK_FALSE(loader.next());
  CHECK(loader.dropped().empty());
}

TEST_CASE("a batch has the channels that are asked for") {
  const TempDir folder;
  Image soft = plain_picture(4, 4, 200, 100, 50);
  soft.alpha.assign(16, 51);
  std::filesystem::create_directories(folder / "shards");
  write_tar(
      folder / "shards/00000.tar",
      {{"a.png", encode_png(soft)}, {"b.jfif", encode_jpeg(plain_picture(4, 4, 80, 80, 80), 95)}});
  const auto first_pixels = [&](int64_t channels, std::optional<Colour> ground) {
    LoaderOptions options = options_over(folder.path(), 1, 2);
    options.channels = channels;
    ShardDataConfig config = config_with(0);
    config.ground = ground;
    ShardLoader loader(config, options);
    const Batch batch = first_of(loader);
    REQUIRE(batch.images.sizes() == at::IntArrayRef({2, channels, 4, 4}));
    std::vector<int64_t> values;
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t c = 0; c < channels; ++c)
        values.push_back(std::lround(batch.images[i][c][1][2].item<float>() * 255));
    }
    return values;
  };
  using Values = std::vector<int64_t>;
  CHECK(first_pixels(3, {}) == Values{200, 100, 50, 80, 80, 80});
  CHECK(first_pixels(3, Colour{{0, 0, 0}}) == Values{40, 20, 10, 80, 80, 80});
  CHECK(first_pixels(1, Colour{{255, 255, 255}}) == Values{229, 80});  // of (244, 224, 214)
  CHECK(first_pixels(4, Colour{{0, 0, 0}}) == Values{200, 100, 50, 51, 80, 80, 80, 255});
}

TEST_CASE("a sample with several pictures is told, and the same one is always used") {
  const TempDir folder;
  const std::string jpg = encode_jpeg(plain_picture(4, 4, 80, 80, 80), 95);
  const std::string png = encode_png(plain_picture(4, 4, 9, 9, 9));
  std::filesystem::create_directories(folder / "shards");
  write_tar(folder / "shards/00000.tar",
            {{"a.webp", png}, {"a.png", png}, {"a.jpg", jpg}, {"b.png", png}});
  const CapturedLog log;
  ShardLoader loader(config_with(0), options_over(folder.path(), 1, 2));
  const Batch batch = first_of(loader);
  CHECK(batch.size() == 2);
  CHECK(batch.images[0][0][0][0].item<float>() == 80.0F / 255.0F);
  CHECK(log.count("sample a has the pictures jpg and png and webp: jpg is used") == 1);
  CHECK(describe_drops(loader.dropped()) == "used all the same: 1 sample with several pictures");
  const CheckReport report = check_shards({.urls = {folder / "shards/00000.tar"}});
  CHECK(report.usable == 2);
  CHECK(report.shards[0].drops.count(drop::kSeveralPictures) == 1);
  CHECK_THAT(fmt::format("{}", fmt::join(describe_check(report), "\n")),
             Contains("a has the pictures jpg and png and webp: jpg is used") &&
                 Contains("\nused all the same: 1 sample with several pictures"));
}

TEST_CASE("augmented pictures have the same bits for any number of threads, and change by epoch") {
  const TempDir folder;
  Members members;
  for (int64_t row = 0; row < 13; ++row) {
    members.emplace_back(tiny_key(0, row) + ".png",
                         encode_png(busy_picture(24, 31, static_cast<uint32_t>(row))));
  }
  write_tar(folder / "shards/00000.tar", members);
  TransformConfig crop, flip;
  crop.kind = TransformKind::RandomResizedCrop;
  crop.size = {12};
  flip.kind = TransformKind::RandomHorizontalFlip;
  const CapturedLog log;  // of the missing captions
  std::vector<at::Tensor> images;
  for (const auto& [workers, epoch] : {std::pair{0, 0}, {1, 0}, {4, 0}, {4, 1}}) {
    ShardDataConfig config = config_with(workers);
    config.preprocessing = {crop, flip, TransformConfig{}};
    ShardLoader loader(config, options_over(folder.path(), 1, 13));
    images.push_back(first_of(loader, epoch).images);
  }
  CHECK(images[1].equal(images[0]));
  CHECK(images[2].equal(images[0]));
  CHECK_FALSE(images[3].equal(images[0]));
  CHECK(images[0].size(2) == 12);
}

TEST_CASE("shards are shuffled by seed and epoch, whole") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 16, 2);
  LoaderOptions options = options_over(folder.path(), 16, 16);
  const auto order = [&](bool shuffle, int64_t seed, int64_t epoch, int rank) {
    options.shuffle = shuffle;
    options.seed = seed;
    options.rank = {rank, 2};
    ShardLoader loader(config_with(1), options);
    Keys keys = keys_of_epoch(loader, epoch);
    for (std::string& key : keys)  // counted in the lane
      key = fmt::format("{:05d}{}", std::stoll(key.substr(0, 5)) - 8 * rank, key.substr(5));
    return keys;
  };
  const Keys plain = order(false, 0, 0, 0), mixed = order(true, 0, 0, 0);
  REQUIRE(plain.size() == 16);
  CHECK(std::is_sorted(plain.begin(), plain.end()));
  CHECK(order(false, 0, 0, 1).size() == 16);
  CHECK_FALSE(mixed == plain);
  CHECK(order(true, 0, 0, 0) == mixed);
  CHECK_FALSE(order(true, 0, 1, 0) == mixed);
  CHECK_FALSE(order(true, 1, 0, 0) == mixed);
  CHECK_FALSE(order(true, 0, 0, 1) == mixed);
  for (size_t i = 0; i < mixed.size(); i += 2) {
    CHECK(mixed[i].substr(0, 5) == mixed[i + 1].substr(0, 5));
    CHECK(mixed[i].back() == '0');
  }
}

TEST_CASE("resampling draws shards with replacement without end") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 2);
  LoaderOptions options = options_over(folder.path(), 3, 2);
  options.resample = true;
  ShardLoader loader(config_with(2), options);
  loader.start_epoch(0);
  const auto batches = keys_of(loader, 90);
  REQUIRE(batches.size() == 90);
  std::map<std::string, int> counts;
  bool twice_in_a_row = false;
  for (size_t i = 0; i < batches.size(); ++i) {
    ++counts[batches[i][0]];
    twice_in_a_row = twice_in_a_row || (i > 0 && batches[i] == batches[i - 1]);
  }
  CHECK(twice_in_a_row);
  REQUIRE(counts.size() == 3);
  // 30 of 90 expected, standard deviation 4.5: five of them either way.
  for (const auto& [key, count] : counts) CHECK(std::abs(count - 30) < 23);

  ShardLoader again(config_with(0), options);
  again.start_epoch(0);
  CHECK(keys_of(again, 90) == batches);
}

TEST_CASE("resampling of few samples goes on, from the beginning and from any place") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 12, 2);
  LoaderOptions options = options_over(folder.path(), 12, 2);
  options.resample = true;
  options.shuffle_buffer = 1000;  // many more draws of shards than ten rounds
  ShardLoader loader(config_with(0), options);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    loader.start_epoch(epoch);
    for (int step = 0; step < 12; ++step) {
      const auto batch = loader.next();
      REQUIRE(batch);
      ShardLoader resumed(config_with(0), options);
      resumed.start_epoch(epoch, batch->position);
      CHECK(resumed.next());
    }
  }
}

TEST_CASE("samples that are passed over are not decoded") {
  const TempDir folder;
  Members members = tiny_members(0, 4);
  members[0].second = "no picture";  // would be dropped and counted if it were looked at
  write_tar(folder / "shards/00000.tar", members);
  ShardLoader loader(config_with(1), options_over(folder.path(), 1, 2));
  loader.start_epoch(0, LoaderPosition::after_samples(1));
  CHECK(flat(keys_of(loader)) == Keys{tiny_key(0, 1), tiny_key(0, 2), tiny_key(0, 3)});
  CHECK(loader.dropped().empty());
  loader.start_epoch(0, LoaderPosition::after_samples(4));
  CHECK_FALSE(loader.next());
  loader.start_epoch(0, LoaderPosition::after_samples(400));
  CHECK_FALSE(loader.next());
}

TEST_CASE("a loader can be left in the middle of an epoch, and begin another") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 6, 10);
  LoaderOptions options = options_over(folder.path(), 6, 2);
  ShardLoader loader(config_with(4), options);
  for (int64_t epoch = 0; epoch < 5; ++epoch)
    CHECK(first_of(loader, epoch).keys == Keys{tiny_key(0, 0), tiny_key(0, 1)});
  ShardLoader unused(config_with(4), options);
  ShardLoader unread(config_with(4), options);
  unread.start_epoch(0);
  CHECK_THROWS_AS(unused.next(), std::logic_error);
}

TEST_CASE("embeddings are taken from inside the shards") {
  const TempDir folder;
  Members members = tiny_members(0, 3);
  const std::vector<float> text = {1, 2, 3, 4, 5, 6};
  for (int64_t row = 0; row < 3; ++row) {
    const std::vector<float> image = {static_cast<float>(row), 9};
    const std::string key = tiny_key(0, row);
    const auto at = members.begin() + 4 * row + 2;
    // [2] and [1, 2], img_emb.npy and plain npy are all accepted.
    const std::string name = row == 2 ? ".npy" : ".img_emb.npy";
    const std::vector<int64_t> shape =
        row == 1 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2};
    const auto after = members.insert(at, {key + name, format_npy_float32(shape, image.data())});
    members.insert(after, {key + ".text_emb.npy", format_npy_float32({3, 2}, text.data())});
  }
  write_tar(folder / "shards/00000.tar", members);
  ShardDataConfig config = config_with(1);
  config.embeddings_in_tar = true;
  LoaderOptions options = options_over(folder.path(), 1, 8);
  options.need_image_embeds = options.need_text_encodings = true;
  ShardLoader loader(config, options);
  const Batch batch = first_of(loader);
  CHECK(batch.image_embeds.equal(torch::tensor({{0, 9}, {1, 9}, {2, 9}}, torch::kFloat)));
  CHECK(batch.text_encodings.sizes() == at::IntArrayRef({3, 3, 2}));
  CHECK(batch.text_encodings[2][1][0].item<float>() == 3);

  // Without its own the middle sample is left out.
  std::erase_if(members,
                [](const auto& member) { return member.first == tiny_key(0, 1) + ".img_emb.npy"; });
  write_tar(folder / "shards/00000.tar", members);
  ShardLoader again(config, options);
  CHECK(keys_of_epoch(again) == Keys{tiny_key(0, 0), tiny_key(0, 2)});
  CHECK(again.dropped().size() == 1);
}

TEST_CASE("consumed samples are traced by rank, a line a batch that was used") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 3);
  const std::string path = folder / "trace";
  setenv("DALLE2_TRACE_SAMPLES", path.c_str(), 1);
  LoaderOptions options = options_over(folder.path(), 2, 4);
  options.split = "val";
  ShardLoader loader(config_with(2), options);
  loader.start_epoch(5);
  const Batch first = *loader.next(), second = *loader.next();
  CHECK_FALSE(std::filesystem::exists(path + ".rank0"));  // handed out is not consumed
  loader.consumed(first);
  const std::string line =
      R"({"rank":0,"split":"val","epoch":5,"keys":["000000000","000000001","000000002","000010000"]})"
      "\n";
  CHECK(read_file(path + ".rank0") == line);
  loader.consumed(second);
  unsetenv("DALLE2_TRACE_SAMPLES");
  CHECK(read_file(path + ".rank0") ==
        line + R"({"rank":0,"split":"val","epoch":5,"keys":["000010001","000010002"]})"
               "\n");
}

TEST_CASE("shards come from a command's output") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 3);
  LoaderOptions options = options_over(folder.path(), 2, 4);
  const std::vector<std::string> paths = all_of(options.urls);
  options.urls = {"pipe:cat " + paths[0], "pipe:exit 7", "pipe:cat " + paths[1]};
  CapturedLog log;
  ShardDataConfig config = config_with(2);
  ShardLoader refused(config, options);
  CHECK_THROWS_WITH(
      first_of(refused),
      Contains("pipe:cat ...: this is a command") && Contains("\"allow_pipe\": true"));
  config.allow_pipe = true;
  ShardLoader loader(config, options);
  CHECK(keys_of_epoch(loader).size() == 6);
  CHECK(log.count("the command failed with status 7") == 1);
  CHECK(loader.dropped().size() == 1);
}

// The reference's loader and ours over the same shards.
namespace {

at::Tensor npy_tensor(const std::string& name) {
  const NpyArray array = read_npy(data_fixture(name));
  return torch::tensor(array.to_float32()).view(array.shape);
}

TransformConfig sized_step(TransformKind kind, int64_t size) {
  TransformConfig config;
  config.kind = kind;
  config.size = {size};
  return config;
}

}  // namespace

TEST_CASE("keys, captions, pictures and embeddings equal the reference's bit for bit") {
  ShardDataConfig config;
  config.img_embeddings_url = data_fixture("img_emb");
  config.text_embeddings_url = data_fixture("text_emb");
  config.preprocessing = {sized_step(TransformKind::Resize, 22),
                          sized_step(TransformKind::CenterCrop, 20),
                          TransformConfig{}};
  LoaderOptions options;
  options.batch_size = 4;
  std::vector<std::string> urls;
  for (const char* shard : {"002", "000", "009", "003", "001"})
    urls.push_back(data_fixture("shards/") + shard + ".tar");
  options.urls = std::move(urls);
  options.need_captions = options.need_image_embeds = options.need_text_encodings = true;
  const auto stream = data_json("stream.json");
  for (const int64_t workers : {0, 3}) {
    config.num_workers = workers;
    CapturedLog log;
    ShardLoader loader(config, options);
    loader.start_epoch(0);
    std::vector<at::Tensor> images, image_embeds, text_encodings;
    for (const auto& expected : stream) {
      const auto batch = loader.next();
      REQUIRE(batch);
      CHECK(batch->keys == expected["keys"].get<std::vector<std::string>>());
      CHECK(batch->captions == expected["captions"].get<std::vector<std::string>>());
      images.push_back(batch->images);
      image_embeds.push_back(batch->image_embeds);
      text_encodings.push_back(batch->text_encodings);
    }
    CHECK_FALSE(loader.next());
    // Equal, not near: the decoder and the resampling are Pillow's to the bit.
    CHECK(at::cat(images).equal(npy_tensor("images.npy")));
    CHECK(at::cat(image_embeds).equal(npy_tensor("image_embeds.npy")));
    CHECK(at::cat(text_encodings).equal(npy_tensor("text_encodings.npy")));
    CHECK(loader.dropped() == DropCounts{{"broken picture", 1},
                                         {"no image embedding", 1},
                                         {"shard without embeddings", 2},
                                         {"zero image embedding", 1},
                                         {"zero text embedding", 1}});
  }
}

namespace dalle2 {
namespace {

TEST_CASE("in_parallel does each piece of work once, on no more threads than asked for") {
  for (const int64_t threads : {0, 1, 3, 50}) {
    CAPTURE(threads);
    std::vector<std::atomic<int>> calls(40);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    in_parallel(calls.size(), threads, [&](size_t i) {
      ++calls[i];
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    for (const auto& count : calls) REQUIRE(count == 1);
    CHECK(std::ssize(seen) <= std::max<int64_t>(threads, 1));
  }
  in_parallel(0, 4, [](size_t) { FAIL("no work"); });
}

TEST_CASE("in_parallel works on several threads at the same time") {
  std::atomic<int> arrived = 0;
  std::atomic<bool> met = false;
  in_parallel(2, 2, [&](size_t) {
    ++arrived;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (arrived == 2) met = true;
  });
  CHECK(met);
}

TEST_CASE("in_parallel rethrows an error and begins no more work") {
  std::atomic<int> calls = 0;
  CHECK_THROWS_WITH(in_parallel(1000,
                                1,
                                [&](size_t i) {
                                  ++calls;
                                  if (i == 3) throw std::runtime_error("the fourth");
                                }),
                    "the fourth");
  CHECK(calls == 4);
  // Of several, the error of the first piece, even if another is faster.
  for (const int64_t threads : {1, 4}) {
    CHECK_THROWS_WITH(in_parallel(1000,
                                  threads,
                                  [](size_t i) {
                                    if (i == 0)
                                      std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                    throw std::runtime_error(std::to_string(i));
                                  }),
                      "0");
  }
}

}  // namespace
}  // namespace dalle2
