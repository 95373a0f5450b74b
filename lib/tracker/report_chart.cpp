// SPDX-License-Identifier: MIT
#include "tracker/report_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tracker/html_text.h"

namespace dalle2 {
namespace {

// The picture in units of its own; the page scales it.
constexpr double kWidth = 600, kHeight = 240;
constexpr double kLeft = 52, kRight = 12, kTop = 10, kBottom = 26;
constexpr double kLogScaleFrom = 30;  // ratio of largest to smallest value
constexpr size_t kMostPoints = 600;   // of a curve: more cannot be told apart
constexpr size_t kColours = 8;        // classes c0 .. c7 of the page's style
constexpr size_t kSmoothFrom = 20;    // values; fewer are shown as they are
constexpr double kSmoothPart = 0.05;  // the mean looks back over this part of the curve

struct Point {
  double step, value;
};
using Curve = std::vector<Point>;

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;  // values low..high lie at from..to
  bool logarithmic = false;

  double scaled(double value) const { return logarithmic ? std::log10(value) : value; }
  double at(double value) const {
    const double part = (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
    return from + std::clamp(part, 0.0, 1.0) * (to - from);
  }
};

/// 1, 2 or 5 times a power of ten, so that about `count` steps make up `span`.
double nice_step(double span, int count) {
  const double power = std::pow(10, std::floor(std::log10(span / count)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor * count >= span) return power * factor;
  }
  return power * 10;
}

std::vector<double> ticks(const Axis& axis, int count) {
  std::vector<double> found;
  if (axis.logarithmic) {
    const bool few_decades = axis.high / axis.low < 1000;
    for (double power = std::floor(std::log10(axis.low)); power <= std::log10(axis.high); ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10, power);
        const bool wanted = factor == 1.0 || few_decades;
        if (wanted && tick >= axis.low && tick <= axis.high) found.push_back(tick);
      }
    }
    return found;
  }
  const double step = nice_step(axis.high - axis.low, count);
  for (double i = std::ceil(axis.low / step - 1e-9); i * step <= axis.high + step * 1e-9; ++i)
    found.push_back(i * step);
  return found;
}

/// The least and the greatest of each stretch, where there are more points than can be seen.
Curve thinned(const Curve& curve) {
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

Curve finite_points(const LogSeries& series) {
  Curve curve;
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (std::isfinite(series.values[i]))
      curve.push_back({static_cast<double>(series.steps[i]), series.values[i]});
  }
  return curve;
}

/// The mean over as many values before as after, fewer near the ends: it does not lag.
Curve smoothed(const Curve& curve) {
  const auto count = static_cast<std::ptrdiff_t>(curve.size());
  const auto reach =
      std::max<std::ptrdiff_t>(2, std::llround(kSmoothPart * static_cast<double>(count)));
  std::vector<double> sums = {0.0};  // of the first i values
  for (const Point& point : curve) sums.push_back(sums.back() + point.value);
  Curve means = curve;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::ptrdiff_t width = std::min({reach, i, count - 1 - i});
    const double sum =
        sums[static_cast<size_t>(i + width + 1)] - sums[static_cast<size_t>(i - width)];
    means[static_cast<size_t>(i)].value = sum / static_cast<double>(2 * width + 1);
  }
  return means;
}

