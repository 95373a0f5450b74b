// SPDX-License-Identifier: MIT
#include "io/pictures/image.h"

#include <png.h>
#include <zlib.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "io/files/atomic_file.h"
#include "io/formats/npy.h"
#include "io/pictures/picture_tally.h"
#include "support/fixture_folder.h"
#include "support/message_of.h"

using namespace dalle2;
using Catch::Contains;
using nlohmann::json;

namespace {

json cases() {
  return json::parse(read_file(test::fixture_folder("images") + "/cases.json"));
}

std::string encoded(const std::string& name) {
  return read_file(test::fixture_folder("images") + "/decode/" + name);
}

int largest_difference(const uint8_t* expected, const std::vector<uint8_t>& found) {
  int largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest =
        std::max(largest, std::abs(static_cast<int>(expected[i]) - static_cast<int>(found[i])));
  }
  return largest;
}

Image noise_image(int width, int height, unsigned seed) {
  Image image{width, height, std::vector<uint8_t>(static_cast<size_t>(3 * width * height))};
  std::mt19937 random(seed);
  for (uint8_t& value : image.pixels) value = static_cast<uint8_t>(random());
  return image;
}

void patch_big_endian(std::string& file, size_t at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) file[at + i] = static_cast<char>(value >> (24 - 8 * i));
}

void append_big_endian(std::string& file, uint32_t value) {
  file.resize(file.size() + 4);
  patch_big_endian(file, file.size() - 4, value);
}

/// A row of 16-bit grey. @param bits of sBIT, 0 for none @param format PNG_FORMAT_LINEAR_Y, or with alpha
std::string grey16_png(std::vector<uint16_t> values,
                       int bits,
                       uint32_t format = PNG_FORMAT_LINEAR_Y) {
  png_image writer{};
  writer.version = PNG_IMAGE_VERSION;
  writer.format = format;
  writer.width = static_cast<uint32_t>(values.size()) / PNG_IMAGE_SAMPLE_CHANNELS(format);
  writer.height = 1;
  png_alloc_size_t size = 1 << 16;
  std::string file(size, '\0');
  REQUIRE(png_image_write_to_memory(&writer, file.data(), &size, 0, values.data(), 0, nullptr) !=
          0);
  file.resize(size);
  if (bits == 0) return file;
  std::string chunk = "sBIT" + std::string(format == PNG_FORMAT_LINEAR_Y ? 1 : 2, char(bits));
  const uLong sum = crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), uInt(chunk.size()));
  std::string length;
  append_big_endian(length, static_cast<uint32_t>(chunk.size() - 4));
  append_big_endian(chunk, static_cast<uint32_t>(sum));
  constexpr size_t kAfterHeader = 33;
  return file.insert(kAfterHeader, length + chunk);
}

/// The red of the pixels.
std::vector<int> reds(const std::string& file, DecodeOptions options = {}) {
  const Image image = decode_image(file, "grey.png", options);
  std::vector<int> values;
  for (size_t i = 0; i < image.pixels.size(); i += 3) values.push_back(image.pixels[i]);
  return values;
}

std::vector<uint8_t> rgba_of(const Image& image) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < image.pixels.size() / 3; ++i) {
    bytes.insert(bytes.end(), &image.pixels[3 * i], &image.pixels[3 * i] + 3);
    bytes.push_back(image.alpha.empty() ? 255 : image.alpha[i]);
  }
  return bytes;
}

}  // namespace

