// SPDX-License-Identifier: MIT
// Variables of the environment that are a test's own: unset at first, as before afterwards.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "support/temp_dir.h"

namespace dalle2::test {

class CleanEnvironment {
 public:
  explicit CleanEnvironment(const std::vector<const char*>& names) {
    for (const char* name : names) {
      const char* value = std::getenv(name);
      before_.emplace_back(name,
                           value == nullptr ? std::nullopt : std::optional<std::string>(value));
      unsetenv(name);
    }
  }
  ~CleanEnvironment() {
    for (const auto& [name, value] : before_) {
      if (value) {
        set(name, *value);
      } else {
        unsetenv(name);
      }
    }
  }
  CleanEnvironment(const CleanEnvironment&) = delete;
  CleanEnvironment& operator=(const CleanEnvironment&) = delete;

  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

/// No keys but those that a test gives, in the environment or in two files.
struct AwsEnvironment : CleanEnvironment {
  TempDir folder;

  AwsEnvironment()
      : CleanEnvironment({"AWS_ACCESS_KEY_ID",
                          "AWS_SECRET_ACCESS_KEY",
                          "AWS_SESSION_TOKEN",
                          "AWS_PROFILE",
                          "AWS_REGION",
                          "AWS_DEFAULT_REGION",
                          "AWS_ENDPOINT_URL",
                          "AWS_ENDPOINT_URL_S3",
                          "AWS_SHARED_CREDENTIALS_FILE",
                          "AWS_CONFIG_FILE"}) {
    set("AWS_SHARED_CREDENTIALS_FILE", folder / "credentials");
    set("AWS_CONFIG_FILE", folder / "config");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
  }
};

}  // namespace dalle2::test
