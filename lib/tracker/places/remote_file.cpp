// SPDX-License-Identifier: MIT
#include "tracker/places/remote_file.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/timer.h"
#include "config/shared/text_rules.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"
#include "io/streams/url_source.h"
#include "net/digest.h"
#include "net/hub/hub_api.h"
#include "net/s3/s3.h"
#include "net/url.h"
#include "net/wandb_api.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

void check_space(const std::string& path, uint64_t bytes, const std::string& name) {
  const uint64_t left = free_disk_bytes(fs::path(path).parent_path().string()).value_or(bytes);
  if (left >= bytes) return;
  throw ResourceError("{}: has {}, and the disk of {} has {} left\n  Make room there.",
                      name,
                      human_bytes(bytes),
                      path,
                      human_bytes(left));
}

void check_hash(const char* kind,
                const std::string& got,
                const std::string& expected,
                const std::string& name) {
  if (got == expected) return;
  throw DataError(
      "{}: its {} is {}, expected {}\n  The file was not kept: it was damaged on the way, or it is "
      "a different one.",
      name,
      kind,
      got,
      expected);
}

ByteSource body_of(HttpGet request) {
  const auto stream = std::make_shared<HttpStream>(std::move(request));
  return [stream](char* buffer, size_t capacity) { return stream->read(buffer, capacity); };
}

/// http(s), file and s3.
RemoteFile url_file(const std::string& url, const RemoteFileOptions& options) {
  const bool is_s3 = url.starts_with("s3://");
  const auto check = [=] {
    check_plain_http(
        is_s3 ? find_s3_access().endpoint : url, options.allow_plain_http, public_url(url));
  };
  if (!is_s3) check();
  const auto open = [=]() -> RemoteFile::Content {
    check();
    if (!is_http_url(url)) return {open_source(url), {.sha256 = options.sha256}};
    HttpGet request{.url = url, .netrc = true};
    const std::string absent = "There is no such file: check the address";
    request.explain = advice_for({{401,
                                   "The server asks for a login, or refuses the one it got: write "
                                   "it into ~/.netrc (chmod 600)"},
                                  {404, absent},
                                  {410, absent}});
    return {body_of(std::move(request)), {.sha256 = options.sha256}};
  };
  return {.name = [=] { return public_url(url); }, .open = open, .check_login = check};
}

/// OWNER/NAME[@REVISION]/FILE of a repository.
RemoteFile hub_file(const HubUrl& place, const RemoteFileOptions& options) {
  const auto repository = [=]() -> HubRepository {
    return {find_hub_access(options.token_path, options.allow_plain_http), place};
  };
  const auto open = [=]() -> RemoteFile::Content {
    HubRepository::Download found = repository().download(place.path);
    ExpectedFile expected{.sha256 = options.sha256};
    if (found.file.size > 0) expected.bytes = static_cast<uint64_t>(found.file.size);
    if (!expected.sha256 && !found.file.sha256.empty()) expected.sha256 = found.file.sha256;
    return {body_of(std::move(found.request)), expected};
  };
  return {.name = [=] { return repository().name() + "/" + place.path; },
          .open = open,
          .check_login = [=] { repository(); }};
}

/// @throws ConfigError none is known, or it is malformed
WandbRunPath known_run(const std::string& path) {
  if (!path.empty()) return parse_wandb_run_path(path);
  throw ConfigError(
      "/tracker/load/wandb_run_path: null means the logger's own run, which is a new one\n  Give "
      "entity/project/run_id, or wandb_run_id with \"resume\" in /tracker/log.");
}

/// @param run_path of the file's run; empty as long as that is not known
RemoteFile wandb_file(const std::function<std::string()>& run_path, const std::string& file) {
  const auto name = [=]() -> std::string {
    const std::string path = run_path();
    if (path.empty()) return file + " of the logger's run";
    return wandb_page(find_wandb_access(), known_run(path)) + "/files/" + file;
  };
  const auto open = [=]() -> RemoteFile::Content {
    const WandbAccess access = find_wandb_access();
    const WandbRunPath run = known_run(run_path());
    if (access.api_key.empty())
      throw NetworkError("{}: no API key was found.\n  {}", name(), kWandbLogin);
    const WandbApi api(access, {});
    const std::optional<WandbStoredFile> found = api.find_file(run, file);
    if (!found) {
      throw NetworkError(
          "{}: there is no such file, or no such run for this login\n  Check wandb_run_path and "
          "wandb_file_path: the page of the run lists its files.",
          name());
    }
    HttpGet request{.url = found->url, .shown = name()};
    request.headers = api.download_headers(found->url);
    ExpectedFile expected{.md5_base64 = found->md5};
    if (found->size > 0) expected.bytes = static_cast<uint64_t>(found->size);
    return {body_of(std::move(request)), expected};
  };
  return {.name = name, .open = open, .check_login = [] { find_wandb_access(); }};
}

/// Errors name the key of the config.
template <class Part>
void with_key(const std::string& key, Part&& part) {
  try {
    part();
  } catch (const NetworkError& error) {
    throw NetworkError("{}: {}", key, error.what());
  } catch (const DataError& error) {
    throw DataError("{}: {}", key, error.what());
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    throw ConfigError("{}{}", text.starts_with("/tracker/") ? "" : key + ": ", text);
  }
}

void fetch_file(const RemoteFile& file, const std::string& path) {
  const auto [bytes, expected] = file.open();
  store_fetched(bytes, path, expected, file.name());
}

}  // namespace