TEST_CASE("grey with 16 bits is scaled to what the file or the caller says is white", "[image]") {
  using Values = std::vector<int>;
  CHECK(reds(grey16_png({0, 128, 129, 32768, 65407, 65535}, 0)) == Values{0, 0, 1, 128, 255, 255});
  // 12 bits as many programs store them: as they are.
  CHECK(reds(grey16_png({0, 1, 2047, 4095}, 12)) == Values{0, 0, 127, 255});
  CHECK(reds(grey16_png({0, 1, 511, 1023}, 10)) == Values{0, 0, 127, 255});
  // As the PNG standard has it: scaled to 16 bits, dark pictures too.
  CHECK(reds(grey16_png({0, 16, 0x7ff7, 0xffff}, 12)) == Values{0, 0, 127, 255});
  CHECK(reds(grey16_png({0, 16, 2032, 4080}, 12)) == Values{0, 0, 8, 16});
  CHECK(reds(grey16_png({0, 100, 50, 1000}, 0), {.range = 100}) == Values{0, 255, 128, 255});
  CHECK(reds(grey16_png({0, 1, 2047, 4095}, 12), {.range = 65535}) == Values{0, 0, 8, 16});
  // With alpha, too; PNG_FORMAT_LINEAR_Y_ALPHA takes colours times alpha.
  const std::string soft =
      grey16_png({2047, 65535, 4095, 65535, 0, 257}, 12, PNG_FORMAT_LINEAR_Y_ALPHA);
  CHECK(reds(soft) == Values{127, 255, 0});
  CHECK(reds(soft, {.ground = Rgb{9, 9, 9}}) == Values{127, 255, 9});
  CHECK(reds(soft, {.ground = Rgb{9, 9, 9}, .range = 65535}) == Values{7, 15, 9});

  const PictureFacts facts = look_at_picture(grey16_png({5, 3000}, 0), "dark.png");
  CHECK(facts.grey);
  CHECK(facts.grey_range == 65535);
  CHECK(facts.grey_largest == 3000);
  CHECK(look_at_picture(grey16_png({5, 3000}, 12), "12.png").grey_range == 4095);
  PictureTally tally;
  tally.add(facts);
  CHECK_THAT(tally.describe().at(0),
             Contains("1 picture is grey with 16 bits") && Contains("3,000") &&
                 Contains("data.range to 3000"));
  CHECK(tally.describe({.range = 3000}).empty());
  tally.add(look_at_picture(grey16_png({5, 60000}, 0), "light.png"));
  CHECK(tally.describe() == std::vector<std::string>{"2 pictures are grey with 16 bits"});
}

TEST_CASE("transparency is read, resized and laid on a ground as with Pillow", "[image][parity]") {
  const std::string folder = test::fixture_folder("images");
  const NpyArray expected = read_npy(folder + "/rgba.npy");
  const uint8_t* next = reinterpret_cast<const uint8_t*>(expected.bytes.data());
  const json all = cases().at("rgba");
  for (const json& one : all) {
    const std::string name = one.at("file");
    INFO(name);
    const std::string file = read_file(folder + "/rgba/" + name);
    const Image image = decode_image(file, name, {.keep_alpha = true});
    REQUIRE(image.width == one.at("width").get<int>());
    REQUIRE(image.height == one.at("height").get<int>());
    CHECK(largest_difference(next, rgba_of(image)) == 0);
    CHECK(image.pixels == decode_image(file, name).pixels);
    Image ground = image;
    lay_on(ground, {10, 200, 90});
    CHECK(decode_image(file, name, {.ground = Rgb{10, 200, 90}}).pixels == ground.pixels);
    const bool transparent = !name.starts_with("opaque");
    CHECK(look_at_picture(file, name).transparent == transparent);
    CHECK((ground.pixels != image.pixels) == transparent);
    const Image back = decode_image(encode_png(image), name, {.keep_alpha = true});
    CHECK(rgba_of(back) == rgba_of(image));
    next += 4 * image.pixels.size() / 3;

    const int left = one.at("left"), top = one.at("top");
    const Image resized = crop_resize(image,
                                      {left, top, image.width - left, image.height - top},
                                      7,
                                      5,
                                      interpolation_from_name(one.at("mode")));
    CHECK(largest_difference(next, rgba_of(resized)) == 0);
    next += 4 * 7 * 5;
  }
  CHECK(all.size() >= 15);
  CHECK(next == reinterpret_cast<const uint8_t*>(expected.bytes.data() + expected.bytes.size()));
}

