// SPDX-License-Identifier: MIT
#include "run/pictures/pictures.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "data/pictures/preprocess.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "io/pictures/image_caption.h"
#include "model/random.h"
#include "run/device/device.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> picture_files(const std::string& path) {
  std::error_code ignored;
  if (fs::status(path, ignored).type() == fs::file_type::not_found)
    throw DataError("{}: no such file or folder", path);
  if (!is_folder(path)) return {path};
  std::vector<std::string> files;
  for (const std::string& file : files_in_folder(path)) {
    if (is_picture_name(file) && fs::path(file).filename() != kSheetFile) files.push_back(file);
  }
  if (files.empty()) throw DataError("{}: no .png, .jpg, .jpeg or .webp in this folder", path);
  return files;
}

/// @param image [C, H, W] in [0, 1] @return [H, W, C] uint8
at::Tensor bytes_of(const at::Tensor& image) {
  const at::Tensor values = image.detach().to(at::kCPU, at::kFloat);
  return (values * 255 + 0.5).clamp(0, 255).to(at::kByte).permute({1, 2, 0}).contiguous();
}

}  // namespace

Image to_picture(const at::Tensor& image) {
  const at::Tensor rgb = bytes_of(image.size(0) >= 3 ? image.narrow(0, 0, 3)
                                                     : image.narrow(0, 0, 1).expand({3, -1, -1}));
  Image picture;
  picture.height = static_cast<int>(rgb.size(0));
  picture.width = static_cast<int>(rgb.size(1));
  const uint8_t* pixels = rgb.const_data_ptr<uint8_t>();
  picture.pixels.assign(pixels, pixels + rgb.numel());
  if (image.size(0) == 4) {
    const at::Tensor alpha = bytes_of(image.narrow(0, 3, 1));
    picture.alpha.assign(alpha.const_data_ptr<uint8_t>(),
                         alpha.const_data_ptr<uint8_t>() + alpha.numel());
  }
  return picture;
}

at::Tensor from_picture(const Image& picture) {
  at::Tensor pixels = at::empty({picture.height, picture.width, 3}, at::kByte);
  std::memcpy(pixels.mutable_data_ptr(), picture.pixels.data(), picture.pixels.size());
  return floats_from_bytes(pixels.permute({2, 0, 1})).contiguous();
}

at::Tensor image_grid(const std::vector<at::Tensor>& images, int64_t columns, int64_t padding) {
  D2_CHECK(!images.empty(), "a grid of no images");
  const int64_t count = static_cast<int64_t>(images.size());
  const int64_t channels = images[0].size(0);
  const int64_t height = images[0].size(1) + padding;
  const int64_t width = images[0].size(2) + padding;
  columns = std::min(columns, count);
  const int64_t rows = (count + columns - 1) / columns;
  at::Tensor grid =
      at::zeros({channels, rows * height + padding, columns * width + padding}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    grid.narrow(1, i / columns * height + padding, height - padding)
        .narrow(2, i % columns * width + padding, width - padding)
        .copy_(images[static_cast<size_t>(i)].detach());
  }
  return grid;
}

std::vector<at::Tensor> above_texts(const std::vector<at::Tensor>& pictures,
                                    const std::vector<std::string>& texts,
                                    const std::vector<std::string>& names) {
  constexpr int kLeastWidth = 128;  // about 20 letters
  constexpr int64_t kGap = 3;       // pixels between a picture and its text
  D2_CHECK(texts.size() == pictures.size() && names.size() == texts.size(), "texts of a sheet");
  const CaptionStyle style{.width = std::max(kLeastWidth, static_cast<int>(pictures[0].size(2)))};
  const int64_t scale = style.width / pictures[0].size(2);
  const int64_t height = scale * pictures[0].size(1), width = scale * pictures[0].size(2);
  std::vector<std::vector<std::string>> lines;
  size_t most_lines = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = drawable_text(texts[i]);
    lines.push_back(caption_lines(text.empty() && !texts[i].empty() ? names[i] : text, style));
    most_lines = std::max(most_lines, lines.back().size());
  }
  const int text_height = static_cast<int>(most_lines) * caption_line_height(style);
  std::vector<at::Tensor> cells;
  for (size_t i = 0; i < texts.size(); ++i) {
    Image picture = to_picture(pictures[i].repeat_interleave(scale, 1).repeat_interleave(scale, 2));
    lay_on(picture, {255, 255, 255});
    at::Tensor cell = at::zeros({3, height + kGap + text_height, style.width}, at::kFloat);
    cell.narrow(1, 0, height)
        .narrow(2, (style.width - width) / 2, width)
        .copy_(from_picture(picture));
    cell.narrow(1, height + kGap, text_height)
        .copy_(from_picture(draw_caption(lines[i], style, text_height)));
    cells.push_back(cell);
  }
  return cells;
}

at::Tensor load_npy_tensor(const std::string& path, int64_t dimensions) {
  const NpyArray array = read_npy(path);
  if (static_cast<int64_t>(array.shape.size()) != dimensions) {
    throw DataError("{}: expected an array of {} dimensions, got {} (shape [{}])",
                    path,
                    dimensions,
                    array.shape.size(),
                    fmt::join(array.shape, ", "));
  }
  const std::vector<float> values = array.to_float32();
  if (values.empty()) {
    throw DataError(
        "{}: expected one or more rows, got shape [{}]", path, fmt::join(array.shape, ", "));
  }
  if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); }))
    throw DataError("{}: holds values that are not finite (NaN or infinite)", path);
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).view(array.shape);
}

std::vector<at::Tensor> load_pictures_of_any_size(const std::string& path,
                                                  const PictureReading& reading) {
  if (fs::path(path).extension() == ".npy") return load_npy_tensor(path, 4).unbind();
  std::vector<at::Tensor> pictures;
  for (const std::string& file : picture_files(path)) {
    const Image picture = decode_image(read_file(file), file, reading.options);
    const at::Tensor batch = at::empty({1, reading.channels, picture.height, picture.width});
    write_picture(picture, batch, /*place=*/0);
    pictures.push_back(batch[0]);
  }
  return pictures;
}

at::Tensor load_pictures(const std::string& path, const PictureReading& reading) {
  const std::vector<at::Tensor> pictures = load_pictures_of_any_size(path, reading);
  const at::Tensor& first = pictures.front();
  for (size_t i = 1; i < pictures.size(); ++i) {
    if (pictures[i].sizes().equals(first.sizes())) continue;
    const std::vector<std::string> files = picture_files(path);
    throw DataError(
        "{} is {} x {} pixels, but {} is {} x {}: pictures sampled together need one size",
        files[i],
        pictures[i].size(2),
        pictures[i].size(1),
        files.front(),
        first.size(2),
        first.size(1));
  }
  return at::stack(pictures);
}

std::vector<at::Generator> generators_of_rows(int64_t seed,
                                              const std::vector<int64_t>& rows,
                                              int64_t candidates) {
  std::vector<at::Generator> generators;
  for (const int64_t row : rows) {
    for (int64_t candidate = 0; candidate < candidates; ++candidate) {
      generators.push_back(make_generator(
          {.seed = seed, .purpose = "sample", .epoch = candidate, .step = row}, at::kCPU));
    }
  }
  return generators;
}

}  // namespace dalle2
