// SPDX-License-Identifier: MIT
#include "tracker/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "tracker/html_text.h"
#include "tracker/public_config.h"
#include "tracker/report_chart.h"
#include "tracker/report_pictures.h"
#include "tracker/report_style.h"
#include "tracker/run_log.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSeconds = "Seconds ";
constexpr const char* kDropped = "Dropped ";
constexpr size_t kMostErrors = 20;

/// Names that say where a record stands: tiles, no curves.
const std::set<std::string> kPositions = {"Epoch", "Sample", "Step", "Samples Seen"};

bool has_prefix(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

/// What the logs of priors and VAEs call otherwise than a decoder's, as the references do.
const std::map<std::string, std::string> kNamesOfOthers = {
    {"tracking/epoch", "Epoch"},
    {"tracking/samples-seen", "Samples Seen"},
    {"tracking/samples-sec", "Samples per second"},
    {"tracking/learning-rate", "Learning Rate"},
    {"tracking/grad-norm", "Grad Norm"},
    {"tracking/ema-decay", "EMA Decay"},
    {"tracking/losses-not-finite", "Losses Not Finite"},
    {"tracking/skipped-updates", "Skipped Updates"},
    {"tracking/loss-scale", "Loss Scale"},
    {"loss", "Autoencoder Training Loss"},
    {"discr_loss", "Discriminator Training Loss"},
    {"validation_reconstruction_loss", "Live Validation Loss"},
    {"ema_validation_reconstruction_loss", "Averaged Validation Loss"},
    {"samples_seen", "Samples Seen"},
    {"samples_per_second", "Samples per second"},
    {"learning_rate", "Autoencoder Learning Rate"},
    {"discr_learning_rate", "Discriminator Learning Rate"},
    {"grad_norm", "Autoencoder Grad Norm"},
    {"discr_grad_norm", "Discriminator Grad Norm"},
    {"ema_decay", "Autoencoder EMA Decay"},
    {"discr_ema_decay", "Discriminator EMA Decay"},
    {"losses_not_finite", "Autoencoder Losses Not Finite"},
    {"discr_losses_not_finite", "Discriminator Losses Not Finite"},
    {"skipped_updates", "Autoencoder Skipped Updates"},
    {"discr_skipped_updates", "Discriminator Skipped Updates"},
    {"loss_scale", "Autoencoder Loss Scale"},
    {"discr_loss_scale", "Discriminator Loss Scale"}};

/// What a VAE has several values of a group for.
constexpr const char* kParts[] = {"Autoencoder", "Discriminator", "Live", "Averaged"};

/// "tracking/training-l2" -> {"Training Loss", "l2"}, "metrics/ema-validation/l2-loss" ->
/// {"Validation Loss", "ema"}; none for other names.
std::optional<std::pair<std::string, std::string>> loss_of_prior(const std::string& name) {
  constexpr std::string_view kTraining = "tracking/training-", kMetrics = "metrics/";
  if (has_prefix(name, std::string(kTraining))) {
    return std::pair("Training Loss", name.substr(kTraining.size()));
  }
  if (!has_prefix(name, std::string(kMetrics)) || !name.ends_with("-loss")) return std::nullopt;
  for (const auto& [split, group] :
       {std::pair("-validation/", "Validation Loss"), std::pair("-test/", "Test Loss")}) {
    const size_t at = name.find(split, kMetrics.size());
    if (at == std::string::npos) continue;
    return std::pair(group, name.substr(kMetrics.size(), at - kMetrics.size()));
  }
  return std::nullopt;
}

/// "Unet 0 Training Loss" -> {"Training Loss", "Unet 0"}; other names are groups of their own.
std::pair<std::string, std::string> group_of(const std::string& name) {
  if (const auto loss = loss_of_prior(name)) return *loss;
  if (has_prefix(name, kSeconds))
    return {"Time of a step", name.substr(std::string(kSeconds).size())};
  if (has_prefix(name, "Unet ")) {
    const size_t end = name.find_first_not_of("0123456789", 5);
    if (end != std::string::npos && end > 5 && name[end] == ' ')
      return {name.substr(end + 1), name.substr(0, end)};
  }
  for (const std::string part : kParts) {
    if (has_prefix(name, part + " ")) return {name.substr(part.size() + 1), part};
  }
  if (name.ends_with("emory peak MiB"))
    return {"Memory", has_prefix(name, "CUDA") ? "CUDA" : "host"};
  return {name, ""};
}

/// Losses first, then metrics, then how the training goes; within a place as they came.
int place_of(const std::string& group) {
  static const std::vector<std::string> last = {
      "Learning Rate", "Grad Norm", "EMA Decay", "Samples per second", "Time of a step", "Memory"};
  if (group == "Training Loss") return 0;
  if (group.find("Validation") != std::string::npos) return 1;
  if (group.find("Loss") != std::string::npos) return 2;
  const auto found = std::find(last.begin(), last.end(), group);
  return found == last.end() ? 3 : 4 + static_cast<int>(found - last.begin());
}

std::string draw_charts(const RunLog& log) {
  std::vector<std::pair<std::string, std::vector<LogSeries>>> groups;
  for (const LogSeries& series : log.series) {
    if (kPositions.contains(series.name) || has_prefix(series.name, kDropped)) continue;
    const auto [group, name] = group_of(series.name);
    // clang 14 captures no structured binding by its name.
    auto found = std::find_if(groups.begin(), groups.end(), [&wanted = group](const auto& known) {
      return known.first == wanted;
    });
    if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
    found->second.push_back({name, series.steps, series.values});
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return place_of(a.first) < place_of(b.first);
  });
  std::string charts;
  for (const auto& [group, series] : groups) {
    const bool times = group == "Time of a step";
    const bool aligned =
        std::all_of(series.begin(), series.end(), [&first = series.front()](const LogSeries& one) {
          return one.steps == first.steps;
        });
    charts += draw_chart(series,
                         {.title = group,
                          .note = times               ? "seconds, parts on top of each other"
                                  : group == "Memory" ? "MiB, the most so far"
                                                      : "",
                          .linear = group == "Learning Rate" || group == "EMA Decay",
                          .stacked = times && aligned,
                          .smoothed = group == "Training Loss" || group == "Grad Norm" ||
                                      group == "Samples per second"});
  }
  return charts.empty() ? "" : "<h2>Curves</h2>\n<div class=\"charts\">\n" + charts + "</div>\n";
}

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
    const auto [group, name] = group_of(series.name);
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

