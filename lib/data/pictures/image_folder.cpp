// SPDX-License-Identifier: MIT
#include "data/pictures/image_folder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/batch_memory.h"
#include "data/in_parallel.h"
#include "data/names_hash.h"
#include "data/pictures/lost_links.h"
#include "data/pictures/planes.h"
#include "data/pictures/run_drawings.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/walk_folder.h"
#include "io/formats/tar.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

std::vector<TransformConfig> transforms_of(const VaeDataConfig& config) {
  if (config.preprocessing) return *config.preprocessing;
  std::vector<TransformConfig> steps(4);
  steps[0].kind = TransformKind::Resize;
  steps[0].size = {config.image_size};
  steps[1].kind = TransformKind::RandomHorizontalFlip;
  steps[2].kind = TransformKind::CenterCrop;
  steps[2].size = {config.image_size};
  steps[3].kind = TransformKind::ToTensor;
  return steps;
}

Preprocess preprocess_of(const VaeDataConfig& config, int64_t channels) {
  const DecodeOptions options = decode_options(config, /*turns_by_default=*/false, channels);
  return Preprocess(transforms_of(config), options);
}

}  // namespace

std::vector<ImageFolder::Picture> ImageFolder::list_pictures(const std::string& folder) {
  if (!fs::is_directory(folder)) {
    throw DataError("/data/folder: {}: there is no such folder", printable(folder));
  }
  std::vector<Picture> pictures;
  std::vector<std::string> lost;
  UnreadPictures unread;
  const auto add_members = [&](const fs::path& tar) {
    const TarList list = list_tar((fs::path(folder) / tar).string());
    const size_t before = pictures.size();
    for (const TarPlace& place : list.places) {
      unread.see(place.name);
      if (!is_picture_name(place.name)) continue;
      pictures.push_back(
          {.path = (tar / place.name).string(), .tar = tar.string(), .offset = place.offset});
    }
    if (!list.unread.empty()) log_warning("data", "{}: {}", printable(tar.string()), list.unread);
    if (list.fault.empty()) return;
    log_warning("data",
                "{}: {}: {} before that are used",
                printable(tar.string()),
                printable(list.fault),
                counted(static_cast<int64_t>(pictures.size() - before), "picture"));
  };
  RunDrawings drawings(folder);
  std::error_code unknown;  // whether an entry is a file
  const WalkEnd end = walk_data(folder, Below::kReadable, [&](const fs::directory_entry& entry) {
    const fs::path path = entry.path().lexically_relative(folder);
    if (is_lost_link(entry.path())) {
      if (is_picture_name(path)) lost.push_back(path.string());
      return;
    }
    std::error_code error;
    const bool is_file = entry.is_regular_file(error);
    if (error && error != std::errc::no_such_file_or_directory) unknown = error;
    if (!is_file) return;
    drawings.see(path);
    unread.see(path);
    if (is_picture_name(path)) pictures.push_back({.path = path.string()});
    if (lower_extension(path) == ".tar") add_members(path);
  });
  // All ranks, and a run that continues, must see the same pictures.
  if (const std::error_code error = end.error ? end.error : unknown) {
    throw DataError("/data/folder: {}: {}", printable(folder), error.message());
  }
  drawings.tell(std::erase_if(pictures, [&](const Picture& picture) {
    return picture.tar.empty() && drawings.has(picture.path);
  }));
  std::sort(pictures.begin(), pictures.end(), [](const Picture& a, const Picture& b) {
    return std::tie(a.path, a.offset) < std::tie(b.path, b.offset);
  });
  if (pictures.empty()) {
    throw DataError(
        "/data/folder: {}: expected pictures ending in jpg, jpeg, png or webp, or tars of them, "
        "here or in the folders below, found none{}",
        printable(folder),
        lost.empty() ? unread.but() : ", but " + counted_lost_links(lost.size()));
  }
  unread.tell(folder);
  warn_of_lost_links(folder, std::move(lost));
  return pictures;
}

std::string ImageFolder::names() const {
  NamesHash hash;
  for (const Picture& picture : pictures_) hash.add(picture.path);
  return hash.hex();
}

std::string ImageFolder::content_of(const Picture& picture) const {
  if (!picture.tar.empty()) {
    return read_tar_member((fs::path(folder_) / picture.tar).string(), picture.offset).content;
  }
  return read_file((fs::path(folder_) / picture.path).string());
}

ImageFolder::ImageFolder(const VaeDataConfig& config,
                         int64_t channels,
                         int64_t seed,
                         std::optional<at::Device> gpu)
    : folder_(config.folder),
      channels_(channels),
      seed_(seed),
      threads_(config.num_workers),
      gpu_(gpu),
      side_(config.image_size),
      preprocess_(preprocess_of(config, channels)),
      pictures_(list_pictures(config.folder)) {
  const int64_t all = files();
  std::vector<int64_t> numbers(pictures_.size());
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  if (config.valid_frac == 0) {
    train_ = val_ = std::move(numbers);
    return;
  }
  const auto train = static_cast<int64_t>((1 - config.valid_frac) * static_cast<double>(all));
  if (train == 0 || train == all) {
    throw DataError(
        "/data/valid_frac: {} of {} pictures leaves none for {}: give another share, or 0 to "
        "validate with the training pictures",
        config.valid_frac,
        all,
        train == 0 ? "training" : "validation");
  }
  const at::Tensor drawn = at::randperm(
      all,
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(config.random_split_seed)));
  const auto* number = drawn.const_data_ptr<int64_t>();
  train_.assign(number, number + train);
  val_.assign(number + train, number + all);
}

