// SPDX-License-Identifier: MIT
#include "run/shards/batch_of_main.h"

#include <torch/types.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/untrusted_text.h"

namespace dalle2 {

std::optional<Batch> batch_of_main(ProcessGroup& group, std::optional<Batch> own) {
  if (group.is_alone()) return own;
  nlohmann::json about;  // null: there is none
  if (group.is_main() && own) {
    std::vector<std::string> keys;
    for (const std::string& key : own->keys) keys.push_back(as_utf8(key));
    about = {{"keys", keys}, {"captions", own->captions}, {"shapes", nlohmann::json::array()}};
    own->tensors([&](const at::Tensor& tensor) {
      about["shapes"].push_back(tensor.defined() ? nlohmann::json(tensor.sizes().vec()) : nullptr);
    });
  }
  about = nlohmann::json::parse(group.text_of_main(about.dump(), "samples for pictures"));
  if (about.is_null()) return std::nullopt;
  Batch batch = group.is_main() ? *std::move(own) : Batch{};
  batch.keys = about["keys"].get<std::vector<std::string>>();
  batch.captions = about["captions"].get<std::vector<std::string>>();
  auto shape = about["shapes"].begin();
  batch.tensors([&](at::Tensor& tensor) {
    const nlohmann::json& sizes = *shape++;
    if (sizes.is_null()) return;
    const auto there = at::TensorOptions(group.device()).dtype(at::kFloat);
    const at::Tensor values = group.is_main() ? tensor.to(there).contiguous()
                                              : at::empty(sizes.get<std::vector<int64_t>>(), there);
    group.broadcast(values, "samples for pictures");
    tensor = values.cpu();
  });
  return batch;
}

}  // namespace dalle2