RemoteFile make_remote_file(const std::string& address, const RemoteFileOptions& options) {
  const std::string url = with_small_schemes(address);
  if (is_hub_url(url)) return hub_file(parse_hub_url(url, HubPath::kFile), options);
  if (const auto fault = checkpoint_url_fault(url)) throw ConfigError("{}", *fault);
  return url_file(url, options);
}

FetchedFile::FetchedFile(const std::string& path_or_url) : path_(path_or_url) {
  if (const std::string url = with_small_schemes(path_or_url); is_local_url(url)) {
    path_ = local_path(url);
    return;
  }
  const RemoteFile file = make_remote_file(path_or_url);
  std::string folder = (fs::temp_directory_path() / "dalle2-train-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    throw ResourceError("{}: cannot be made: {}", folder, errno_text(errno));
  }
  folder_ = folder;
  // A signal would leave the folder: it ends the transfer instead, and then the process.
  struct StopSignals {
    StopSignals() { install_stop_signals(); }
    ~StopSignals() { uninstall_stop_signals(); }
  } const stop_signals;
  try {
    path_ = folder + "/" + url_file_name(file.name());
    fetch_file(file, path_);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
}

FetchedFile::~FetchedFile() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

void store_fetched(const ByteSource& source,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name) {
  constexpr size_t kPiece = size_t{1} << 20;
  if (expected.bytes) check_space(path, *expected.bytes, name);
  const Timer timer;
  AtomicFile file(path);
  Hash sha256, md5(HashKind::kMd5);
  std::vector<char> piece(kPiece);
  while (const size_t size = source(piece.data(), piece.size())) {
    sha256.add(piece.data(), size);
    if (!expected.md5_base64.empty()) md5.add(piece.data(), size);
    file.write(piece.data(), size);
  }
  const uint64_t bytes = file.position();
  if (expected.bytes && bytes != *expected.bytes) {
    throw DataError(
        "{}: {} bytes arrived, {} were announced\n  The file was not kept. Fetch it again.",
        name,
        bytes,
        *expected.bytes);
  }
  if (expected.sha256) check_hash("SHA-256", sha256.hex(), lower_case(*expected.sha256), name);
  if (!expected.md5_base64.empty()) {
    check_hash("MD5 (base64)", base64(md5.bytes()), expected.md5_base64, name);
  }
  file.commit();
  log_info("track",
           "Fetched {} ({} in {}) as {}",
           name,
           human_bytes(bytes),
           human_duration(timer.seconds()),
           path);
}

CheckpointSource::CheckpointSource(const LoadConfig& config,
                                   const std::string& data_path,
                                   std::function<std::string()> own_wandb_run,
                                   bool fetches)
    : only_auto_resume_(std::visit([](const auto& load) { return load.only_auto_resume; }, config)),
      path_((fs::path(data_path) / kLoadedFile).string()) {
  const auto open = [&](const std::string& url, const RemoteFileOptions& options) {
    with_key(key_, [&] { file_ = make_remote_file(url, options); });
  };
  if (const auto* local = std::get_if<LocalLoadConfig>(&config)) {
    path_ = local->file_path;
  } else if (const auto* url = std::get_if<UrlLoadConfig>(&config)) {
    key_ = "/tracker/load/url";
    std::error_code error;
    const bool is_file = url->url.starts_with("file:");
    if (is_file && !only_auto_resume_ && !fs::exists(local_path(url->url), error))
      throw ConfigError("{}: Model not found at {}", key_, url->url);
    open(url->url, {.sha256 = url->sha256, .allow_plain_http = url->allow_plain_http});
  } else if (const auto* hub = std::get_if<HuggingfaceLoadConfig>(&config)) {
    key_ = "/tracker/load/huggingface_file_path";
    open(fmt::format("hf://{}@{}/{}",
                     hub->huggingface_repo,
                     uri_encode(hub->revision),
                     hub->huggingface_file_path),
         {.token_path = hub->token_path, .allow_plain_http = hub->allow_plain_http});
  } else {
    const auto& wandb = std::get<WandbLoadConfig>(config);
    key_ = "/tracker/load/wandb_file_path";
    if (const auto given = wandb.wandb_run_path) own_wandb_run = [given] { return *given; };
    with_key("/tracker/load/wandb_run_path", [&] {
      if (const std::string run = own_wandb_run(); !run.empty() || !only_auto_resume_)
        known_run(run);
    });
    file_ = wandb_file(own_wandb_run, wandb.wandb_file_path);
  }
  if (file_ && fetches) with_key(key_, [this] { file_->check_login(); });
  if (file_) return;
  std::error_code error;
  if (fs::is_directory(path_, error)) {
    throw ConfigError("/tracker/load/file_path: '{}' is a folder; expected a checkpoint file",
                      path_);
  }
  if (only_auto_resume_ || fs::exists(path_, error)) return;
  throw ConfigError(
      "Model not found at {}\n"
      "  /tracker/load/file_path is relative to the working directory, which is {}.\n"
      "  Correct it, leave /tracker/load out to start from the beginning, or set only_auto_resume "
      "for a run whose first start has no file yet.",
      path_,
      fs::current_path(error).string());
}

std::string CheckpointSource::name() const {
  return file_ ? file_->name() : fs::absolute(path_).lexically_normal().string();
}

void CheckpointSource::check_access() const {
  char byte = 0;
  if (file_) with_key(key_, [&] { file_->open().bytes(&byte, 1); });
}

void CheckpointSource::fetch() const {
  if (file_) with_key(key_, [this] { fetch_file(*file_, path_); });
}

}  // namespace dalle2