int64_t ImageFolder::rows(const std::string& split) const {
  return static_cast<int64_t>((split == "val" ? val_ : train_).size());
}

const std::vector<int64_t>& ImageFolder::order_of(const Address& address) {
  const Address whole{.split = address.split, .epoch = address.split == "val" ? 0 : address.epoch};
  if (!order_.empty() && whole == ordered_) return order_;
  order_ = whole.split == "val" ? val_ : train_;
  SampleRandom random(seed_, whole.epoch, whole.split, "order", 0);
  for (size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[random() % left]);
  }
  ordered_ = whole;
  return order_;
}

std::optional<std::vector<int64_t>> ImageFolder::chosen_rows(const Address& address) {
  const int64_t all = rows(address.split);
  if (address.begin >= all) return std::nullopt;
  const auto& order = order_of(address);
  const auto first = order.begin() + address.begin;
  return std::vector<int64_t>(first, first + std::min(address.count, all - address.begin));
}

Image ImageFolder::prepared(const Address& address, int64_t number) const {
  const Picture& picture = pictures_[static_cast<size_t>(number)];
  SampleRandom random(
      seed_, address.split == "val" ? 0 : address.epoch, address.split, picture.path, 0);
  Image image = preprocess_.apply(content_of(picture), picture.path, [&] { return random(); });
  if (image.width != side_ || image.height != side_) {
    throw ConfigError(
        "/data/preprocessing: makes pictures of {} x {} pixels; expected {} x {}, "
        "/data/image_size",
        image.width,
        image.height,
        side_,
        side_);
  }
  return image;
}

ImageBatch ImageFolder::read(const Address& address, const std::vector<int64_t>& chosen) const {
  ImageBatch batch;
  batch.rows = std::ssize(chosen);
  const at::Tensor images =
      empty_for_batch(gpu_ ? at::kByte : at::kFloat, {batch.rows, channels_, side_, side_}, gpu_);
  std::vector<std::optional<std::string>> faults(chosen.size());
  in_parallel(chosen.size(), threads_, [&](size_t i) {
    try {
      write_picture(prepared(address, chosen[i]), images, static_cast<int64_t>(i));
    } catch (const DataError& error) {
      faults[i] = error.what();
    }
  });
  int64_t usable = 0;
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i]) {
      batch.drops.add(drop::kBrokenPicture, *faults[i]);
      continue;
    }
    if (const auto place = static_cast<int64_t>(i); usable != place) {
      images[usable].copy_(images[place]);
    }
    ++usable;
  }
  if (usable > 0) batch.images = images.narrow(0, 0, usable);
  return batch;
}

void ImageFolder::check_usable() const {
  constexpr int64_t kMostTried = 1000;  // that cannot be read
  DropLog drops;
  for (int64_t i = 0; i < std::min(kMostTried, rows("train")); ++i) {
    ImageBatch one = read({.split = "train"}, {train_[static_cast<size_t>(i)]});
    if (one.size() > 0 || stop_requested() != 0) return;
    drops.merge(std::move(one.drops));
  }
  if (rows("train") > kMostTried) return;  // an epoch will tell
  DropCounts by_reason, of_epoch;
  drops.report("train", by_reason, of_epoch);
  throw_nothing_usable();
}

PictureTally ImageFolder::first_pictures() const {
  PictureTally pictures;
  for (const int64_t number : train_) {
    try {
      if (!pictures.look_at(content_of(pictures_[static_cast<size_t>(number)]))) break;
    } catch (const DataError&) {  // an epoch will tell
    }
  }
  return pictures;
}

void ImageFolder::throw_nothing_usable() const {
  throw DataError(
      "/data/folder: {}: none of the {} training pictures can be read; the warnings above say "
      "what is wrong with them",
      printable(folder_),
      rows("train"));
}

std::optional<ImageBatch> ImageFolder::batch(const std::string& split,
                                             int64_t epoch,
                                             int64_t begin,
                                             int64_t count) {
  const Address address{split, epoch, begin, count};
  if (reading_.valid()) {
    ImageBatch ahead = reading_.get();
    if (ahead_ == address) return ahead;
  }
  const auto chosen = chosen_rows(address);
  if (!chosen) return std::nullopt;
  return read(address, *chosen);
}

void ImageFolder::read_ahead(const std::string& split,
                             int64_t epoch,
                             int64_t begin,
                             int64_t count) {
  if (threads_ == 0 || reading_.valid()) return;
  const Address address{split, epoch, begin, count};
  auto chosen = chosen_rows(address);
  if (!chosen) return;
  ahead_ = address;
  try {
    reading_ = std::async(std::launch::async, [this, address, rows = *std::move(chosen)] {
      return read(address, rows);
    });
  } catch (const std::system_error&) {  // no thread can be had now: batch() reads it
  }
}

}  // namespace dalle2
