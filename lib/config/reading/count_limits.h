// SPDX-License-Identifier: MIT
// Upper limits of the counts in a config: far above what anybody trains, so that a slip of the pen
// is a message and not a machine without memory.
#pragma once

namespace dalle2::most {

inline constexpr double kTimesteps = 100'000;        ///< of a noise schedule, and when sampling
inline constexpr double kDim = 16'384;               ///< base width of a network
inline constexpr double kWidth = 65'536;             ///< of embeddings, conditions, channels
inline constexpr double kDimMult = 1'024;            ///< width of a resolution in base widths
inline constexpr double kLayers = 1'024;             ///< of a network, or of one of its resolutions
inline constexpr double kHeads = 1'024;              ///< of an attention
inline constexpr double kHeadWidth = 4'096;          ///< of an attention
inline constexpr double kTokens = 65'536;            ///< of a text, or made from a condition
inline constexpr double kKernel = 1'023;             ///< side of a kernel, pixels
inline constexpr double kImageSide = 16'384;         ///< of a picture that a network sees, pixels
inline constexpr double kBatch = 1'048'576;          ///< samples at once
inline constexpr double kGroup = 65'536;             ///< batches of an update
inline constexpr double kRanks = 65'536;             ///< processes of a run
inline constexpr double kThreads = 1'024;            ///< that load data
inline constexpr double kBuffer = 10'000'000;        ///< samples held in memory
inline constexpr double kPictures = 65'536;          ///< drawn for the logs
inline constexpr double kEpochs = 1e9;               ///< and other events of a run
inline constexpr double kSteps = 1e12;               ///< of an optimizer
inline constexpr double kSamples = 1e15;             ///< seen in a run, or numbers of shards
inline constexpr double kSeconds = 1e12;             ///< between two events
inline constexpr double kImagePixels = 178'956'970;  ///< Pillow's limit of a picture

}  // namespace dalle2::most
