// SPDX-License-Identifier: MIT
#include "io/library_versions.h"

#include <archive.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <png.h>
#include <webp/decode.h>
#include <zlib.h>

#include <cstdio>  // which jpeglib.h needs
#include <opencv2/core/utility.hpp>
#include <protozero/version.hpp>

#include <jpeglib.h>

namespace dalle2 {
namespace {

/// Neither library of the two tells at run time.
std::string jpeg_version() {
#ifdef LIBJPEG_TURBO_VERSION_NUMBER
  return fmt::format("libjpeg-turbo {}.{}.{}",
                     LIBJPEG_TURBO_VERSION_NUMBER / 1000000,
                     LIBJPEG_TURBO_VERSION_NUMBER / 1000 % 1000,
                     LIBJPEG_TURBO_VERSION_NUMBER % 1000);
#else
  return fmt::format("libjpeg {}", JPEG_LIB_VERSION);
#endif
}

}  // namespace

std::string io_library_versions() {
  const std::string archive = archive_version_string();  // "libarchive 3.6.2"
  const int webp = WebPGetDecoderVersion();              // 0xMMmmpp
  return fmt::format(
      "{}, libdeflate {}, {}, libpng {}, libwebp {}.{}.{}, OpenCV {}, protozero {}, zlib {}",
      archive,
      LIBDEFLATE_VERSION_STRING,
      jpeg_version(),
      png_get_libpng_ver(nullptr),
      webp >> 16,
      webp >> 8 & 0xff,
      webp & 0xff,
      cv::getVersionString(),
      PROTOZERO_VERSION_STRING,
      zlibVersion());
}

}  // namespace dalle2
