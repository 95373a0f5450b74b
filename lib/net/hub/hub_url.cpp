// SPDX-License-Identifier: MIT
#include "net/hub/hub_url.h"

#include "base/error.h"
#include "base/public_url.h"
#include "net/hub/hub_api.h"
#include "net/url.h"

namespace dalle2 {
namespace {

constexpr const char* kScheme = "hf://";
constexpr const char* kDatasets = "datasets/";

HubRepository repository_of(const HubUrl& url) {
  return {find_hub_access({}, /*plain_http=*/false), url.repo, url.revision, url.is_dataset};
}

}  // namespace

std::string HubUrl::text() const {
  return fmt::format("{}{}{}{}/{}",
                     kScheme,
                     is_dataset ? kDatasets : "",
                     repo,
                     revision == "main" ? "" : "@" + uri_encode(revision),
                     path);
}

HubUrl parse_hub_url(const std::string& url, HubPath path) {
  HubUrl parsed;
  std::string place = url.substr(std::string(kScheme).size());
  parsed.is_dataset = place.starts_with(kDatasets);
  if (parsed.is_dataset) place.erase(0, std::string(kDatasets).size());
  const size_t owner = place.find('/');
  const size_t end = owner == std::string::npos ? owner : place.find('/', owner + 1);
  parsed.repo = place.substr(0, end);
  parsed.revision = "main";
  if (const size_t at = parsed.repo.find('@'); at != std::string::npos) {
    parsed.revision = uri_decode(parsed.repo.substr(at + 1));
    parsed.repo.resize(at);
  }
  if (end != std::string::npos) parsed.path = place.substr(end + 1);
  while (parsed.path.ends_with('/')) parsed.path.pop_back();
  if (!is_hub_repo(parsed.repo) || parsed.revision.empty() ||
      (parsed.path.empty() && path == HubPath::kFile)) {
    throw ConfigError(
        "{}: expected hf://OWNER/NAME/{} (hf://OWNER/NAME@REVISION/{}, and behind hf://datasets/ the "
        "same of a data set), OWNER and NAME of letters, digits, '-', '.' and '_'",
        public_url(url),
        path == HubPath::kFile ? "FILE" : "FOLDER",
        path == HubPath::kFile ? "FILE" : "FOLDER");
  }
  return parsed;
}

HttpGet hub_request(const std::string& url) {
  const HubUrl place = parse_hub_url(url, HubPath::kFile);
  return repository_of(place).request(place.path, place.revision);
}

std::vector<HubUrl> hub_list(const std::string& url, const HttpOptions& options) {
  HubUrl place = parse_hub_url(url, HubPath::kFolder);
  place.revision = repository_of(place).commit(options);
  std::vector<HubUrl> files;
  for (const HubFile& file : repository_of(place).list(place.path, options)) {
    files.push_back(place);
    files.back().path = file.path;
  }
  return files;
}

}  // namespace dalle2
