// SPDX-License-Identifier: MIT
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/untrusted_json.h"
#include "io/demo/demo_images.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "run/commands.h"
#include "run/pictures/pictures.h"

namespace dalle2 {
namespace {

template <size_t N>
int index_of(const std::array<const char*, N>& names,
             const std::string& name,
             const std::string& origin) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  throw DataError("{}: \"{}\" is no attribute of the demo set", origin, name);
}

/// The requests of `shards demo`'s held-out split, in the order of its embeddings.
std::vector<DemoAttributes> load_truth(const std::string& path) {
  std::vector<DemoAttributes> truth;
  const ParsedJson parsed = parse_untrusted_json(read_file(path));
  if (!parsed.is_right()) throw DataError("{}: {}", path, parsed.fault);
  try {
    for (const Json& row : parsed.value) {
      const auto text = [&](const char* key) { return row.at(key).get<std::string>(); };
      truth.push_back({index_of(kDemoShapes, text("shape"), path),
                       index_of(kDemoColours, text("colour"), path),
                       index_of(kDemoSizes, text("size"), path),
                       index_of(kDemoPlaces, text("place"), path),
                       index_of(kDemoGrounds, text("ground"), path)});
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
  std::vector<std::string> files;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    throw DataError("{}: no such folder (--drawn)", folder);
  for (const std::string& file : files_in_folder(folder)) {
    if (file.ends_with(".png")) files.push_back(file);
  }
  return files;
}

}  // namespace

void run_demo_score(const DemoScoreCommand& command) {
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
  int colour = 0, shape = 0, place = 0, size = 0, ground = 0;
  double squares = 0;
  std::vector<at::Tensor> pairs;
  for (size_t i = 0; i < files.size(); ++i) {
    const Image drawn = decode_image(read_file(files[i]), files[i]);
    const DemoAttributes found = analyse_demo_image(drawn).attributes;
    colour += found.colour == truth[i].colour;
    shape += found.shape == truth[i].shape;
    place += found.place == truth[i].place;
    size += found.size == truth[i].size;
    ground += found.ground == truth[i].ground;
    pairs.push_back(from_picture(draw_demo_image(truth[i], drawn.width)));
    pairs.push_back(from_picture(drawn));
    squares += at::mse_loss(pairs.back(), pairs[pairs.size() - 2]).item<double>();
  }
  // Eight pairs a row, twice enlarged so that small pictures can be looked at.
  const at::Tensor grid = image_grid(pairs, 16).repeat_interleave(2, 1).repeat_interleave(2, 2);
  write_png(command.grid_path, to_picture(grid));
  const double percent = 100.0 / static_cast<double>(files.size());
  std::printf("error against the pictures asked for: %.4f (root mean square, values 0 to 1)\n",
              std::sqrt(squares / static_cast<double>(files.size())));
  std::printf("also right: size %.0f%% ground %.0f%%\n", size * percent, ground * percent);
  std::printf("right: colour %.0f%% shape %.0f%% place %.0f%% of %zu\n",
              colour * percent,
              shape * percent,
              place * percent,
              files.size());
}

}  // namespace dalle2
