// SPDX-License-Identifier: MIT
#include "metrics/known_features.h"

#include <torch/utils.h>

#include <filesystem>
#include <string>

#include "checkpoint/archive/safetensors.h"
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
  for (const auto& [name, rows] : features) {
    CHECK(at::equal(found.at(name), rows.index_select(0, back)));
  }
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

}  // namespace
}  // namespace dalle2::test
