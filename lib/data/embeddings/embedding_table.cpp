// SPDX-License-Identifier: MIT
#include "data/embeddings/embedding_table.h"

#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/hash.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "io/files/folder_names.h"
#include "io/files/listing.h"
#include "io/files/walk_folder.h"
#include "io/streams/url_source.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// [from, from + size) of an open file; fewer bytes at its end.
std::string bytes_of(std::ifstream& file, const std::string& path, uint64_t from, uint64_t size) {
  std::string bytes(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(from));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (file.bad() || (file.fail() && !file.eof()))
    throw DataError("{}: cannot be read: {}", path, errno_text(errno));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

/// Bytes of remote rows that are fetched at a time, unless more are asked for.
constexpr uint64_t kFetchedBytes = uint64_t{4} << 20;

/// The beginning of a file, enough for its header, and its size.
RemotePart beginning_of(const std::string& path) {
  if (!is_local_url(path)) return fetch_part(path, 0, kMostNpyHeader);
  std::error_code error;
  const uint64_t size = fs::file_size(local_path(path), error);
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  std::ifstream file(local_path(path), std::ios::binary);
  return {bytes_of(file, path, 0, kMostNpyHeader), size};
}

/// @return paths or urls
std::vector<std::string> files_of_table(const std::string& folder, const std::string& key) {
  if (is_local_url(folder)) return table_files(local_path(folder), key, {".npy"});
  std::vector<ListedFile> listed = list_folder(folder);
  std::ranges::sort(listed, {}, &ListedFile::name);
  std::vector<std::string> urls;
  for (const ListedFile& file : listed) {
    if (file.name.ends_with(".npy")) urls.push_back(file.url);
  }
  return urls;
}

bool fits(const std::vector<int64_t>& row, const std::vector<int64_t>& wanted) {
  return std::ranges::equal(
      row, wanted, [](int64_t size, int64_t want) { return want == 0 || size == want; });
}

std::string wanted_text(const std::vector<int64_t>& wanted) {
  std::string text = "[rows";
  for (const int64_t size : wanted) text += ", " + (size == 0 ? "length" : std::to_string(size));
  return text + "]";
}

struct Slot {
  int64_t unit, offset;  // which one, and the place in it
};

/// Where a place lies in units of `full` places, but for one that has fewer.
Slot slot_of(int64_t place, int64_t full, int64_t short_unit, int64_t short_size) {
  if (place < short_unit * full) return {place / full, place % full};
  place -= short_unit * full;
  if (place < short_size) return {short_unit, place};
  place -= short_size;
  return {short_unit + 1 + place / full, place % full};
}

/// 7 of "folder/img_emb_7.npy"; none without a number at the end.
std::optional<int64_t> number_of_name(const std::string& path) {
  const std::string stem = fs::path(path.substr(0, path.find('?'))).stem().string();
  return number_of_digits(stem.substr(stem.find_last_not_of("0123456789") + 1));
}

using Numbers = std::vector<std::optional<int64_t>>;

Numbers numbers_of(const std::vector<TableFile>& files) {
  Numbers numbers;
  for (const TableFile& file : files) numbers.push_back(number_of_name(file.path));
  return numbers;
}

bool has_unnumbered(const Numbers& numbers) {
  return std::ranges::any_of(numbers, [](const auto& number) { return !number; });
}

Numbers sorted(Numbers numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

/// Whether each file of a number that is on both sides has as many rows on both, there is such a pair, and no number comes twice.
/// @param alone set to the first file without a partner
bool pairs_agree(const std::vector<TableFile>& files,
                 const Numbers& numbers,
                 const std::vector<TableFile>& other_files,
                 const Numbers& other_numbers,
                 const TableFile*& alone) {
  bool has_pair = false;
  for (size_t i = 0; i < files.size(); ++i) {
    if (std::ranges::count(numbers, numbers[i]) > 1) return false;
    const auto partner = std::ranges::find(other_numbers, numbers[i]);
    if (partner == other_numbers.end()) {
      if (alone == nullptr) alone = &files[i];
      continue;
    }
    has_pair = true;
    if (other_files[static_cast<size_t>(partner - other_numbers.begin())].rows != files[i].rows)
      return false;
  }
  return has_pair;
}

}  // namespace

EmbeddingTable::EmbeddingTable(const std::string& folder,
                               const std::string& key,
                               const std::vector<int64_t>& row_shape,
                               const WidthAdvice& on_other_width)
    : key_(key), is_remote_(!is_local_url(folder)) {
  for (const std::string& path : files_of_table(folder, key))
    add_file(path, row_shape_.empty() ? row_shape : row_shape_, on_other_width);
  if (rows_ == 0) {
    throw DataError("{}: expected .npy files with rows in '{}'{}, found none",
                    key,
                    public_url(folder),
                    is_local_url(folder) ? " or below it" : "");
  }
}

std::vector<TableFile> EmbeddingTable::files() const {
  std::vector<TableFile> files;
  for (const File& file : files_) files.push_back({file.path, file.layout.shape.at(0)});
  return files;
}

void EmbeddingTable::add_file(const std::string& path,
                              const std::vector<int64_t>& wanted,
                              const WidthAdvice& on_other_width) {
  const RemotePart begin = beginning_of(path);
  const std::string shown = public_url(path);
  const NpyLayout layout = parse_npy_layout(begin.bytes, begin.file_size, shown);
  const bool floats = layout.type == NpyType::kFloat16 || layout.type == NpyType::kFloat32 ||
                      layout.type == NpyType::kFloat64;
  const std::vector<int64_t> row =
      layout.shape.empty() ? layout.shape
                           : std::vector<int64_t>(layout.shape.begin() + 1, layout.shape.end());
  if (!floats || layout.shape.empty() || !fits(row, wanted) || layout.fortran_order) {
    const bool is_other_width = on_other_width && row_shape_.empty() && floats &&
                                !layout.fortran_order && !row.empty() &&
                                row.size() == wanted.size() && row.back() != wanted.back();
    throw DataError(
        "{}: {}: expected {} of float16, float32 or float64 in C order, got {}{}{}{}",
        shown,
        key_,
        wanted_text(wanted),
        shape_text(layout.shape),
        floats ? "" : " of another type",
        layout.fortran_order ? " in Fortran order (numpy.ascontiguousarray makes C order)" : "",
        is_other_width ? "\n  " + on_other_width(row.back()) : "");
  }
  if (layout.shape[0] == 0) return;
  row_shape_ = row;
  row_numel_ = c10::multiply_integers(row);
  row_bytes_ = std::max(row_bytes_, static_cast<uint64_t>(row_numel_) * npy_item_size(layout.type));
  files_.push_back({path, layout, rows_, begin.file_size, begin.state});
  rows_ += layout.shape[0];
}

std::string EmbeddingTable::local_bytes(const File& file, uint64_t from, uint64_t size) const {
  if (opened_.file != &file) {
    opened_ = {};
    opened_.stream.rdbuf()->pubsetbuf(nullptr, 0);  // rows far apart: nothing is read for later
    opened_.stream.open(local_path(file.path), std::ios::binary);
    if (opened_.stream.is_open()) opened_.file = &file;
  }
  return bytes_of(opened_.stream, file.path, from, size);
}

/// A server that tells no state changes files unseen if their size stays.
void EmbeddingTable::check_same_file(const File& file, const RemotePart& part) {
  constexpr const char* kAdvice =
      "Rows of two versions do not belong together: begin a new run with the new file, or put the old "
      "one back.";
  if (part.file_size != file.size) {
    throw DataError("{}: has {} bytes now, and had {} when the run began\n  {}",
                    public_url(file.path),
                    part.file_size,
                    file.size,
                    kAdvice);
  }
  if (part.state.empty() || file.state.empty() || part.state == file.state) return;
  throw DataError(
      "{}: the server has another file there than when the run began: its ETag or time is {}, and was "
      "{}\n  {}",
      public_url(file.path),
      one_line(part.state),
      one_line(file.state),
      kAdvice);
}

/// [from, from + size) of a file; fewer bytes if it has become shorter.
/// @param fetched bytes of a remote file that are fetched, if more
std::string EmbeddingTable::bytes_of_rows(const File& file,
                                          uint64_t from,
                                          uint64_t size,
                                          uint64_t fetched) const {
  if (!is_remote_) return local_bytes(file, from, size);
  const bool is_there = fetched_.file == &file && from >= fetched_.from &&
                        from + size <= fetched_.from + fetched_.bytes.size();
  if (!is_there) {
    RemotePart part = fetch_part(file.path, from, std::max(size, fetched));
    check_same_file(file, part);
    fetched_ = {&file, from, std::move(part.bytes)};
  }
  return fetched_.bytes.substr(from - fetched_.from, size);
}

std::vector<float> EmbeddingTable::read_rows(const File& file,
                                             int64_t first,
                                             int64_t count,
                                             uint64_t fetched) const {
  const uint64_t row_bytes = static_cast<uint64_t>(row_numel_) * npy_item_size(file.layout.type);
  const uint64_t from = file.layout.data_begin + static_cast<uint64_t>(first) * row_bytes;
  NpyArray rows;
  rows.type = file.layout.type;
  rows.shape = {count, row_numel_};
  rows.bytes = bytes_of_rows(file, from, static_cast<uint64_t>(count) * row_bytes, fetched);
  if (rows.bytes.size() != static_cast<size_t>(count) * row_bytes) {
    throw DataError("{}: the file is shorter than when the run began: it broke off at row {}",
                    public_url(file.path),
                    first + static_cast<int64_t>(rows.bytes.size() / row_bytes));
  }
  return rows.to_float32();
}

at::Tensor EmbeddingTable::read(int64_t first, int64_t count) const {
  return read(first, count, kFetchedBytes);
}

at::Tensor EmbeddingTable::gather(const std::vector<int64_t>& rows, int64_t block_rows) const {
  std::vector<int64_t> shape = {std::ssize(rows)};
  shape.insert(shape.end(), row_shape_.begin(), row_shape_.end());
  at::Tensor out = at::empty(shape, at::kFloat);
  // By row, so that each file is opened once, and its disk goes one way.
  std::vector<int64_t> by_row(rows.size());
  std::iota(by_row.begin(), by_row.end(), 0);
  std::ranges::sort(by_row, {}, [&](int64_t i) { return rows[static_cast<size_t>(i)]; });
  ++gathers_;
  for (const int64_t place : by_row) {
    const int64_t row = rows[static_cast<size_t>(place)];
    out[place].copy_(is_remote_ ? block(row / block_rows, block_rows)[row % block_rows]
                                : read(row, 1, 0)[0]);
  }
  drop_blocks();
  return out;
}

const at::Tensor& EmbeddingTable::block(int64_t number, int64_t block_rows) const {
  auto found = blocks_.find(number);
  if (found == blocks_.end()) {
    const int64_t first = number * block_rows;
    const at::Tensor rows = read(first, std::min(block_rows, rows_ - first), /*fetched=*/0);
    found = blocks_.emplace(number, Block{rows}).first;
  }
  found->second.used = gathers_;
  return found->second.rows;
}

/// Where one group of blocks ends and the next begins, the rows of a batch need both.
void EmbeddingTable::drop_blocks() const {
  while (std::ssize(blocks_) > RowOrder::kMixedBlocks) {
    const auto oldest =
        std::ranges::min_element(blocks_, {}, [](const auto& each) { return each.second.used; });
    if (oldest->second.used == gathers_) return;
    blocks_.erase(oldest);
  }
}

at::Tensor EmbeddingTable::read(int64_t first, int64_t count, uint64_t fetched) const {
  D2_CHECK(first >= 0 && count >= 0 && first + count <= rows_, "rows {} + {}", first, count);
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), row_shape_.begin(), row_shape_.end());
  const at::Tensor out = at::empty(shape, at::kFloat);
  float* to = out.data_ptr<float>();
  auto file = std::prev(std::ranges::upper_bound(files_, first, {}, &File::first_row));
  for (int64_t row = first; row < first + count; ++file) {
    const int64_t in_file = row - file->first_row;
    const int64_t part = std::min(first + count - row, file->layout.shape[0] - in_file);
    const std::vector<float> values = read_rows(*file, in_file, part, fetched);
    to = std::copy(values.begin(), values.end(), to);
    row += part;
  }
  return out;
}

