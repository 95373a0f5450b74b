// SPDX-License-Identifier: MIT
#include "tracker/report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/pictures/image.h"
#include "net/digest.h"
#include "tracker/report_page.h"

namespace dalle2 {
namespace {

constexpr double kLogScaleFrom = 30;  // ratio of largest to smallest value
constexpr size_t kMostPoints = 2000;  // of a curve: enough to zoom in
constexpr size_t kSmoothFrom = 20;    // values; fewer are shown as they are
constexpr double kSmoothPart = 0.05;  // the mean is over this part of the curve to either side

constexpr std::string_view kTimes = "Time of a step", kSeconds = "Seconds ";
/// How many samples of a split were left out, and why.
constexpr std::string_view kLeftOut = "Left out of the data", kDropped = "Dropped ";

/// Names that say where a record stands: tiles, no curves.
const std::set<std::string> kPositions = {"Epoch", "Sample", "Step", "Samples Seen"};

/// What the logs of priors and VAEs call otherwise than a decoder's, as the references do.
std::map<std::string, std::string> names_of_others() {
  std::map<std::string, std::string> names = {
      {"tracking/epoch", "Epoch"},
      {"tracking/samples-seen", "Samples Seen"},
      {"tracking/samples-sec", "Samples per second"},
      {"loss", "Autoencoder Training Loss"},
      {"discr_loss", "Discriminator Training Loss"},
      {"validation_reconstruction_loss", "Live Validation Loss"},
      {"ema_validation_reconstruction_loss", "Averaged Validation Loss"},
      {"samples_seen", "Samples Seen"},
      {"samples_per_second", "Samples per second"}};
  for (const std::string name : {"Learning Rate",
                                 "Grad Norm",
                                 "EMA Decay",
                                 "Losses Not Finite",
                                 "Skipped Updates",
                                 "Loss Scale"}) {
    const std::string key = replaced(lower_case(name), " ", "_");
    names["tracking/" + replaced(key, "_", "-")] = name;
    names[key] = "Autoencoder " + name;
    names["discr_" + key] = "Discriminator " + name;
  }
  return names;
}

/// What a VAE has several values of a group for.
constexpr const char* kParts[] = {"Autoencoder", "Discriminator", "Live", "Averaged"};

/// "tracking/training-l2" -> {"Training Loss", "l2"}, "metrics/ema-validation/l2-loss" ->
/// {"Validation Loss", "ema"}; none for other names.
std::optional<std::pair<std::string, std::string>> loss_of_prior(const std::string& name) {
  constexpr std::string_view kTraining = "tracking/training-", kMetrics = "metrics/";
  if (name.starts_with(kTraining)) return std::pair("Training Loss", name.substr(kTraining.size()));
  if (!name.starts_with(kMetrics) || !name.ends_with("-loss")) return std::nullopt;
  for (const auto& [split, group] :
       {std::pair("-validation/", "Validation Loss"), std::pair("-test/", "Test Loss")}) {
    const size_t at = name.find(split, kMetrics.size());
    if (at == std::string::npos) continue;
    return std::pair(group, name.substr(kMetrics.size(), at - kMetrics.size()));
  }
  return std::nullopt;
}

/// Gives the values in the logs of priors and VAEs the names of a decoder's.
void use_common_names(RunLog& log) {
  const std::map<std::string, std::string> names = names_of_others();
  for (LogSeries& series : log.series)
    if (const auto known = names.find(series.name); known != names.end())
      series.name = known->second;
}

/// The chart that a series belongs to and its name there: "Unet 0 Training Loss" -> {"Training Loss",
/// "Unet 0"}. Other names are charts of their own.
std::pair<std::string, std::string> chart_of(const std::string& name) {
  if (const auto loss = loss_of_prior(name)) return *loss;
  if (name.starts_with(kSeconds)) return {std::string(kTimes), name.substr(kSeconds.size())};
  if (name.starts_with(kDropped)) return {std::string(kLeftOut), name.substr(kDropped.size())};
  if (name.starts_with("Unet ")) {
    const size_t end = name.find_first_not_of("0123456789", 5);
    if (end != std::string::npos && end > 5 && name[end] == ' ')
      return {name.substr(end + 1), name.substr(0, end)};
  }
  for (const std::string part : kParts) {
    if (name.starts_with(part + " ")) return {name.substr(part.size() + 1), part};
  }
  if (name.ends_with("emory peak MiB"))
    return {"Memory", name.starts_with("CUDA") ? "CUDA" : "host"};
  return {name, ""};
}

/// Losses first, then metrics, then how the training goes; within a place as they came.
int place_of(const std::string& group) {
  static const std::vector<std::string_view> last = {
      "Learning Rate", "Grad Norm", "EMA Decay", "Samples per second", kTimes, "Memory"};
  if (group == "Training Loss") return 0;
  if (group.find("Validation") != std::string::npos) return 1;
  if (group.find("Loss") != std::string::npos) return 2;
  const auto found = std::ranges::find(last, group);
  return found == last.end() ? 3 : 4 + static_cast<int>(found - last.begin());
}

struct Point {
  int64_t step;
  double value;
  double mean;  ///< of the values around it
};
using Curve = std::vector<Point>;

bool is_less(const Point& a, const Point& b) {
  return a.value < b.value;
}

Curve finite_points(const LogSeries& series) {
  Curve curve;
  for (size_t i = 0; i < series.values.size(); ++i) {
    const double value = series.values[i];
    if (std::isfinite(value)) curve.push_back({series.steps[i], value, value});
  }
  return curve;
}

/// The mean over as many values before as after, fewer near the ends: it does not lag.
void smooth(Curve& curve) {
  const auto count = static_cast<std::ptrdiff_t>(curve.size());
  const auto reach =
      std::max<std::ptrdiff_t>(2, std::llround(kSmoothPart * static_cast<double>(count)));
  std::vector<double> sums = {0.0};  // of the first i values
  for (const Point& point : curve) sums.push_back(sums.back() + point.value);
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::ptrdiff_t width = std::min({reach, i, count - 1 - i});
    const double sum =
        sums[static_cast<size_t>(i + width + 1)] - sums[static_cast<size_t>(i - width)];
    curve[static_cast<size_t>(i)].mean = sum / static_cast<double>(2 * width + 1);
  }
}

/// The least and the greatest of each stretch, where there are more points than can be seen.
Curve extremes(const Curve& curve) {
  if (curve.size() <= kMostPoints) return curve;
  Curve result;
  const size_t stretches = kMostPoints / 2;
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = curve.begin() + static_cast<std::ptrdiff_t>(i * curve.size() / stretches);
    const auto end =
        curve.begin() + static_cast<std::ptrdiff_t>((i + 1) * curve.size() / stretches);
    auto [least, most] = std::minmax_element(begin, end, is_less);
    if (least > most) std::swap(least, most);
    result.push_back(*least);
    if (least != most) result.push_back(*most);
  }
  return result;
}