TEST_CASE("what is told of a picture is what its owner sees", "[image]") {
  const std::string folder = test::fixture_folder("images") + "/oriented/";
  for (const char* name : {"8.jpeg", "8.png", "8.webp"}) {
    INFO(name);
    const std::string file = read_file(folder + name);
    const PictureFacts facts = look_at_picture(file, name);
    const Image stored = decode_image(file, name);
    CHECK(facts.orientation == 8);
    CHECK(facts.width == stored.height);
    CHECK(facts.height == stored.width);
    CHECK(!facts.transparent);
    PictureTally tally;
    CHECK(tally.look_at(file));
    CHECK_THAT(tally.describe().at(0), Contains("1 picture carries a rotation (EXIF)"));
    CHECK(tally.describe({.apply_exif = true}).empty());
  }
  // An alpha channel of which all is opaque.
  Image opaque = noise_image(5, 4, 3);
  opaque.alpha.assign(20, 255);
  CHECK(!look_at_picture(encode_png(opaque), "opaque.png").transparent);
  opaque.alpha[7] = 254;
  CHECK(look_at_picture(encode_png(opaque), "opaque.png").transparent);
  CHECK(!look_at_picture(encode_png(opaque), "opaque.png").grey);
  // Grey but for a pixel that nobody sees.
  std::fill(opaque.pixels.begin() + 3, opaque.pixels.end(), uint8_t{9});
  opaque.pixels[0] = 8;
  CHECK(!look_at_picture(encode_png(opaque), "seen.png").grey);
  opaque.alpha[0] = 0;
  CHECK(look_at_picture(encode_png(opaque), "hidden.png").grey);
  const auto header = png_header(encode_png(opaque));
  REQUIRE(header);
  CHECK(header->width == 5);
  CHECK(header->height == 4);
  CHECK(header->channels == 4);
  CHECK_FALSE(png_header("no picture"));
  CHECK(PictureTally{}.look_at("no picture"));
  CHECK(PictureTally{}.describe().empty());
}

TEST_CASE("a colour is a name or three numbers", "[image]") {
  CHECK(rgb_from_text("--ground", "white") == Rgb{255, 255, 255});
  CHECK(rgb_from_text("--ground", "0,120,255") == Rgb{0, 120, 255});
  for (const char* text :
       {"", "red", "1,2", "1,2,3,4", "1,2,256", "1, 2,3", "-1,2,3", "1,2,3 ", "1.5,2,3"}) {
    INFO(text);
    CHECK_THROWS_WITH(rgb_from_text("--ground", text),
                      Contains("--ground") && Contains("expected white, black or red, green"));
  }
}

TEST_CASE("pictures of every kind decode bit for bit as with Pillow", "[image][parity]") {
  const NpyArray expected = read_npy(test::fixture_folder("images") + "/decoded.npy");
  const uint8_t* next = reinterpret_cast<const uint8_t*>(expected.bytes.data());
  size_t checked = 0;
  const json all = cases().at("decode");
  for (const json& one : all) {
    const std::string name = one.at("file");
    INFO(name);
    if (one.at("refused").get<bool>()) {
      CHECK_THROWS_AS(decode_image(encoded(name), name), DataError);
      continue;
    }
    const Image image = decode_image(encoded(name), name);
    REQUIRE(image.width == one.at("width").get<int>());
    REQUIRE(image.height == one.at("height").get<int>());
    CHECK(largest_difference(next, image.pixels) == 0);
    next += image.pixels.size();
    ++checked;
  }
  CHECK(checked > 40);
  CHECK(next == reinterpret_cast<const uint8_t*>(expected.bytes.data() + expected.bytes.size()));
}

