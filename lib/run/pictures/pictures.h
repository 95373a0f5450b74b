// SPDX-License-Identifier: MIT
// Between tensors and pictures: grids for people to look at, pictures as inputs; and the noise that
// pictures are drawn from.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "diffusion/sampler.h"
#include "io/pictures/image.h"

namespace dalle2 {

/// A picture of [C, H, W] in [0, 1]; values outside are clamped. One channel is drawn grey, the fourth
/// is transparency; of more the first three are drawn.
Image to_picture(const at::Tensor& image);

/// [3, H, W] in [0, 1].
at::Tensor from_picture(const Image& picture);

/// Images of one size side by side, `columns` in a row, on black with `padding` pixels between and
/// around them (torchvision's make_grid). @param images each [C, H, W]
at::Tensor image_grid(const std::vector<at::Tensor>& images, int64_t columns, int64_t padding = 2);

/// Each picture above its text, as image_grid() takes them: all of one size, wide enough for words. What is
/// too long is cut. @param pictures of one size, [C, H, W] in [0, 1] @param texts as many; of one that
/// cannot be drawn its `names` is. Small pictures are enlarged by a whole number. @return each [3, H', W']
std::vector<at::Tensor> above_texts(const std::vector<at::Tensor>& pictures,
                                    const std::vector<std::string>& texts,
                                    const std::vector<std::string>& names);

/// How pictures become tensors: as the pictures of a training did.
struct PictureReading {
  DecodeOptions options = {};
  int64_t channels = 3;  ///< or 1, or 4 with transparency
};

/// The pictures that load_pictures() would take, of any sizes. @return each [C, H, W]
std::vector<at::Tensor> load_pictures_of_any_size(const std::string& path,
                                                  const PictureReading& reading = {});

/// The picture at `path`, all pictures of a folder but for a sheet, in the order of their names, or an
/// .npy array.
/// @return [N, C, H, W] float32 in [0, 1]. @throws DataError for none, or for pictures of several
/// sizes
at::Tensor load_pictures(const std::string& path, const PictureReading& reading = {});

/// An .npy file as a float32 tensor. @throws DataError if it has another number of dimensions
at::Tensor load_npy_tensor(const std::string& path, int64_t dimensions);

/// The generators of some rows of what is sampled: a row's draws depend on seed and row alone, so that it
/// comes out the same in any batch.
/// @param candidates rows of one sample, one after another, each with draws of its own
std::vector<at::Generator> generators_of_rows(int64_t seed,
                                              const std::vector<int64_t>& rows,
                                              int64_t candidates = 1);

}  // namespace dalle2
