// SPDX-License-Identifier: MIT
// Addresses: their form, and what may be shown of them in messages, logs, stored configs, checkpoints and reports.
#pragma once

#include <string>
#include <string_view>

namespace dalle2 {

/// An url, a command ("pipe:...") or a list of them joined by "::" as it may be shown: without
/// user, password, query and fragment, and of a command the first word, for all else can hold
/// secrets.
std::string public_url(const std::string& url);

/// A sentence with every url in it as it may be shown. Commands and urls with blanks or quotes,
/// whose end a sentence does not tell, go through public_url() before they come into one.
std::string public_text(const std::string& text);

/// Whether a text can name a repository of the Hugging Face hub: owner/name, of letters, digits, '-',
/// '.' and '_'.
bool is_hub_repo(std::string_view repo);

/// An address, or a list of them joined by "::", with http, https, s3, hf and file in small letters:
/// schemes have no case (RFC 3986, 3.1).
std::string with_small_schemes(std::string url);

/// An address or a path without the slashes at its end.
std::string without_slash(std::string url);

/// A text with "..." for each word that looks like a secret of a service: tokens of Hugging Face (hf_...),
/// keys of Weights & Biases (40 hexadecimal digits, wandb_v1_...) and of AWS. For what a user gave in a
/// wrong place; secrets of urls are those of public_url().
std::string without_tokens(const std::string& text);

/// A config as it may be shown, stored and sent to somebody: without secrets, and without comments, which
/// may say anything. A text that is no JSON comes back as it is. What was cleaned once stays the same when
/// it is cleaned again, so that a stored config can be compared with another.
std::string public_config(const std::string& json);

}  // namespace dalle2
