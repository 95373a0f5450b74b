// SPDX-License-Identifier: MIT
// A crop of a JPEG is decoded without the rest of it; here is the proof that nothing of it shows.
#include "base/error.h"

#include <jpeglib.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <random>
#include <tuple>

#include "io/pictures/image.h"
#include "io/pictures/image_codecs.h"
#include "io/pictures/resample.h"

using namespace dalle2;

namespace {

using Random = std::mt19937;

int below(Random& random, int count) {
  return static_cast<int>(random() % static_cast<uint32_t>(count));
}

/// Waves with edges and noise, so that every coefficient has something to do.
std::vector<uint8_t> random_samples(Random& random, int width, int height, int channels) {
  std::vector<uint8_t> samples;
  const double fx = below(random, 90) / 100.0, fy = below(random, 90) / 100.0;
  const int edge = below(random, width), noise = 1 + below(random, 60);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const double wave = 128 + 90 * std::sin(fx * x + fy * y + c) + (x > edge ? 60 : 0);
        samples.push_back(static_cast<uint8_t>(
            std::clamp(static_cast<int>(wave) + below(random, noise), 0, 255)));
      }
    }
  }
  return samples;
}

/// How a JPEG is written.
struct Recipe {
  int width = 0, height = 0, channels = 3;
  int across = 1, down = 1;  // colour is that much coarser
  bool progressive = false, arithmetic = false, ycck = false;
  unsigned restart_interval = 0;
  int quality = 80;
};

std::string write_jpeg(const Recipe& recipe, const std::vector<uint8_t>& samples) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(recipe.width);
  info.image_height = static_cast<JDIMENSION>(recipe.height);
  info.input_components = recipe.channels;
  info.in_color_space = recipe.channels == 1   ? JCS_GRAYSCALE
                        : recipe.channels == 3 ? JCS_RGB
                                               : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (recipe.ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, recipe.quality, TRUE);
  for (int i = 0; recipe.channels > 1 && i < recipe.channels; ++i) {
    const bool full = i == 0 || i == 3;
    info.comp_info[i].h_samp_factor = full ? recipe.across : 1;
    info.comp_info[i].v_samp_factor = full ? recipe.down : 1;
  }
  info.restart_interval = recipe.restart_interval;
  info.arith_code = recipe.arithmetic ? TRUE : FALSE;
  if (recipe.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(samples.data()) +
                   static_cast<size_t>(recipe.channels) * info.image_width * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string file(reinterpret_cast<const char*>(buffer), size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return file;
}

Recipe random_recipe(Random& random) {
  Recipe recipe;
  recipe.width = 1 + below(random, 150);
  recipe.height = 1 + below(random, 150);
  recipe.channels = std::vector<int>{3, 3, 3, 3, 1, 4}[random() % 6];
  const std::vector<std::pair<int, int>> coarser = {
      {1, 1}, {2, 1}, {2, 2}, {1, 2}, {2, 2}, {4, 1}, {4, 2}, {1, 4}};
  std::tie(recipe.across, recipe.down) =
      coarser[random() % (recipe.channels == 4 ? 5 : coarser.size())];
  recipe.progressive = random() % 4 == 0;
  recipe.arithmetic = random() % 16 == 0;
  recipe.ycck = recipe.channels == 4 && random() % 2 == 0;
  recipe.restart_interval = random() % 4 == 0 ? static_cast<unsigned>(1 + below(random, 9)) : 0;
  recipe.quality = 5 + below(random, 95);
  return recipe;
}

std::string random_jpeg(Random& random, const Recipe& recipe) {
  return write_jpeg(recipe, random_samples(random, recipe.width, recipe.height, recipe.channels));
}

CropBox random_box(Random& random, int width, int height) {
  CropBox box{0, 0, 1 + below(random, width), 1 + below(random, height)};
  box.left = below(random, width - box.width + 1);
  box.top = below(random, height - box.height + 1);
  return box;
}

Image read_scaled(const std::string& file, const CropBox& box, int denominator) {
  JpegReader reader(file, "scaled.jpg");
  Image image{box.width, box.height, {}};
  reader.read(box, denominator, [&](const uint8_t* rows, size_t stride, int count) {
    for (int y = 0; y < count; ++y, rows += stride)
      image.pixels.insert(image.pixels.end(), rows, rows + 3 * box.width);
  });
  return image;
}

uint32_t seed() {
  const char* given = std::getenv("DALLE2_TEST_SEED");
  return given != nullptr ? static_cast<uint32_t>(std::stoul(given)) : 0;
}

}  // namespace