template <class T>
std::string list_of(const Curve& curve, T Point::*member, fmt::string_view form) {
  std::vector<T> values;
  for (const Point& point : curve) values.push_back(point.*member);
  return fmt::format(fmt::runtime(form), fmt::join(values, ","));
}

/// A text of JSON within a page: nothing in it ends the script that holds it.
std::string json_text(const std::string& text) {
  return replaced(Json(as_utf8(text)).dump(), "<", "\\u003c");
}

bool is_logarithmic(const std::vector<Curve>& curves) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Curve& curve : curves) {
    for (const Point& point : curve) {
      low = std::min(low, point.value);
      high = std::max(high, point.value);
    }
  }
  return low > 0 && high / low > kLogScaleFrom;
}

constexpr const char* kReals = "[{:.6g}]";

/// What a series of the chart is to the script.
std::string data_of(const LogSeries& series, const Curve& curve, bool has_means) {
  return fmt::format("{{\"name\":{},\"last\":{},\"steps\":{},\"values\":{}{}}}",
                     json_text(series.name),
                     json_text(number_text(series.values.back())),
                     list_of(curve, &Point::step, "[{}]"),
                     list_of(curve, &Point::value, kReals),
                     has_means ? ",\"means\":" + list_of(curve, &Point::mean, kReals) : "");
}

