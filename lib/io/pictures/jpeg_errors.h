// SPDX-License-Identifier: MIT
// How libjpeg tells of errors. Internal to lib/io.
#pragma once

#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

namespace dalle2 {

/// libjpeg reports an error by a jump, so no frame between setjmp and libjpeg may own anything.
struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];

  /// To be given as `err` to libjpeg.
  jpeg_error_mgr* install() {
    jpeg_error_mgr* place = jpeg_std_error(&manager);
    manager.error_exit = on_error;
    manager.emit_message = on_warning;
    message[0] = '\0';
    return place;
  }

 private:
  static void on_error(j_common_ptr info) {
    JpegErrors* errors = reinterpret_cast<JpegErrors*>(info->err);
    info->err->format_message(info, errors->message);
    std::longjmp(errors->jump, 1);
  }
  /// Damaged entropy data is shown as far as it goes, as in Pillow.
  static void on_warning(j_common_ptr, int) {}
};

}  // namespace dalle2
