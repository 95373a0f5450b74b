// SPDX-License-Identifier: MIT
// Operations of the fake device: those of the CPU, on tensors of the CPU that share its memory.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "support/fake_device_parts.h"

namespace dalle2::test {
namespace {

bool is_fake(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == at::kPrivateUse1;
}

/// The tensors of one call on the CPU.
class HostTensors {
 public:
  /// Shares the memory of `fake`.
  at::Tensor of(const at::Tensor& fake) {
    const c10::Storage host = host_storage(fake.storage());
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(host), c10::DispatchKeySet(c10::DispatchKey::CPU), fake.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
        fake.sizes(), fake.strides(), fake.storage_offset());
    tensors_.push_back({fake, tensor});
    return tensor;
  }

  /// A result: an argument, a view of one, or new memory.
  at::Tensor back(const at::Tensor& host) {
    if (!host.defined()) return host;
    for (const auto& [fake, argument] : tensors_) {
      if (argument.is_same(host)) return fake;
    }
    at::Tensor fake = view_or_new(host);
    fake.unsafeGetTensorImpl()->set_sizes_and_strides(
        host.sizes(), host.strides(), host.storage_offset());
    return fake;
  }

  bool is_argument(const at::Tensor& host) const {
    return std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& each) {
      return each.second.storage().is_alias_of(host.storage());
    });
  }

  /// Arguments that were given another size.
  void hand_back_sizes() {
    for (const auto& [fake, host] : memories_) {
      if (host.data() == host_address(fake.mutable_data())) continue;
      fake.unsafeGetStorageImpl()->set_data_ptr_noswap(device_pointer(host));
      fake.unsafeGetStorageImpl()->set_nbytes(host.nbytes());
    }
    for (const auto& [fake, host] : tensors_) {
      if (fake.sizes() == host.sizes() && fake.strides() == host.strides()) continue;
      fake.unsafeGetTensorImpl()->set_sizes_and_strides(
          host.sizes(), host.strides(), host.storage_offset());
    }
  }

 private:
  /// A view of an argument has its dispatch keys, also where inference mode would make others.
  at::Tensor view_or_new(const at::Tensor& host) {
    for (const auto& [fake, argument] : tensors_) {
      if (!argument.storage().is_alias_of(host.storage())) continue;
      return at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(fake.storage()), fake.key_set(), host.dtype());
    }
    return at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(fake_storage(host.storage())),
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        host.dtype());
  }

  c10::Storage host_storage(const c10::Storage& fake) {
    for (const auto& [known, host] : memories_) {
      if (known.is_alias_of(fake)) return host;
    }
    const c10::Storage host = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(),
        fake.nbytes(),
        c10::DataPtr(host_address(fake.mutable_data()), at::kCPU),
        c10::GetAllocator(at::kCPU),
        /*resizable=*/true);
    memories_.emplace_back(fake, host);
    return host;
  }

  c10::Storage fake_storage(const c10::Storage& host) {
    for (const auto& [fake, known] : memories_) {
      if (known.is_alias_of(host)) return fake;
    }
    memories_.emplace_back(device_storage(host), host);
    return memories_.back().first;
  }

  std::vector<std::pair<c10::Storage, c10::Storage>> memories_;  // the device's, the host's
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

/// One call of an operation on the device.
class DeviceCall {
 public:
  DeviceCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        name_(c10::toString(op.operator_name())),
        stack_(stack),
        begin_(stack.size() - op.schema().arguments().size()) {}

  void run() {
    for (size_t i = begin_; i < stack_.size(); ++i) look_at(stack_[i]);
    records_ = is_recording() && !is_view() && name_ != "aten::_fused_sdp_choice";
    for (size_t i = begin_; i < stack_.size(); ++i) {
      const c10::AliasInfo* const alias = op_.schema().arguments()[i - begin_].alias_info();
      writes_ = alias != nullptr && alias->isWrite();
      stack_[i] = to_host(stack_[i]);
    }
    count_call();
    alert_without_order();
    torch::jit::Stack arguments;
    if (records_) {
      arguments.assign(stack_.begin() + static_cast<std::ptrdiff_t>(begin_), stack_.end());
      before_recorded_writes(written_);
      before_recorded_writes(
          read_);  // of running means the schema does not say that they are written
    }
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    const torch::jit::Stack results(
        stack_.end() - static_cast<std::ptrdiff_t>(op_.schema().returns().size()), stack_.end());
    for (size_t i = stack_.size() - op_.schema().returns().size(); i < stack_.size(); ++i) {
      stack_[i] = to_device(stack_[i]);
    }
    tensors_.hand_back_sizes();
    if (records_) record(std::move(arguments), results);
  }