namespace fs = std::filesystem;

constexpr size_t kMostErrors = 20;
constexpr int kMostPixels = 192;  // height in the page; larger pictures are shrunk
constexpr int kJpegQuality = 88;
constexpr const char* kSheet = " Grid";

/// The charts of all curves of a run, losses first. Of several runs curves of one name share a chart.
std::string draw_charts(const std::vector<std::pair<std::string, RunLog>>& runs) {
  std::vector<std::pair<std::string, std::vector<LogSeries>>> groups;
  for (const auto& [of, log] : runs) {
    for (const LogSeries& series : log.series) {
      if (kPositions.contains(series.name)) continue;
      auto [group, name] = chart_of(series.name);
      if (runs.size() > 1) name = of + (name.empty() ? "" : ": " + name);
      // clang 14 captures no structured binding by its name.
      auto found = std::ranges::find_if(
          groups, [&wanted = group](const auto& known) { return known.first == wanted; });
      if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
      found->second.push_back({name, series.steps, series.values});
    }
  }
  std::ranges::stable_sort(
      groups, [](const auto& a, const auto& b) { return place_of(a.first) < place_of(b.first); });
  std::string charts;
  for (const auto& [group, series] : groups) {
    charts +=
        draw_chart(series,
                   {.title = group,
                    .note = group == kTimes     ? "seconds"
                            : group == kLeftOut ? "samples of an epoch"
                            : group == "Memory" ? "MiB, the most so far"
                                                : "",
                    .linear = group == "Learning Rate" || group == "EMA Decay" || group == kTimes,
                    .smoothed = group == "Training Loss" || group == "Grad Norm" ||
                                group == "Samples per second"});
  }
  return charts;
}

std::string tile(const std::string& name, const std::string& value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escape(name), html_escape(value));
}

std::string last_value(const RunLog& log, const std::string& name) {
  const LogSeries* series = find_series(log, name);
  return series == nullptr ? "" : number_text(series->values.back());
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
    const Curve losses = finite_points(series);
    const auto best = std::ranges::min_element(losses, is_less);
    if (best != losses.end()) tiles += tile("Best validation, " + name, number_text(best->value));
  }
  if (const LogSeries* rates = find_series(log, "Samples per second")) {
    Curve points = finite_points(*rates);
    const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
    std::nth_element(points.begin(), middle, points.end(), is_less);
    if (!points.empty()) tiles += tile("Samples/s, median", number_text(middle->value));
  }
  const std::string memory = last_value(log, "Memory peak MiB");
  if (!memory.empty()) tiles += tile("Peak memory, MiB", memory);
  return fmt::format("<dl class=\"tiles\">\n{}</dl>\n", tiles);
}

