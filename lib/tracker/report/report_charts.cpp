// SPDX-License-Identifier: MIT
#include "tracker/report/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <type_traits>

#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

constexpr double kLogScaleFrom = 30;  // ratio of largest to smallest value
constexpr size_t kMostPoints = 2000;  // of a curve: enough to zoom in
constexpr size_t kSmoothFrom = 20;    // values; fewer are shown as they are
constexpr double kSmoothPart = 0.05;  // the mean is over this part of the curve to either side

constexpr std::string_view kTimes = "Time of a step", kSeconds = "Seconds ";

/// Names that say where a record stands: tiles, no curves.
const std::set<std::string> kPositions = {"Epoch", "Sample", "Step", "Samples Seen"};

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

/// Losses first, then metrics, then how the training goes; within a place as they came.
int place_of(const std::string& group) {
  static const std::vector<std::string_view> last = {
      "Learning Rate", "Grad Norm", "EMA Decay", "Samples per second", kTimes, "Memory"};
  if (group == "Training Loss") return 0;
  if (group.find("Validation") != std::string::npos) return 1;
  if (group.find("Loss") != std::string::npos) return 2;
  const auto found = std::find(last.begin(), last.end(), group);
  return found == last.end() ? 3 : 4 + static_cast<int>(found - last.begin());
}

struct Point {
  int64_t step;
  double value;
  double mean;  ///< of the values around it
};
using Curve = std::vector<Point>;

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
    auto [least, most] = std::minmax_element(
        begin, end, [](const Point& a, const Point& b) { return a.value < b.value; });
    if (least > most) std::swap(least, most);
    result.push_back(*least);
    if (least != most) result.push_back(*most);
  }
  return result;
}

template <class T>
std::string list_of(const Curve& curve, T Point::*member) {
  std::vector<T> values;
  for (const Point& point : curve) values.push_back(point.*member);
  if constexpr (std::is_integral_v<T>) {
    return fmt::format("[{}]", fmt::join(values, ","));
  } else {
    return fmt::format("[{:.6g}]", fmt::join(values, ","));
  }
}

/// A text of JSON within a page: nothing in it ends the script that holds it.
std::string json_text(const std::string& text) {
  std::string quoted = Json(as_utf8(text)).dump();
  for (size_t at = 0; (at = quoted.find('<', at)) != std::string::npos;)
    quoted.replace(at, 1, "\\u003c");
  return quoted;
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

/// What a series of the chart is to the script.
std::string data_of(const LogSeries& series, const Curve& curve, bool has_means) {
  return fmt::format("{{\"name\":{},\"last\":{},\"steps\":{},\"values\":{}{}}}",
                     json_text(series.name),
                     json_text(number_text(series.values.back())),
                     list_of(curve, &Point::step),
                     list_of(curve, &Point::value),
                     has_means ? ",\"means\":" + list_of(curve, &Point::mean) : "");
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

void use_common_names(RunLog& log) {
  for (LogSeries& series : log.series) {
    const auto known = kNamesOfOthers.find(series.name);
    if (known != kNamesOfOthers.end()) series.name = known->second;
  }
}

std::pair<std::string, std::string> chart_of(const std::string& name) {
  if (const auto loss = loss_of_prior(name)) return *loss;
  if (name.starts_with(kSeconds)) return {std::string(kTimes), name.substr(kSeconds.size())};
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

std::string draw_charts(const std::vector<ComparedRun>& runs) {
  std::vector<std::pair<std::string, std::vector<LogSeries>>> groups;
  for (const ComparedRun& run : runs) {
    for (const LogSeries& series : run.log.series) {
      if (kPositions.contains(series.name) || series.name.starts_with(kDropped)) continue;
      auto [group, name] = chart_of(series.name);
      if (runs.size() > 1) name = run.name + (name.empty() ? "" : ": " + name);
      // clang 14 captures no structured binding by its name.
      auto found = std::find_if(groups.begin(), groups.end(), [&wanted = group](const auto& known) {
        return known.first == wanted;
      });
      if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
      found->second.push_back({name, series.steps, series.values});
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return place_of(a.first) < place_of(b.first);
  });
  std::string charts;
  for (const auto& [group, series] : groups) {
    charts +=
        draw_chart(series,
                   {.title = group,
                    .note = group == kTimes     ? "seconds"
                            : group == "Memory" ? "MiB, the most so far"
                                                : "",
                    .linear = group == "Learning Rate" || group == "EMA Decay" || group == kTimes,
                    .smoothed = group == "Training Loss" || group == "Grad Norm" ||
                                group == "Samples per second"});
  }
  return charts;
}

}  // namespace dalle2
