// SPDX-License-Identifier: MIT
#include "tracker/report/report_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image.h"
#include "net/digest.h"
#include "tracker/report/html_text.h"

namespace dalle2 {
namespace {

constexpr int kMostPixels = 192;  // height in the page; larger pictures are shrunk
constexpr int kJpegQuality = 88;
constexpr int kPadding = 2;  // of a grid, as in torchvision's make_grid
constexpr const char* kSheet = " Grid";

/// One picture of a table.
struct Shown {
  std::optional<Image> real;  ///< of a pair
  Image drawn;
};

bool is_black(const Image& image, int left, int width) {
  const Image part = crop(image, left, 0, width, image.height);
  return std::all_of(part.pixels.begin(), part.pixels.end(), [](uint8_t v) { return v == 0; });
}

/// Takes a grid of two squares apart; anything else is one picture.
Shown take_apart(Image image) {
  const int side = image.height - 2 * kPadding;
  const bool is_pair = side > 0 && image.width == 2 * side + 3 * kPadding &&
                       is_black(image, 0, kPadding) && is_black(image, side + kPadding, kPadding) &&
                       is_black(image, image.width - kPadding, kPadding);
  if (!is_pair) return {std::nullopt, std::move(image)};
  return {crop(image, kPadding, kPadding, side, side),
          crop(image, 2 * kPadding + side, kPadding, side, side)};
}

std::string picture_tag(const Image& image, const std::string& text) {
  const bool small = image.height <= kMostPixels;
  const int width = small ? image.width : std::max(1, image.width * kMostPixels / image.height);
  const std::string data = small ? encode_png(image)
                                 : encode_jpeg(crop_resize(image,
                                                           0,
                                                           0,
                                                           image.width,
                                                           image.height,
                                                           width,
                                                           kMostPixels,
                                                           Interpolation::kLanczos),
                                               kJpegQuality);
  return fmt::format("<img src=\"data:image/{};base64,{}\" alt=\"{}\"{}>",
                     small ? "png" : "jpeg",
                     base64(data),
                     html_escape(text),
                     small && image.height <= 96 ? " class=\"pixels\"" : "");
}

std::optional<Shown> load(const std::string& data_path, const std::string& path) {
  const std::optional<std::string> file = stored_picture(data_path, path);
  if (!file) return std::nullopt;
  try {
    return take_apart(decode_image(read_file(*file), *file, {.keep_alpha = true}));
  } catch (const DataError&) {
    return std::nullopt;  // deleted, or damaged: the cell says so
  }
}

/// The first, the last, and evenly between.
std::vector<const LoggedPictures*> some_of(const std::vector<const LoggedPictures*>& all,
                                           int64_t most) {
  if (static_cast<int64_t>(all.size()) <= most) return all;
  std::vector<const LoggedPictures*> some;
  const auto last = static_cast<int64_t>(all.size()) - 1;
  for (int64_t i = 0; i < most; ++i)
    some.push_back(all[static_cast<size_t>(most == 1 ? last : i * last / (most - 1))]);
  return some;
}

/// One example at every step.
std::string row(const std::vector<const LoggedPictures*>& columns,
                size_t example,
                const std::string& data_path,
                bool& has_real) {
  std::string cells, real, caption;
  for (const LoggedPictures* column : columns) {
    if (example >= column->pictures.size()) {
      cells += "<td></td>";
      continue;
    }
    const StoredImage& picture = column->pictures[example];
    caption = picture.caption;
    const std::optional<Shown> shown = load(data_path, picture.path);
    if (!shown) {
      cells += fmt::format("<td class=\"absent\">{} is missing or damaged</td>",
                           html_escape(picture.path));
      continue;
    }
    if (shown->real) real = picture_tag(*shown->real, caption);
    const std::string text = fmt::format("{} (step {})", caption, with_commas(column->step));
    cells += fmt::format("<td>{}</td>", picture_tag(shown->drawn, text));
  }
  has_real = !real.empty();
  return fmt::format("<th scope=\"row\">{}</th>{}{}",
                     html_escape(caption),
                     has_real ? fmt::format("<td class=\"real\">{}</td>", real) : "",
                     cells);
}

std::string table(const std::string& section,
                  const std::vector<const LoggedPictures*>& all,
                  const std::string& data_path,
                  int64_t most_steps) {
  const std::vector<const LoggedPictures*> columns = some_of(all, most_steps);
  size_t examples = 0;
  for (const LoggedPictures* column : columns)
    examples = std::max(examples, column->pictures.size());
  std::string rows;
  bool any_real = false;
  for (size_t example = 0; example < examples; ++example) {
    bool has_real = false;
    const std::string cells = row(columns, example, data_path, has_real);
    any_real = any_real || has_real;
    rows += "<tr>" + cells + "</tr>\n";
  }
  std::string heads = any_real ? "<th class=\"real\">real</th>" : "";
  for (const LoggedPictures* column : columns)
    heads += fmt::format("<th scope=\"col\">step {}</th>", with_commas(column->step));
  const std::string shown = columns.size() < all.size()
                                ? fmt::format("{} of {} steps", columns.size(), all.size())
                                : fmt::format("{} step{}", all.size(), all.size() == 1 ? "" : "s");
  return fmt::format(
      "<h3>{} <small>{}</small></h3>\n<div class=\"wide\"><table class=\"pictures\"><thead><tr>"
      "<th></th>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
      html_escape(section),
      shown,
      heads,
      rows);
}

}  // namespace

std::string picture_tables(const RunLog& log, const std::string& data_path, int64_t most_steps) {
  std::vector<std::string> sections;  // as they first came
  std::map<std::string, std::vector<const LoggedPictures*>> by_section;
  for (const LoggedPictures& logged : log.pictures) {
    if (!by_section.contains(logged.section)) sections.push_back(logged.section);
    by_section[logged.section].push_back(&logged);
  }
  std::string tables;
  for (const std::string& section : sections) {
    const bool is_sheet = section.ends_with(kSheet);
    if (is_sheet &&
        by_section.contains(section.substr(0, section.size() - std::string(kSheet).size())))
      continue;
    tables += table(section, by_section[section], data_path, most_steps);
  }
  return tables;
}

}  // namespace dalle2