TEST_CASE("a crop of a JPEG is the same, bit for bit, without the rest being decoded", "[image]") {
  Random random(seed());
  for (int i = 0; i < 1500; ++i) {
    const Recipe recipe = random_recipe(random);
    const std::string file = random_jpeg(random, recipe);
    const Image whole = decode_image(file, "whole.jpg");
    for (int j = 0; j < 3; ++j) {
      const CropBox box = random_box(random, recipe.width, recipe.height);
      INFO("file " << i << " box " << box.width << "x" << box.height << " at " << box.left << ", "
                   << box.top);
      EncodedImage encoded(file, "part.jpg");
      const Image part = encoded.crop(box);
      REQUIRE(part.pixels == crop(whole, box).pixels);
    }
  }
}

TEST_CASE("a crop of a JPEG at a smaller scale is that of the whole at this scale", "[image]") {
  Random random(seed() + 1);
  for (int i = 0; i < 500; ++i) {
    const Recipe recipe = random_recipe(random);
    const std::string file = random_jpeg(random, recipe);
    const int denominator = 2 << random() % 3;
    const int width = (recipe.width + denominator - 1) / denominator;
    const int height = (recipe.height + denominator - 1) / denominator;
    const Image whole = read_scaled(file, {0, 0, width, height}, denominator);
    const CropBox box = random_box(random, width, height);
    INFO("file " << i << " 1/" << denominator << " box " << box.width << "x" << box.height << " at "
                 << box.left << ", " << box.top);
    const Image part = read_scaled(file, box, denominator);
    REQUIRE(part.pixels == crop(whole, box).pixels);
  }
}

TEST_CASE("a JPEG resamples the same whether it was decoded before or on the way", "[image]") {
  Random random(seed() + 2);
  const std::vector<Interpolation> modes = {Interpolation::kNearest,
                                            Interpolation::kBox,
                                            Interpolation::kBilinear,
                                            Interpolation::kHamming,
                                            Interpolation::kBicubic,
                                            Interpolation::kLanczos};
  for (int i = 0; i < 600; ++i) {
    const Recipe recipe = random_recipe(random);
    const std::string file = random_jpeg(random, recipe);
    const CropBox box = random_box(random, recipe.width, recipe.height);
    const int width = 1 + below(random, 70), height = 1 + below(random, 70);
    const Interpolation mode = modes[random() % modes.size()];
    INFO("file " << i << " box " << box.width << "x" << box.height << " at " << box.left << ", "
                 << box.top << " to " << width << "x" << height << " mode "
                 << static_cast<int>(mode));
    EncodedImage encoded(file, "part.jpg");
    const Image expected = crop_resize(decode_image(file, "whole.jpg"), box, width, height, mode);
    REQUIRE(encoded.crop_resize(box, width, height, mode).pixels == expected.pixels);
  }
}

TEST_CASE("a JPEG that was cut below the crop is refused all the same") {
  Random random(3);
  for (const bool progressive : {false, true}) {
    Recipe recipe{90, 200, 3, 2, 2};
    recipe.progressive = progressive;
    recipe.restart_interval = 4;
    const std::string file = write_jpeg(recipe, random_samples(random, 90, 200, 3));
    for (size_t size = file.size(); size > file.size() / 2; size -= 1 + size / 64) {
      const std::string cut = file.substr(0, size);
      EncodedImage encoded(cut, "cut.jpg");
      INFO("cut to " << size << " of " << file.size());
      if (size == file.size()) {
        CHECK_NOTHROW(encoded.crop({10, 5, 40, 30}));
      } else {
        CHECK_THROWS_WITH(encoded.crop({10, 5, 40, 30}), Catch::Contains("cut.jpg"));
      }
    }
  }
}

