// SPDX-License-Identifier: MIT
#include "model/prior/prior_network.h"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu_algorithms.h"

namespace dalle2 {
namespace {

/// [B, D] -> [B, tokens, D]
at::Tensor to_tokens(const std::shared_ptr<LinearLayerImpl>& layer,
                     const at::Tensor& embed,
                     int64_t tokens) {
  return layer ? layer->forward(embed).unflatten(-1, {tokens, -1}) : embed.unsqueeze(1);
}

/// `tokens` [B, n, D] where the sample is kept, else `null`.
at::Tensor kept(const at::Tensor& keep_mask, const at::Tensor& tokens, const at::Tensor& null) {
  if (!keep_mask.defined()) return tokens;
  return at::where(keep_mask.view({-1, 1, 1}), tokens, null.to(tokens.scalar_type()));
}

}  // namespace

PriorNetworkImpl::PriorNetworkImpl(const PriorNetworkConfig& config) : config_(config) {
  const int64_t dim = config.dim;
  const auto embed_layer = [&](const char* name, int64_t tokens) {
    return tokens > 1 ? add_group(*this, name)->register_module("0", make_linear(dim, dim * tokens))
                      : nullptr;
  };
  learned_query_ = register_parameter("learned_query", torch::randn({dim}));
  using enum PriorLayout::Nulls;
  const PriorLayout::Nulls nulls = config.layout.nulls;
  if (nulls != none) {
    null_text_encodings_ =
        register_parameter(nulls == all ? "null_text_encodings" : "null_text_embed",
                           torch::randn({1, config.text_len(), dim}));
  }
  if (nulls == all) {
    null_text_embeds_ =
        register_parameter("null_text_embeds", torch::randn({1, config.num_text_embeds, dim}));
    null_image_embed_ = register_parameter("null_image_embed", torch::randn({1, dim}));
  }
  to_text_embeds_ = embed_layer("to_text_embeds", config.num_text_embeds);
  build_time_embedding();
  to_image_embeds_ = embed_layer("to_image_embeds", config.num_image_embeds);
  transformer_ =
      register_module("causal_transformer", std::make_shared<CausalTransformerImpl>(config));
}

void PriorNetworkImpl::build_time_embedding() {
  const int64_t out = config_.dim * config_.num_time_embeds;
  const auto group = add_group(*this, "to_time_embeds");
  if (config_.num_timesteps) {
    time_table_ = group->register_module("0", torch::nn::Embedding(*config_.num_timesteps, out));
    return;
  }
  const auto net = add_group(*add_group(*add_group(*group, "0"), "1"), "net");
  time_in_ = add_group(*net, "0")->register_module("0", make_linear(config_.dim, 2 * out));
  time_hidden_ = add_group(*net, "1")->register_module("0", make_linear(2 * out, 2 * out));
  time_out_ = net->register_module("2", make_linear(2 * out, out));
}

void PriorNetworkImpl::check_text(int64_t batch, const PriorConditions& given) const {
  const at::Tensor& embed = given.text_embed;
  if (!embed.defined())
    throw DataError("the prior is conditioned on text embeddings, but none was given");
  check_batch("text embeddings", embed, batch);
  if (embed.dim() != 2 || embed.size(1) != config_.dim) {
    throw DataError(
        "text embeddings of shape {}, but /prior/image_embed_dim is {}: use embeddings of that "
        "width, or train a prior with theirs",
        shape_text(embed.sizes()),
        config_.dim);
  }
  const at::Tensor& text = given.text_encodings;
  if (!text.defined()) return;
  check_batch("text encodings", text, batch);
  if (text.dim() != 3 || text.size(2) != config_.dim) {
    throw DataError(
        "text encodings of shape {}, but net.dim is {}: use encodings [batch, length, {}]",
        shape_text(text.sizes()),
        config_.dim,
        config_.dim);
  }
}

// [B, L] bool: which encodings are of a text.
at::Tensor PriorNetworkImpl::is_text(const PriorConditions& given) const {
  if (given.text_encodings.defined()) return given.text_encodings.ne(0).any(-1);
  return at::ones({given.text_embed.size(0), 0}, given.text_embed.options().dtype(at::kBool));
}

// [B, L, D] without null encodings: as long as they are, hidden by key_mask() where the text has ended. The rows
// there must not be zero, which a norm that divides by the maximum cannot take.
at::Tensor PriorNetworkImpl::plain_text_encodings(const PriorConditions& given,
                                                  at::ScalarType dtype) const {
  const at::Tensor keep = is_text(given);
  if (keep.size(1) == 0)
    return at::empty({keep.size(0), 0, config_.dim}, keep.options().dtype(dtype));
  return at::where(keep.unsqueeze(-1), given.text_encodings, 1).to(dtype);
}

// [B, N] bool for `tokens` in all: a dropped text is hidden with its embedding.
at::Tensor PriorNetworkImpl::key_mask(const PriorConditions& given, int64_t tokens) const {
  at::Tensor keep = at::constant_pad_nd(is_text(given), {0, config_.num_text_embeds}, true);
  if (given.text_keep_mask.defined()) keep = keep & given.text_keep_mask.unsqueeze(1);
  return at::constant_pad_nd(keep, {0, tokens - keep.size(1)}, true);
}

// [B, max_text_len, D]; null encodings of their position where the text is dropped or has ended.
at::Tensor PriorNetworkImpl::text_encodings(const PriorConditions& given,
                                            at::ScalarType dtype) const {
  if (!null_text_encodings_.defined()) return plain_text_encodings(given, dtype);
  const int64_t length = config_.text_len();
  const at::Tensor null = null_text_encodings_.to(dtype);
  if (!given.text_encodings.defined()) return null.expand({given.text_embed.size(0), -1, -1});
  at::Tensor text =
      given.text_encodings.narrow(1, 0, std::min(length, given.text_encodings.size(1)));
  at::Tensor keep = text.ne(0).any(-1);  // [B, L]
  const int64_t missing = length - text.size(1);
  if (missing > 0) {
    text = at::constant_pad_nd(text, {0, 0, 0, missing});
    keep = at::constant_pad_nd(keep, {0, missing}, false);
  }
  if (drops() && given.text_keep_mask.defined()) keep = keep & given.text_keep_mask.unsqueeze(1);
  return at::where(keep.unsqueeze(-1), text, null);
}

// [B, num_time_embeds, D]
at::Tensor PriorNetworkImpl::time_tokens(const at::Tensor& time, at::ScalarType dtype) {
  at::Tensor tokens;
  if (!time_table_.is_empty()) {
    tokens = time_table_->forward(time);
  } else {
    at::Tensor waves = sinusoidal_embedding(time.to(dtype), config_.dim).to(at::kFloat);
    if (config_.layout.truncated_times) waves = waves.trunc();
    tokens =
        time_out_->forward(at::silu(time_hidden_->forward(at::silu(time_in_->forward(waves)))));
  }
  return tokens.unflatten(-1, {config_.num_time_embeds, config_.dim});
}

// [B, num_text_embeds, D]
at::Tensor PriorNetworkImpl::text_embeds(const PriorConditions& given) const {
  const bool drops = null_text_embeds_.defined() && config_.layout.drops_text_embeds;
  return kept(drops ? given.text_keep_mask : at::Tensor(),
              to_tokens(to_text_embeds_, given.text_embed, config_.num_text_embeds),
              null_text_embeds_);
}

std::shared_ptr<const PriorText> PriorNetworkImpl::encode_text(const PriorConditions& conditions,
                                                               bool guided) {
  check_text(conditions.text_embed.defined() ? conditions.text_embed.size(0) : 0, conditions);
  if (!null_text_encodings_.defined()) return nullptr;  // later tokens need the mask too
  const at::ScalarType dtype = conditions.text_embed.scalar_type();
  const auto read = std::make_shared<PriorText>();
  read->given = transformer_->encode_prefix(
      at::cat({text_encodings(conditions, dtype), text_embeds(conditions)}, 1));
  if (guided && drops()) {
    PriorConditions none = conditions;
    none.text_keep_mask = at::zeros({conditions.text_embed.size(0)},
                                    conditions.text_embed.options().dtype(at::kBool));
    // Where the embedding is dropped as well, the nulls are the same for all samples.
    read->null = transformer_->encode_prefix(
        config_.layout.drops_text_embeds
            ? at::cat({null_text_encodings_.to(dtype), null_text_embeds_.to(dtype)}, 1)
            : at::cat({text_encodings(none, dtype), text_embeds(none)}, 1));
  }
  return read;
}

at::Tensor PriorNetworkImpl::forward(const at::Tensor& image_embed,
                                     const at::Tensor& time,
                                     const PriorConditions& conditions,
                                     const DropoutSeed& seed) {
  const int64_t batch = image_embed.size(0);
  check_text(batch, conditions);
  const at::ScalarType dtype = image_embed.scalar_type();
  PrefixCache nulls;
  const PrefixCache* before = conditions.encoded_text ? &conditions.encoded_text->given : nullptr;
  std::vector<at::Tensor> tokens;
  if (before == nullptr) {
    // Null encodings are the same for all samples, and so are their keys and values. A separate pass doubles the
    // kernel launches, which are the bottleneck on a GPU.
    const bool shared = null_text_encodings_.defined() && !conditions.text_encodings.defined() &&
                        !transformer_->drops();
    if (shared && batch > 1 && uses_cpu_algorithms(image_embed.device())) {
      nulls = transformer_->encode_prefix(null_text_encodings_.to(dtype));
      before = &nulls;
    } else {
      tokens.push_back(text_encodings(conditions, dtype));
    }
    tokens.push_back(text_embeds(conditions));
  }
  tokens.push_back(time_tokens(time, dtype));
  const at::Tensor image =
      kept(null_image_embed_.defined() ? conditions.image_keep_mask : at::Tensor(),
           to_tokens(to_image_embeds_, image_embed, config_.num_image_embeds),
           null_image_embed_);
  tokens.push_back(image);
  const bool has_query = !config_.self_cond || config_.layout.query_of_self_cond;
  if (!has_query) tokens.push_back(image);
  if (config_.self_cond) {
    const at::Tensor& earlier = conditions.self_cond;
    tokens.push_back((earlier.defined() ? earlier : at::zeros_like(image_embed)).unsqueeze(1));
  }
  if (has_query) tokens.push_back(learned_query_.expand({batch, 1, -1}));
  const at::Tensor all = at::cat(tokens, 1);
  const at::Tensor mask =
      null_text_encodings_.defined() ? at::Tensor() : key_mask(conditions, all.size(1));
  return transformer_->forward(all, seed, /*num_outputs=*/1, before, mask).squeeze(1);
}

at::Tensor PriorNetworkImpl::forward_with_cond_scale(const at::Tensor& image_embed,
                                                     const at::Tensor& time,
                                                     const PriorConditions& conditions,
                                                     double cond_scale) {
  const at::Tensor logits = forward(image_embed, time, conditions);
  if (cond_scale == 1.0 || !drops()) return logits;
  PriorConditions null = conditions;
  null.text_keep_mask = null.image_keep_mask =
      at::zeros({image_embed.size(0)}, image_embed.options().dtype(at::kBool));
  if (conditions.encoded_text) {
    D2_CHECK(conditions.encoded_text->null.tokens > 0, "the dropped text was not encoded");
    null.encoded_text = std::make_shared<PriorText>(PriorText{conditions.encoded_text->null, {}});
  }
  const at::Tensor null_logits = forward(image_embed, time, null);
  return null_logits + (logits - null_logits) * cond_scale;
}

}  // namespace dalle2
