// SPDX-License-Identifier: MIT
// From the nodes of a pickle to values: the list of what is known.
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/state_dict.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_text.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

namespace dalle2 {
namespace {

using Kind = PickleNode::Kind;

// What values take, for each byte of their pickle. Shared objects unfold: of a pickle without any
// the densest, a list of None, takes a fifth of it.
constexpr uint64_t kMostBytesForOne = 256;
constexpr uint64_t kBytesForAny = uint64_t{1} << 20, kMostBytes = uint64_t{1} << 32;
constexpr size_t kMaxDimensions = 64;
constexpr int64_t kMaxRepeated = int64_t{1} << 24;  // elements of a tensor that repeats its storage

StorageRef storage_ref(const PickleGraph& graph,
                       const PickleNode& persistent,
                       const std::string& where) {
  const std::vector<uint32_t>& id = graph.nodes[persistent.args].items;
  const auto kind_of = [&](size_t i) { return graph.nodes[id[i]].kind; };
  const auto text_of = [&](size_t i) -> const std::string& { return graph.nodes[id[i]].text; };
  if (id.size() < 5 || kind_of(0) != Kind::kText || text_of(0) != "storage" ||
      kind_of(1) != Kind::kGlobal || kind_of(2) != Kind::kText || kind_of(4) != Kind::kInt ||
      graph.nodes[id[4]].integer < 0) {
    throw DataError("{}: expected a persistent id ('storage', type, key, location, numel)", where);
  }
  StorageRef ref;
  ref.key = text_of(2);
  ref.numel = static_cast<uint64_t>(graph.nodes[id[4]].integer);
  const std::string& storage_class = graph.nodes[id[1]].name;
  if (storage_class != "UntypedStorage") {
    ref.dtype = find_dtype(&DtypeNames::storage, storage_class);
    if (!ref.dtype) {
      throw DataError("{}: storage '{}' has the unknown type '{}'", where, ref.key, storage_class);
    }
  }
  if (id.size() > 5 && kind_of(5) != Kind::kNone) {
    throw DataError(
        "{}: storage '{}' is a part of another, as torch before 0.4 wrote them\n  Read and write the "
        "file with a newer torch.",
        where,
        ref.key);
  }
  return ref;
}

class Reader {
 public:
  Reader(const PickleGraph& graph, const StorageLoader& loader, const std::string& where)
      : graph_(graph),
        loader_(loader),
        where_(where),
        open_(graph.nodes.size(), false),
        most_bytes_(std::min(kBytesForAny + kMostBytesForOne * graph.end, kMostBytes)) {}

  Value read(uint32_t id) {
    const PickleNode& node = graph_.nodes[id];
    // A global's and a big int's text comes out in another form, at most twice as long.
    bytes_ += sizeof(Value) + 2 * (node.text.size() + node.name.size());
    if (bytes_ > most_bytes_) {
      fail(fmt::format("a pickle of {} unfolds to more than {}",
                       human_bytes(graph_.end),
                       human_bytes(most_bytes_)));
    }
    switch (node.kind) {
      case Kind::kNone:
        return {};
      case Kind::kBool:
        return node.integer != 0;
      case Kind::kInt:
        return node.integer;
      case Kind::kFloat:
        return node.real;
      case Kind::kText:
        return node.text;
      case Kind::kBytes:
        return Bytes{node.text};
      case Kind::kBigInt:
        return named_stub("builtins", "int");
      case Kind::kGlobal:
        return global_stub(node);
      case Kind::kPersistent:
        return named_stub("torch", "storage");  // on its own, which state dicts do not hold
      default:
        break;
    }
    if (open_[id]) return named_stub("", "<reference to an enclosing object>");
    if (depth_ >= kMaxValueDepth) fail("is nested deeper than 200 levels");
    open_[id] = true;
    deepest_ = std::max(deepest_, ++depth_);
    Value value = read_container(id, node);
    --depth_;
    open_[id] = false;
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    std::string path;
    for (const std::string& part : path_) path += "/" + part;
    throw DataError("{}: {}: {}", where_, path.empty() ? "/" : path, text);
  }

  Value read_container(uint32_t id, const PickleNode& node) {
    switch (node.kind) {
      case Kind::kList:
        return List{read_items(node.items)};
      case Kind::kTuple:
        return Tuple{read_items(node.items)};
      case Kind::kSet: {
        auto stub = named_stub("builtins", "set");
        stub->items = read_items(node.items);
        return stub;
      }
      case Kind::kDict: {
        Dict dict;
        read_entries(node.items, dict);
        return dict;
      }
      default:
        return read_object(id, node);
    }
  }

  std::vector<Value> read_items(const std::vector<uint32_t>& ids) {
    std::vector<Value> items;
    items.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      path_.push_back(std::to_string(i));
      items.push_back(read(ids[i]));
      path_.pop_back();
    }
    return items;
  }

