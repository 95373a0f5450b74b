// SPDX-License-Identifier: MIT
#include "run/loop/loss_window.h"

#include <torch/types.h>

#include <cmath>

namespace dalle2 {
namespace {

at::Tensor stacked(const std::deque<at::Tensor>& losses) {
  if (losses.empty()) return at::empty({0}, at::kFloat);
  return at::stack(std::vector<at::Tensor>(losses.begin(), losses.end()));
}

}  // namespace

void LossSum::add(const at::Tensor& loss, double times) {
  const at::Tensor more = loss.detach().to(at::kDouble) * times;
  sum_ = sum_.defined() ? sum_ + more : more;
}

double LossSum::value() const {
  return sum_.defined() ? sum_.item<double>() : 0.0;
}

void LossWindow::push(int64_t part, const at::Tensor& loss) {
  std::deque<at::Tensor>& recent = losses_.at(static_cast<size_t>(part - 1));
  recent.push_back(loss);
  if (recent.size() > length_) recent.pop_front();
}

LossAverage LossWindow::average(int64_t part) const {
  const std::deque<at::Tensor>& recent = losses_.at(static_cast<size_t>(part - 1));
  if (recent.empty()) return {.mean = std::nan(""), .left_out = 0};
  const at::Tensor losses = stacked(recent);
  const at::Tensor finite = losses.masked_select(losses.isfinite());
  const double mean = finite.numel() > 0 ? finite.mean().item<double>() : std::nan("");
  return {.mean = mean, .left_out = losses.numel() - finite.numel()};
}

void LossWindow::clear() {
  for (std::deque<at::Tensor>& losses : losses_) losses.clear();
}

Value LossWindow::state() const {
  List list;
  for (const std::deque<at::Tensor>& losses : losses_)
    list.items.emplace_back(stacked(losses).cpu());
  return list;
}

void LossWindow::load(const Cursor& saved) {
  clear();
  for (size_t part = 0; part < saved.size() && part < losses_.size(); ++part) {
    const at::Tensor losses = saved.at(part).as_tensor().to(device_, at::kFloat);
    for (const at::Tensor& loss : losses.flatten().unbind())
      push(static_cast<int64_t>(part) + 1, loss.clone());
  }
}

}  // namespace dalle2
