// SPDX-License-Identifier: MIT
// JPEG through libjpeg-turbo with its default DCT and upsampling, which are Pillow's bit for bit.
#include "base/error.h"
#include "io/image_codecs.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <jpeglib.h>

#include <jerror.h>

namespace dalle2 {
namespace {

constexpr int kMostScans = 1000;  // a few bytes a scan could keep a decoder busy for hours

/// libjpeg reports an error by a jump, so no frame between setjmp and libjpeg may own anything.
struct ErrorState {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

void on_error(j_common_ptr info) {
  ErrorState* state = reinterpret_cast<ErrorState*>(info->err);
  info->err->format_message(info, state->message);
  std::longjmp(state->jump, 1);
}

void on_warning(j_common_ptr, int) {
}  // damaged entropy data is shown as far as it goes, as in Pillow

void install(ErrorState& state, jpeg_error_mgr*& place) {
  place = jpeg_std_error(&state.manager);
  state.manager.error_exit = on_error;
  state.manager.emit_message = on_warning;
  state.message[0] = '\0';
}

void source_nothing(j_decompress_ptr) {}

/// The whole file lies in memory, so a request for more means that it was cut.
boolean source_exhausted(j_decompress_ptr info) {
  ErrorState* state = reinterpret_cast<ErrorState*>(info->err);
  std::snprintf(state->message, sizeof(state->message), "truncated");
  std::longjmp(state->jump, 1);
}

void source_skip(j_decompress_ptr info, long count) {
  if (count <= 0) {
    return;
  }
  if (static_cast<size_t>(count) > info->src->bytes_in_buffer) {
    source_exhausted(info);
  }
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<size_t>(count);
}

void limit_scans(j_common_ptr info) {
  if (info->is_decompressor &&
      reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMostScans) {
    ErrorState* state = reinterpret_cast<ErrorState*>(info->err);
    std::snprintf(state->message, sizeof(state->message), "more than %d scans", kMostScans);
    std::longjmp(state->jump, 1);
  }
}

struct Decompressor {
  jpeg_decompress_struct info{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  ErrorState error{};

  explicit Decompressor(const std::string& content) {
    install(error, info.err);
    jpeg_create_decompress(&info);
    source.next_input_byte = reinterpret_cast<const JOCTET*>(content.data());
    source.bytes_in_buffer = content.size();
    source.init_source = source_nothing;
    source.fill_input_buffer = source_exhausted;
    source.skip_input_data = source_skip;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = source_nothing;
    info.src = &source;
    progress.progress_monitor = limit_scans;
    info.progress = &progress;
  }
  ~Decompressor() { jpeg_destroy_decompress(&info); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
};

bool read_header(Decompressor& decompressor) {
  if (setjmp(decompressor.error.jump) != 0) {
    return false;
  }
  jpeg_read_header(&decompressor.info, TRUE);
  return true;
}

/// Rows of `components` bytes a pixel into `pixels`.
bool read_rows(Decompressor& decompressor,
               J_COLOR_SPACE colour_space,
               uint8_t* pixels,
               int components) {
  if (setjmp(decompressor.error.jump) != 0) {
    return false;
  }
  jpeg_decompress_struct& info = decompressor.info;
  info.out_color_space = colour_space;
  jpeg_start_decompress(&info);
  const size_t stride = static_cast<size_t>(info.output_width) * static_cast<size_t>(components);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(
      &info);  // asks for the end marker: without it Pillow calls a file truncated
  return true;
}

/// a * b / 255, rounded.
uint8_t multiply_255(int a, int b) {
  const int product = a * b + 128;
  return static_cast<uint8_t>(((product >> 8) + product) >> 8);
}

/// Pillow takes every four-channel JPEG as Adobe's, which are stored inverted: 255 - ink.
void rgb_from_inverted_cmyk(const uint8_t* inverted, uint8_t* rgb, size_t pixels) {
  for (size_t i = 0; i < pixels; ++i) {
    const int white = inverted[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const int ink = 255 - inverted[4 * i + c];
      const int value = white - multiply_255(ink, white);
      rgb[3 * i + c] = static_cast<uint8_t>(value < 0 ? 0 : value);
    }
  }
}

struct Compressor {
  jpeg_compress_struct info{};
  ErrorState error{};
  unsigned char* buffer = nullptr;
  unsigned long size = 0;

  Compressor() {
    install(error, info.err);
    jpeg_create_compress(&info);
  }
  ~Compressor() {
    jpeg_destroy_compress(&info);
    std::free(buffer);
  }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
};

bool compress(Compressor& compressor, const Image& image, int quality) {
  if (setjmp(compressor.error.jump) != 0) {
    return false;
  }
  jpeg_compress_struct& info = compressor.info;
  jpeg_mem_dest(&info, &compressor.buffer, &compressor.size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  // Colour at full resolution: small pictures are all edges.
  info.comp_info[0].h_samp_factor = 1;
  info.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(image.pixels.data()) +
                   size_t{3} * info.image_width * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Image decode_jpeg(const std::string& content, const std::string& origin) {
  Decompressor decompressor(content);
  const jpeg_decompress_struct& info = decompressor.info;
  if (!read_header(decompressor)) {
    throw DataError("{}: damaged JPEG: {}", origin, decompressor.error.message);
  }
  check_image_size(info.image_width, info.image_height, origin);
  if (info.num_components != 1 && info.num_components != 3 && info.num_components != 4) {
    throw DataError("{}: a JPEG of {} channels; expected 1, 3 or 4", origin, info.num_components);
  }
  Image image;
  image.width = static_cast<int>(info.image_width);
  image.height = static_cast<int>(info.image_height);
  const size_t count = static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  image.pixels.resize(3 * count);
  bool whole = false;
  if (info.num_components == 4) {
    std::vector<uint8_t> inverted(4 * count);
    whole = read_rows(decompressor, JCS_CMYK, inverted.data(), 4);
    rgb_from_inverted_cmyk(inverted.data(), image.pixels.data(), count);
  } else {
    whole = read_rows(decompressor, JCS_RGB, image.pixels.data(), 3);  // grey becomes R = G = B
  }
  if (!whole) {
    throw DataError("{}: damaged JPEG of {}x{}: {}",
                    origin,
                    image.width,
                    image.height,
                    decompressor.error.message);
  }
  return image;
}

std::string encode_jpeg(const Image& image, int quality) {
  Compressor compressor;
  if (!compress(compressor, image, quality)) {
    throw DataError("a {}x{} picture cannot be stored as JPEG: {}",
                    image.width,
                    image.height,
                    compressor.error.message);
  }
  return {reinterpret_cast<const char*>(compressor.buffer), compressor.size};
}

}  // namespace dalle2