  /// A key given twice replaces the earlier value, as in Python.
  void read_entries(const std::vector<uint32_t>& ids, Dict& dict) {
    std::unordered_map<std::string, size_t> places;
    dict.items.reserve(dict.items.size() + ids.size() / 2);
    for (size_t i = 0; i + 1 < ids.size(); i += 2) {
      Value key = read(ids[i]);
      const std::string name = key.is_string() ? key.as_string()
                               : key.is_int()  ? std::to_string(key.as_int())
                                               : fmt::format("({})", key.type_name());
      path_.push_back(name);
      Value value = read(ids[i + 1]);
      path_.pop_back();
      if (key.is_string() || key.is_int()) {
        const auto [place, fresh] =
            places.try_emplace((key.is_string() ? "s" : "i") + name, dict.items.size());
        if (!fresh) {
          dict.items[place->second].second = std::move(value);
          continue;
        }
      }
      dict.items.emplace_back(std::move(key), std::move(value));
    }
  }

  /// Protocol 2 uses Python 2's names of modules.
  static std::shared_ptr<StubObject> named_stub(std::string module, std::string name) {
    auto stub = std::make_shared<StubObject>();
    stub->module = module == "__builtin__" ? "builtins"
                   : module == "copy_reg"  ? "copyreg"
                                           : std::move(module);
    stub->name = std::move(name);
    return stub;
  }

  static Value global_stub(const PickleNode& node) {
    auto stub = named_stub(node.text, node.name);
    stub->kind = StubObject::Kind::kGlobal;
    return stub;
  }

  const std::vector<uint32_t>& args_of(const PickleNode& object) const {
    return graph_.nodes[object.args].items;
  }

  const PickleNode& arg(const PickleNode& object, size_t i) const {
    if (i >= args_of(object).size()) fail("a known function is called with too few arguments");
    return graph_.nodes[args_of(object)[i]];
  }

  Value read_object(uint32_t id, const PickleNode& node) {
    const PickleNode& callee = graph_.nodes[node.callee];
    if (callee.kind == Kind::kGlobal) {
      if (auto known = read_known(id, node, callee.text, callee.name)) return std::move(*known);
    }
    return read_stub(id, node);
  }

  /// The allow-list. Nothing on it does more than arrange data.
  std::optional<Value> read_known(uint32_t id,
                                  const PickleNode& node,
                                  const std::string& module,
                                  const std::string& name) {
    const bool builtin = module == "builtins" || module == "__builtin__";
    if (module == "torch._utils" && (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor" ||
                                     name == "_rebuild_tensor_v3")) {
      return read_tensor(id, node, name == "_rebuild_tensor_v3");
    }
    if (module == "torch._utils" &&
        (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state")) {
      arg(node, 0);
      return read(args_of(node)[0]);
    }
    if ((module == "collections" && (name == "OrderedDict" || name == "defaultdict")) ||
        (builtin && name == "dict")) {
      return read_dict_object(node, name == "OrderedDict");
    }
    if (module == "torch" && name == "Size") return Tuple{read_items(arg(node, 0).items)};
    if (module == "_codecs" && name == "encode" && arg(node, 0).kind == Kind::kText) {
      return Bytes{latin1_bytes(arg(node, 0).text)};
    }
    if (builtin && (name == "bytearray" || name == "bytes") && args_of(node).size() <= 1) {
      return args_of(node).empty() ? Value(Bytes{}) : read(args_of(node)[0]);
    }
    if (module.starts_with("numpy") && name == "scalar") return read_numpy_scalar(node);
    return std::nullopt;
  }

  /// OrderedDict(), OrderedDict([(key, value), ...]), defaultdict(factory) and entries set later.
  Value read_dict_object(const PickleNode& node, bool ordered) {
    Dict dict;
    dict.ordered = ordered;
    std::vector<uint32_t> entries;
    for (const uint32_t id : args_of(node)) {
      const PickleNode& pairs = graph_.nodes[id];
      if (pairs.kind == Kind::kDict) {
        entries.insert(entries.end(), pairs.items.begin(), pairs.items.end());
      }
      for (const uint32_t pair :
           pairs.kind == Kind::kList ? pairs.items : std::vector<uint32_t>{}) {
        if (graph_.nodes[pair].items.size() != 2) fail("expected pairs of key and value");
        entries.insert(
            entries.end(), graph_.nodes[pair].items.begin(), graph_.nodes[pair].items.end());
      }
    }
    entries.insert(entries.end(), node.entries.begin(), node.entries.end());
    read_entries(entries, dict);
    return dict;
  }

  /// Protocol 2 has no bytes: Python writes text whose code points are the bytes.
  std::string latin1_bytes(const std::string& text) const {
    if (const auto fault = utf8_fault(text)) fail(*fault);
    std::string bytes;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto lead = static_cast<uint8_t>(text[i]);
      if (lead < 0x80) {
        bytes += text[i];
        continue;
      }
      if (lead != 0xC2 && lead != 0xC3) fail("text that is not latin-1");
      const auto next = static_cast<uint8_t>(text[++i]);
      bytes += static_cast<char>(((lead & 3) << 6) | (next & 0x3F));
    }
    return bytes;
  }

