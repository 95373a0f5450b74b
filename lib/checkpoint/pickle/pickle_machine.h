// SPDX-License-Identifier: MIT
// The stack machine of Python's pickle format, without Python: it records what would be called and
// calls nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

inline constexpr uint32_t kNoNode = UINT32_MAX;

/// One object of a pickle. Children are numbers of nodes, so shared and cyclic objects cost
/// nothing.
struct PickleNode {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kBigInt,
    kFloat,
    kText,
    kBytes,
    kList,
    kTuple,
    kDict,
    kSet,
    kGlobal,      ///< text = module, name = name
    kObject,      ///< what calling `callee` with the tuple `args` would give
    kPersistent,  ///< persistent id: the tuple `args`
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;  ///< of bool and int
  double real = 0.0;
  std::string text;  ///< of text, bytes and big int (little-endian two's complement)
  std::string name;
  uint32_t callee = kNoNode, args = kNoNode;
  uint32_t state = kNoNode;  ///< what __setstate__ would get
  std::vector<uint32_t>
      items;  ///< list, tuple, set; object: appended; dict: key, value, key, value...
  std::vector<uint32_t> entries;  ///< object: items set by key: key, value, ...
};

struct PickleGraph {
  std::vector<PickleNode> nodes;
  uint32_t root = kNoNode;
  size_t end = 0;  ///< bytes used
};

/// Runs one pickle of protocol 2 to 5 from the start of `bytes`.
/// @param where precedes the text of errors
/// @throws DataError for anything malformed, cut off, of another protocol or beyond the limits
PickleGraph run_pickle(std::string_view bytes, const std::string& where);

}  // namespace dalle2