TEST_CASE("pictures are turned by their EXIF orientation as with Pillow, if asked for",
          "[image][parity]") {
  const std::string folder = test::fixture_folder("images");
  const NpyArray expected = read_npy(folder + "/oriented.npy");
  const uint8_t* next = reinterpret_cast<const uint8_t*>(expected.bytes.data());
  std::mt19937 random(7);
  const json all = cases().at("oriented");
  for (const json& one : all) {
    const std::string name = one.at("file");
    INFO(name);
    const std::string file = read_file(folder + "/oriented/" + name);
    EncodedImage encoded(file, name, {.apply_exif = true});
    REQUIRE(encoded.width() == one.at("width").get<int>());
    REQUIRE(encoded.height() == one.at("height").get<int>());
    const Image image = encoded.crop({0, 0, encoded.width(), encoded.height()});
    CHECK(largest_difference(next, image.pixels) == 0);
    next += image.pixels.size();
    CHECK(EncodedImage(file, name).width() ==
          decode_image(file, name).width);  // ignored by default

    // A part of the turned picture comes from the right place, resampled or not.
    CropBox box{0, 0, 0, 0};
    box.width = 1 + static_cast<int>(random() % static_cast<unsigned>(image.width));
    box.height = 1 + static_cast<int>(random() % static_cast<unsigned>(image.height));
    box.left = static_cast<int>(random() % static_cast<unsigned>(image.width - box.width + 1));
    box.top = static_cast<int>(random() % static_cast<unsigned>(image.height - box.height + 1));
    CHECK(EncodedImage(file, name, {.apply_exif = true}).crop(box).pixels ==
          crop(image, box).pixels);
    CHECK(EncodedImage(file, name, {.apply_exif = true})
              .crop_resize(box, 7, 5, Interpolation::kBicubic)
              .pixels == crop_resize(image, box, 7, 5, Interpolation::kBicubic).pixels);
  }
  CHECK(all.size() >= 30);
}

TEST_CASE("crops resize bit for bit as with Pillow in all six modes", "[image][parity]") {
  const NpyArray source = read_npy(test::fixture_folder("images") + "/source.npy");
  const NpyArray expected = read_npy(test::fixture_folder("images") + "/resized.npy");
  Image image{static_cast<int>(source.shape.at(1)), static_cast<int>(source.shape.at(0)), {}};
  image.pixels.assign(source.bytes.begin(), source.bytes.end());
  const uint8_t* next = reinterpret_cast<const uint8_t*>(expected.bytes.data());
  const json all = cases().at("resize");
  for (const json& one : all) {
    INFO(one.dump());
    const Image resized =
        crop_resize(image,
                    {one.at("left"), one.at("top"), one.at("width"), one.at("height")},
                    one.at("out_width"),
                    one.at("out_height"),
                    interpolation_from_name(one.at("mode")));
    REQUIRE(resized.pixels.size() ==
            3 * one.at("out_width").get<size_t>() * one.at("out_height").get<size_t>());
    CHECK(largest_difference(next, resized.pixels) == 0);
    next += resized.pixels.size();
  }
  CHECK(all.size() >= 45);
}

TEST_CASE("a picture that needs room of its own is resized like others") {
  Image large{4000, 3000, {}};
  large.pixels.resize(3 * 4000 * 3000, 7);
  const Image small = crop_resize(large, {0, 0, 4000, 3000}, 3999, 8, Interpolation::kBilinear);
  CHECK(small.pixels == std::vector<uint8_t>(small.pixels.size(), 7));
}

TEST_CASE("an unknown interpolation is refused with the list of names") {
  CHECK(interpolation_from_name("nearest_exact") == Interpolation::kNearest);
  CHECK(test::message_of<ConfigError>([&] { interpolation_from_name("cubic"); }) ==
        "The given interpolation mode cubic is not supported. Currently supported "
        "interpolation modes are bilinear, bicubic, box, nearest, nearest_exact, "
        "hamming, lanczos.");
}

TEST_CASE("PNG gives back what went in, and JPEG nearly") {
  const Image image = noise_image(37, 23, 1);
  const Image back = decode_image(encode_png(image), "png");
  CHECK(back.width == 37);
  CHECK(back.height == 23);
  CHECK(back.pixels == image.pixels);
  // Smooth colours survive a JPEG of quality 95 within a few levels, edges of colour included.
  Image halves{32, 32, std::vector<uint8_t>(3 * 32 * 32)};
  for (size_t i = 0; i < 32 * 32; ++i) {
    const uint8_t colours[2][3] = {{200, 30, 40}, {30, 60, 210}};
    std::memcpy(halves.pixels.data() + 3 * i, colours[i % 32 < 16 ? 0 : 1], 3);
  }
  const Image jpeg = decode_image(encode_jpeg(halves, 95), "jpeg");
  CHECK(largest_difference(halves.pixels.data(), jpeg.pixels) <= 6);
}

