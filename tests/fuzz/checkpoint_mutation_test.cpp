// SPDX-License-Identifier: MIT
// Thousands of damaged checkpoints: each is read, or refused by one of our errors.
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "fuzz/corpus.h"
#include "fuzz/parsers.h"

using namespace dalle2;
using test::damage;
using test::Files;

namespace {

std::string fixture(const std::string& name) {
  return std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/" + name;
}

std::string pickle_of(const std::string& path) {
  const MappedFile file(path);
  for (const ZipMember& member : read_zip(file)) {
    if (member.name.ends_with("/data.pkl")) {
      return {reinterpret_cast<const char*>(file.data()) + member.offset, member.size};
    }
  }
  FAIL("no pickle in " << path);
  return {};
}

}  // namespace

TEST_CASE("what coverage-guided runs found of checkpoints is read or refused", "[damage]") {
  size_t taken = 0;
  taken += test::read_corpus("zip_archive", test::read_zip_archive, 10);  // few are short
  taken += test::read_corpus("pickled_value", test::read_pickled_value);
  taken += test::read_corpus("checkpoint_file", test::read_checkpoint_file);
  CHECK(taken > 50);
}

TEST_CASE("damaged archives are read or refused", "[damage]") {
  damage("zip_archive",
         {read_file(fixture("checkpoints/model.pth")), read_file(fixture("checkpoints/kinds.pth"))},
         test::read_zip_archive);
}

TEST_CASE("damaged pickles of tensors are read or refused", "[damage]") {
  damage("pickled_value",
         {pickle_of(fixture("checkpoints/model.pth")), pickle_of(fixture("checkpoints/kinds.pth"))},
         test::read_pickled_value);
}

TEST_CASE("damaged checkpoints are read or refused", "[damage]") {
  Files files;
  for (const char* name : {"checkpoints/legacy.pth",
                           "checkpoints/kinds.pth",
                           "checkpoints/model.expected.safetensors",
                           "checkpoints/kinds.expected.safetensors",
                           "lora/begins.safetensors"}) {
    files.push_back(read_file(fixture(name)));
  }
  damage("checkpoint_file", files, test::read_checkpoint_file);
}

TEST_CASE("damaged networks are read or refused", "[damage]") {
  damage("script_file",
         {read_file(fixture("feature_networks/encoder.pt")),
          read_file(fixture("feature_networks/lpips.pt")),
          read_file(fixture("feature_networks/weights.pth"))},
         test::read_script_file);
}
