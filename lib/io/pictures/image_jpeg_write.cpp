// SPDX-License-Identifier: MIT
#include "base/error.h"
#include "io/pictures/image.h"
#include "io/pictures/jpeg_errors.h"

#include <cstdlib>

namespace dalle2 {
namespace {

struct Compressor {
  jpeg_compress_struct info{};
  JpegErrors errors{};
  unsigned char* buffer = nullptr;
  unsigned long size = 0;

  Compressor() {
    info.err = errors.install();
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
  if (setjmp(compressor.errors.jump) != 0) return false;
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

std::string encode_jpeg(const Image& image, int quality) {
  if (!image.alpha.empty()) {
    Image on_white = image;
    lay_on(on_white, {255, 255, 255});
    return encode_jpeg(on_white, quality);
  }
  Compressor compressor;
  if (!compress(compressor, image, quality)) {
    throw DataError("a {}x{} picture cannot be stored as JPEG: {}",
                    image.width,
                    image.height,
                    compressor.errors.message);
  }
  return {reinterpret_cast<const char*>(compressor.buffer), compressor.size};
}

}  // namespace dalle2
