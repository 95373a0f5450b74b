// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "config/kinds.h"
#include "tracker/report/report.h"

namespace dalle2 {
namespace {

/// The row of the config's root key; null for none.
const ConfigKind* kind_of(const Json& config) {
  for (const ConfigKind& kind : config_kinds()) {
    if (config.contains(kind.key)) return &kind;
  }
  return nullptr;
}

/// A fence that no line of `text` ends.
std::string fenced(const std::string& text, const std::string& language) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += "`";
  return fence + language + "\n" + text + "\n" + fence + "\n";
}

}  // namespace

std::string card_name_of(const StoredImage& picture) {
  return "samples/" + std::filesystem::path(picture.path).filename().string();
}

std::string model_card(const CardFacts& facts) {
  const Json config = parse_untrusted_object(facts.config);
  const ConfigKind* const row = kind_of(config);
  const std::string kind = row != nullptr ? row->key : "model";
  std::string card = fmt::format(
      "---\nlibrary_name: dalle2-train\ntags:\n- dalle2\n- {}\n---\n\n# {}\n\n"
      "A DALLE2 {} that `dalle2-train` {} trained.\n\n",
      kind,
      facts.repo.substr(facts.repo.find('/') + 1),
      kind,
      program_version());
  const std::string name = facts.file.empty() ? "FILE" : facts.file;
  const std::string at = facts.revision.empty() ? "" : "@" + facts.revision;
  const std::string address = fmt::format("hf://{}{}/{}", facts.repo, at, name);
  card += "## Use\n\n";
  if (row != nullptr && row->sample_input) {
    card += fenced(fmt::format("dalle2-train sample --checkpoint {} {} --out samples",
                               address,
                               row->sample_input(config)),
                   "sh") +
            "\n";
  }
  if (facts.save_type == SaveType::checkpoint) {
    const std::string branch =
        facts.revision.empty() ? "" : fmt::format(", \"revision\": \"{}\"", facts.revision);
    card += "To train it further, load it in a config:\n\n" +
            fenced(fmt::format("\"load\": {{\"load_from\": \"huggingface\", \"huggingface_repo\": "
                               "\"{}\", \"huggingface_file_path\": \"{}\"{}}}",
                               facts.repo,
                               name,
                               branch),
                   "json");
  }
  if (!facts.pictures.empty()) card += "\n## Samples\n\n";
  for (const StoredImage& picture : facts.pictures) {
    std::string caption = picture.caption;  // an empty line would end the markup
    std::replace(caption.begin(), caption.end(), '\n', ' ');
    card += fmt::format("<p><img src=\"{}\" alt=\"\"><br>{}</p>\n",
                        html_escape(card_name_of(picture)),
                        html_escape(caption));
  }
  card += "\n## Config\n\n" + fenced(facts.config, "json");
  return card;
}

}  // namespace dalle2
