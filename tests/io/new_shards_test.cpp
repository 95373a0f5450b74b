// SPDX-License-Identifier: MIT
#include "io/files/new_shards.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/files/atomic_file.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;

Names set_below(const std::string& folder) {
  Names names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void make(const std::string& path) {
  write_file_atomically(path, "made");
}

}  // namespace

TEST_CASE("new shards take their place all at once, and without that the folder is as it was") {
  const test::TempDir folder;
  const std::string out = folder / "deep/out", part = NewShards::folder(out);
  {
    NewShards shards(out, /*overwrite=*/false);
    make(part + "/000000.tar");
    CHECK(set_below(out) == Names{"shards.part/000000.tar"});
  }
  CHECK_FALSE(fs::exists(out));
  NewShards shards(out, false);
  for (const char* name : {"/000000.tar", "/img_emb/000000.npy", "/of_a_lost_shard"})
    make(part + name);
  CHECK(shards.finish({"000000.tar", "img_emb/000000.npy"}).empty());
  CHECK(fs::exists(out + "/000000.tar"));
  CHECK(fs::exists(out + "/img_emb/000000.npy"));
}

TEST_CASE("what a killed command left is removed, but not that of one which still writes") {
  const test::TempDir folder;
  const std::string out = folder / "out";
  make(NewShards::folder(out) + "/000007.tar");
  std::optional<NewShards> first(std::in_place, out, false);
  CHECK(set_below(out).empty());
  CHECK_THROWS_WITH(NewShards(out, true), Contains("another process makes shards there"));
  first.reset();
  CHECK_NOTHROW(NewShards(out, true));
}

TEST_CASE("shards, their arrays and manifests that are there are replaced only if asked for") {
  const test::TempDir folder;
  const std::string out = folder / "out", part = NewShards::folder(out);
  const Names set = {
      "000000.tar", "000020.tar", "a.tar", "img_emb/img_emb_000000.npy", "latents.json"};
  for (const std::string& name : set) make(out + "/" + name);
  const Names others = {"old.tar", "img_emb_000000.npy", "x/samples.npy", "y/y.tar", "y/z_0.npy"};
  for (const std::string& name : others) make(out + "/" + name);
  const Names all = set_below(out);
  CHECK_THROWS_WITH(NewShards(out, false, {"a.tar"}),
                    Contains("found 000000.tar, 000020.tar, a.tar, img_emb/img_emb_000000.npy, "
                             "latents.json\n") &&
                        Contains("--overwrite"));
  CHECK(set_below(out) == all);
  {
    NewShards shards(out, true, {"a.tar"});
    write_file_atomically(part + "/000000.tar", "again");
    CHECK(set_below(out).size() == all.size() + 1);
    CHECK(shards.finish({"000000.tar"}) == set);
  }
  CHECK(read_file(out + "/000000.tar") == "again");
  Names left = others;
  left.emplace_back("000000.tar");
  std::sort(left.begin(), left.end());
  CHECK(set_below(out) == left);
}

TEST_CASE("a file that came meanwhile is not replaced") {
  const test::TempDir folder;
  const std::string out = folder / "out";
  NewShards shards(out, false);
  make(NewShards::folder(out) + "/notes.json");
  write_file_atomically(out + "/notes.json", "mine");
  CHECK_THROWS_WITH(shards.finish({"notes.json"}), Contains("holds notes.json"));
  CHECK(read_file(out + "/notes.json") == "mine");
}