Permutation::Permutation(int64_t size, SampleRandom keys) : size_(static_cast<uint64_t>(size)) {
  D2_CHECK(size > 0 && size < (int64_t{1} << 60), "a permutation of {}", size);
  while ((uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  for (uint64_t& key : keys_) {
    key = uint64_t{keys()} << 32;
    key |= keys();
  }
}

uint64_t Permutation::round(uint64_t half, size_t number) const {
  return split_mix(half ^ keys_[number]) & ((uint64_t{1} << half_bits_) - 1);
}

int64_t Permutation::operator()(int64_t place) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(place);
  do {
    Halves halves{value >> half_bits_, value & mask};
    for (size_t i = 0; i < kRounds; ++i)
      halves = {halves.right, halves.left ^ round(halves.right, i)};
    value = (halves.left << half_bits_) | halves.right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

int64_t Permutation::place_of(int64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto place = static_cast<uint64_t>(value);
  do {
    Halves halves{place >> half_bits_, place & mask};
    for (size_t i = kRounds; i > 0; --i)
      halves = {halves.right ^ round(halves.left, i - 1), halves.left};
    place = (halves.left << half_bits_) | halves.right;
  } while (place >= size_);
  return static_cast<int64_t>(place);
}

RowOrder::RowOrder(int64_t rows, int64_t block_rows, int64_t seed, int64_t epoch)
    : seed_(seed),
      epoch_(epoch),
      block_rows_(std::min(block_rows, rows)),
      blocks_((rows + block_rows_ - 1) / block_rows_),
      short_rows_(rows - (blocks_ - 1) * block_rows_),
      block_at_(blocks_, random("blocks", 0)),
      short_place_(block_at_.place_of(blocks_ - 1)) {}

SampleRandom RowOrder::random(const char* purpose, int64_t ordinal) const {
  return {seed_, epoch_, "order of rows", purpose, ordinal};
}

int64_t RowOrder::rows_of_group(int64_t group) const {
  const int64_t blocks = std::min(kMixedBlocks, blocks_ - group * kMixedBlocks);
  const bool has_short = short_place_ / kMixedBlocks == group;
  return blocks * block_rows_ - (has_short ? block_rows_ - short_rows_ : 0);
}

std::vector<int64_t> RowOrder::rows_at(int64_t begin, int64_t count) const {
  const int64_t group_of_short = short_place_ / kMixedBlocks;
  std::vector<int64_t> rows;
  std::optional<Permutation> in_group;
  int64_t group = -1;  // of in_group
  for (int64_t place = begin; place < begin + count; ++place) {
    const Slot at =
        slot_of(place, kMixedBlocks * block_rows_, group_of_short, rows_of_group(group_of_short));
    if (at.unit != group) {
      group = at.unit;
      in_group.emplace(rows_of_group(group), random("rows", group));
    }
    // A short block of another group is behind the end of this one.
    const int64_t short_unit = group == group_of_short ? short_place_ % kMixedBlocks : kMixedBlocks;
    const Slot in_block = slot_of((*in_group)(at.offset), block_rows_, short_unit, short_rows_);
    const int64_t block = block_at_(group * kMixedBlocks + in_block.unit);
    rows.push_back(block * block_rows_ + in_block.offset);
  }
  return rows;
}

std::vector<std::string> table_files(const std::string& folder,
                                     const std::string& key,
                                     const std::vector<std::string>& extensions) {
  if (!is_folder(folder)) {
    throw DataError("{}: expected a folder of {} files, got '{}', which is {}",
                    key,
                    fmt::join(extensions, " or "),
                    folder,
                    path_exists(folder) ? "a file" : "not there");
  }
  std::vector<std::string> files;
  const WalkEnd end = walk_data(folder, Below::kAll, [&](const fs::directory_entry& entry) {
    const std::string extension = lower_extension(entry.path());
    if (std::ranges::find(extensions, extension) != extensions.end())
      files.push_back(entry.path().string());
  });
  if (end.error) {
    throw DataError(
        "{}: the folder '{}', or one below it, cannot be read: {}\n"
        "  Make them readable for this user, or name another folder.",
        key,
        folder,
        end.error.message());
  }
  std::ranges::sort(files);
  return files;
}

void check_pairs(const std::string& key,
                 const std::vector<TableFile>& files,
                 const std::string& other_key,
                 const std::vector<TableFile>& other_files) {
  const Numbers numbers = numbers_of(files), other_numbers = numbers_of(other_files);
  if (has_unnumbered(numbers) || has_unnumbered(other_numbers)) return;
  if (sorted(numbers) != sorted(other_numbers)) {
    // Numbered or divided otherwise, only the totals can be compared. One file is missing if all pairs agree.
    if (files.size() == 1 || other_files.size() == 1) return;
    const TableFile *alone = nullptr, *other_alone = nullptr;
    const bool agree = pairs_agree(files, numbers, other_files, other_numbers, alone) &&
                       pairs_agree(other_files, other_numbers, files, numbers, other_alone);
    if (!agree || (alone == nullptr && other_alone == nullptr)) return;
    throw DataError(
        "{}: '{}' has a number that no file of {} has, though all others are paired by their numbers\n"
        "  Fetch or make the file that is missing, or remove this one.",
        other_alone != nullptr ? other_key : key,
        public_url((other_alone != nullptr ? other_alone : alone)->path),
        other_alone != nullptr ? key : other_key);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (numbers[i] != other_numbers[i]) {
      throw DataError(
          "{}: the files are in another order than those of {}: file {} by name is '{}' here and "
          "'{}' there\n  Pad the numbers in the names with zeros, to the same width in both.",
          other_key,
          key,
          i + 1,
          public_url(other_files[i].path),
          public_url(files[i].path));
    }
    if (files[i].rows == other_files[i].rows) continue;
    throw DataError(
        "{}: '{}' has {} rows, but '{}' ({}) has {}: row n of each must belong to sample n\n"
        "  Make or fetch the file again that is wrong.",
        other_key,
        public_url(other_files[i].path),
        other_files[i].rows,
        public_url(files[i].path),
        key,
        files[i].rows);
  }
}

}  // namespace dalle2
