// SPDX-License-Identifier: MIT
// The only file that reads JSON into the structs; see config_schema.cpp and config_docs.cpp for the
// other visitors.
#include "config/run_config.h"

#include "base/error.h"
#include "config/cross_rules.h"
#include "config/plan_rules.h"
#include "config/reader.h"
#include "config/root_json.h"
#include "config/writer.h"

namespace dalle2 {
namespace {

constexpr const char* kKinds[] = {"decoder", "prior", "vae"};

// A root key of another kind.
void refuse_other_kinds(const Json& root, ReadFindings& findings) {
  if (root.contains("prior")) {
    findings.faults.error(
        "/prior",
        "has no place here: this needs the config of a decoder, and a file trains either a decoder "
        "or a prior");
  }
  if (root.contains("vae")) {
    findings.unavailable.push_back(
        {"/vae", "\"vae\" is not available yet: this version trains decoders and priors"});
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
  return parse_decoder_config(read_config_file(path), path, options);
}

std::string config_kind(const std::string& path) {
  Faults ignored;  // load_decoder_config reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
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
        "{}: none of the root keys \"decoder\", \"prior\" or \"vae\" is there, so it is no "
        "training config",
        path);
  }
  return found;
}

}  // namespace dalle2
