// SPDX-License-Identifier: MIT
// The features of the images of an evaluation, whoever computed them; and features by the content of
// images, in memory and on disk: a validation set comes again every epoch, and in later runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace dalle2 {

/// Features by the number of their image, so that neither the batches nor the ranks that they came
/// by change what is computed from them.
class FeatureRows {
 public:
  /// @param index [n] int64, of the images in the evaluation @param features [n, d] float32, finite
  void add(const at::Tensor& index, const at::Tensor& features);

  int64_t count() const;
  /// [n, d] float32 on the CPU, in the order of the images; each image once, as it came first.
  at::Tensor rows() const;
  /// [n] int64, of the images in rows().
  at::Tensor index() const;

  /// Rank 0 takes over what the other ranks have, and these have nothing any more. All have to call
  /// it. @param what for reports: "features"
  void gather(ProcessGroup& group, const std::string& what);

 private:
  void settle() const;

  mutable std::vector<at::Tensor> indices_, parts_;  // one each after settle()
  mutable bool settled_ = true;
};

/// [n, d] float32 on the CPU by the name of what gave them, "2048" or "FD".
using NamedFeatures = std::map<std::string, at::Tensor>;

/// The bytes of a SHA-256 of each image and its size. @param images [n, 3, h, w] uint8
/// @return [n, 32] float32, values 0 to 255: a row as the features' own are
at::Tensor hashes_of(const at::Tensor& images);

class KnownFeatures {
 public:
  KnownFeatures() = default;
  /// @param names of the features of an image @param identity all that decides them
  KnownFeatures(std::vector<std::string> names, std::string identity);

  bool contains(const at::Tensor& hash) const;
  /// Of images that are all known. @param hashes [n, 32] float32
  NamedFeatures at(const at::Tensor& hashes) const;
  /// @param hashes [n, 32] float32 @param features a row for each
  void add(const at::Tensor& hashes, const NamedFeatures& features);

  int64_t count() const { return static_cast<int64_t>(places_.size()); }
  /// Added since the last load() or save().
  bool has_news() const { return has_news_; }

  /// Takes over what save() left in the folder for the same identity; nothing if it left none.
  /// @return why the file that lies there is of no use, empty if there is no such fault
  std::string load(const std::string& folder);
  /// Makes the folder if it is not there. @throws std::exception where it cannot write
  void save(const std::string& folder);

 private:
  std::string path_in(const std::string& folder) const;

  std::vector<std::string> names_;
  std::string identity_;
  bool has_news_ = false;
  std::map<std::string, int64_t> places_;  // by hash, of the row in each matrix
  NamedFeatures matrices_;                 // [room, d]: count() rows are used
};

}  // namespace dalle2