 private:
  void record(torch::jit::Stack arguments, const torch::jit::Stack& results) {
    std::vector<at::Tensor>
        made;  // by each replay; undefined: an argument, which is written in place
    for (const c10::IValue& result : results) {
      if (result.isTensorList()) {
        for (const at::Tensor& each : result.toTensorVector())
          made.push_back(new_or_undefined(each));
      } else {
        made.push_back(result.isTensor() ? new_or_undefined(result.toTensor()) : at::Tensor());
      }
    }
    const auto again = [op = op_, arguments = std::move(arguments), made] {
      const at::AutoDispatchBelowADInplaceOrView below;
      torch::jit::Stack stack = arguments;
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      size_t i = 0;
      const auto take = [&](const at::Tensor& result) {
        const at::Tensor& place = made.at(i++);
        if (place.defined()) place.copy_(result);
      };
      for (const c10::IValue& result : stack) {
        if (result.isTensorList()) {
          for (const at::Tensor& each : result.toTensorVector()) take(each);
        } else {
          take(result.isTensor() ? result.toTensor() : at::Tensor());
        }
      }
    };
    record_work({name_, read_, written_, again});
  }

  at::Tensor new_or_undefined(const at::Tensor& result) {
    if (!result.defined() || tensors_.is_argument(result)) return {};
    return result;
  }

  void look_at(const c10::IValue& value) {
    if (value.isTensor()) {
      has_fake_ = has_fake_ || is_fake(value.toTensor());
    } else if (value.isDevice()) {
      has_fake_ = has_fake_ || value.toDevice().type() == at::kPrivateUse1;
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) look_at(each);
    }
  }

  at::Tensor tensor_to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (is_fake(tensor)) {
      (writes_ ? written_ : read_).push_back(tensor.storage());
      if (!is_view()) use_memory(tensor.storage().mutable_data(), writes_, name_);
      has_mask_ = has_mask_ || tensor.scalar_type() == at::kBool;
      return tensors_.of(tensor);
    }
    TORCH_CHECK(!has_fake_ || (tensor.dim() == 0 && !writes_),
                name_,
                ": expected all tensors on one device, got ",
                tensor.sizes(),
                " on the CPU");
    // A number of the host is recorded as it is now.
    const bool is_kept = records_ && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return is_kept ? tensor.clone() : tensor;
  }

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return tensor_to_host(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& each : value.toTensorVector()) tensors.push_back(tensor_to_host(each));
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const auto& each : value.toOptionalTensorVector()) {
        tensors.push_back(each ? std::optional(tensor_to_host(*each)) : std::nullopt);
      }
      return tensors;
    }
    if (value.isGenerator()) {
      const at::Generator generator = value.toGenerator();
      if (!generator.defined()) return value;
      TORCH_CHECK(!generator.device().is_cpu(), name_, ": the generator is of the CPU");
      return host_generator_in(generator);
    }
    if (value.isDevice() && value.toDevice().type() == at::kPrivateUse1)
      return at::Device(at::kCPU);
    return value;
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return result(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& each : value.toTensorVector()) tensors.push_back(result(each));
      return tensors;
    }
    return value;
  }

  at::Tensor result(const at::Tensor& host) {
    const bool is_new = host.defined() && !tensors_.is_argument(host);
    at::Tensor fake = tensors_.back(host);
    if (is_new) written_.push_back(fake.storage());
    if (fake.defined() && !is_view()) use_memory(fake.storage().mutable_data(), true, name_);
    return fake;
  }

  bool is_view() const {
    const auto& returns = op_.schema().returns();
    return !returns.empty() && returns[0].alias_info() != nullptr &&
           !returns[0].alias_info()->isWrite();
  }

  void count_call() const {
    static const std::set<std::string> reads = {"aten::_local_scalar_dense",
                                                "aten::nonzero",
                                                "aten::nonzero_numpy",
                                                "aten::masked_select",
                                                "aten::bincount",
                                                "aten::equal",
                                                "aten::_unique2",
                                                "aten::unique_consecutive",
                                                "aten::unique_dim",
                                                "aten::repeat_interleave.Tensor"};
    static const std::set<std::string> masked = {
        "aten::index.Tensor", "aten::_index_put_impl_", "aten::index_put_"};
    if (reads.contains(name_) || (has_mask_ && masked.contains(name_))) {
      refuse_while_recording(name_ + ", which the host reads");
      count(&FakeDeviceCounts::host_reads, "read by the host, " + name_);
    }
    if (is_view() || name_ == "aten::_local_scalar_dense" || name_ == "aten::_fused_sdp_choice") {
      return;
    }
    count(&FakeDeviceCounts::operations, "operation " + name_);
  }

  /// Those that a training may meet of which CUDA's kernels have no deterministic form.
  void alert_without_order() const {
    static const std::set<std::string> without_order = {"aten::_adaptive_avg_pool2d_backward",
                                                        "aten::adaptive_max_pool2d_backward",
                                                        "aten::bincount",
                                                        "aten::reflection_pad2d_backward",
                                                        "aten::replication_pad2d_backward",
                                                        "aten::upsample_bicubic2d_backward",
                                                        "aten::upsample_bilinear2d_backward"};
    if (without_order.contains(name_)) at::globalContext().alertNotDeterministic(name_);
  }

  const c10::OperatorHandle& op_;
  std::string name_;
  torch::jit::Stack& stack_;
  size_t begin_;
  HostTensors tensors_;
  std::vector<c10::Storage> read_, written_;
  bool has_fake_ = false, has_mask_ = false, writes_ = false, records_ = false;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  DeviceCall(op, *stack).run();
}

