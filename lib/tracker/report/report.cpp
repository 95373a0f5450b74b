// SPDX-License-Identifier: MIT
#include "tracker/report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/pictures/image.h"
#include "net/digest.h"
#include "tracker/log/log_file.h"
#include "tracker/report_page.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostErrors = 20;
constexpr int kMostPixels = 192;  // height in the page; larger pictures are shrunk
constexpr int kJpegQuality = 88;
constexpr const char* kSheet = " Grid";

std::string tile(const std::string& name, const std::string& value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escape(name), html_escape(value));
}

std::string last_value(const RunLog& log, const std::string& name) {
  const LogSeries* series = find_series(log, name);
  return series == nullptr ? "" : number_text(series->values.back());
}

std::vector<double> finite_values(const LogSeries& series) {
  std::vector<double> values;
  std::copy_if(
      series.values.begin(), series.values.end(), std::back_inserter(values), [](double value) {
        return std::isfinite(value);
      });
  return values;
}

std::string draw_tiles(const RunLog& log) {
  std::string tiles;
  int64_t last_step = 0;
  for (const LogSeries& series : log.series) last_step = std::max(last_step, series.steps.back());
  tiles += tile("Steps", with_commas(last_step));
  for (const char* name : {"Epoch", "Samples Seen"}) {
    const std::string value = last_value(log, name);
    if (!value.empty()) tiles += tile(name, value);
  }
  for (const LogSeries& series : log.series) {
    const auto [group, name] = chart_of(series.name);
    if (group == "Training Loss")
      tiles += tile("Training loss, " + name, number_text(series.values.back()));
    if (group != "Validation Loss") continue;
    const std::vector<double> losses = finite_values(series);
    if (!losses.empty())
      tiles += tile("Best validation, " + name,
                    number_text(*std::min_element(losses.begin(), losses.end())));
  }
  if (const LogSeries* rates = find_series(log, "Samples per second")) {
    std::vector<double> values = finite_values(*rates);
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (!values.empty()) tiles += tile("Samples/s, median", number_text(*middle));
  }
  const std::string memory = last_value(log, "Memory peak MiB");
  if (!memory.empty()) tiles += tile("Peak memory, MiB", memory);
  return fmt::format("<dl class=\"tiles\">\n{}</dl>\n", tiles);
}

/// What was logged at a path, as small as the page shows it; a word if it is deleted or damaged.
std::string picture_cell(const std::string& data_path, const StoredImage& picture, int64_t step) {
  try {
    const std::optional<std::string> file = stored_picture(data_path, picture.path);
    if (!file) throw DataError("outside of the folder");
    const Image image = decode_image(read_file(*file), *file, {.keep_alpha = true});
    const bool small = image.height <= kMostPixels;
    const int width = std::max(1, image.width * kMostPixels / image.height);
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
    return fmt::format("<td><img src=\"data:image/{};base64,{}\" alt=\"{}\"{}></td>",
                       small ? "png" : "jpeg",
                       base64(data),
                       html_escape(fmt::format("{} (step {})", picture.caption, with_commas(step))),
                       small && image.height <= 96 ? " class=\"pixels\"" : "");
  } catch (const DataError&) {
    return fmt::format("<td class=\"absent\">{} is missing or damaged</td>",
                       html_escape(picture.path));
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

/// One row an example, one column a step.
std::string picture_table(const std::string& section,
                          const std::vector<const LoggedPictures*>& all,
                          const std::string& data_path,
                          int64_t most_steps) {
  const std::vector<const LoggedPictures*> columns = some_of(all, most_steps);
  size_t examples = 0;
  for (const LoggedPictures* column : columns)
    examples = std::max(examples, column->pictures.size());
  std::string rows, heads;
  for (size_t example = 0; example < examples; ++example) {
    std::string cells, caption;
    for (const LoggedPictures* column : columns) {
      if (example >= column->pictures.size()) {
        cells += "<td></td>";
        continue;
      }
      caption = column->pictures[example].caption;
      cells += picture_cell(data_path, column->pictures[example], column->step);
    }
    rows += fmt::format("<tr><th scope=\"row\">{}</th>{}</tr>\n", html_escape(caption), cells);
  }
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

/// A table for each section of pictures, the pictures themselves within it. Sheets of all are left out
/// where the single ones are there. @param most_steps columns; of more steps the first, the last and some
/// between are shown
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
    tables += picture_table(section, by_section[section], data_path, most_steps);
  }
  return tables;
}

/// "Dropped train: broken picture" -> one line with the count of the last epoch and of all.
std::string draw_drops(const RunLog& log) {
  std::string rows;
  for (const LogSeries& series : log.series) {
    if (!series.name.starts_with(kDropped)) continue;
    double sum = 0;
    for (const double count : series.values) sum += std::isfinite(count) ? count : 0;
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
        "class=\"number\">{}</td></tr>\n",
        html_escape(series.name.substr(std::string_view(kDropped).size())),
        number_text(series.values.back()),
        number_text(sum),
        series.values.size());
  }
  if (rows.empty()) return "";
  return "<h2>Left out of the data</h2>\n"
         "<div class=\"wide\"><table><thead><tr><th>split: reason</th><th>last epoch</th><th>all "
         "epochs</th><th>epochs</th></tr></thead>\n"
         "<tbody>\n" +
         rows + "</tbody></table></div>\n";
}