  /// numpy.core.multiarray.scalar(dtype('f8', ...), bytes), little-endian as x86 and ARM write it.
  std::optional<Value> read_numpy_scalar(const PickleNode& node) {
    const PickleNode& dtype = arg(node, 0);
    const Value raw = read(args_of(node)[1 < args_of(node).size() ? 1 : 0]);
    if (dtype.kind != Kind::kObject || args_of(dtype).empty() || !raw.is_bytes()) {
      return std::nullopt;
    }
    const std::string code = arg(dtype, 0).text;
    const std::string& data = std::get<Bytes>(raw.data).data;
    if (dtype.state != kNoNode && graph_.nodes[dtype.state].items.size() > 1 &&
        graph_.nodes[graph_.nodes[dtype.state].items[1]].text == ">") {
      return std::nullopt;
    }
    uint64_t bits = 0;
    if (code.size() != 2 || data.empty() || data.size() > 8 ||
        data.size() != static_cast<size_t>(code[1] - '0')) {
      return std::nullopt;
    }
    std::memcpy(&bits, data.data(), data.size());
    const int unused = static_cast<int>(64 - 8 * data.size());
    const char kind = code[0];
    if (kind == 'b') return Value(bits != 0);
    if (kind == 'i') return Value(static_cast<int64_t>(bits << unused) >> unused);
    if (kind == 'u' && bits <= uint64_t{INT64_MAX}) return Value(static_cast<int64_t>(bits));
    if (kind != 'f') return std::nullopt;
    if (data.size() == 8) return Value(std::bit_cast<double>(bits));
    if (data.size() == 4) {
      return Value(static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
    }
    return Value(
        static_cast<double>(c10::Half(static_cast<uint16_t>(bits), c10::Half::from_bits())));
  }

  Value read_stub(uint32_t id, const PickleNode& node) {
    if (const auto found = stubs_.find(id); found != stubs_.end()) {
      deepest_ = std::max(deepest_, depth_ + found->second.height);
      if (deepest_ > kMaxValueDepth) fail("is nested deeper than 200 levels");
      return found->second.stub;
    }
    const int deepest_before = std::exchange(deepest_, depth_);
    const PickleNode* callee = &graph_.nodes[node.callee];
    // copyreg._reconstructor(cls, ...) and copyreg.__newobj__(cls, ...) stand for cls.
    if (callee->kind == Kind::kGlobal &&
        (callee->text == "copyreg" || callee->text == "copy_reg") && !args_of(node).empty() &&
        graph_.nodes[args_of(node)[0]].kind == Kind::kGlobal) {
      callee = &graph_.nodes[args_of(node)[0]];
    }
    auto stub = callee->kind == Kind::kGlobal ? named_stub(callee->text, callee->name)
                                              : named_stub("", "<result of a call>");
    stub->args = read_items(args_of(node));
    if (node.state != kNoNode) {
      path_.emplace_back("(state)");
      stub->state = read(node.state);
      path_.pop_back();
    }
    stub->items = read_items(node.items);
    Dict entries;
    read_entries(node.entries, entries);
    stub->entries = std::move(entries.items);
    stubs_[id] = {stub, deepest_ - depth_};
    deepest_ = std::max(deepest_, deepest_before);
    return stub;
  }

  std::vector<int64_t> read_extents(const PickleNode& node) {
    const PickleNode* tuple = &node;
    if (node.kind == Kind::kObject) {  // torch.Size
      tuple = &arg(node, 0);
    }
    std::vector<int64_t> extents;
    for (const uint32_t id : tuple->items) {
      const PickleNode& extent = graph_.nodes[id];
      if (extent.kind != Kind::kInt || extent.integer < 0 || extents.size() >= kMaxDimensions) {
        fail("a tensor of an impossible shape or stride");
      }
      extents.push_back(extent.integer);
    }
    return extents;
  }

  /// (storage, offset, size, stride, requires_grad, hooks), v3 with the element type after these.
  Value read_tensor(uint32_t id, const PickleNode& node, bool with_dtype) {
    if (const auto found = tensors_.find(id); found != tensors_.end()) return found->second;
    const PickleNode& persistent = arg(node, 0);
    if (persistent.kind != Kind::kPersistent || arg(node, 1).kind != Kind::kInt) {
      fail("a tensor without a storage");
    }
    const StorageRef ref = storage_ref(graph_, persistent, where_);
    std::optional<at::ScalarType> dtype = ref.dtype;
    if (with_dtype) {
      const PickleNode& element = arg(node, 6);
      dtype = element.kind == Kind::kGlobal && element.text == "torch"
                  ? find_dtype(&DtypeNames::python, element.name)
                  : std::nullopt;
    }
    if (!dtype) fail("a tensor of an unknown element type");
    const std::vector<int64_t> shape = read_extents(arg(node, 2));
    const std::vector<int64_t> strides = read_extents(arg(node, 3));
    const at::Tensor bytes = loader_(ref);
    const int64_t offset = arg(node, 1).integer;
    const auto item = static_cast<int64_t>(c10::elementSize(*dtype));
    const int64_t available = bytes.numel() / item;
    check_span(shape, strides, offset, available);
    // The loader has looked at the storages that call themselves bools.
    if (*dtype == at::kBool && ref.dtype != at::kBool && available > 0 &&
        bytes.max().item<int64_t>() > 1) {
      fail("bools beyond 1");
    }
    // A storage of bytes may end within an element.
    at::Tensor elements = bytes.narrow(0, 0, available * item).view(*dtype);
    at::Tensor tensor = elements.as_strided(shape, strides, elements.storage_offset() + offset);
    tensors_[id] = tensor;
    return tensor;
  }

  void check_span(const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& strides,
                  int64_t offset,
                  int64_t available) const {
    int64_t last = offset, numel = 1;
    bool overflow = shape.size() != strides.size() || offset < 0;
    for (size_t i = 0; i < shape.size() && !overflow; ++i) {
      int64_t reach = 0;
      overflow = __builtin_mul_overflow(numel, shape[i], &numel) ||
                 __builtin_mul_overflow(std::max<int64_t>(shape[i] - 1, 0), strides[i], &reach) ||
                 __builtin_add_overflow(last, reach, &last);
    }
    if (overflow || offset > available || (numel > 0 && last >= available)) {
      fail(fmt::format("a tensor reaches beyond its storage of {} elements", available));
    }
    if (numel > std::max(available, kMaxRepeated)) {
      fail(fmt::format("a tensor of {} elements that repeats a storage of {}", numel, available));
    }
  }

  const PickleGraph& graph_;
  const StorageLoader& loader_;
  std::string where_;
  std::vector<bool> open_;  ///< nodes that are being read: a reference to one of them is a cycle
  std::vector<std::string> path_;
  struct SharedStub {
    std::shared_ptr<StubObject> stub;
    int height = 0;  ///< levels below it
  };
  std::unordered_map<uint32_t, SharedStub> stubs_;
  std::unordered_map<uint32_t, at::Tensor> tensors_;
  int depth_ = 0, deepest_ = 0;
  uint64_t bytes_ = 0, most_bytes_;  ///< of the values so far
};

/// packaging.version.Version: since 26 a tuple (epoch, release, ...), before {"_version": ...} or
/// {"_str"...}, whose release is the first tuple of numbers in it.
std::optional<std::string> version_of_state(const Value& state) {
  const std::vector<Value>* parts = nullptr;
  if (state.is_tuple()) {
    parts = &state.as_sequence();
  } else if (state.is_dict() && state.as_dict().find("_version") != nullptr) {
    const Value& inner = *state.as_dict().find("_version");
    if (inner.is_stub()) parts = &std::get<std::shared_ptr<StubObject>>(inner.data)->args;
  }
  for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
    if (!(*parts)[i].is_tuple()) {
      if ((*parts)[i].is_dict()) return version_of_state((*parts)[i]);
      continue;
    }
    std::string text;
    for (const Value& number : (*parts)[i].as_sequence()) {
      if (!number.is_int()) return version_of_state((*parts)[i]);
      text += fmt::format("{}{}", text.empty() ? "" : ".", number.as_int());
    }
    return text;
  }
  return std::nullopt;
}

}  // namespace

std::vector<StorageRef> storages_of(const PickleGraph& graph, const std::string& where) {
  std::vector<StorageRef> refs;
  for (const PickleNode& node : graph.nodes) {
    if (node.kind == Kind::kPersistent) refs.push_back(storage_ref(graph, node, where));
  }
  return refs;
}

std::optional<std::string> version_text(const Value& value) {
  if (value.is_string()) return value.as_string();
  if (!value.is_stub()) return std::nullopt;
  const StubObject& stub = *std::get<std::shared_ptr<StubObject>>(value.data);
  if (stub.name != "Version" || !stub.module.starts_with("packaging")) return std::nullopt;
  return version_of_state(stub.state);
}

Value value_of_pickle(const PickleGraph& graph,
                      const StorageLoader& loader,
                      const std::string& where) {
  return Reader(graph, loader, where).read(graph.root);
}

}  // namespace dalle2
