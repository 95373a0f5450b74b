// SPDX-License-Identifier: MIT
// What certain texts of a config may say: the targets of savers, the names of devices.
#pragma once

#include <optional>
#include <string>

#include "base/python_format.h"

namespace dalle2 {

/// What is wrong with a target that may hold placeholders, in the grammar of python_format(); nothing if it is right.
/// @param examples of what they stand for
std::optional<std::string> template_fault(const std::string& target, const FormatFields& examples);

/// What is wrong with a folder without placeholders (`save_meta_to`); nothing if it is right.
std::optional<std::string> folder_fault(const std::string& target);

bool is_http_url(const std::string& text);

/// What is wrong with the address of a checkpoint: right are http(s), `file:`, `s3:` and `hf:`.
std::optional<std::string> checkpoint_url_fault(const std::string& url);
/// What is wrong with an http(s) address to which names are appended.
std::optional<std::string> http_url_fault(const std::string& url);
/// What is wrong with `s3://BUCKET/FOLDER`.
std::optional<std::string> s3_url_fault(const std::string& url);
/// What is wrong with a repository of the Hugging Face hub, `owner/name`.
std::optional<std::string> hub_repo_fault(const std::string& repo);
/// What is wrong with the name of a file that holds a token: it must not be the token itself.
std::optional<std::string> token_path_fault(const std::string& path);
std::optional<std::string> sha256_fault(const std::string& digits);

/// What is wrong with the name of a device: right are `cpu`, `cuda`, and `cuda:N` with a number N
/// of at most four digits. Whether there is such a device is not asked.
std::optional<std::string> device_fault(const std::string& name);

}  // namespace dalle2