/// "Dropped train: broken picture" -> one line with the count of the last epoch and of all.
std::string draw_drops(const RunLog& log) {
  std::string rows;
  for (const LogSeries& series : log.series) {
    if (!has_prefix(series.name, kDropped)) continue;
    double sum = 0;
    for (const double count : series.values) sum += std::isfinite(count) ? count : 0;
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
        "class=\"number\">{}</td></tr>\n",
        html_escape(series.name.substr(std::string(kDropped).size())),
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
          section == "decoder" || section == "vae" || section == "train" ? " open" : "",
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

}  // namespace

std::string make_report(const std::string& data_path, const ReportOptions& options) {
  std::error_code ignored;
  if (!fs::is_directory(data_path, ignored)) {
    throw DataError("{}: {}; give the folder of a run, /tracker/data_path of its config",
                    data_path,
                    fs::exists(data_path, ignored) ? "is no folder" : "no such folder");
  }
  const std::string log_path = (fs::path(data_path) / "log.jsonl").string();
  if (fs::status(log_path, ignored).type() == fs::file_type::not_found) {
    throw DataError(
        "{}: holds no log.jsonl, which every run writes from its start; give the folder that is "
        "/tracker/data_path of the run's config",
        data_path);
  }
  RunLog log = read_run_log(log_path);
  for (LogSeries& series : log.series) {
    const auto known = kNamesOfOthers.find(series.name);
    if (known != kNamesOfOthers.end()) series.name = known->second;
  }
  const std::string pictures = picture_tables(log, data_path, options.most_picture_steps);
  return fmt::format(
      "<!DOCTYPE html>\n"
      "<html lang=\"en\">\n"
      "<head>\n"
      "<meta charset=\"utf-8\">\n"
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
      draw_charts(log),
      pictures.empty() ? "" : "<h2>Pictures</h2>\n" + pictures,
      draw_drops(log),
      draw_errors(log),
      draw_config(data_path),
      program_version(),
      utc(std::time(nullptr)),
      kReportScript);
}

}  // namespace dalle2
