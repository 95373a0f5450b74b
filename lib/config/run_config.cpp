// SPDX-License-Identifier: MIT
// The only file that reads JSON into the structs; see config_schema.cpp and config_docs.cpp for the
// other visitors.
#include "config/run_config.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "config/cross_rules.h"
#include "config/plan_rules.h"
#include "config/reader.h"
#include "config/writer.h"

namespace dalle2 {
namespace {

constexpr const char* kKinds[] = {"decoder", "prior", "vae"};

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && file.peek() == std::ifstream::traits_type::eof() && file.eof() && errno == 0) {
    throw ConfigError("{}: the file is empty; configs/ has examples", path);
  }
  if (file) text << file.rdbuf();
  if (!file || text.fail()) {
    throw ConfigError("{}: cannot read the config: {}", path, errno_text(errno == 0 ? EIO : errno));
  }
  return text.str();
}

Json parse_root(const std::string& text, const std::string& origin, Faults& faults) {
  Json root = parse_json(text, origin, faults);
  if (!root.is_object()) {
    throw ConfigError(
        "{}: expected an object with the sections of a config, got {}", origin, shown(root));
  }
  return root;
}

// A root key of another kind: not this program's yet.
void refuse_other_kinds(const Json& root, ReadFindings& findings) {
  for (const char* kind : {"prior", "vae"}) {
    if (!root.contains(kind)) continue;
    findings.unavailable.push_back(
        {fmt::format("/{}", kind),
         fmt::format("\"{}\" is not available yet: this version trains decoders only", kind)});
  }
}

LoadedDecoderConfig read_decoder_config(const Json& root, ReadFindings& findings) {
  LoadedDecoderConfig loaded;
  refuse_other_kinds(root, findings);
  Reader reader(findings);
  // Editors find the schema by "$schema".
  reader.read_struct(root, "", loaded.config, {"$schema", "prior", "vae"});
  // The reference takes an empty text as none.
  auto& text_url = loaded.config.data.text_embeddings_url;
  if (text_url && text_url->empty()) text_url.reset();
  if (!findings.faults.has_error_under("/decoder")) {
    loaded.plan = plan_decoder(loaded.config.decoder, findings.faults);
  }
  check_sections(loaded.config, loaded.plan, findings.faults);
  if (!findings.faults.has_error_under("/decoder") && !findings.faults.has_error_under("/train")) {
    plan_losses(loaded.config.train, loaded.plan, findings.faults);
  }
  return loaded;
}

}  // namespace

LoadedDecoderConfig parse_decoder_config(const std::string& json,
                                         const std::string& origin,
                                         const ReadOptions& options) {
  ReadFindings findings;
  Json root = parse_root(json, origin, findings.faults);
  for (const std::string& assignment : options.overrides) apply_override(root, assignment);
  LoadedDecoderConfig loaded = read_decoder_config(root, findings);
  if (options.strict) findings.faults.promote_warnings();
  if (options.check_available) {
    for (const Fault& fault : findings.unavailable)
      findings.faults.error(fault.pointer, fault.text);
  }
  findings.faults.throw_if_any(origin);
  loaded.raw_json = json;
  loaded.full_json = to_json(loaded.config).dump(2) + "\n";
  for (const Fault& warning : findings.faults.warnings()) {
    loaded.warnings.push_back(fault_line(warning));
  }
  return loaded;
}

LoadedDecoderConfig load_decoder_config(const std::string& path, const ReadOptions& options) {
  return parse_decoder_config(read_file(path), path, options);
}

std::string config_kind(const std::string& path) {
  Faults ignored;  // load_decoder_config reports them
  const Json root = parse_root(read_file(path), path, ignored);
  std::string found;
  for (const char* kind : kKinds) {
    if (!root.contains(kind)) continue;
    if (!found.empty()) {
      throw ConfigError(
          "{}: has both \"{}\" and \"{}\"; a config trains one of them", path, found, kind);
    }
    found = kind;
  }
  if (found.empty()) {
    throw ConfigError(
        "{}: none of the root keys \"decoder\", \"prior\" or \"vae\" is there, so it is "
        "no training config",
        path);
  }
  return found;
}

}  // namespace dalle2
