// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pickle_machine.h"

#include "base/error.h"
#include "base/little_endian.h"

#include <bit>
#include <tuple>
#include <unordered_map>

namespace dalle2 {
namespace {

// About 4 GB of nodes; a large checkpoint has some 100,000.
constexpr size_t kMaxNodes = 20'000'000;
constexpr size_t kMostOfName = 1024;  // of a module and a class in it

// Opcodes of protocols 2 to 5 (Lib/pickletools.py). Those of the text protocols 0 and 1 that no
// writer of protocol 2 emits are left out.
// clang-format off
enum Opcode : uint8_t {
  kMark = '(', kStop = '.', kPop = '0', kPopMark = '1', kDup = '2', kBinFloat = 'G', kBinInt = 'J',
  kBinInt1 = 'K', kBinInt2 = 'M', kNoneOp = 'N', kBinPersId = 'Q', kReduce = 'R',
  kShortBinString = 'U', kBinString = 'T', kBinUnicode = 'X', kAppend = 'a', kBuild = 'b',
  kGlobalOp = 'c', kEmptyDict = '}', kAppends = 'e', kBinGet = 'h', kLongBinGet = 'j',
  kEmptyList = ']', kBinPut = 'q', kLongBinPut = 'r', kSetItem = 's', kTupleOp = 't',
  kEmptyTuple = ')', kSetItems = 'u', kProto = 0x80, kNewObj = 0x81, kTuple1 = 0x85,
  kTuple2 = 0x86, kTuple3 = 0x87, kNewTrue = 0x88, kNewFalse = 0x89, kLong1 = 0x8a, kLong4 = 0x8b,
  kBinBytes = 'B', kShortBinBytes = 'C', kShortBinUnicode = 0x8c, kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e, kEmptySet = 0x8f, kAddItems = 0x90, kFrozenSet = 0x91, kNewObjEx = 0x92,
  kStackGlobal = 0x93, kMemoize = 0x94, kFrame = 0x95, kByteArray8 = 0x96,
};
// clang-format on

using Kind = PickleNode::Kind;

/// What pushes an object without content.
constexpr std::pair<Opcode, Kind> kEmpty[] = {{kNoneOp, Kind::kNone},
                                              {kNewFalse, Kind::kBool},
                                              {kEmptyList, Kind::kList},
                                              {kEmptyTuple, Kind::kTuple},
                                              {kEmptyDict, Kind::kDict},
                                              {kEmptySet, Kind::kSet}};
/// What pushes bytes after their number, and the width of that number.
constexpr std::tuple<Opcode, Kind, size_t> kCounted[] = {{kShortBinUnicode, Kind::kText, 1},
                                                         {kBinUnicode, Kind::kText, 4},
                                                         {kBinUnicode8, Kind::kText, 8},
                                                         {kShortBinString, Kind::kText, 1},
                                                         {kBinString, Kind::kText, 4},
                                                         {kShortBinBytes, Kind::kBytes, 1},
                                                         {kBinBytes, Kind::kBytes, 4},
                                                         {kBinBytes8, Kind::kBytes, 8},
                                                         {kByteArray8, Kind::kBytes, 8}};

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  PickleGraph run() {
    if (bytes_.size() < 2 || static_cast<uint8_t>(bytes_[0]) != kProto) {
      throw DataError("{}: expected a pickle of protocol 2 or later", where_);
    }
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<uint8_t>(take(1)[0]);
      if (opcode == kStop) break;
      if (!push_plain(opcode) && !push_number(opcode) && !use_stack(opcode) && !call(opcode)) {
        fail("unknown opcode");
      }
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("expected one object at the end");
    graph_.root = stack_[0];
    graph_.end = at_;
    return std::move(graph_);
  }

 private:
  [[noreturn]] void fail(const char* reason) const {
    throw DataError(
        "{}: damaged pickle: {} at byte {}{}", where_, reason, opcode_at_, kDamagedAdvice);
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("cut off");
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }

