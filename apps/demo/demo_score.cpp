// SPDX-License-Identifier: MIT
#include "base/error.h"
#include "base/untrusted_json.h"
#include "demo/demo_commands.h"
#include "demo/demo_images.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>

namespace dalle2 {
namespace {

int index_of(const DemoAttribute& attribute, const std::string& value, const std::string& origin) {
  const auto found = std::ranges::find(attribute.values, value);
  if (found == attribute.values.end())
    throw DataError("{}: \"{}\" is not an attribute of the demo set", origin, value);
  return static_cast<int>(found - attribute.values.begin());
}

/// The requests of `shards demo`'s held-out split, in the order of its embeddings.
std::vector<DemoAttributes> load_truth(const std::string& path) {
  std::vector<DemoAttributes> truth;
  const ParsedJson parsed = parse_untrusted_json(read_file(path));
  if (!parsed.is_right()) throw DataError("{}: {}", path, parsed.fault);
  try {
    for (const Json& row : parsed.value) {
      truth.emplace_back();
      for (const DemoAttribute& attribute : kDemoAttributes) {
        truth.back().*attribute.member =
            index_of(attribute, row.at(attribute.name).get<std::string>(), path);
      }
    }
  } catch (const Json::exception&) {
    throw DataError(
        "{}: expected the truth.json of `shards demo`, a list of objects with shape, colour, size, "
        "place and ground",
        path);
  }
  return truth;
}

std::vector<std::string> drawn_files(const std::string& folder) {
  if (!is_folder(folder)) throw DataError("{}: no such folder (--drawn)", folder);
  std::vector<std::string> files = files_in_folder(folder);
  std::erase_if(files, [](const std::string& file) {
    return !file.ends_with(".png") || std::filesystem::path(file).filename() == kSheetFile;
  });
  return files;
}

/// The mean of the squares of what two pictures of one size differ by, values 0 to 1.
double mean_square_error(const Image& a, const Image& b) {
  double sum = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    const double difference = (a.pixels[i] - b.pixels[i]) / 255.0;
    sum += difference * difference;
  }
  return sum / static_cast<double>(a.pixels.size());
}

/// Pictures of one side on black, eight pairs a row with two pixels between and around them; twice
/// enlarged so that small pictures can be looked at.
Image pair_grid(const std::vector<Image>& pictures) {
  D2_CHECK(!pictures.empty(), "a grid of no pictures");
  constexpr int kColumns = 16, kPadding = 2, kEnlarged = 2;
  const int side = pictures[0].width + kPadding;
  const int count = static_cast<int>(pictures.size());
  const int columns = std::min(kColumns, count), rows = (count + columns - 1) / columns;
  Image grid{kEnlarged * (columns * side + kPadding), kEnlarged * (rows * side + kPadding), {}};
  grid.pixels.resize(static_cast<size_t>(grid.width) * static_cast<size_t>(grid.height) * 3);
  size_t place = 0;
  for (int y = 0; y < grid.height; ++y) {
    for (int x = 0; x < grid.width; ++x, place += 3) {
      const int column = x / kEnlarged, row = y / kEnlarged;
      const size_t index = static_cast<size_t>(row / side * columns + column / side);
      const int left = column % side - kPadding, top = row % side - kPadding;
      if (index >= pictures.size() || column / side >= columns || left < 0 || top < 0) continue;
      const auto from = pictures[index].pixels.begin() + 3 * (top * (side - kPadding) + left);
      std::copy_n(from, 3, grid.pixels.begin() + static_cast<std::ptrdiff_t>(place));
    }
  }
  return grid;
}

}  // namespace

void run_demo_score(const DemoScoreCommand& command) {
  if (std::filesystem::path(command.grid_path).extension() != ".png") {
    throw ConfigError("--grid: expected the name of a picture, such as grid.png, got {}",
                      command.grid_path);
  }
  const std::vector<DemoAttributes> truth = load_truth(command.heldout_folder + "/truth.json");
  const std::vector<std::string> files = drawn_files(command.drawn_folder);
  if (files.size() != truth.size()) {
    throw DataError(
        "{} holds {} pictures, {}/truth.json {} requests: sample with the embeddings of that "
        "folder",
        command.drawn_folder,
        files.size(),
        command.heldout_folder,
        truth.size());
  }
  std::array<int, kDemoAttributes.size()> right = {};
  double squares = 0;
  std::vector<Image> pairs;  // asked for, drawn
  for (size_t i = 0; i < files.size(); ++i) {
    Image drawn = decode_image(read_file(files[i]), files[i]);
    if (!pairs.empty() && drawn.width != pairs[0].width)
      throw DataError("{}: expected pictures of one size, got sides of {} and {} pixels",
                      files[i],
                      pairs[0].width,
                      drawn.width);
    const DemoAttributes found = analyse_demo_image(drawn).attributes;
    for (size_t a = 0; a < right.size(); ++a) {
      const auto member = kDemoAttributes[a].member;
      right[a] += found.*member == truth[i].*member;
    }
    pairs.push_back(draw_demo_image(truth[i], drawn.width));
    squares += mean_square_error(drawn, pairs.back());
    pairs.push_back(std::move(drawn));
  }
  write_png(command.grid_path, pair_grid(pairs));
  const double count = static_cast<double>(files.size());
  const auto percent = [&](size_t attribute) { return 100.0 * right[attribute] / count; };
  std::printf("error against the pictures asked for: %.4f (root mean square, values 0 to 1)\n",
              std::sqrt(squares / count));
  std::printf("also right: size %.0f%% ground %.0f%%\n", percent(2), percent(4));
  std::printf("right: colour %.0f%% shape %.0f%% place %.0f%% of %zu\n",
              percent(1),
              percent(0),
              percent(3),
              files.size());
}

}  // namespace dalle2
