// SPDX-License-Identifier: MIT
#include "net/s3/aws_config.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/public_url.h"
#include "net/login_files.h"

namespace dalle2 {
namespace {

/// As read_ini(), with the profiles under their names: those of the config file are "profile NAME".
std::map<std::string, IniSection> read_profiles(const std::string& path) {
  std::map<std::string, IniSection> profiles;
  for (auto& [name, section] : read_ini(path)) {
    constexpr std::string_view kPrefix = "profile ";
    const std::string profile =
        name.starts_with(kPrefix) ? trimmed(name.substr(kPrefix.size())) : name;
    profiles[profile].merge(section);
  }
  return profiles;
}

struct Files {
  std::string credentials_path, config_path;
  std::map<std::string, IniSection> credentials, config;

  Files() {
    const std::string folder = environment("HOME") + "/.aws/";
    credentials_path = environment("AWS_SHARED_CREDENTIALS_FILE");
    config_path = environment("AWS_CONFIG_FILE");
    if (credentials_path.empty()) credentials_path = folder + "credentials";
    if (config_path.empty()) config_path = folder + "config";
    credentials = read_profiles(credentials_path);
    config = read_profiles(config_path);
  }
};

void take_keys(const IniSection& section, const std::string& source, S3Access& access) {
  access.key_id = value_of(section, "aws_access_key_id");
  access.secret = value_of(section, "aws_secret_access_key");
  access.session_token = value_of(section, "aws_session_token");
  access.source = source;
}

void check_pair(const S3Access& access) {
  if (access.key_id.empty() == access.secret.empty()) return;
  throw ConfigError("{}: the {} is given without the {}.\n  Give both, or neither.",
                    access.source,
                    access.key_id.empty() ? "secret access key" : "access key id",
                    access.key_id.empty() ? "access key id" : "secret access key");
}

void find_keys(const Files& files, const std::string& profile, S3Access& access) {
  access.key_id = trimmed(environment("AWS_ACCESS_KEY_ID"));
  access.secret = trimmed(environment("AWS_SECRET_ACCESS_KEY"));
  access.session_token = trimmed(environment("AWS_SESSION_TOKEN"));
  access.source = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
  check_pair(access);
  if (!access.is_anonymous()) return;
  access.session_token.clear();

  const auto in_credentials = files.credentials.find(profile),
             in_config = files.config.find(profile);
  const bool in_first = in_credentials != files.credentials.end();
  const bool in_second = in_config != files.config.end();
  if (!in_first && !in_second && !environment("AWS_PROFILE").empty()) {
    throw ConfigError(
        "AWS_PROFILE is \"{}\", but neither {} nor {} has a section with that name.\n  Name a "
        "profile that exists, or give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        profile,
        files.credentials_path,
        files.config_path);
  }
  for (const auto& [there, place, path] :
       {std::tuple{in_first, in_credentials, files.credentials_path},
        {in_second, in_config, files.config_path}}) {
    if (!there || !access.is_anonymous()) continue;
    take_keys(place->second, path + " [" + profile + "]", access);
    check_pair(access);
    if (!access.is_anonymous()) return;
    for (const char* other : {"credential_process", "role_arn", "sso_session", "sso_start_url"}) {
      if (value_of(place->second, other).empty()) continue;
      throw ConfigError(
          "{} [{}] gets its keys by {}, which only the AWS tools know.\n  Pass them on: eval "
          "\"$(aws configure export-credentials --format env)\".",
          path,
          profile,
          other);
    }
  }
  access.source.clear();
}

std::string find_region(const Files& files, const std::string& profile) {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (!environment(name).empty()) return environment(name);
  }
  for (const auto* file : {&files.config, &files.credentials}) {
    const auto section = file->find(profile);
    if (section == file->end()) continue;
    if (const std::string region = value_of(section->second, "region"); !region.empty())
      return region;
  }
  return "us-east-1";
}

std::string find_endpoint(const Files& files, const std::string& profile) {
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (!environment(name).empty()) return environment(name);
  }
  const auto section = files.config.find(profile);
  if (section == files.config.end()) return "";
  if (const std::string name = value_of(section->second, "services"); !name.empty()) {
    const auto services = files.config.find("services " + name);
    if (services != files.config.end()) {
      const std::string url = value_of(services->second, "s3.endpoint_url");
      if (!url.empty()) return url;
    }
  }
  return value_of(section->second, "endpoint_url");
}

}  // namespace

S3Access find_s3_access() {
  const Files files;
  const std::string named = environment("AWS_PROFILE");
  const std::string profile = named.empty() ? "default" : named;
  S3Access access;
  find_keys(files, profile, access);
  access.region = find_region(files, profile);
  access.endpoint = with_small_schemes(find_endpoint(files, profile));
  while (access.endpoint.ends_with('/')) access.endpoint.pop_back();
  const bool is_url =
      access.endpoint.starts_with("http://") || access.endpoint.starts_with("https://");
  if (!access.endpoint.empty() && !is_url) {
    throw ConfigError(
        "the S3 endpoint is \"{}\": expected http://HOST[:PORT] or https://HOST[:PORT].\n"
        "  It comes from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or {}.",
        public_url(access.endpoint),
        files.config_path);
  }
  return access;
}

}  // namespace dalle2
