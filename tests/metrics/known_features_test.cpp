// SPDX-License-Identifier: MIT
#include "metrics/known_features.h"

#include <atomic>

#include "dist/ranks_in_threads.h"
#include "net/digest.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

at::Tensor some_images(int64_t count) {
  return torch::randint(0, 256, {count, 3, 4, 6}, at::make_generator<at::CPUGeneratorImpl>(1))
      .to(at::kByte);
}

NamedFeatures some_features(int64_t count) {
  return {{"64", torch::rand({count, 64})}, {"FD", torch::rand({count, 5})}};
}

std::string only_file(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    found.push_back(entry.path());
  REQUIRE(found.size() == 1);
  return found.front();
}

TEST_CASE("images have the same hash if they have the same bytes and the same size") {
  const at::Tensor images = some_images(2);
  const at::Tensor hashes = hashes_of(images);
  CHECK(hashes.sizes() == at::IntArrayRef{2, 32});
  CHECK(at::equal(hashes, hashes_of(images.clone())));
  CHECK_FALSE(at::equal(hashes[0], hashes[1]));
  CHECK_FALSE(at::equal(hashes, hashes_of(images.view({2, 3, 6, 4}))));
  CHECK(hashes_of(some_images(0)).sizes() == at::IntArrayRef{0, 32});
}

TEST_CASE("features that a run left are known to the next one, for the same networks") {
  const TempDir folder;
  const at::Tensor hashes = hashes_of(some_images(3));
  const NamedFeatures features = some_features(3);
  KnownFeatures first({"64", "FD"}, "one network");
  first.add(hashes, features);
  CHECK(first.has_news());
  first.save(folder.path() + "/made/here");
  CHECK_FALSE(first.has_news());

  KnownFeatures next({"64", "FD"}, "one network");
  CHECK(next.load(folder.path() + "/made/here").empty());
  CHECK(next.count() == 3);
  CHECK_FALSE(next.has_news());
  const at::Tensor back = torch::tensor({2, 0});
  const NamedFeatures found = next.at(hashes.index_select(0, back));
  for (const auto& [name, rows] : features)
    CHECK(at::equal(found.at(name), rows.index_select(0, back)));
  next.add(hashes, some_features(3));  // known already: nothing new
  CHECK_FALSE(next.has_news());

  KnownFeatures other({"64", "FD"}, "another network");
  CHECK(other.load(folder.path() + "/made/here").empty());
  CHECK(other.count() == 0);
}

TEST_CASE("a file of features that is damaged is told, and nothing of it is used") {
  const TempDir folder;
  const at::Tensor hashes = hashes_of(some_images(3));
  KnownFeatures first({"64"}, "one network");
  NamedFeatures features = {{"64", torch::rand({3, 64})}};
  first.add(hashes, features);
  first.save(folder.path());
  const std::string path = only_file(folder.path());
  const auto fault = [&] {
    KnownFeatures next({"64"}, "one network");
    const std::string text = next.load(folder.path());
    CHECK(next.count() == 0);
    CHECK(text.starts_with(path + ": "));
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  const auto write = [&](const StateDict& tensors, const std::string& identity = "one network") {
    std::map<std::string, std::string> metadata = {{"features of", identity}};
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor whole = tensor.contiguous();
      metadata["sha256 of " + name] =
          to_hex(sha256({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()}));
    }
    write_safetensors(path, tensors, metadata);
  };
  const at::Tensor bytes = hashes.to(at::kByte);
  write({{"sha256", bytes}, {"64", features["64"]}}, "another network");
  CHECK(fault() == "holds features of something else");
  write({{"sha256", bytes}});
  CHECK(fault() == "lacks a matrix \"64\"");
  write({{"sha256", hashes}, {"64", features["64"]}});
  CHECK(fault() == "\"sha256\": expected rows of 32 bytes");
  write({{"sha256", bytes}, {"64", torch::rand({2, 64})}});
  CHECK(fault() == "\"64\": expected 3 rows of finite float32");
  features["64"][1][5] = NAN;
  write({{"sha256", bytes}, {"64", features["64"]}});
  CHECK(fault() == "\"64\": expected 3 rows of finite float32");
  features["64"][1][5] = 1.0;
  write_safetensors(path,
                    {{"sha256", bytes}, {"64", features["64"]}},
                    {{"features of", "one network"}, {"sha256 of sha256", "0"}});
  CHECK(fault() == "\"sha256\" is damaged: its checksum does not match");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  CHECK_FALSE(fault().empty());
}

at::Tensor numbers(std::vector<int64_t> values) {
  return torch::tensor(values, at::kLong);
}

TEST_CASE("rows stand in the order of their images, each once, whatever they came by") {
  const at::Tensor all = torch::randn({7, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  FeatureRows whole;
  whole.add(torch::arange(7), all);
  FeatureRows rows;
  for (const auto& some : {numbers({5, 1}), numbers({3}), numbers({0, 6, 2, 4})})
    rows.add(some, all.index_select(0, some));
  rows.add(numbers({4}), torch::zeros({1, 3}));  // comes a second time
  CHECK(rows.count() == 7);
  CHECK(at::equal(rows.rows(), whole.rows()));
  CHECK(at::equal(rows.index(), torch::arange(7)));
  rows.add(numbers({7}), torch::ones({1, 3}));  // after they were put in order
  CHECK(at::equal(rows.rows(), at::cat({all, torch::ones({1, 3})})));
}

TEST_CASE("rank 0 takes over the rows of all, one of which has none, and these keep nothing") {
  const at::Tensor all = torch::randn({7, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  std::atomic<int> right = 0;
  test::as_ranks(3, [&](ProcessGroup& group) {
    FeatureRows rows, nobodys;
    if (group.rank() == 0) rows.add(numbers({5, 1}), all.index_select(0, numbers({5, 1})));
    if (group.rank() == 2)
      rows.add(numbers({0, 6, 2, 3, 4}), all.index_select(0, numbers({0, 6, 2, 3, 4})));
    rows.gather(group, "features");
    nobodys.gather(group, "features of nobody");
    const bool is_right = group.is_main() ? at::equal(rows.rows(), all) : rows.count() == 0;
    if (is_right && nobodys.count() == 0) ++right;
  });
  CHECK(right == 3);
  CHECK(FeatureRows().count() == 0);
}

TEST_CASE("what is kept is not what the caller goes on to change") {
  FeatureRows rows;
  const at::Tensor features = torch::ones({2, 2});
  rows.add(numbers({0, 1}), features);
  features.zero_();
  CHECK(at::equal(rows.rows(), torch::ones({2, 2})));
}

}  // namespace
}  // namespace dalle2::test
