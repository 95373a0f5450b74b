// SPDX-License-Identifier: MIT
// PNG through libpng; to RGB as Pillow's convert("RGB").
#include "base/error.h"
#include "io/pictures/image_codecs.h"

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

  explicit Reader(const std::string& content) : next(content.data()), left(content.size()) {
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

/// The stored channels, one byte each (palette: the index; 16 bits: the high byte, or both).
bool read_rows(Reader& reader, png_bytep* rows, bool high_byte) {
  if (setjmp(reader.error.jump) != 0) return false;
  if (reader.colour_type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.handle);
  if (reader.depth == 16 && high_byte) png_set_strip_16(reader.handle);
  png_set_packing(reader.handle);
  png_set_interlace_handling(reader.handle);
  png_read_update_info(reader.handle, reader.info);
  png_read_image(reader.handle, rows);
  return true;
}

int stored_channels(int colour_type) {
  switch (colour_type) {
    case PNG_COLOR_TYPE_GRAY_ALPHA:
      return 2;
    case PNG_COLOR_TYPE_RGB:
      return 3;
    case PNG_COLOR_TYPE_RGB_ALPHA:
      return 4;
    default:
      return 1;
  }
}

/// Colours of the indices; those beyond the file's palette are black, as in Pillow.
struct Palette {
  uint8_t rgb[256][3];
};

Palette read_palette(Reader& reader) {
  Palette palette{};
  png_colorp colours = nullptr;
  int count = 0;
  if (png_get_PLTE(reader.handle, reader.info, &colours, &count) != 0) {
    for (int i = 0; i < count && i < 256; ++i) {
      palette.rgb[i][0] = colours[i].red;
      palette.rgb[i][1] = colours[i].green;
      palette.rgb[i][2] = colours[i].blue;
    }
  }
  return palette;
}

void append_bytes(png_structp handle, png_bytep data, size_t size) {
  static_cast<std::string*>(png_get_io_ptr(handle))
      ->append(reinterpret_cast<const char*>(data), size);
}

void flush_nothing(png_structp) {}

bool write_rows(
    png_structp handle, png_infop info, ErrorState& error, const Image& image, std::string& file) {
  if (setjmp(error.jump) != 0) return false;
  png_set_write_fn(handle, &file, append_bytes, flush_nothing);
  png_set_IHDR(handle,
               info,
               static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height),
               8,
               PNG_COLOR_TYPE_RGB,
               PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(handle, info);
  const size_t stride = 3 * static_cast<size_t>(image.width);
  for (int y = 0; y < image.height; ++y) {
    png_write_row(handle, image.pixels.data() + static_cast<size_t>(y) * stride);
  }
  png_write_end(handle, nullptr);
  return true;
}

}  // namespace

Image decode_png(const std::string& content, const std::string& origin) {
  Reader reader(content);
  if (!read_header(reader)) throw DataError("{}: damaged PNG: {}", origin, reader.error.message);
  check_image_size(reader.width, reader.height, origin);
  const size_t width = reader.width, height = reader.height;
  const size_t channels = static_cast<size_t>(stored_channels(reader.colour_type));
  const bool deep_grey = reader.depth == 16 && reader.colour_type == PNG_COLOR_TYPE_GRAY;
  const size_t stride = width * channels * (deep_grey ? 2 : 1);
  std::vector<uint8_t> stored(stride * height);
  std::vector<png_bytep> rows(height);
  for (size_t y = 0; y < height; ++y) rows[y] = stored.data() + y * stride;
  if (!read_rows(reader, rows.data(), /*high_byte=*/!deep_grey)) {
    throw DataError("{}: damaged PNG of {}x{}: {}", origin, width, height, reader.error.message);
  }
  Image image;
  image.width = static_cast<int>(width);
  image.height = static_cast<int>(height);
  if (channels == 3) {
    image.pixels = std::move(stored);
    return image;
  }
  image.pixels.resize(3 * width * height);
  const bool indexed = reader.colour_type == PNG_COLOR_TYPE_PALETTE;
  const Palette palette = read_palette(reader);
  for (size_t i = 0; i < width * height; ++i) {
    uint8_t* rgb = image.pixels.data() + 3 * i;
    if (channels == 4) {
      std::memcpy(rgb, stored.data() + 4 * i, 3);  // alpha is dropped, not blended
    } else if (indexed) {
      std::memcpy(rgb, palette.rgb[stored[i]], 3);
    } else if (deep_grey) {
      // Pillow clips a 16-bit grey to 255 instead of scaling it.
      std::memset(rgb, stored[2 * i] != 0 ? 255 : stored[2 * i + 1], 3);
    } else {
      std::memset(rgb, stored[channels * i], 3);
    }
  }
  return image;
}

std::string encode_png(const Image& image) {
  ErrorState error;
  std::string file;
  png_structp handle = png_create_write_struct(PNG_LIBPNG_VER_STRING, &error, on_error, on_warning);
  png_infop info = handle != nullptr ? png_create_info_struct(handle) : nullptr;
  const bool whole = info != nullptr && write_rows(handle, info, error, image, file);
  png_destroy_write_struct(&handle, &info);
  if (!whole) {
    throw DataError(
        "a {}x{} picture cannot be stored as PNG: {}", image.width, image.height, error.message);
  }
  return file;
}

}  // namespace dalle2
