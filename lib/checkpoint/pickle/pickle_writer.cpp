// SPDX-License-Identifier: MIT
// Values to a pickle of protocol 2, as torch.save() writes it.
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/state_dict.h"

#include "base/error.h"
#include "base/little_endian.h"
#include "base/untrusted_text.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>

namespace dalle2 {
namespace {

/// A run of elements [begin, end) of a storage that tensors use; in elements of `dtype`.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t key = -1;  ///< number of the storage in the file, once it has one
};

/// Views of different element types cannot share a storage in a pickle.
using SpanOwner = std::pair<const void*, at::ScalarType>;

int64_t last_element(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return last;
}

class Writer {
 public:
  PickleToWrite run(const Value& value) {
    collect(value);
    for (auto& [owner, spans] : spans_) merge(spans);
    out_ += "\x80\x02";
    write(value);
    out_ += '.';
    return {std::move(out_), std::move(storages_)};
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    std::string path;
    for (const std::string& part : path_) path += "/" + part;
    throw DataError("{}: cannot be saved: {}", path.empty() ? "/" : path, text);
  }

  static std::string key_text(const Value& key) {
    return key.is_string() ? key.as_string()
           : key.is_int()  ? std::to_string(key.as_int())
                           : fmt::format("({})", key.type_name());
  }

  /// Calls visit(child) for every child, with the path set.
  template <class Visit>
  void for_children(const Value& value, Visit visit) {
    if (path_.size() >= kMaxValueDepth) fail("nested deeper than 200 levels");
    if (value.is_dict()) {
      for (const auto& [key, child] : value.as_dict().items) {
        path_.push_back(key_text(key));
        visit(key, child);
        path_.pop_back();
      }
      return;
    }
    size_t index = 0;
    for (const Value& child : value.as_sequence()) {
      path_.push_back(std::to_string(index++));
      visit(Value(), child);
      path_.pop_back();
    }
  }

  at::Tensor plain(const at::Tensor& tensor) const {
    if (!tensor.defined()) fail("an undefined tensor");
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta() ||
        tensor.is_conj() || tensor.is_neg()) {
      fail("a tensor that is not dense");
    }
    return tensor.detach();
  }