std::string draw_errors(const RunLog& log) {
  if (log.errors.empty()) return "";
  std::string rows;
  const size_t first = log.errors.size() - std::min(kMostErrors, log.errors.size());
  for (size_t i = first; i < log.errors.size(); ++i) {
    rows +=
        fmt::format("<tr><td class=\"number\">{}</td><td><pre class=\"bad\">{}</pre></td></tr>\n",
                    with_commas(log.errors[i].first),
                    html_escape(log.errors[i].second));
  }
  return fmt::format(
      "<h2>Errors <small>the last {} of {}</small></h2>\n<div class=\"wide\"><table><thead><tr>"
      "<th>step</th><th>message</th></tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
      log.errors.size() - first,
      log.errors.size(),
      rows);
}

/// Every value of a config below `path`, lists of plain values in one line.
void add_values(const Json& node, const std::string& path, std::string& rows) {
  const bool deep_list =
      node.is_array() &&
      std::any_of(node.begin(), node.end(), [](const Json& e) { return e.is_structured(); });
  if ((node.is_object() && !node.empty()) || deep_list) {
    for (const auto& [key, value] : node.items())
      add_values(value, path.empty() ? key : path + "." + key, rows);
    return;
  }
  rows += fmt::format("<tr><td>{}</td><td><code>{}</code></td></tr>\n",
                      html_escape(path),
                      html_escape(node.is_string() ? node.get<std::string>() : node.dump()));
}

/// The config files of data_path, a fold for each of their sections.
std::string draw_config(const std::string& data_path) {
  std::string text;
  for (const std::string& path : files_in_folder(data_path)) {
    const std::string name = fs::path(path).filename().string();
    std::error_code ignored;
    if (!name.ends_with("_config.json") || !fs::is_regular_file(path, ignored)) continue;
    // An older version stored what this one hides.
    const Json config = parse_untrusted_object(public_config(read_file(path)), {.comments = true});
    if (config.is_null()) continue;
    std::string folds;
    for (const auto& [section, content] : config.items()) {
      std::string rows;
      add_values(content, content.is_structured() ? "" : section, rows);
      folds += fmt::format(
          "<details{}><summary>{}</summary><table><tbody>\n{}</tbody></table></details>\n",
          section == "train" || folds.empty() ? " open" : "",
          html_escape(section),
          rows);
    }
    text += fmt::format("<h2>Config <small>{}</small></h2>\n<div class=\"card\">\n{}</div>\n",
                        html_escape(name),
                        folds);
  }
  return text;
}

std::string utc(std::time_t time) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(time));
}

std::string draw_head(const std::string& data_path,
                      const RunLog& log,
                      const std::string& log_path) {
  struct stat file = {};
  const bool known = ::stat(log_path.c_str(), &file) == 0;
  std::string sub = fmt::format("{} records", with_commas(log.records));
  if (known) sub += ", the last of " + utc(file.st_mtime);
  if (log.unreadable_lines > 0) {
    sub += fmt::format("; {} line{} of log.jsonl cannot be read (cut by a kill, or damaged)",
                       log.unreadable_lines,
                       log.unreadable_lines == 1 ? "" : "s");
  }
  return fmt::format(
      "<header><h1>{}</h1>\n<p class=\"sub\">{}</p></header>\n{}",
      html_escape(data_path),
      sub,
      log.records == 0 ? "<p>Nothing has been logged yet: make the report again later.</p>\n" : "");
}

/// The log of a run, and its path.
std::pair<RunLog, std::string> log_of(const std::string& data_path) {
  std::error_code ignored;
  if (!fs::is_directory(data_path, ignored)) {
    throw DataError("{}: {}; give the folder of a run, /tracker/data_path of its config",
                    data_path,
                    fs::exists(data_path, ignored) ? "is not a folder" : "no such folder");
  }
  const std::string path = (fs::path(data_path) / "log.jsonl").string();
  if (fs::status(path, ignored).type() == fs::file_type::not_found) {
    throw DataError(
        "{}: holds no log.jsonl, which every run writes from its start; give the folder that is "
        "/tracker/data_path of the run's config",
        data_path);
  }
  RunLog log = read_run_log(path);
  use_common_names(log);
  return {std::move(log), path};
}

}  // namespace

std::string make_report(const std::string& data_path, const ReportOptions& options) {
  const auto [log, log_path] = log_of(data_path);
  std::vector<ComparedRun> runs = {{data_path, log}};
  for (const std::string& other : options.compare) runs.push_back({other, log_of(other).first});
  const std::string charts = draw_charts(runs);
  const std::string pictures = picture_tables(log, data_path, options.most_picture_steps);
  return fmt::format(
      "<!DOCTYPE html>\n"
      "<html lang=\"en\">\n"
      "<head>\n"
      "<meta charset=\"utf-8\">\n"
      "<meta name=\"generator\" content=\"dalle2-train\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}</title>\n"
      "<style>{}</style>\n"
      "</head>\n"
      "<body>\n"
      "{}{}{}{}{}{}{}<footer>Made by dalle2-train {} on {}.</footer>\n"
      "<dialog><img alt=\"\"></dialog>\n"
      "<script>{}</script>\n"
      "</body>\n"
      "</html>\n",
      html_escape(data_path),
      kReportStyle,
      draw_head(data_path, log, log_path),
      log.series.empty() ? "" : draw_tiles(log),
      charts.empty() ? "" : "<h2>Curves</h2>\n<div class=\"charts\">\n" + charts + "</div>\n",
      pictures.empty() ? "" : "<h2>Pictures</h2>\n" + pictures,
      draw_drops(log),
      draw_errors(log),
      draw_config(data_path),
      program_version(),
      utc(std::time(nullptr)),
      kReportScript);
}

}  // namespace dalle2
