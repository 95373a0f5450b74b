// SPDX-License-Identifier: MIT
// JPEG through libjpeg-turbo with its default DCT and upsampling, which are Pillow's bit for bit.
// Of a crop only what it needs is transformed, and what lies below it is not even unpacked.
#include "base/error.h"
#include "io/pictures/image_codecs.h"
#include "io/pictures/resample.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

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

namespace {

constexpr int kMostScans = 1000;  // a few bytes a scan could keep a decoder busy for hours
constexpr int kStripRows = 16;    // what is decoded at a time, so that it stays in the cache
// libjpeg-turbo decodes Huffman codes its fast way only where 512 bytes a block are left, of up to
// ten blocks: without bytes behind the file, a good part of a small picture goes the slow way.
constexpr size_t kFastTail = 512 * 10;
constexpr size_t kMostToPad = 1 << 20;  // bytes; in a longer file the tail does not matter

void source_nothing(j_decompress_ptr) {}

/// The whole file lies in memory, so a request for more means that it was cut.
boolean source_exhausted(j_decompress_ptr info) {
  JpegErrors* errors = reinterpret_cast<JpegErrors*>(info->err);
  std::snprintf(errors->message, sizeof(errors->message), "truncated");
  std::longjmp(errors->jump, 1);
}

void source_skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<size_t>(count) > info->src->bytes_in_buffer) source_exhausted(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<size_t>(count);
}

void limit_scans(j_common_ptr info) {
  if (info->is_decompressor &&
      reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMostScans) {
    JpegErrors* errors = reinterpret_cast<JpegErrors*>(info->err);
    std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMostScans);
    std::longjmp(errors->jump, 1);
  }
}

/// The part of the output that libjpeg delivers: more than the box on the left, where it can only
/// cut between blocks.
struct Window {
  JDIMENSION left = 0, width = 0, bottom = 0;
};

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