/// What was logged at a path, as small as the page shows it; a word if it is deleted or damaged.
std::string picture_cell(const std::string& data_path, const StoredImage& picture, int64_t step) {
  try {
    const std::string file = read_stored_picture(data_path, picture.path).value_or("");
    const Image image = decode_image(file, picture.path, {.keep_alpha = true});
    const bool small = image.height <= kMostPixels;
    const int width = std::max(1, image.width * kMostPixels / image.height);
    const std::string data = small ? encode_png(image)
                                   : encode_jpeg(crop_resize(image,
                                                             {0, 0, image.width, image.height},
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

/// The config files of data_path, folded.
std::string draw_config(const std::string& data_path) {
  std::string text;
  for (const std::string& path : files_in_folder(data_path)) {
    const std::string name = fs::path(path).filename().string();
    std::error_code ignored;
    if (!name.ends_with("_config.json") || !fs::is_regular_file(path, ignored)) continue;
    const std::string config =
        public_config(read_file(path));  // the folder may come from elsewhere
    if (parse_untrusted_object(config).is_null()) continue;
    text += fmt::format(
        "<h2>Config</h2>\n<details class=\"card\"><summary>{}</summary>\n<pre>{}</pre></details>\n",
        html_escape(name),
        html_escape(config));
  }
  return text;
}

std::string utc(std::time_t time) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(time));
}

std::string draw_head(const std::string& data_path,
                      const RunLog& log,
                      const std::string& log_path) {
  std::string sub = fmt::format("{} records", with_commas(log.records));
  struct stat file = {};
  if (::stat(log_path.c_str(), &file) == 0) sub += ", the last of " + utc(file.st_mtime);
  if (log.unreadable_lines > 0) {
    sub += fmt::format("; {} of log.jsonl cannot be read (cut by a kill, or damaged)",
                       counted(log.unreadable_lines, "line"));
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

std::string html_escape(std::string_view text) {
  constexpr std::string_view kMarks = "&<>\"'";
  constexpr const char* kNames[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string escaped;
  for (const char c : as_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (const size_t mark = kMarks.find(c); mark != std::string_view::npos) {
      escaped += kNames[mark];
    } else if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {  // none of HTML's
      escaped += fmt::format("\\x{:02x}", byte);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "not finite";
  if (std::abs(value) >= 1000 && std::abs(value) < 1e15)
    return (value < 0 ? "-" : "") + with_commas(std::llround(std::abs(value)));
  return fmt::format("{:.4g}", value);
}

std::string draw_chart(const std::vector<LogSeries>& series, const ChartOptions& options) {
  std::vector<Curve> curves;
  for (const LogSeries& one : series) curves.push_back(finite_points(one));
  const bool log = !options.linear && is_logarithmic(curves);
  std::vector<std::string> data;
  std::string rows;
  for (size_t i = 0; i < series.size(); ++i) {
    Curve& curve = curves[i];
    if (curve.empty()) continue;
    const bool has_means = options.smoothed && curve.size() >= kSmoothFrom;
    if (has_means) smooth(curve);
    data.push_back(data_of(series[i], extremes(curve), has_means));
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">step {}</td></tr>",
        html_escape(series[i].name),
        number_text(series[i].values.back()),
        with_commas(series[i].steps.back()));
  }
  if (data.empty()) return "";
  std::string note = options.note;
  if (log) note += note.empty() ? "log scale" : ", log scale";
  return fmt::format(
      "<figure class=\"chart\"><figcaption><b>{}</b> <small>{}</small></figcaption>\n"
      "<noscript><table><tbody>{}</tbody></table></noscript>\n"
      "<script type=\"application/json\">{{\"log\":{},\"series\":[{}]}}</script>"
      "</figure>\n",
      html_escape(options.title),
      html_escape(note),
      rows,
      log,
      fmt::join(data, ","));
}

std::string make_report(const std::string& data_path, const ReportOptions& options) {
  const auto [log, log_path] = log_of(data_path);
  std::vector<std::pair<std::string, RunLog>> runs = {{data_path, log}};
  for (const std::string& other : options.compare) runs.emplace_back(other, log_of(other).first);
  const std::string charts = draw_charts(runs);
  const std::string pictures = picture_tables(log, data_path, options.most_picture_steps);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"generator\" content=\"dalle2-train\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n"
      "{}{}{}{}{}{}<footer>Made by dalle2-train {} on {}.</footer>\n"
      "<dialog><img alt=\"\"></dialog>\n<script>{}</script>\n</body>\n</html>\n",
      html_escape(data_path),
      kReportStyle,
      draw_head(data_path, log, log_path),
      log.series.empty() ? "" : draw_tiles(log),
      charts.empty() ? "" : "<h2>Curves</h2>\n<div class=\"charts\">\n" + charts + "</div>\n",
      pictures.empty() ? "" : "<h2>Pictures</h2>\n" + pictures,
      draw_errors(log),
      draw_config(data_path),
      program_version(),
      utc(std::time(nullptr)),
      kReportScript);
}

}  // namespace dalle2