// ---- What the CPU has no operation for

at::Tensor empty(at::IntArrayRef sizes,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/,
                 std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "memory of the device cannot be pinned");
  return at::detail::empty_generic(sizes,
                                   device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes,
                         at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(sizes,
                                           strides,
                                           device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  HostTensors tensors;
  const at::Tensor host_to = is_fake(to) ? tensors.of(to) : to;
  const at::Tensor host_from = is_fake(from) ? tensors.of(from) : from;
  if (is_fake(from)) use_memory(from.storage().mutable_data(), /*writes=*/false, "copy_");
  if (is_fake(to)) use_memory(to.storage().mutable_data(), /*writes=*/true, "copy_");
  if (!is_fake(to)) {
    download(host_to, host_from, non_blocking);
  } else if (!is_fake(from)) {
    upload(host_to, host_from, non_blocking);
  } else {
    if (is_recording()) before_recorded_writes({to.storage()});
    host_to.copy_(host_from);
    count(&FakeDeviceCounts::operations, "operation aten::copy_");
    if (is_recording()) {
      record_work({"aten::copy_", {from.storage()}, {to.storage()}, [host_to, host_from] {
                     host_to.copy_(host_from);
                   }});
    }
  }
  return to;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  record_memory(tensor.storage().mutable_data(), stream);
}

bool can_hand_over_data(const at::Tensor& /*to*/, const at::Tensor& /*from*/) {
  return true;
}

at::Tensor float_mask(const at::Tensor& mask, at::ScalarType dtype) {
  if (mask.scalar_type() != at::kBool) return mask;
  return at::zeros_like(mask, dtype)
      .masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

/// LibTorch has a choice of its own for each device; this is the CPU's.
at::Tensor attention(const at::Tensor& query,
                     const at::Tensor& key,
                     const at::Tensor& value,
                     const std::optional<at::Tensor>& mask,
                     double dropout,
                     bool causal,
                     std::optional<double> scale,
                     bool grouped) {
  std::optional<at::Tensor> added;
  if (mask && mask->defined()) added = float_mask(*mask, query.scalar_type());
  constexpr int64_t kFlash = 1;
  const bool mask_learns = added && added->requires_grad();  // the fused form has no gradient of it
  if (!mask_learns &&
      at::_fused_sdp_choice(query, key, value, added, dropout, causal, scale, grouped) == kFlash) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout, causal, added, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, added, dropout, causal, std::nullopt, scale, grouped));
}

// ---- Registration

/// Those that the CPU has a kernel for; and those that a GPU does in one go, while LibTorch takes them
/// apart for a device that it does not know.
bool has_kernel(const c10::OperatorHandle& op, const std::string& name) {
  static const std::set<std::string> own = {"aten::empty.memory_format",
                                            "aten::empty_strided",
                                            "aten::copy_",
                                            "aten::_copy_from",
                                            "aten::_copy_from_and_resize",
                                            "aten::_to_copy",
                                            "aten::record_stream",
                                            "aten::_has_compatible_shallow_copy_type",
                                            "aten::scaled_dot_product_attention"};
  if (!name.starts_with("aten::") || own.contains(name)) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) || name.starts_with("aten::_foreach_") ||
         name == "aten::convolution" || name == "aten::convolution_backward";
}

void register_kernels_of_the_cpu(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& op_name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(op_name);
    const std::string name = c10::toString(op_name);
    if (!op || !has_kernel(*op, name)) continue;
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_kernels_of_the_cpu(m);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &can_hand_over_data);
  m.impl("scaled_dot_product_attention", &attention);
}

TORCH_LIBRARY_IMPL(dalle2, PrivateUse1, m) {  // those of lib/kernels
  for (const char* const name : {"group_norm_silu",
                                 "group_norm_silu_backward",
                                 "fill_dropout_mask_",
                                 "fill_dropout_mask_from_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("scaled_dot_product_attention", &attention);
}

}  // namespace dalle2::test
