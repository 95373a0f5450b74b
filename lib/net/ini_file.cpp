// SPDX-License-Identifier: MIT
#include "net/ini_file.h"

#include <fstream>

#include "net/environment.h"

namespace dalle2 {

std::map<std::string, IniSection> read_ini(const std::string& path) {
  std::map<std::string, IniSection> sections;
  std::ifstream file(path);
  IniSection* section = nullptr;
  std::string outer;
  for (std::string line; std::getline(file, line);) {
    const bool nested = line.starts_with(' ') || line.starts_with('\t');
    const std::string text = trimmed(line);
    if (text.empty() || text[0] == '#' || text[0] == ';') continue;
    if (text[0] == '[') {
      section = &sections[trimmed(text.substr(1, text.find(']') - 1))];
      outer.clear();
      continue;
    }
    const size_t equals = text.find('=');
    if (section == nullptr || equals == std::string::npos) continue;
    const std::string key = trimmed(text.substr(0, equals));
    const std::string value = trimmed(text.substr(equals + 1));
    if (!nested) outer = key;
    (*section)[nested ? outer + "." + key : key] = value;
  }
  return sections;
}

std::string value_of(const IniSection& section, const std::string& key) {
  const auto found = section.find(key);
  return found == section.end() ? "" : found->second;
}

}  // namespace dalle2
