// SPDX-License-Identifier: MIT
// What may be shown of a url: messages, logs, stored configs, checkpoints and reports use these.
#pragma once

#include <string>

namespace dalle2 {

/// An url, a command ("pipe:...") or a list of them joined by "::" as it may be shown: without
/// user, password, query and fragment, and of a command the first word, for all else can hold
/// secrets.
std::string public_url(const std::string& url);

/// A sentence with every url in it as it may be shown. Commands and urls with blanks or quotes,
/// whose end a sentence does not tell, go through public_url() before they come into one.
std::string public_text(const std::string& text);

}  // namespace dalle2
