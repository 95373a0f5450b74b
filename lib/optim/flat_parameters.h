// SPDX-License-Identifier: MIT
// The tensors of a module in one buffer, its gradients in a second: whatever visits all of them
// (clip, optimizer, average) is one pass over memory.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/nn.h>

#include <ATen/core/Tensor.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/half_weights.h"

namespace dalle2 {

/// Whether all numbers of large buffers are finite. One pass over memory. Waits for the device.
bool all_finite(at::TensorList tensors);

/// Elements begin ... end - 1 of a flat buffer.
struct FlatSlice {
  int64_t begin = 0, end = 0;

  int64_t length() const { return end - begin; }
  /// @param whole [n] @return [length] a view
  at::Tensor of(const at::Tensor& whole) const { return whole.narrow(0, begin, length()); }
  /// What both have; empty (and somewhere) if there is nothing.
  FlatSlice overlap(const FlatSlice& other) const;
};

/// The shares of `count` owners of `numel` elements, in order: equal and in multiples of kFlatRow,
/// but for the last, which has what is left over too.
std::vector<FlatSlice> split_flat(int64_t numel, int64_t count);

/// Copies the part of `tensor` that lies in a slice into what is kept of the slice.
/// @param own [slice.length()] @param offset of the tensor's first element in the whole buffer
void copy_into_slice(const at::Tensor& own,
                     const FlatSlice& slice,
                     int64_t offset,
                     const at::Tensor& tensor);

/// One named tensor of the module and its place in the flat buffer.
struct FlatEntry {
  std::string name;    ///< as in the module's state dict
  at::Tensor tensor;   ///< the module's own tensor: a view of the buffer
  int64_t offset = 0;  ///< first element; a multiple of kFlatAlignment
  int64_t numel = 0;   ///< elements of its own, without the padding after it
  /// Filters [out, in, h, w] that lie as [out, h, w, in], as the CPU's convolutions read them.
  bool channels_last = false;

  /// Its place in any buffer of this layout, in its shape: a view.
  at::Tensor of(const at::Tensor& flat) const;
  /// The elements of a tensor of its shape in their order in a buffer. [numel]
  at::Tensor flattened(const at::Tensor& values) const;
};

/// Entries begin at multiples of this many floats (64 bytes), so that kernels see aligned rows.
/// What lies between them stays zero.
inline constexpr int64_t kFlatAlignment = 16;
/// The parameters together end at a multiple of this many floats: the norm of their gradients is
/// made of the norms of such rows, and a slice of the buffer consists of whole ones.
inline constexpr int64_t kFlatRow = 1024;

/// Moves the float32 parameters and buffers of a module into one buffer. Layout: parameters with ndim >= 2 (those that
/// decay), then the others, then the buffers. The module must not be moved to another device or dtype afterwards;
/// copying into its tensors is what keeps the views.
class FlatParameters {
 public:
  /// The module's tensors keep their values, their identity and their device.
  /// @param names of the parameters that it takes, which have to be float32 on one device; the others stay
  /// where they are and may be of any type. None: all. It takes all floating buffers, float32 too
  /// @throws std::logic_error for tensors of another type or device
  explicit FlatParameters(const torch::nn::Module& module,
                          const std::optional<std::vector<std::string>>& names = std::nullopt);

  /// [n] float32: everything.
  const at::Tensor& values() const { return values_; }
  /// Length of the part that belongs to parameters; what follows are buffers.
  int64_t parameter_span() const { return parameter_span_; }
  /// Parameters in the order of registration, shared ones once.
  const std::vector<FlatEntry>& parameters() const { return parameters_; }
  /// Floating buffers in the order of registration.
  const std::vector<FlatEntry>& buffers() const { return buffers_; }
  /// Both, one after the other.
  std::vector<FlatEntry> entries() const;
  std::vector<std::string> names() const;