  uint64_t take_unsigned(size_t width) { return from_little_endian(take(width)); }

  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("cut off");
    const std::string_view line = take(end - at_);
    take(1);
    return line;
  }

  PickleNode& push(Kind kind) {
    if (graph_.nodes.size() >= kMaxNodes) fail("more than 20,000,000 objects");
    stack_.push_back(static_cast<uint32_t>(graph_.nodes.size()));
    PickleNode& node = graph_.nodes.emplace_back();
    node.kind = kind;
    return node;
  }

  void push_int(int64_t value) { push(Kind::kInt).integer = value; }

  /// Two's complement of any length, as Python's LONG opcodes hold it.
  void push_long(std::string_view digits) {
    if (digits.size() > 8) {
      push(Kind::kBigInt).text = digits;
      return;
    }
    uint64_t value = from_little_endian(digits);
    const bool negative = !digits.empty() && (digits.back() & 0x80) != 0;
    if (negative && digits.size() < 8) value |= UINT64_MAX << (8 * digits.size());
    push_int(static_cast<int64_t>(value));
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  uint32_t pop() {
    if (stack_.size() <= floor()) fail("empty stack");
    const uint32_t id = stack_.back();
    stack_.pop_back();
    return id;
  }

  uint32_t top() {
    if (stack_.size() <= floor()) fail("empty stack");
    return stack_.back();
  }

  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) fail("no mark");
    std::vector<uint32_t> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  void push_tuple(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push(Kind::kTuple).items = std::move(items);
  }

