// SPDX-License-Identifier: MIT
// Captions as the tokenizer of CLIP wants them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dalle2 {

/// Bytes of a text that are looked at. A CLIP reads some hundred, and a file may hold anything.
inline constexpr size_t kMostCaptionBytes = 16384;

/// What OpenAI's tokenizer makes of a text before it looks for words: the repairs of ftfy, HTML
/// references twice, runs of white space as one space, none at the ends, and lower case.
/// @param text bytes that are not UTF-8 become U+FFFD; what follows kMostCaptionBytes is left out
std::u32string clean_caption(std::string_view text);

}  // namespace dalle2
