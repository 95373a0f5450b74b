// SPDX-License-Identifier: MIT
// What is in a file: every tensor with type and shape, every scalar with its value.
#pragma once

#include "checkpoint/state_dict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

struct InspectEntry {
  std::string name;  ///< its path: "model/unets.0.init_conv.bias", "optim0/param_groups/0/lr"
  Value value;       ///< a list of scalars is one entry
};

struct Inspection {
  std::string path;
  std::string layout;  ///< of weights of an older dalle2-pytorch: which; else ""
  std::vector<InspectEntry> entries;
  size_t tensor_count = 0;
  int64_t element_count = 0;
  uint64_t tensor_bytes = 0;
};

/// Reads a .pth or safetensors file, checksums included. @throws DataError
Inspection inspect_file(const std::string& path);

/// A table of name, type and shape or value, and closing lines with the layout, if there is one, and the sums.
std::string inspection_text(const Inspection& inspection);

/// {"file", "layout", "tensors", "elements", "bytes", "entries": [{"name", "dtype", "shape"} | {"name",
/// "type", "value"}]}
std::string inspection_json(const Inspection& inspection);

// Are the files of a run intact, and could it resume from them?

enum class FileState {
  kIntact,
  kDamaged,
  kUnfinished,  ///< a .part: of a save in progress, or left by an interrupted one
};

enum class Resume {
  kExact,      ///< continues as if it had never stopped
  kBySamples,  ///< continues at its count of samples: a checkpoint of dalle2-pytorch
  kNo,
};

struct CheckedFile {
  std::string path;
  FileState state = FileState::kIntact;
  uint64_t bytes = 0;
  /// "checkpoint", "model", "tensors" (neither of the two), "TorchScript program" (networks for metrics,
  /// OpenAI's CLIPs); empty if it could not be read.
  std::string kind;
  size_t tensor_count = 0;
  std::vector<std::string> faults;  ///< where, what was expected, what was found
  Resume resume = Resume::kNo;
  std::vector<std::string> missing;  ///< what resuming would need
  std::optional<int64_t> epoch, samples_seen;
  std::vector<int64_t> steps;  ///< updates of each unet
};

/// Reads a .pth, .pt or safetensors file as a resume does, with the CRC-32 of every entry, and looks at what
/// can be known without the networks: whether its weights and averages are finite, and what a run needs.
CheckedFile check_file(const std::string& path);

/// The file, or every .pth, .pt, .safetensors and .part below the folder, by name.
/// @throws DataError if there is no such path, or a folder holds no such file
std::vector<CheckedFile> check_path(const std::string& path);

bool all_intact(const std::vector<CheckedFile>& files);

/// A paragraph a file and a closing line with the sums.
std::string fsck_text(const std::string& path, const std::vector<CheckedFile>& files);

/// {"path", "intact", "files": [{"file", "state", "bytes", "kind", "tensors", "faults", "resume",
/// "missing", "epoch", "samples_seen", "steps"}]}
std::string fsck_json(const std::string& path, const std::vector<CheckedFile>& files);

}  // namespace dalle2
