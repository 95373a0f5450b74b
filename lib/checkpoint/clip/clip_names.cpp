// SPDX-License-Identifier: MIT
#include "checkpoint/clip/clip_names.h"

#include <torch/types.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace dalle2 {
namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

constexpr const char* kHuggingFaceMark = "text_model.embeddings.token_embedding.weight";
constexpr const char* kCustomTextMark = "text.token_embedding.weight";
constexpr std::string_view kAttention = ".self_attn.", kProjection = "_proj.";

constexpr std::string_view kNoWeights[] = {
    "input_resolution", "context_length", "vocab_size", "attn_mask"};

constexpr Replacement kBeginnings[] = {
    {"text_model.embeddings.token_embedding.", "token_embedding."},
    {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
    {"text_model.final_layer_norm.", "ln_final."},
    {"text_model.encoder.layers.", "transformer.resblocks."},
    {"text_projection.weight", "text_projection"},
    {"vision_model.embeddings.class_embedding", "visual.class_embedding"},
    {"vision_model.embeddings.patch_embedding.weight", "visual.conv1.weight"},
    {"vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"},
    {"vision_model.pre_layrnorm.", "visual.ln_pre."},
    {"vision_model.post_layernorm.", "visual.ln_post."},
    {"vision_model.encoder.layers.", "visual.transformer.resblocks."},
    {"visual_projection.weight", "visual.proj"}};

constexpr Replacement kInside[] = {{".layer_norm1.", ".ln_1."},
                                   {".layer_norm2.", ".ln_2."},
                                   {".mlp.fc1.", ".mlp.c_fc."},
                                   {".mlp.fc2.", ".mlp.c_proj."},
                                   {".self_attn.out_proj.", ".attn.out_proj."},
                                   {".self_attn.q_proj.", ".attn.in_proj_"}};

bool is_no_weight(const std::string& name) {
  return std::find(std::begin(kNoWeights), std::end(kNoWeights), name) != std::end(kNoWeights) ||
         name.ends_with("position_ids");
}

std::string renamed(std::string name) {
  for (const auto& [from, to] : kBeginnings)
    if (name.starts_with(from)) name = std::string(to) + name.substr(from.size());
  for (const auto& [from, to] : kInside)
    if (const size_t at = name.find(from); at != std::string::npos)
      name.replace(at, from.size(), to);
  return name;
}

/// Where the letter is in ".self_attn.q_proj.", "k_proj." or "v_proj."; npos in other names.
size_t letter_place(const std::string& name) {
  const size_t attention = name.find(kAttention);
  const size_t place = attention + kAttention.size();
  const bool is_part = attention != std::string::npos && place < name.size() &&
                       std::string_view(name).substr(place + 1).starts_with(kProjection) &&
                       std::string_view("qkv").find(name[place]) != std::string_view::npos;
  return is_part ? place : std::string::npos;
}

/// The name of the query, key or value beside it.
std::string sibling(std::string name, char letter) {
  name[letter_place(name)] = letter;
  return name;
}

const at::Tensor& needed(const StateDict& tensors,
                         const std::string& name,
                         const std::string& where) {
  const at::Tensor* found = find_tensor(tensors, name);
  if (found == nullptr) throw DataError("{}: the tensor '{}' is missing", where, name);
  return *found;
}

/// Query, key and value, one below the other.
at::Tensor joined(const StateDict& tensors, const std::string& query, const std::string& where) {
  std::vector<at::Tensor> parts;
  for (const char letter : {'q', 'k', 'v'}) {
    const std::string name = sibling(query, letter);
    parts.push_back(needed(tensors, name, where));
    if (parts.back().sizes() != parts.front().sizes() || parts.back().dim() == 0) {
      throw DataError("{}: '{}' is of another shape than '{}'", where, name, query);
    }
  }
  return at::cat(parts);
}

StateDict from_hugging_face(const StateDict& tensors, const std::string& where) {
  StateDict result;
  for (const auto& [name, tensor] : tensors) {
    if (is_no_weight(name)) continue;
    at::Tensor value = tensor;
    if (const size_t place = letter_place(name); place != std::string::npos) {
      if (name[place] != 'q') {
        needed(tensors, sibling(name, 'q'), where);
        continue;
      }
      value = joined(tensors, name, where);
    }
    if (name == "text_projection.weight" || name == "visual_projection.weight") {
      if (value.dim() != 2) throw DataError("{}: '{}' is not a matrix", where, name);
      value = value.t();
    }
    result.emplace_back(renamed(name), value);
  }
  return result;
}

}  // namespace

NamedClip open_clip_names(StateDict tensors, const std::string& where) {
  if (find_tensor(tensors, kHuggingFaceMark) != nullptr) {
    return {from_hugging_face(tensors, where), ClipNaming::kHuggingFace};
  }
  const bool has_text_prefix = find_tensor(tensors, kCustomTextMark) != nullptr;
  StateDict result;
  for (auto& [name, tensor] : tensors) {
    const bool strip = has_text_prefix && name.starts_with("text.");
    std::string plain = strip ? name.substr(std::string_view("text.").size()) : name;
    if (!is_no_weight(plain)) result.emplace_back(std::move(plain), std::move(tensor));
  }
  return {std::move(result), ClipNaming::kOpenClip};
}

}  // namespace dalle2