struct JpegReader::State {
  jpeg_decompress_struct info{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  JpegErrors errors{};
  const std::string& content;
  std::string origin;
  const JOCTET* end = nullptr;  // of the file's bytes: what lies behind is padding

  State(const std::string& bytes, std::string name) : content(bytes), origin(std::move(name)) {
    info.err = errors.install();
    jpeg_create_decompress(&info);
    source.next_input_byte = reinterpret_cast<const JOCTET*>(content.data());
    source.bytes_in_buffer = content.size();
    end = source.next_input_byte + content.size();
    source.init_source = source_nothing;
    source.fill_input_buffer = source_exhausted;
    source.skip_input_data = source_skip;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = source_nothing;
    info.src = &source;
    progress.progress_monitor = limit_scans;
    info.progress = &progress;
  }
  ~State() { jpeg_destroy_decompress(&info); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool read_header();
  bool start(const CropBox& box, int denominator, Window& window);
  bool read_rows(JSAMPARRAY rows, JDIMENSION most);
  bool finish();
  bool ends_well();
  bool may_read_a_part() const;
  void pad();
  void check_inside();
  [[noreturn]] void refuse() const;
};

bool JpegReader::State::read_header() {
  if (setjmp(errors.jump) != 0) return false;
  jpeg_read_header(&info, TRUE);
  return true;
}

/// Smoothing of a progressive file with missing scans looks beyond the part; other samplings and
/// codings than the usual ones are rare and not worth a proof.
bool JpegReader::State::may_read_a_part() const {
  if (info.arith_code || info.max_h_samp_factor > 2 || info.max_v_samp_factor > 2) return false;
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info& component = info.comp_info[i];
    if (info.max_h_samp_factor % component.h_samp_factor != 0 ||
        info.max_v_samp_factor % component.v_samp_factor != 0) {
      return false;
    }
    for (int k = 0; info.progressive_mode && k < DCTSIZE2; ++k) {
      if (info.coef_bits[i][k] != 0) return false;
    }
  }
  return true;
}

/// Moves the coded pixels to where end markers follow them.
void JpegReader::State::pad() {
  const size_t left = source.bytes_in_buffer;
  if (jpeg_has_multiple_scans(&info) != 0 || left > kMostToPad) return;
  static const std::vector<JOCTET> tail = [] {
    std::vector<JOCTET> markers(kFastTail, 0xff);
    for (size_t i = 1; i < kFastTail; i += 2) markers[i] = JPEG_EOI;
    return markers;
  }();
  thread_local std::vector<JOCTET> padded;
  if (padded.size() < left + kFastTail) padded.resize(left + kFastTail);
  std::memcpy(padded.data(), source.next_input_byte, left);
  std::memcpy(padded.data() + left, tail.data(), kFastTail);
  source.next_input_byte = padded.data();
  source.bytes_in_buffer = left + kFastTail;
  end = padded.data() + left;
}

/// The end marker has to be the file's own.
void JpegReader::State::check_inside() {
  if (source.next_input_byte > end) source_exhausted(&info);
}

/// Up to the first row of the box.
bool JpegReader::State::start(const CropBox& box, int denominator, Window& window) {
  if (setjmp(errors.jump) != 0) return false;
  info.out_color_space = info.num_components == 4 ? JCS_CMYK : JCS_RGB;  // grey becomes R = G = B
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(denominator);
  jpeg_start_decompress(&info);
  pad();
  window = {0, info.output_width, info.output_height};
  if (!may_read_a_part()) return true;
  // Interpolated colour looks one of its pixels, two of the picture's, to each side.
  constexpr JDIMENSION kMargin = 2;
  const JDIMENSION box_left = static_cast<JDIMENSION>(box.left);
  const JDIMENSION right = static_cast<JDIMENSION>(box.left + box.width);
  window.left = box_left - std::min(box_left, kMargin);
  window.width = std::min(right + kMargin, info.output_width) - window.left;
  if (window.width < info.output_width) jpeg_crop_scanline(&info, &window.left, &window.width);
  const JDIMENSION box_top = static_cast<JDIMENSION>(box.top);
  if (box_top > kMargin) {
    jpeg_skip_scanlines(&info, box_top - kMargin);
    check_inside();
  }
  window.bottom = static_cast<JDIMENSION>(box.top + box.height);
  return true;
}

bool JpegReader::State::read_rows(JSAMPARRAY rows, JDIMENSION most) {
  if (setjmp(errors.jump) != 0) return false;
  JDIMENSION got = 0;
  while (got < most) got += jpeg_read_scanlines(&info, rows + got, most - got);
  check_inside();
  return true;
}

/// Asks for the end marker: without it Pillow calls a file truncated.
bool JpegReader::State::finish() {
  if (setjmp(errors.jump) != 0) return false;
  jpeg_finish_decompress(&info);
  check_inside();
  return true;
}

/// Whether nothing but coded pixels and the end marker follow, so that to decode them would change
/// nothing.
bool JpegReader::State::ends_well() {
  if (jpeg_has_multiple_scans(&info) != 0) {
    return true;  // all was read before the first row
  }
  int marker = info.unread_marker;
  const JOCTET* next = source.next_input_byte;
  while (marker == 0 || (marker >= JPEG_RST0 && marker <= JPEG_RST0 + 7)) {
    next = static_cast<const JOCTET*>(std::memchr(next, 0xff, static_cast<size_t>(end - next)));
    while (next != nullptr && next < end && *next == 0xff) ++next;
    if (next == nullptr || next == end) return false;
    marker = *next++;  // 0 is a coded 0xff
  }
  return marker == JPEG_EOI;
}

void JpegReader::State::refuse() const {
  throw DataError(
      "{}: damaged JPEG of {}x{}: {}", origin, info.image_width, info.image_height, errors.message);
}

JpegReader::JpegReader(const std::string& content, const std::string& origin)
    : state_(std::make_unique<State>(content, origin)) {
  const jpeg_decompress_struct& info = state_->info;
  if (!state_->read_header()) {
    throw DataError("{}: damaged JPEG: {}", origin, state_->errors.message);
  }
  check_image_size(info.image_width, info.image_height, origin);
  if (info.num_components != 1 && info.num_components != 3 && info.num_components != 4) {
    throw DataError("{}: a JPEG of {} channels; expected 1, 3 or 4", origin, info.num_components);
  }
}

JpegReader::~JpegReader() = default;

bool JpegReader::is_grey() const {
  return state_->info.num_components == 1;
}

int JpegReader::width() const {
  return static_cast<int>(state_->info.image_width);
}
int JpegReader::height() const {
  return static_cast<int>(state_->info.image_height);
}

void JpegReader::read(const CropBox& box, int denominator, const RowSink& sink) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  Window window;
  if (!state.start(box, denominator, window)) state.refuse();
  const bool cmyk = info.num_components == 4;
  const size_t channels = cmyk ? 4 : 3;
  const size_t stride = channels * info.output_width + kReadAhead;
  thread_local std::vector<uint8_t> strip, rgb;
  strip.resize(stride * kStripRows + kReadAhead);
  JSAMPROW rows[kStripRows];
  for (size_t y = 0; y < kStripRows; ++y) rows[y] = strip.data() + y * stride;
  const size_t inside = static_cast<size_t>(box.left) - window.left;
  const int bottom = static_cast<int>(window.bottom);
  while (static_cast<int>(info.output_scanline) < bottom) {
    const int first = static_cast<int>(info.output_scanline);
    const int count = std::min(kStripRows, bottom - first);
    if (!state.read_rows(rows, static_cast<JDIMENSION>(count))) state.refuse();
    const int begin = std::max(first, box.top), end = std::min(first + count, box.top + box.height);
    if (begin >= end) continue;
    const uint8_t* from = rows[begin - first] + channels * inside;
    if (!cmyk) {
      sink(from, stride, end - begin);
      continue;
    }
    const size_t rgb_stride = 3 * static_cast<size_t>(box.width) + kReadAhead;
    rgb.resize(rgb_stride * kStripRows);
    for (size_t y = 0; y < static_cast<size_t>(end - begin); ++y) {
      rgb_from_inverted_cmyk(
          from + y * stride, rgb.data() + y * rgb_stride, static_cast<size_t>(box.width));
    }
    sink(rgb.data(), rgb_stride, end - begin);
  }
  if (info.output_scanline < info.output_height) {
    if (state.ends_well()) return;
    // Something is odd after the box: libjpeg says whether it is an error.
    while (info.output_scanline < info.output_height) {
      if (!state.read_rows(rows, 1)) state.refuse();
    }
  }
  if (!state.finish()) state.refuse();
}

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