 private:
  at::Tensor values_;
  int64_t parameter_span_ = 0;
  std::vector<FlatEntry> parameters_, buffers_;
};

/// Names of the parameters of a module that require a gradient, in the order of registration.
std::vector<std::string> trained_parameters(const torch::nn::Module& module);

/// The gradients of a FlatParameters' parameters in a buffer of the same layout. A backward pass
/// fills it by itself: a gradient is copied into its slice as soon as it is made, and a second
/// backward pass adds to it there. Which parameters got one is known without looking at values.
class FlatGradients {
 public:
  explicit FlatGradients(const FlatParameters& parameters);
  ~FlatGradients();
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  /// [parameter_span] float32. Parameters without a gradient since zero_grad() are zero in it.
  const at::Tensor& values();
  /// One flag a parameter, in the order of FlatParameters::parameters(): a gradient has arrived.
  const std::vector<bool>& received() const { return received_; }
  /// Where the gradient of a parameter goes, for a pass that writes it there itself and hands it on to autograd, which then copies
  /// nothing. Undefined if there is a gradient already, to which another has to be added.
  /// @return the only reference to a tensor of the parameter's shape
  at::Tensor place_of(size_t parameter);
  /// Adds a gradient that a pass has made elsewhere; an undefined one is none. Calls for different
  /// parameters may run at the same time. tell_received() follows them.
  void add(size_t parameter, const at::Tensor& gradient);
  /// Takes account of what add() has done, and tells the listener of every gradient there is.
  void tell_received();
  /// Takes that these parameters have a gradient, be it zero, though none may have arrived here: on
  /// another rank one has. One flag a parameter.
  void set_received(const std::vector<bool>& received);
  /// Sets which parameters have a gradient, in `.grad()` and in received(), without writing to the gradients. Needed after a replay of
  /// recorded work, since the hooks of that work ran only during the recording. One flag for each parameter.
  void restore_account(const std::vector<bool>& received);
  /// Called with the number of a parameter each time a backward pass has added to its gradient. An
  /// empty function for none.
  void set_listener(std::function<void(size_t parameter)> listener) {
    listener_ = std::move(listener);
  }
  /// Gradients are received on the device's current stream from now on; before, on that of the construction.
  void follow_stream();
  /// Forgets all gradients: `.grad()` of every parameter is undefined again.
  void zero_grad();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  class Receiver;
  void receive(size_t parameter, const at::Tensor& gradient);
  void forget_places();

  at::Tensor flat_;
  std::vector<at::Tensor> parameters_, views_;  // views_: in flat_
  std::vector<bool> received_;
  std::vector<bool> filled_;        // the slice may hold something other than zero
  std::vector<WeakTensor> placed_;  // of place_of()
  std::vector<std::shared_ptr<Receiver>> receivers_;
  std::function<void(size_t)> listener_;
};

/// The weights of a FlatParameters in half precision, for passes under autocast: one cast of the whole buffer instead of one of
/// each weight, and gradients that go from half precision straight into the FlatGradients.
class HalfWeights {
 public:
  /// @param dtype that of autocast
  HalfWeights(const FlatParameters& parameters, at::ScalarType dtype);
  /// Copies the weights, if they have changed since. Call it before a pass.
  void refresh();
  /// [parameter_span] the copies, in the layout of the flat buffer. Who writes the weights into them calls are_fresh().
  const at::Tensor& values() const { return halves_; }
  void are_fresh() { copied_version_ = version(); }
  bool is_fresh() const { return copied_version_ == version(); }

  /// A forward pass of this thread with these weights.
  class Pass final : public HalfWeightSource {
   public:
    /// @param gradients of the weights, which its backward pass fills and which has to outlive its graph;
    /// null: autograd hands the gradients on, in float32
    Pass(const HalfWeights& weights, FlatGradients* gradients);
    at::Tensor half_of(const at::Tensor& weight) override;

   private:
    const HalfWeights& weights_;
    FlatGradients* gradients_;
    std::vector<at::Tensor> in_graph_;  // copies with a gradient behind them
    HalfWeightScope scope_;
  };

 private:
  int64_t version() const;

  int64_t copied_version_ = -1;                        // of the weights that the copies have
  at::Tensor values_;                                  // [parameter_span] float32
  at::Tensor halves_;                                  // the same in dtype
  std::unordered_map<const void*, size_t> number_of_;  // of a weight, by its TensorImpl
  std::vector<at::Tensor> weights_, copies_;  // copies_: in halves_, in the weights' shapes
};

/// Euclidean norms of the rows of FlatGradients::values(), or of a slice of it.
/// @param flat [n] float32, n a multiple of kFlatRow
/// @return [n / kFlatRow] float32 on the same device
at::Tensor row_norms(const at::Tensor& flat);

/// Euclidean norm of the whole from those of its rows: one float32 sum over millions of squares
/// would lose digits. @param norms [rows] @return [] float32 on the same device
at::Tensor norm_of_rows(const at::Tensor& norms);

/// Euclidean norm of FlatGradients::values(), by way of its rows.
/// @param flat [n] float32, n a multiple of kFlatRow
/// @return [] float32 on the same device
at::Tensor grad_norm(const at::Tensor& flat);

/// What to divide the gradients by so that their norm is at most `max_norm`: max(1, (norm + 1e-6) /
/// max_norm), the reciprocal of torch.nn.utils.clip_grad_norm_'s factor. Optimizer::step takes it,
/// so that clipping costs no pass of its own.
/// @return [] float32, on norm's device
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

}  // namespace dalle2
