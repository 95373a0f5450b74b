// SPDX-License-Identifier: MIT
#include "metrics/inception_score.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "metrics/still_working.h"

namespace dalle2 {

MeanAndDeviation inception_score(const at::Tensor& logits,
                                 int64_t splits,
                                 std::optional<at::Generator> generator) {
  D2_CHECK(logits.dim() == 2 && logits.size(0) > 0 && splits > 0, "samples, and parts");
  at::Tensor rows = logits.to(at::kDouble);
  if (generator) {
    rows = rows.index_select(0, at::randperm(rows.size(0), generator, at::kLong));
  }
  const at::Tensor log_p = rows.log_softmax(1);
  std::vector<double> scores;
  for (const at::Tensor& part : log_p.chunk(splits, 0)) {
    still_working();
    const at::Tensor p = part.exp();
    const at::Tensor log_mean = p.mean(0, /*keepdim=*/true).log();
    // A class that no sample of the part has is 0 * (log 0 - log 0).
    const at::Tensor terms = at::where(p > 0, p * (part - log_mean), at::zeros({}, p.options()));
    scores.push_back(std::exp(terms.sum(1).mean().item<double>()));
  }
  const at::Tensor all = at::tensor(scores, at::kDouble);
  return {all.mean().item<double>(),
          scores.size() > 1 ? all.std(/*unbiased=*/true).item<double>()
                            : std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace dalle2