TEST_CASE("a JPEG that lacks any of its last bytes is called truncated, whole and in part") {
  Random random(5);
  const std::string file = write_jpeg({64, 48, 3, 2, 2}, random_samples(random, 64, 48, 3));
  for (size_t missing = 1; missing < 600; ++missing) {
    const std::string cut = file.substr(0, file.size() - missing);
    INFO("without the last " << missing << " of " << file.size());
    CHECK_THROWS_WITH(EncodedImage(cut, "cut.jpg").crop({0, 0, 64, 48}),
                      Catch::Contains("cut.jpg") && Catch::Contains("truncated"));
    CHECK_THROWS_WITH(EncodedImage(cut, "cut.jpg").crop({3, 2, 20, 11}),
                      Catch::Contains("truncated"));
  }
}

TEST_CASE("a damaged JPEG is accepted or refused alike, whole or in part") {
  Random random(seed() + 4);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    const Recipe recipe = random_recipe(random);
    std::string file = random_jpeg(random, recipe);
    for (int k = 1 + below(random, 3); k > 0; --k) {
      file[20 + random() % (file.size() - 20)] =
          static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    const auto verdict = [&](const auto& read) {
      try {
        EncodedImage encoded(file, "x");
        read(encoded);
        return true;
      } catch (const DataError&) {
        return false;
      }
    };
    const bool whole = verdict([](EncodedImage& encoded) {
      encoded.crop({0, 0, encoded.width(), encoded.height()});
    });
    const bool part = verdict([&](EncodedImage& encoded) {
      encoded.crop(random_box(random, encoded.width(), encoded.height()));
    });
    INFO("file " << i);
    CHECK(whole == part);
    (whole ? accepted : refused) += 1;
  }
  CHECK(accepted > 300);
  CHECK(refused > 50);
}

TEST_CASE("the vector instructions of this machine compute what plain ones do") {
  Random random(seed() + 5);
  for (int i = 0; i < 300; ++i) {
    const int width = 1 + below(random, 200), rows = 1 + below(random, 40);
    const int out_width = 1 + below(random, 100);
    const SplitTaps taps(
        make_taps(width,
                  0,
                  width,
                  out_width,
                  random() % 2 == 0 ? Interpolation::kBilinear : Interpolation::kLanczos));
    const size_t in_stride = 3 * static_cast<size_t>(width) + kReadAhead;
    const size_t out_stride = 3 * static_cast<size_t>(out_width) + kWriteAhead;
    std::vector<uint8_t> in(in_stride * static_cast<size_t>(rows));
    for (uint8_t& value : in) value = static_cast<uint8_t>(random());
    const auto across = [&](const ResampleKernels& kernels) {
      std::vector<uint8_t> out(out_stride * static_cast<size_t>(rows)), values;
      kernels.horizontal_pass(in.data(), in_stride, rows, out.data(), out_stride, taps);
      for (size_t y = 0; y < static_cast<size_t>(rows); ++y) {
        const auto row = out.begin() + static_cast<std::ptrdiff_t>(y * out_stride);
        values.insert(values.end(), row, row + 3 * out_width);
      }
      return values;
    };
    const int out_rows = 1 + below(random, 12);
    const SplitTaps tall(make_taps(rows, 0, rows, out_rows, Interpolation::kBicubic));
    const auto down = [&](const ResampleKernels& kernels) {
      const size_t bytes = 3 * static_cast<size_t>(width);
      std::vector<uint8_t> out(bytes * static_cast<size_t>(out_rows));
      for (size_t y = 0; y < static_cast<size_t>(out_rows); ++y)
        kernels.vertical_row(in.data(), in_stride, tall, y, out.data() + y * bytes, bytes);
      return out;
    };
    INFO(width << " to " << out_width << ", " << rows << " rows");
    for (const ResampleKernels& kernels : all_kernels()) {
      REQUIRE(across(kernels) == across(all_kernels().front()));
      REQUIRE(down(kernels) == down(all_kernels().front()));
    }
  }
}