std::string path_of(const Curve& curve, const Axis& x, const Axis& y) {
  std::string path;
  for (const Point& point : curve) {
    path += fmt::format(
        "{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', x.at(point.step), y.at(point.value));
  }
  return path;
}

class Chart {
 public:
  Chart(const std::vector<LogSeries>& series, const ChartOptions& options)
      : series_(series), options_(options) {
    for (const LogSeries& one : series_) curves_.push_back(finite_points(one));
    if (options_.stacked) stack();
    choose_axes();
  }

  bool empty() const {
    return std::all_of(curves_.begin(), curves_.end(), [](const Curve& c) { return c.empty(); });
  }

  std::string figure() const {
    return fmt::format(
        "<figure class=\"chart\"><figcaption><b>{}</b>{}{}</figcaption>\n"
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-points=\"{}\">\n{}{}</svg>"
        "<div class=\"tip\" hidden></div></figure>\n",
        html_escape(options_.title),
        note(),
        legend(),
        kWidth,
        kHeight,
        html_escape(options_.title),
        html_escape(points()),
        grid(),
        options_.stacked ? areas() : lines());
  }

 private:
  /// Each curve on top of those before it.
  void stack() {
    for (size_t i = 1; i < curves_.size(); ++i) {
      for (size_t k = 0; k < curves_[i].size() && k < curves_[i - 1].size(); ++k)
        curves_[i][k].value += curves_[i - 1][k].value;
    }
  }

  void choose_axes() {
    double first = std::numeric_limits<double>::infinity(), last = -first;
    double low = first, high = last;
    for (const Curve& curve : curves_) {
      for (const Point& point : curve) {
        first = std::min(first, point.step);
        last = std::max(last, point.step);
        low = std::min(low, point.value);
        high = std::max(high, point.value);
      }
    }
    if (first > last) return;
    if (first == last) last = first + 1;
    x_ = {first, last, kLeft, kWidth - kRight, false};
    const bool logarithmic =
        !options_.linear && !options_.stacked && low > 0 && high / low > kLogScaleFrom;
    if (options_.stacked) low = 0;
    if (low == high) {
      low -= std::abs(low) * 0.1 + 1e-9;
      high += std::abs(high) * 0.1 + 1e-9;
    }
    const double margin = logarithmic ? 0 : 0.05 * (high - low);
    // A curve of positive values is not given room below zero.
    const double bottom = low >= 0 ? std::max(0.0, low - margin) : low - margin;
    y_ = {bottom, high + margin, kHeight - kBottom, kTop, logarithmic};
  }

  std::string note() const {
    std::string text = options_.note;
    if (y_.logarithmic) text += text.empty() ? "log scale" : ", log scale";
    return text.empty() ? "" : fmt::format(" <small>{}</small>", html_escape(text));
  }

  std::string legend() const {
    std::string text;
    for (size_t i = 0; i < series_.size(); ++i) {
      if (curves_[i].empty()) continue;
      text += fmt::format("<span class=\"key c{}\">{} <b>{}</b></span>",
                          i % kColours,
                          html_escape(series_[i].name),
                          number_text(series_[i].values.back()));
    }
    return fmt::format("<span class=\"keys\">{}</span>", text);
  }

  std::string grid() const {
    std::string text;
    for (const double tick : ticks(y_, 4)) {
      text += fmt::format(
          "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text "
          "class=\"y\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
          kLeft,
          kWidth - kRight,
          y_.at(tick),
          y_.at(tick),
          kLeft - 6,
          y_.at(tick) + 4,
          axis_text(tick));
    }
    for (const double tick : ticks(x_, 6)) {
      if (tick != std::floor(tick)) continue;
      text += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                          x_.at(tick),
                          kHeight - 8,
                          axis_text(tick));
    }
    return text;
  }

  std::string lines() const {
    std::string text;
    for (size_t i = 0; i < curves_.size(); ++i) {
      const bool smooth = options_.smoothed && curves_[i].size() >= kSmoothFrom;
      if (smooth) text += line(i, thinned(curves_[i]), "faint");
      text += line(i, smooth ? smoothed_curve(i) : thinned(curves_[i]), "line");
    }
    return text;
  }

  Curve smoothed_curve(size_t i) const { return thinned(smoothed(curves_[i])); }

  std::string line(size_t i, const Curve& curve, const char* kind) const {
    if (curve.size() == 1) {
      return fmt::format("<circle class=\"dot c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                         i % kColours,
                         x_.at(curve[0].step),
                         y_.at(curve[0].value));
    }
    return fmt::format(
        "<path class=\"{} c{}\" d=\"{}\"/>\n", kind, i % kColours, path_of(curve, x_, y_));
  }

  /// From the top one down: each covers what is not its own.
  std::string areas() const {
    std::string text;
    for (size_t i = curves_.size(); i-- > 0;) {
      // Every so many steps: the least and the greatest of a stack are not those of its parts.
      const size_t stride = (curves_[i].size() + kMostPoints - 1) / kMostPoints;
      Curve curve;
      for (size_t k = 0; k < curves_[i].size(); k += stride) curve.push_back(curves_[i][k]);
      if (curve.empty()) continue;
      if (curve.size() == 1) curve.push_back({curve[0].step + 1, curve[0].value});
      text += fmt::format("<path class=\"area c{}\" d=\"{}L{:.1f} {:.1f}L{:.1f} {:.1f}Z\"/>\n",
                          i % kColours,
                          path_of(curve, x_, y_),
                          x_.at(curve.back().step),
                          y_.from,
                          x_.at(curve.front().step),
                          y_.from);
    }
    return text;
  }

  /// For the script: [{"name", "points": [[x, y, step, value], ...]}, ...]
  std::string points() const {
    std::string text;
    for (size_t i = 0; i < curves_.size(); ++i) {
      std::string list;
      const size_t stride = (curves_[i].size() + kMostPoints - 1) / kMostPoints;
      for (size_t k = 0; k < curves_[i].size(); k += stride) {
        const Point& point = curves_[i][k];
        const double below =
            options_.stacked && i > 0 && k < curves_[i - 1].size() ? curves_[i - 1][k].value : 0.0;
        list += fmt::format("{}[{:.1f},{:.1f},{},\"{}\"]",
                            list.empty() ? "" : ",",
                            x_.at(point.step),
                            y_.at(point.value),
                            static_cast<int64_t>(point.step),
                            number_text(point.value - below));
      }
      text += fmt::format("{}{{\"name\":\"{}\",\"points\":[{}]}}",
                          i == 0 ? "" : ",",
                          json_text(series_[i].name),
                          list);
    }
    return "[" + text + "]";
  }

  static std::string json_text(const std::string& name) {
    std::string text;
    for (const char c : name) {
      if (c == '"' || c == '\\') text += '\\';
      text += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return text;
  }

  const std::vector<LogSeries>& series_;
  const ChartOptions& options_;
  std::vector<Curve> curves_;
  Axis x_, y_;
};

}  // namespace

std::string draw_chart(const std::vector<LogSeries>& series, const ChartOptions& options) {
  const Chart chart(series, options);
  return chart.empty() ? "" : chart.figure();
}

}  // namespace dalle2
