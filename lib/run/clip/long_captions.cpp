// SPDX-License-Identifier: MIT
#include "run/clip/long_captions.h"

#include "base/log.h"
#include "base/text.h"
#include "io/text/clip_tokenizer.h"

namespace dalle2 {

void LongCaptions::add(const std::vector<std::string>& cut, int64_t room) {
  if (cut.empty()) return;
  if (count_ == 0) {
    log_warning(
        "clip",
        "captions of more than {} are cut: the CLIP sees only their beginning, and one of your "
        "own takes more with a larger text_cfg.context_length. The first such caption: \"{}\"",
        counted(room, "token"),
        shown_caption(cut.front()));
  }
  const int64_t total = count_ + std::ssize(cut);
  for (int64_t round = 100; round <= total; round *= 10) {
    if (round > count_)
      log_warning("clip", "captions were cut {} times so far", with_commas(round));
  }
  count_ = total;
}

}  // namespace dalle2
