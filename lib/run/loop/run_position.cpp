// SPDX-License-Identifier: MIT
#include "run/loop/run_position.h"

#include <torch/types.h>

#include "run/checkpoints/loader_state.h"

namespace dalle2 {
namespace {

class EntryWriter : public PositionVisitor {
 public:
  EntryWriter(Extras& root, Dict& own) : root_(root), own_(own) {}
  void field(const char* key, int64_t& value) override { root_.emplace_back(key, value); }
  void field(const char* key, double& value) override { root_.emplace_back(key, value); }
  void field(const char* key, std::string& value) override { root_.emplace_back(key, value); }
  /// A list of 0-d tensors, as the reference stores it.
  void field(const char* key, std::vector<double>& values) override {
    List list;
    for (const double value : values) list.items.emplace_back(at::scalar_tensor(value, at::kFloat));
    root_.emplace_back(key, std::move(list));
  }
  void own(const char* key, int64_t& value) override { own_.set(key, value); }
  void own(const char* key, LoaderPosition& value) override { own_.set(key, value_of(value)); }
  void own(const char* key, std::optional<double>& value) override {
    if (value) own_.set(key, *value);
  }
  void own(const char* key, at::Tensor& value) override {
    if (value.defined()) own_.set(key, value);
  }

 private:
  Extras& root_;
  Dict& own_;
};

class EntryReader : public PositionVisitor {
 public:
  EntryReader(const Cursor& root, const std::optional<Cursor>& own) : root_(root), own_(own) {}
  void field(const char* key, int64_t& value) override {
    if (const auto entry = root_.find(key)) value = entry->as_int();
  }
  void field(const char* key, double& value) override {
    if (const auto entry = root_.find(key)) value = entry->as_double();
  }
  void field(const char* key, std::string& value) override {
    if (const auto entry = root_.find(key)) value = entry->as_string();
  }
  void field(const char* key, std::vector<double>& values) override {
    const auto entry = root_.find(key);
    if (!entry) return;
    values.clear();
    for (size_t i = 0; i < entry->size(); ++i) values.push_back(entry->at(i).as_double());
  }
  // An entry that an earlier version did not write keeps the value of the start.
  void own(const char* key, int64_t& value) override {
    if (const auto entry = find_own(key)) value = entry->as_int();
  }
  void own(const char* key, LoaderPosition& value) override {
    if (const auto entry = find_own(key)) value = loader_position_of(*entry);
  }
  void own(const char* key, std::optional<double>& value) override {
    const auto entry = find_own(key);
    value = entry ? std::optional<double>(entry->as_double()) : std::nullopt;
  }
  void own(const char* key, at::Tensor& value) override {
    const auto entry = find_own(key);
    value = entry ? entry->as_tensor() : at::Tensor();
  }

 private:
  std::optional<Cursor> find_own(const char* key) const {
    return own_ ? own_->find(key) : std::nullopt;
  }

  const Cursor& root_;
  const std::optional<Cursor>& own_;
};

class Placeholders : public PositionVisitor {
 public:
  void field(const char* key, int64_t& value) override { fields.emplace_back(key, value); }
  void field(const char* key, double& value) override { fields.emplace_back(key, value); }
  void field(const char* key, std::string& value) override { fields.emplace_back(key, value); }
  void field(const char* key, std::vector<double>& values) override {
    fields.emplace_back(key, values);
  }
  void own(const char* /*key*/, int64_t& /*value*/) override {}
  void own(const char* /*key*/, LoaderPosition& /*value*/) override {}
  void own(const char* /*key*/, std::optional<double>& /*value*/) override {}
  void own(const char* /*key*/, at::Tensor& /*value*/) override {}

  FormatFields fields;
};

}  // namespace

Extras position_entries(RunPosition& position, Dict& own) {
  Extras root;
  EntryWriter writer(root, own);
  position.fields(writer);
  return root;
}

void read_position(RunPosition& position, const Cursor& root) {
  position.reset();
  const std::optional<Cursor> own = root.find(kOwnState);
  EntryReader reader(root, own);
  position.fields(reader);
  if (!own) position.guess_own_fields();
}

FormatFields position_placeholders(RunPosition& position) {
  Placeholders placeholders;
  position.fields(placeholders);
  return placeholders.fields;
}

}  // namespace dalle2
