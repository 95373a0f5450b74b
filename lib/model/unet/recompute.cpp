// SPDX-License-Identifier: MIT
#include "model/unet/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/autocast_state.h"

namespace dalle2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the backward pass needs beside tensors.
struct Call : torch::CustomClassHolder {
  TensorFunction function;
  size_t num_inputs = 0;
  at::DeviceType device = at::kCPU;
  bool autocast = false;
  at::ScalarType autocast_dtype = at::kBFloat16;
};

struct Recompute : torch::autograd::Function<Recompute> {
  // `tensors`: the inputs, then the parameters.
  static at::Tensor forward(AutogradContext* context,
                            const c10::intrusive_ptr<Call>& call,
                            at::TensorList tensors) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(tensors.vec());
    return call->function(tensors.slice(0, call->num_inputs).vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    // Leaves of a graph of its own; parameters are leaves already.
    variable_list leaves;
    for (size_t i = 0; i < saved.size(); ++i) {
      const bool is_input = i < call->num_inputs;
      leaves.push_back(is_input ? saved[i].detach().set_requires_grad(saved[i].requires_grad())
                                : saved[i]);
    }
    at::Tensor output;
    {
      const at::AutoGradMode enable_grad(true);
      const AutocastState autocast(call->device, call->autocast, call->autocast_dtype);
      output = call->function(variable_list(
          leaves.begin(), leaves.begin() + static_cast<std::ptrdiff_t>(call->num_inputs)));
    }
    variable_list wanted;
    for (const at::Tensor& leaf : leaves) {
      if (leaf.requires_grad()) wanted.push_back(leaf);
    }
    const variable_list found = torch::autograd::grad({output},
                                                      wanted,
                                                      {grad_outputs[0]},
                                                      /*retain_graph=*/std::nullopt,
                                                      /*create_graph=*/false,
                                                      /*allow_unused=*/true);
    variable_list grads(1);  // none for `call`
    size_t next = 0;
    for (const at::Tensor& leaf : leaves) {
      grads.push_back(leaf.requires_grad() ? found[next++] : at::Tensor());
    }
    return grads;
  }
};

}  // namespace

at::Tensor recompute_in_backward(TensorFunction function,
                                 const std::vector<at::Tensor>& inputs,
                                 const std::vector<at::Tensor>& parameters) {
  const auto call = c10::make_intrusive<Call>();
  call->function = std::move(function);
  call->num_inputs = inputs.size();
  call->device = inputs.at(0).device().type();
  call->autocast = at::autocast::is_autocast_enabled(call->device);
  call->autocast_dtype = at::autocast::get_autocast_dtype(call->device);
  variable_list tensors = inputs;
  tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  return Recompute::apply(call, at::TensorList(tensors));
}

}  // namespace dalle2
