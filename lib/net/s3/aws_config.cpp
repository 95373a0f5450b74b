// SPDX-License-Identifier: MIT
#include <string>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "net/login_files.h"
#include "net/s3/s3.h"

namespace dalle2 {
namespace {

/// A file of the AWS tools, with the profiles under their names: those of the config file are "profile NAME".
struct Profiles {
  std::string path;
  IniFile sections;

  Profiles(const char* variable, const std::string& name)
      : path(first_of({environment(variable), environment("HOME") + "/.aws/" + name})) {
    const std::string prefix = "profile ";
    for (auto& [title, section] : read_ini(path)) {
      const bool is_profile = title.starts_with(prefix);
      sections[is_profile ? trimmed(title.substr(prefix.size())) : title].merge(section);
    }
  }
};

void set_keys(const std::string& id,
              const std::string& secret,
              const std::string& token,
              const std::string& source,
              S3Access& access) {
  if (id.empty() != secret.empty()) {
    throw ConfigError("{}: the {} is given without the {}.\n  Give both, or neither.",
                      source,
                      id.empty() ? "secret access key" : "access key id",
                      id.empty() ? "access key id" : "secret access key");
  }
  if (id.empty()) return;
  access.key_id = id;
  access.secret = secret;
  access.session_token = token;
  access.source = source;
}

/// The keys of a profile, if the file has any.
void take_keys(Profiles& file, const std::string& profile, S3Access& access) {
  auto& section = file.sections[profile];
  const std::string source = file.path + " [" + profile + "]";
  set_keys(section["aws_access_key_id"],
           section["aws_secret_access_key"],
           section["aws_session_token"],
           source,
           access);
  if (!access.is_anonymous()) return;
  for (const char* other : {"credential_process", "role_arn", "sso_session", "sso_start_url"}) {
    if (section[other].empty()) continue;
    throw ConfigError(
        "{} gets its keys by {}, which only the AWS tools know.\n  Pass them on: eval "
        "\"$(aws configure export-credentials --format env)\".",
        source,
        other);
  }
}

}  // namespace

S3Access find_s3_access() {
  Profiles credentials("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
      config("AWS_CONFIG_FILE", "config");
  const std::string profile = first_of({environment("AWS_PROFILE"), "default"});
  const bool is_there = credentials.sections.contains(profile) || config.sections.contains(profile);
  S3Access access;
  set_keys(trimmed(environment("AWS_ACCESS_KEY_ID")),
           trimmed(environment("AWS_SECRET_ACCESS_KEY")),
           trimmed(environment("AWS_SESSION_TOKEN")),
           "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
           access);
  if (access.is_anonymous() && !is_there && !environment("AWS_PROFILE").empty()) {
    throw ConfigError(
        "AWS_PROFILE is \"{}\", but neither {} nor {} has a section with that name.\n  Name a "
        "profile that exists, or give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        profile,
        credentials.path,
        config.path);
  }
  if (access.is_anonymous()) take_keys(credentials, profile, access);
  if (access.is_anonymous()) take_keys(config, profile, access);
  auto& section = config.sections[profile];
  access.region = first_of({environment("AWS_REGION"),
                            environment("AWS_DEFAULT_REGION"),
                            section["region"],
                            credentials.sections[profile]["region"],
                            "us-east-1"});
  access.endpoint = without_slash(with_small_schemes(
      first_of({environment("AWS_ENDPOINT_URL_S3"),
                environment("AWS_ENDPOINT_URL"),
                config.sections["services " + section["services"]]["s3.endpoint_url"],
                section["endpoint_url"]})));
  const bool is_url =
      access.endpoint.starts_with("http://") || access.endpoint.starts_with("https://");
  if (!access.endpoint.empty() && !is_url) {
    throw ConfigError(
        "the S3 endpoint is \"{}\": expected http://HOST[:PORT] or https://HOST[:PORT].\n"
        "  It comes from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or {}.",
        public_url(access.endpoint),
        config.path);
  }
  return access;
}

}  // namespace dalle2