  /// Items go to a list or set, or wait in an object for whoever knows it.
  void append(const std::vector<uint32_t>& items) {
    PickleNode& target = graph_.nodes[top()];
    if (target.kind != Kind::kList && target.kind != Kind::kSet && target.kind != Kind::kObject) {
      fail("items appended to something that is not a list");
    }
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void set_items(const std::vector<uint32_t>& items) {
    PickleNode& target = graph_.nodes[top()];
    if (items.size() % 2 != 0 || (target.kind != Kind::kDict && target.kind != Kind::kObject)) {
      fail("items set in something that is not a dict");
    }
    std::vector<uint32_t>& entries = target.kind == Kind::kDict ? target.items : target.entries;
    entries.insert(entries.end(), items.begin(), items.end());
  }

  void push_object(uint32_t callee, uint32_t args) {
    const Kind kind = graph_.nodes[callee].kind;
    if ((kind != Kind::kGlobal && kind != Kind::kObject) ||
        graph_.nodes[args].kind != Kind::kTuple) {
      fail("a call of something that is not a function");
    }
    PickleNode& object = push(Kind::kObject);
    object.callee = callee;
    object.args = args;
  }

  /// Names are copied first: a reference into the nodes would not outlive the push.
  void push_global(std::string module, std::string name) {
    // Six bytes of a pickle can name a global by texts that it holds but once.
    if (module.size() + name.size() > kMostOfName) {
      fail("the name of a class with more than 1,024 bytes");
    }
    PickleNode& node = push(Kind::kGlobal);
    node.text = std::move(module);
    node.name = std::move(name);
  }

  bool push_plain(uint8_t opcode) {
    for (const auto& [known, kind] : kEmpty) {
      if (opcode != known) continue;
      push(kind);
      return true;
    }
    for (const auto& [known, kind, width] : kCounted) {
      if (opcode != known) continue;
      const std::string_view bytes = take(take_unsigned(width));
      push(kind).text = bytes;
      return true;
    }
    return false;
  }

  bool push_number(uint8_t opcode) {
    switch (opcode) {
      case kNewTrue:
        push(Kind::kBool).integer = 1;
        return true;
      case kBinInt:
        push_int(static_cast<int32_t>(take_unsigned(4)));
        return true;
      case kBinInt1:
      case kBinInt2:
        push_int(static_cast<int64_t>(take_unsigned(opcode == kBinInt1 ? 1 : 2)));
        return true;
      case kLong1:
      case kLong4:
        push_long(take(take_unsigned(opcode == kLong1 ? 1 : 4)));
        return true;
      case kBinFloat: {
        uint64_t bits = 0;
        for (const char byte : take(8)) {  // the one big-endian field of the format
          bits = (bits << 8) | static_cast<uint8_t>(byte);
        }
        push(Kind::kFloat).real = std::bit_cast<double>(bits);
        return true;
      }
      default:
        return false;
    }
  }

  bool use_stack(uint8_t opcode) {
    switch (opcode) {
      case kMark:
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        if (stack_.size() > floor()) {
          stack_.pop_back();
        } else {
          pop_to_mark();
        }
        return true;
      case kPopMark:
        pop_to_mark();
        return true;
      case kDup:
        stack_.push_back(top());
        return true;
      case kTuple1:
      case kTuple2:
      case kTuple3:
        push_tuple(opcode - kTuple1 + size_t{1});
        return true;
      case kTupleOp:
      case kFrozenSet: {
        std::vector<uint32_t> items = pop_to_mark();
        push(opcode == kTupleOp ? Kind::kTuple : Kind::kSet).items = std::move(items);
        return true;
      }
      case kAppend:
        append({pop()});
        return true;
      case kAppends:
      case kAddItems:
        append(pop_to_mark());
        return true;
      case kSetItem: {
        const uint32_t value = pop();
        const uint32_t key = pop();
        set_items({key, value});
        return true;
      }
      case kSetItems:
        set_items(pop_to_mark());
        return true;
      default:
        return use_memo(opcode);
    }
  }

  bool call(uint8_t opcode) {
    switch (opcode) {
      case kProto:
        if (take_unsigned(1) > 5) fail("protocol beyond 5");
        return true;
      case kFrame:
        if (take_unsigned(8) > bytes_.size() - at_) fail("cut off");
        return true;
      case kReduce:
      case kNewObj: {
        const uint32_t args = pop();
        push_object(pop(), args);
        return true;
      }
      case kNewObjEx: {
        const uint32_t keywords = pop();
        const uint32_t args = pop();
        const uint32_t callee = pop();
        push_object(callee, args);
        graph_.nodes.back().state = keywords;
        return true;
      }
      case kBuild: {
        const uint32_t state = pop();
        PickleNode& target = graph_.nodes[top()];
        target.state = state;
        return true;
      }
      case kBinPersId: {
        const uint32_t id = pop();
        if (graph_.nodes[id].kind != Kind::kTuple) fail("a persistent id that is not a tuple");
        push(Kind::kPersistent).args = id;
        return true;
      }
      case kGlobalOp: {
        std::string module(take_line());
        push_global(std::move(module), std::string(take_line()));
        return true;
      }
      case kStackGlobal: {
        const PickleNode& name = graph_.nodes[pop()];
        const PickleNode& module = graph_.nodes[pop()];
        if (name.kind != Kind::kText || module.kind != Kind::kText) fail("a global without a name");
        push_global(module.text, name.text);
        return true;
      }
      default:
        return false;
    }
  }

  bool use_memo(uint8_t opcode) {
    switch (opcode) {
      case kBinPut:
      case kLongBinPut:
        memo_[take_unsigned(opcode == kBinPut ? 1 : 4)] = top();
        return true;
      case kMemoize:
        memo_[memo_.size()] = top();
        return true;
      case kBinGet:
      case kLongBinGet:
        push_memo(take_unsigned(opcode == kBinGet ? 1 : 4));
        return true;
      default:
        return false;
    }
  }

  void push_memo(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("an object that was never stored");
    stack_.push_back(found->second);
  }

  std::string_view bytes_;
  std::string where_;
  size_t at_ = 0, opcode_at_ = 0;
  PickleGraph graph_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
};

}  // namespace

PickleGraph run_pickle(std::string_view bytes, const std::string& where) {
  return Machine(bytes, where).run();
}

}  // namespace dalle2