TEST_CASE("flip and crop move pixels and nothing else") {
  const Image image = noise_image(5, 3, 3);
  const Image flipped = flip_horizontally(image);
  for (size_t y = 0; y < 3; ++y) {
    for (size_t x = 0; x < 5; ++x) {
      CHECK(std::memcmp(&flipped.pixels[3 * (5 * y + x)], &image.pixels[3 * (5 * y + 4 - x)], 3) ==
            0);
    }
  }
  CHECK(flip_horizontally(flipped).pixels == image.pixels);
  const Image inner = crop(image, {1, 1, 2, 2});
  CHECK(std::memcmp(inner.pixels.data(), &image.pixels[3 * (5 + 1)], 6) == 0);
  const Image wider = crop(image, {-1, -2, 7, 7});  // a black frame
  CHECK(wider.pixels[0] == 0);
  CHECK(std::memcmp(&wider.pixels[3 * (7 * 2 + 1)], image.pixels.data(), 15) == 0);
  CHECK(std::all_of(
      wider.pixels.end() - 3 * 7 * 2, wider.pixels.end(), [](uint8_t v) { return v == 0; }));
  CHECK(crop(image, {9, 9, 2, 2}).pixels == std::vector<uint8_t>(12, 0));
  CHECK(crop(image, {9, 9, 2, 2}, 200).pixels == std::vector<uint8_t>(12, 200));
}

TEST_CASE("what is no picture is refused by name") {
  CHECK_THROWS_WITH(decode_image("", "0001.jpg"),
                    Contains("0001.jpg") && Contains("JPEG, PNG or WebP"));
  CHECK_THROWS_AS(decode_image("GIF89a......", "x"), DataError);
  CHECK_THROWS_AS(decode_image(std::string("\xff\xd8\xff", 3), "x"), DataError);
  CHECK_THROWS_AS(decode_image(std::string("\x89PNG\r\n\x1a\n", 8), "x"), DataError);
  CHECK_THROWS_AS(decode_image("RIFF____WEBPVP8 ", "x"), DataError);
}

TEST_CASE("a picture that was cut at any byte is refused") {
  for (const std::string name : {"rgb_s2_baseline.jpg",
                                 "rgb_s1_progressive.jpg",
                                 "rgba8.png",
                                 "palette4_adam7.png",
                                 "lossy.webp",
                                 "lossless.webp"}) {
    const std::string whole = encoded(name);
    // After the pixels a PNG has only its end chunk, which Pillow does not need either.
    const size_t needed = name.ends_with(".png") ? whole.size() - 20 : whole.size();
    for (size_t size = 0; size < needed; size += 1 + size / 16) {
      INFO(name << " cut to " << size << " of " << whole.size());
      CHECK_THROWS_AS(decode_image(whole.substr(0, size), name), DataError);
    }
  }
}

TEST_CASE("a header that promises too many pixels is refused before anything is allocated") {
  std::string png = encode_png(noise_image(4, 4, 4));
  patch_big_endian(png, 16, 400'000);
  patch_big_endian(png, 20, 400'000);
  png[29] = png[30] = png[31] = png[32] = 0;  // the checksum is wrong now as well
  CHECK_THROWS_AS(decode_image(png, "bomb.png"), DataError);
  std::string jpeg = encode_jpeg(noise_image(4, 4, 4), 90);
  const size_t frame = jpeg.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  jpeg[frame + 5] = jpeg[frame + 6] = jpeg[frame + 7] = jpeg[frame + 8] = static_cast<char>(0xfe);
  CHECK_THROWS_WITH(decode_image(jpeg, "bomb.jpg"),
                    Contains("bomb.jpg") && Contains("65278x65278") && Contains("178956970"));
}
