// SPDX-License-Identifier: MIT
// Thousands of damaged files: each is read, or refused by a DataError; nothing else may happen.
#include "base/error.h"
#include "io/atomic_file.h"
#include "io/image.h"
#include "io/npy.h"
#include "io/test_folder.h"
#include "io/webdataset.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>

using namespace dalle2;
namespace fs = std::filesystem;

namespace {

/// Flips, overwrites, cuts, repeats or inserts a few bytes.
std::string damaged(std::string file, std::mt19937& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes && !file.empty(); ++i) {
    const size_t at =
        random() % 3 == 0 ? random() % std::min<size_t>(file.size(), 64) : random() % file.size();
    switch (random() % 7) {
      case 0:
        file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
        break;
      case 1:
        file[at] = static_cast<char>(random());
        break;
      case 2:
        file[at] = static_cast<char>(random() % 2 == 0 ? 0xff : 0);
        break;
      case 3:
        file.resize(at);
        break;
      case 4:
        file.insert(at, file.substr(at, random() % 40));
        break;
      case 5:
        file.erase(at, 1 + random() % 40);
        break;
      default:
        file.replace(at, std::min<size_t>(4, file.size() - at), "\x7f\xff\xff\xff", 4);
        break;
    }
  }
  return file;
}

/// Reads `rounds` damaged forms of each file. @return how many were read and how many refused
template <class Read>
std::pair<int, int> survive(const std::vector<std::string>& files, int rounds, Read read) {
  std::mt19937 random(20);
  int accepted = 0, refused = 0;
  for (const std::string& file : files) {
    for (int round = 0; round < rounds; ++round) {
      try {
        read(damaged(file, random));
        ++accepted;
      } catch (const DataError&) {
        ++refused;
      }
    }
  }
  return {accepted, refused};
}

std::vector<std::string> files_below(const std::string& folder, const std::string& extension) {
  std::vector<std::string> paths, files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == extension) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    files.push_back(read_file(path));
  }
  return files;
}

}  // namespace

TEST_CASE("damaged pictures are decoded or refused") {
  const std::string folder = test::parity_folder("images") + "/decode";
  for (const char* extension : {".jpg", ".png", ".webp"}) {
    INFO(extension);
    const auto [accepted, refused] =
        survive(files_below(folder, extension), 100, [](const std::string& file) {
          const Image image = decode_image(file, "x");
          const size_t pixels =
              static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
          if (image.pixels.size() != 3 * pixels) {
            FAIL("a picture of " << image.width << "x" << image.height << " with "
                                 << image.pixels.size() << " bytes");
          }
        });
    CHECK(refused > 100);
    CHECK(accepted > 10);
  }
}

TEST_CASE("damaged arrays are read whole or refused") {
  const auto [accepted, refused] =
      survive(files_below(test::parity_folder("npy"), ".npy"), 400, [](const std::string& file) {
        const NpyArray array = parse_npy(file, "x");
        if (array.bytes.size() != static_cast<size_t>(array.numel()) * npy_item_size(array.type)) {
          FAIL("an array of " << array.numel() << " values with " << array.bytes.size()
                              << " bytes");
        }
        array.to_float32();
      });
  CHECK(refused > 500);
  CHECK(accepted > 100);
}

TEST_CASE("damaged tars yield samples or are refused") {
  const auto read = [](const std::string& file) {
    size_t at = 0;
    SampleReader reader(
        [&](char* buffer, size_t capacity) {
          const size_t size = std::min(capacity, file.size() - at);
          std::copy_n(file.data() + at, size, buffer);
          at += size;
          return size;
        },
        "x.tar");
    while (reader.next()) {
    }
  };
  std::vector<std::string> files = files_below(test::parity_folder("webdataset"), ".tar");
  // Unpacked too: damage to a packed one is mostly caught by its checksum.
  for (size_t i = 0; i < 20; ++i) {
    std::string unpacked;
    size_t at = 0;
    const ByteSource source = gunzip_source(
        [&](char* buffer, size_t capacity) {
          const size_t size = std::min(capacity, files[i].size() - at);
          std::copy_n(files[i].data() + at, size, buffer);
          at += size;
          return size;
        },
        "x.tar");
    char buffer[4096];
    while (const size_t got = source(buffer, sizeof(buffer))) {
      unpacked.append(buffer, got);
    }
    files.push_back(std::move(unpacked));
  }
  const auto [accepted, refused] = survive(files, 100, read);
  CHECK(refused > 1000);
  CHECK(accepted > 300);
}
