// SPDX-License-Identifier: MIT
// PNG through libpng; to RGB as Pillow's convert("RGB").
#include "base/error.h"
#include "io/pictures/image_codecs.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

namespace dalle2 {
namespace {

/// libpng reports an error by a jump, so no frame between setjmp and libpng may own anything.
struct ErrorState {
  std::jmp_buf jump;
  char message[128] = "";
};

void on_error(png_structp handle, png_const_charp message) {
  ErrorState* state = static_cast<ErrorState*>(png_get_error_ptr(handle));
  std::snprintf(state->message, sizeof(state->message), "%s", message);
  std::longjmp(state->jump, 1);
}

void on_warning(png_structp, png_const_charp) {}

struct Reader {
  const char* next;
  size_t left;
  ErrorState error;
  png_structp handle = nullptr;
  png_infop info = nullptr;
  png_uint_32 width = 0, height = 0;
  int depth = 0, colour_type = 0;

  explicit Reader(std::string_view content) : next(content.data()), left(content.size()) {
    handle = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error, on_error, on_warning);
    info = handle != nullptr ? png_create_info_struct(handle) : nullptr;
    if (info == nullptr) {
      png_destroy_read_struct(&handle, nullptr, nullptr);
      throw ResourceError("out of memory for a PNG reader");
    }
  }
  ~Reader() { png_destroy_read_struct(&handle, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

void read_bytes(png_structp handle, png_bytep data, size_t size) {
  Reader* reader = static_cast<Reader*>(png_get_io_ptr(handle));
  if (size > reader->left) png_error(handle, "truncated");
  std::memcpy(data, reader->next, size);
  reader->next += size;
  reader->left -= size;
}

bool read_header(Reader& reader) {
  if (setjmp(reader.error.jump) != 0) return false;
  png_set_read_fn(reader.handle, &reader, read_bytes);
  png_read_info(reader.handle, reader.info);
  png_get_IHDR(reader.handle,
               reader.info,
               &reader.width,
               &reader.height,
               &reader.depth,
               &reader.colour_type,
               nullptr,
               nullptr,
               nullptr);
  return true;
}

bool is_grey(const Reader& reader) {
  return (reader.colour_type & PNG_COLOR_MASK_COLOR) == 0;
}

/// The stored channels, one byte each (palette: the index; 16 bits: the high byte, of grey both).
/// @param adds_alpha a channel more: whether the colour is the transparent one
bool read_rows(Reader& reader, png_bytep* rows, bool adds_alpha) {
  if (setjmp(reader.error.jump) != 0) return false;
  if (reader.colour_type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.handle);
  if (adds_alpha) png_set_tRNS_to_alpha(reader.handle);
  if (reader.depth == 16 && !is_grey(reader)) png_set_strip_16(reader.handle);
  png_set_packing(reader.handle);
  png_set_interlace_handling(reader.handle);
  png_read_update_info(reader.handle, reader.info);
  png_read_image(reader.handle, rows);
  return true;
}

int stored_channels(int colour_type) {
  return colour_type == PNG_COLOR_TYPE_GRAY_ALPHA  ? 2
         : colour_type == PNG_COLOR_TYPE_RGB       ? 3
         : colour_type == PNG_COLOR_TYPE_RGB_ALPHA ? 4
                                                   : 1;
}

/// Colours of the indices; those beyond the file's palette are black, as in Pillow, and opaque.
struct Palette {
  uint8_t rgb[256][3] = {};
  uint8_t alpha[256];
};

Palette read_palette(Reader& reader) {
  Palette palette;
  std::memset(palette.alpha, 255, sizeof(palette.alpha));
  png_colorp colours = nullptr;
  int count = 0;
  if (png_get_PLTE(reader.handle, reader.info, &colours, &count) != 0) {
    for (int i = 0; i < count && i < 256; ++i) {
      palette.rgb[i][0] = colours[i].red;
      palette.rgb[i][1] = colours[i].green;
      palette.rgb[i][2] = colours[i].blue;
    }
  }
  png_bytep alphas = nullptr;
  if (png_get_tRNS(reader.handle, reader.info, &alphas, &count, nullptr) != 0 && alphas != nullptr)
    std::memcpy(palette.alpha, alphas, static_cast<size_t>(std::min(count, 256)));
  return palette;
}

int big_endian(const uint8_t* bytes) {
  return bytes[0] << 8 | bytes[1];
}

/// Finds out grey_largest and grey_range of 16-bit grey. Where a file states fewer significant bits (sBIT), the PNG standard asks
/// for values that are scaled to 16 bits, yet many programs store them as they are. Scaled values below 2^bits have
/// no bit below the significant ones.
/// @param step bytes from one value to the next
void measure_grey(Reader& reader,
                  const std::vector<uint8_t>& stored,
                  size_t step,
                  PictureFacts& facts) {
  int any_bit = 0;
  for (size_t at = 0; at < stored.size(); at += step) {
    const int value = big_endian(&stored[at]);
    facts.grey_largest = std::max(facts.grey_largest, value);
    any_bit |= value;
  }
  facts.grey_range = 65'535;
  png_color_8p significant = nullptr;
  if (png_get_sBIT(reader.handle, reader.info, &significant) == 0) return;
  const int bits = significant->gray;
  if (bits < 1 || bits > 15) return;
  const int as_they_are = (1 << bits) - 1;
  if (facts.grey_largest <= as_they_are && (any_bit & ((1 << (16 - bits)) - 1)) != 0)
    facts.grey_range = as_they_are;
}

}  // namespace

Image decode_png(const std::string& content,
                 const std::string& origin,
                 const DecodeOptions& options,
                 PictureFacts& facts) {
  Reader reader(content);
  if (!read_header(reader)) throw DataError("{}: damaged PNG: {}", origin, reader.error.message);
  check_image_size(reader.width, reader.height, origin);
  const size_t width = reader.width, height = reader.height;
  const bool indexed = reader.colour_type == PNG_COLOR_TYPE_PALETTE;
  const bool has_key =
      !indexed && png_get_valid(reader.handle, reader.info, PNG_INFO_tRNS) != 0;  // a colour
  const bool adds_alpha = options.keep_alpha && has_key;
  const bool deep_grey = reader.depth == 16 && is_grey(reader);
  const size_t channels = static_cast<size_t>(stored_channels(reader.colour_type)) + adds_alpha;
  const size_t bytes = deep_grey ? 2 : 1, step = channels * bytes, stride = width * step;
  std::vector<uint8_t> stored(stride * height);
  std::vector<png_bytep> rows(height);
  for (size_t y = 0; y < height; ++y) rows[y] = stored.data() + y * stride;
  if (!read_rows(reader, rows.data(), adds_alpha))
    throw DataError("{}: damaged PNG of {}x{}: {}", origin, width, height, reader.error.message);
  Image image;
  image.width = static_cast<int>(width);
  image.height = static_cast<int>(height);
  if (channels == 3) {
    image.pixels = std::move(stored);
    return image;
  }
  image.pixels.resize(3 * width * height);
  const Palette palette = read_palette(reader);
  if (deep_grey) measure_grey(reader, stored, step, facts);
  const int range = options.range > 0 ? options.range : facts.grey_range;
  const bool coloured = !is_grey(reader) && !indexed;
  // Pillow clips grey with 16 bits, but takes the high byte of grey with alpha.
  const bool scales = deep_grey && (range != 65'535 || reader.colour_type == PNG_COLOR_TYPE_GRAY);
  for (size_t i = 0; i < width * height; ++i) {
    uint8_t* rgb = image.pixels.data() + 3 * i;
    const uint8_t* from = stored.data() + step * i;
    if (coloured) {
      std::memcpy(rgb, from, 3);
    } else if (indexed) {
      std::memcpy(rgb, palette.rgb[*from], 3);
    } else if (scales) {
      std::memset(rgb, std::min((255 * big_endian(from) + range / 2) / range, 255), 3);
    } else {
      std::memset(rgb, *from, 3);
    }
  }
  if (!options.keep_alpha || (channels == 1 && !indexed)) return image;
  image.alpha.resize(width * height);
  for (size_t i = 0; i < image.alpha.size(); ++i) {
    const uint8_t* from = stored.data() + step * i;
    image.alpha[i] = indexed ? palette.alpha[*from] : from[step - bytes];
  }
  return image;
}

std::optional<PngHeader> png_header(std::string_view content) {
  Reader reader(content);
  if (!read_header(reader)) return std::nullopt;
  return PngHeader{reader.width, reader.height, stored_channels(reader.colour_type)};
}

std::string encode_png(const Image& image) {
  std::vector<uint8_t> with_alpha;
  with_alpha.reserve(4 * image.alpha.size());
  for (size_t i = 0; i < image.alpha.size(); ++i) {
    const uint8_t* rgb = &image.pixels[3 * i];
    with_alpha.insert(with_alpha.end(), {rgb[0], rgb[1], rgb[2], image.alpha[i]});
  }
  png_image form{};
  form.version = PNG_IMAGE_VERSION;
  form.width = static_cast<png_uint_32>(image.width);
  form.height = static_cast<png_uint_32>(image.height);
  form.format = image.alpha.empty() ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
  const std::vector<uint8_t>& pixels = image.alpha.empty() ? image.pixels : with_alpha;
  // The macro leaves out the filter's byte of each row.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(form) + 2 * png_alloc_size_t{form.height};
  std::string file(size, '\0');
  if (png_image_write_to_memory(&form, file.data(), &size, 0, pixels.data(), 0, nullptr) == 0) {
    throw DataError(
        "a {}x{} picture cannot be stored as PNG: {}", image.width, image.height, form.message);
  }
  file.resize(size);
  return file;
}

}  // namespace dalle2
