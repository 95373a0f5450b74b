// SPDX-License-Identifier: MIT
// Unets of the golden values, and configs from the JSON of a fixture.
#pragma once

#include "config/decoder/decoder_config.h"
#include "model/unet/unet.h"

namespace dalle2::test {

/// Reads the members that `json` has, by the names of UnetConfig::fields.
class UnetConfigReader {
 public:
  explicit UnetConfigReader(const nlohmann::json& json) : json_(json) {}
  template <class Member>
  void field(const char* key, Member& member, const char*, const Limits& = {}) {
    if (json_.contains(key)) read(json_.at(key), member);
  }
  template <class Member>
  void required(const char* key, Member& member, const char*, const Limits& = {}) {
    read(json_.at(key), member);
  }
  void note(bool, const std::string&, const std::string&) {}

 private:
  template <class T>
  static void read(const nlohmann::json& json, T& out) {
    json.get_to(out);
  }
  template <class T>
  static void read(const nlohmann::json& json, std::optional<T>& out) {
    out = json.get<T>();
  }
  template <class T>
  static void read(const nlohmann::json& json, OneOrMany<T>& out) {
    if (json.is_array()) {
      out = json.get<std::vector<T>>();
    } else {
      out = json.get<T>();
    }
  }
  const nlohmann::json& json_;
};

inline UnetConfig unet_config(const nlohmann::json& json) {
  UnetConfig config;
  UnetConfigReader reader(json);
  config.fields(reader);
  return config;
}

/// The unets of model.md, section 12.
inline UnetConfig config_d1() {
  UnetConfig config;
  config.dim = 8;
  config.dim_mults = {1, 2};
  config.image_embed_dim = 12;
  config.cond_dim = 10;
  config.attn_dim_head = 4;
  config.attn_heads = 2;
  config.resnet_groups = int64_t{4};
  config.cond_on_image_embeds = true;
  config.channels_out = 6;
  return config;
}

inline UnetConfig config_d2u1() {
  UnetConfig config = config_d1();
  config.text_embed_dim = 6;
  config.self_attn = std::vector<bool>{false, true};
  config.cond_on_text_encodings = true;
  config.max_text_len = 5;
  config.memory_efficient = true;
  config.scale_skip_connection = true;
  config.self_cond = true;
  config.cosine_sim_self_attn = true;
  config.cosine_sim_cross_attn = true;
  config.resnet_weight_standardization = true;
  config.num_resnet_blocks = std::vector<int64_t>{1, 2};
  return config;
}

inline UnetConfig config_d2u2() {
  UnetConfig config = config_d1();
  config.dim_mults = {1, 2, 2};
  config.resnet_groups = int64_t{8};
  config.cond_on_image_embeds = false;
  config.channels_out.reset();
  config.sparse_attn = true;
  config.pixel_shuffle_upsample = false;
  config.cross_embed_downsample = true;
  config.init_cross_embed = false;
  config.final_conv_kernel_size = 3;
  config.lowres_cond = true;
  config.lowres_noise_cond = true;
  return config;
}

inline UnetConfig config_u3() {
  UnetConfig config = config_d1();
  config.image_embed_dim.reset();
  config.resnet_groups = int64_t{8};
  config.cond_on_image_embeds = false;
  config.channels_out.reset();
  config.combine_upsample_fmaps = true;
  return config;
}

}  // namespace dalle2::test
