// SPDX-License-Identifier: MIT
#include "config/reading/device_name.h"

#include "config/reading/json_text.h"

namespace dalle2 {
namespace {

constexpr const char* kNumbered = "cuda:";
constexpr size_t kMostDigits = 4;

bool is_gpu_number(const std::string& text) {
  return !text.empty() && text.size() <= kMostDigits &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

std::optional<std::string> device_fault(const std::string& name) {
  if (name == "cpu" || name == "cuda") return std::nullopt;
  if (name.starts_with(kNumbered) && is_gpu_number(name.substr(5))) return std::nullopt;
  return "expected \"cpu\", \"cuda\" or \"cuda:N\", N the number of a GPU with at most 4 digits, "
         "got " +
         shown(name);
}

}  // namespace dalle2
