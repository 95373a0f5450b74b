// SPDX-License-Identifier: MIT
#include "data/pictures/image_folder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/untrusted_text.h"
#include "data/in_parallel.h"

namespace dalle2 {
namespace {

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

}  // namespace

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
      preprocess_(transforms_of(config), decode_options(config, channels)),
      pictures_(list_pictures(config.folder, Tars::kRead).pictures) {
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
  const FolderPicture& picture = pictures_[static_cast<size_t>(number)];
  SampleRandom random(
      seed_, address.split == "val" ? 0 : address.epoch, address.split, picture.source, 0);
  Image image = preprocess_.apply(read_picture(picture), picture.source, [&] { return random(); });
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
  drops.report_all("train");
  throw_nothing_usable();
}

PictureTally ImageFolder::first_pictures() const {
  PictureTally pictures;
  for (const int64_t number : train_) {
    try {
      if (!pictures.look_at(read_picture(pictures_[static_cast<size_t>(number)]))) break;
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