  static SpanOwner owner_of(const at::Tensor& tensor) {
    return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()};
  }

  void collect(const Value& value) {
    if (value.is_tensor()) {
      const at::Tensor tensor = plain(std::get<at::Tensor>(value.data));
      if (tensor.numel() > 0) {
        const int64_t begin = tensor.storage_offset();
        spans_[owner_of(tensor)].push_back({begin, begin + last_element(tensor) + 1, -1});
      }
    } else if (value.is_dict() || value.is_list() || value.is_tuple()) {
      for_children(value, [this](const Value&, const Value& child) { collect(child); });
    }
  }

  /// Overlapping spans become one; those that only touch stay apart.
  static void merge(std::vector<Span>& spans) {
    std::ranges::sort(spans, {}, &Span::begin);
    std::vector<Span> merged;
    for (const Span& span : spans) {
      if (!merged.empty() && span.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, span.end);
      } else {
        merged.push_back(span);
      }
    }
    spans = std::move(merged);
  }

  Span& span_of(const at::Tensor& tensor) {
    std::vector<Span>& spans = spans_.at(owner_of(tensor));
    const auto after = std::ranges::upper_bound(spans, tensor.storage_offset(), {}, &Span::begin);
    return *std::prev(after);
  }

  void write(const Value& value) {
    struct Visitor {
      Writer& writer;
      void operator()(std::monostate) const { writer.out_ += 'N'; }
      void operator()(bool flag) const { writer.out_ += flag ? '\x88' : '\x89'; }
      void operator()(int64_t number) const { writer.write_int(number); }
      void operator()(double number) const { writer.write_double(number); }
      void operator()(const std::string& text) const { writer.write_text(text); }
      void operator()(const Bytes& bytes) const { writer.write_bytes(bytes.data); }
      void operator()(const at::Tensor& tensor) const { writer.write_tensor(tensor); }
      void operator()(const List& list) const { writer.write_list(list); }
      void operator()(const Tuple& tuple) const { writer.write_tuple(tuple); }
      void operator()(const Dict& dict) const { writer.write_dict(dict); }
      void operator()(const std::shared_ptr<StubObject>& stub) const {
        writer.fail(
            fmt::format("an object of the class {}, which is not plain data", stub->full_name()));
      }
    };
    std::visit(Visitor{*this}, value.data);
  }

  void write_int(int64_t number) {
    if (number >= 0 && number < 256) {
      out_ += 'K';
      append_little_endian(out_, static_cast<uint64_t>(number), 1);
    } else if (number >= 0 && number < 65536) {
      out_ += 'M';
      append_little_endian(out_, static_cast<uint64_t>(number), 2);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
      out_ += 'J';
      append_little_endian(out_, static_cast<uint64_t>(number), 4);
    } else {
      out_ += "\x8a\x08";
      append_little_endian(out_, static_cast<uint64_t>(number), 8);
    }
  }

  void write_double(double number) {
    out_ += 'G';
    const auto bits = std::bit_cast<uint64_t>(number);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
  }

  /// Writes `code` once; later mentions of the same `name` fetch it from the memo.
  template <class WriteCode>
  void memoized(const std::string& name, WriteCode write_code) {
    const auto [place, fresh] = memo_.try_emplace(name, memo_.size());
    if (!fresh) {
      out_ += 'j';
      append_little_endian(out_, place->second, 4);
      return;
    }
    const size_t index = place->second;
    write_code();
    out_ += 'r';
    append_little_endian(out_, index, 4);
  }

  void write_text(const std::string& text) {
    if (const auto fault = utf8_fault(text)) fail(*fault);
    if (text.size() > UINT32_MAX) fail("a text of more than 4 GiB");
    memoized("s" + text, [&] {
      out_ += 'X';
      append_little_endian(out_, text.size(), 4);
      out_ += text;
    });
  }

  void write_global(const char* module, const char* name) {
    memoized(std::string("g") + module + " " + name,
             [&] { out_ += fmt::format("c{}\n{}\n", module, name); });
  }

  /// As Python does in protocol 2: _codecs.encode(text of the same code points, "latin1").
  void write_bytes(const std::string& bytes) {
    std::string text;
    for (const char byte : bytes) {
      const auto code = static_cast<uint8_t>(byte);
      if (code < 0x80) {
        text += byte;
      } else {
        text += static_cast<char>(0xC0 | (code >> 6));
        text += static_cast<char>(0x80 | (code & 0x3F));
      }
    }
    write_global("_codecs", "encode");
    write_text(text);
    write_text("latin1");
    out_ += "\x86R";
  }

  void write_list(const List& list) {
    out_ += ']';
    if (!list.items.empty()) {
      out_ += '(';
      for_children(list, [this](const Value&, const Value& child) { write(child); });
      out_ += 'e';
    }
  }

  void write_tuple(const Tuple& tuple) {
    if (tuple.items.empty()) {
      out_ += ')';
      return;
    }
    out_ += '(';
    for_children(tuple, [this](const Value&, const Value& child) { write(child); });
    out_ += 't';
  }

  void write_dict(const Dict& dict) {
    if (dict.ordered) {
      write_ordered_dict();
    } else {
      out_ += '}';
    }
    if (!dict.items.empty()) {
      out_ += '(';
      for_children(dict, [this](const Value& key, const Value& child) {
        if (!key.is_string() && !key.is_int() && !key.is_bool() && !key.is_double() &&
            !key.is_none()) {
          fail(fmt::format("a key of the type {}", key.type_name()));
        }
        write(key);
        write(child);
      });
      out_ += 'u';
    }
  }

  void write_ordered_dict() {
    write_global("collections", "OrderedDict");
    out_ += ")R";
  }

  /// The number of the storage in the file for the run of elements that `tensor` lies in.
  int64_t storage_key(const at::Tensor& tensor, Span& span) {
    if (span.key < 0) {
      span.key = static_cast<int64_t>(storages_.size());
      storages_.push_back(tensor.as_strided({span.end - span.begin}, {1}, span.begin));
    }
    return span.key;
  }

  void write_tensor(const at::Tensor& original) {
    const at::Tensor tensor = plain(original);
    Span empty{tensor.storage_offset(), tensor.storage_offset(), -1};
    Span& span = tensor.numel() > 0 ? span_of(tensor) : empty;
    const std::string storage(dtype_name(&DtypeNames::storage, tensor.scalar_type()));
    const bool typed = !storage.empty();
    const int64_t numel = span.end - span.begin;
    write_global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    out_ += "((";
    write_text("storage");
    if (typed) {
      write_global("torch", storage.c_str());
    } else {
      write_global("torch.storage", "UntypedStorage");
    }
    write_text(std::to_string(storage_key(tensor, span)));
    write_text("cpu");
    write_int(typed ? numel : numel * static_cast<int64_t>(tensor.element_size()));
    out_ += "tQ";
    write_int(tensor.storage_offset() - span.begin);
    write_extents(tensor.sizes());
    write_extents(tensor.strides());
    out_ += '\x89';  // requires_grad
    write_ordered_dict();
    if (!typed) write_global("torch", python_dtype(tensor.scalar_type()).c_str());
    out_ += "tR";
  }

  void write_extents(at::IntArrayRef extents) {
    out_ += '(';
    for (const int64_t extent : extents) write_int(extent);
    out_ += 't';
  }

  std::string out_;
  std::vector<at::Tensor> storages_;
  std::map<SpanOwner, std::vector<Span>> spans_;
  std::unordered_map<std::string, size_t> memo_;
  std::vector<std::string> path_;
};

}  // namespace

PickleToWrite pickle_of_value(const Value& value) {
  return Writer().run(value);
}

}  // namespace dalle2
