// SPDX-License-Identifier: MIT
#include "run/checkpoints/pth_saving.h"

#include <utility>

namespace dalle2 {

void PthSaving::start(bool in_background, std::vector<Value> values, Job job) {
  job_.wait();
  std::vector<Write> writers;
  if (!in_background) {
    for (const Value& value : values)
      writers.push_back([&value](const std::string& path) { write_pth(path, value); });
    return job(writers);
  }
  if (copies_.size() < values.size()) copies_.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    copies_[i].take(values[i]);
    writers.push_back([copy = &copies_[i]](const std::string& path) { copy->write(path); });
  }
  job_.start([this, job = std::move(job), writers = std::move(writers)] {
    job(writers);
    for (PthSnapshot& copy : copies_) copy.clear();
  });
}

}  // namespace dalle2
