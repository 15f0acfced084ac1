#include "check_page.hpp"

#include "fmt/format.h"
#include "layer_text.hpp"
#include "moe64/version.hpp"
#include "nlohmann/json.hpp"
#include "terminal.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace moe64::cli {
namespace {

/// Columns of the heat map: a number beyond that is a mistake in a name, not an expert.
constexpr index_t most_columns = 8192;

constexpr std::string_view page_begin = "<!DOCTYPE html>\n";
constexpr std::string_view page_mark = "<meta name=\"generator\" content=\"moe64 check\">";

std::string escaped(std::string_view text) {
  std::string safe;
  for (char const c : printable(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string number(double value) { return fmt::format("{:.3g}", value); }
std::string count_text(index_t count) {
  return count < 100'000 ? fmt::format("{}", count) : human_count(static_cast<double>(count));
}

double share(index_t part, index_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string layer_name(layer_statistics const& layer) {
  return fmt::format("{}{}", layer.mtp ? "MTP " : "", layer.layer);
}

/// What was found about the experts of each projection: 2 an error, 1 something else.
class expert_marks {
 public:
  using by_expert = std::map<index_t, int>;

  explicit expert_marks(check_report const& report) {
    for (finding_mark const& mark : report.marks) {
      finding_place const& place = mark.place;
      int const level = mark.level == finding_level::error ? 2 : 1;
      for (layer_statistics const& layer : report.layers) {
        if (layer.layer != place.layer || layer.mtp != place.mtp) continue;
        for (projection_statistics const& part : layer.projections) {
          if (!place.projection.empty() && place.projection != part.projection) continue;
          add(marks_[{&layer, part.projection}], part, place.expert, level);
        }
      }
    }
  }

  [[nodiscard]] by_expert const& of(layer_statistics const& layer, std::string const& part) const {
    static by_expert const none;
    auto const found = marks_.find({&layer, part});
    return found == marks_.end() ? none : found->second;
  }

  /// The projection that a reader should see first: with errors rather than warnings, with many
  /// rather than few. Empty when nothing is marked.
  [[nodiscard]] std::string worst_part() const {
    std::map<std::string, std::pair<int, std::size_t>> totals;
    for (auto const& [key, experts] : marks_) {
      auto& [level, count] = totals[key.second];
      for (auto const& [expert, own] : experts) {
        if (own > level) count = 0;
        count += own >= level ? 1 : 0;
        level = std::max(level, own);
      }
    }
    auto const less = [](auto const& a, auto const& b) { return a.second < b.second; };
    auto const worst = std::max_element(totals.begin(), totals.end(), less);
    return worst == totals.end() ? std::string() : worst->first;
  }

 private:
  static void add(by_expert& marks, projection_statistics const& part, index_t expert, int level) {
    auto const mark = [&](index_t one) { marks[one] = std::max(marks[one], level); };
    if (expert >= 0) return mark(expert);
    for (matrix_statistics const& one : part.experts) mark(one.expert);
  }

  std::map<std::pair<layer_statistics const*, std::string>, by_expert> marks_;
};

/// Numbers with three digits: the page has one per expert, projection and measure.
class number_list {
 public:
  void add(double value) { text_ += fmt::format("{}{:.3g}", text_.empty() ? "" : ",", value); }
  [[nodiscard]] std::string array() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
};

std::string part_data(projection_statistics const& part, expert_marks::by_expert marks) {
  number_list experts, median, max, amax, saturated, nan, wrong, mark;
  bool in_order = true;
  bool any_nan = false;
  bool any_wrong = false;
  bool any_mark = false;
  index_t next = 0;
  for (matrix_statistics const& one : part.experts) {
    in_order = in_order && one.expert == next++;
    experts.add(static_cast<double>(one.expert));
    median.add(one.scale_median);
    max.add(one.scale_max);
    amax.add(one.amax);
    saturated.add(one.scales > 0 ? share(one.saturated, one.elements) : -1.0);
    nan.add(static_cast<double>(one.non_finite));
    wrong.add(static_cast<double>(one.wrong_scales));
    auto const found = marks.find(one.expert);
    int const level = found == marks.end() ? 0 : found->second;
    if (found != marks.end()) marks.erase(found);
    mark.add(level);
    any_mark = any_mark || level > 0;
    any_nan = any_nan || one.non_finite > 0;
    any_wrong = any_wrong || one.wrong_scales > 0;
  }
  std::string absent;  // experts that are not there, or whose codes are no numbers without a scale
  for (auto const& [expert, level] : marks) {
    if (expert < most_columns) {
      absent += fmt::format("{}[{},{}]", absent.empty() ? "" : ",", expert, level);
    }
  }
  return fmt::format(
      R"({{"experts":{},"median":{},"max":{},"amax":{},"saturated":{},"nan":{},"wrong":{},"mark":{},"absent":[{}]}})",
      in_order ? "null" : experts.array(), median.array(), max.array(), amax.array(),
      saturated.array(), any_nan ? nan.array() : "[]", any_wrong ? wrong.array() : "[]",
      any_mark ? mark.array() : "[]", absent);
}

/// What the script draws. Nothing in it can end the element that it stands in: the only texts are
/// those of moe64 itself.
std::string page_data(check_report const& report, expert_marks const& marks) {
  std::string layers;
  std::vector<std::string> parts;
  index_t columns = 0;
  for (layer_statistics const& layer : report.layers) {
    std::string own;
    for (projection_statistics const& part : layer.projections) {
      expert_marks::by_expert const& found = marks.of(layer, part.projection);
      if (part.experts.empty() && found.empty()) continue;
      own += fmt::format("{}\"{}\":{}", own.empty() ? "" : ",", part.projection,
                         part_data(part, found));
      if (std::find(parts.begin(), parts.end(), part.projection) == parts.end()) {
        parts.push_back(part.projection);
      }
      for (matrix_statistics const& one : part.experts) columns = std::max(columns, one.expert + 1);
      if (!found.empty()) columns = std::max(columns, found.rbegin()->first + 1);
    }
    layers += fmt::format(R"({}{{"name":"{}","dialect":"{}","parts":{{{}}}}})",
                          layers.empty() ? "" : ",\n", layer_name(layer), layer.dialect, own);
  }
  std::string names;
  for (std::string const& part : parts) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ",", part);
  }
  return fmt::format("{{\"columns\":{},\"first\":\"{}\",\"parts\":[{}],\"layers\":[\n{}]}}",
                     std::min(columns, most_columns), marks.worst_part(), names, layers);
}

void add_tile(std::string& page, std::string const& value, std::string const& label, bool bad) {
  page += fmt::format("<div class=\"tile{}\"><b>{}</b><span>{}</span></div>\n", bad ? " bad" : "",
                      escaped(value), escaped(label));
}

void add_totals(std::string& page, check_totals const& all) {
  page += "<div class=\"tiles\">\n";
  add_tile(page, human_bytes(static_cast<double>(all.read_bytes)),
           fmt::format("read: {} tensors in {} files", all.tensors, all.shards),
           all.read_bytes != all.data_bytes);
  add_tile(page, fmt::format("{} of {}", all.matched, all.weights_found),
           fmt::format("quantised weights matched with {} scales", all.scales_found),
           all.matched != all.weights_found || all.scales_found != all.weights_found);
  add_tile(page, count_text(all.nan_codes),
           fmt::format("NaN among {} codes", count_text(all.codes)), all.nan_codes > 0);
  add_tile(page, fmt::format("{:.3g} %", 100.0 * share(all.saturated_codes, all.codes)),
           "of all codes are the largest one", false);
  add_tile(page, count_text(all.negative_zero_codes), "negative zeros", false);
  add_tile(page, count_text(all.wrong_scales),
           fmt::format("wrong among {} scales", count_text(all.scales)), all.wrong_scales > 0);
  add_tile(page, number(all.median_scale), "median scale", all.median_scale > 1.0);
  add_tile(page, count_text(all.non_finite_numbers),
           fmt::format("not finite among {} plain numbers", count_text(all.plain_numbers)),
           all.non_finite_numbers > 0);
  page += "</div>\n";
}

/// The text of a finding; a button that leads to its cell where it has one.
std::string finding_text(check_report const& report, finding const& found) {
  std::string const text = escaped(found.text);
  finding_place const& place = found.place;
  for (std::size_t row = 0; place.layer >= 0 && row < report.layers.size(); ++row) {
    if (report.layers[row].layer != place.layer || report.layers[row].mtp != place.mtp) continue;
    return fmt::format(
        "<button type=\"button\" data-row=\"{}\" data-part=\"{}\" data-expert=\"{}\">{}</button>",
        row, escaped(place.projection), place.expert, text);
  }
  return text;
}

void add_findings(std::string& page, check_report const& report) {
  page += "<h2>Findings</h2>\n";
  if (report.findings.empty()) {
    page += "<p>Nothing wrong was found.</p>\n";
    return;
  }
  page += "<div class=\"wide\"><table>\n<tr><th>level</th><th>rule</th><th>what</th></tr>\n";
  for (finding_level const level :
       {finding_level::error, finding_level::warning, finding_level::note}) {
    for (rule_total const& rule : report.rules) {
      if (rule.level != level) continue;
      index_t shown = 0;
      for (finding const& found : report.findings) {
        if (found.level != level || found.rule != rule.rule) continue;
        ++shown;
        page += fmt::format(
            "<tr><td class=\"{0}\">{0}</td><td>{1}</td><td class=\"text\">{2}</td></tr>\n",
            name(level), escaped(rule.rule), finding_text(report, found));
      }
      if (rule.count == shown) continue;
      page += fmt::format("<tr><td></td><td>{}</td><td class=\"note\">... and {} more</td></tr>\n",
                          escaped(rule.rule), rule.count - shown);
    }
  }
  page += "</table></div>\n";
}

void add_layers(std::string& page, check_report const& report) {
  page +=
      "<h2>Layers</h2>\n<details open><summary>Scales and weights of each layer</summary>\n"
      "<div class=\"wide\"><table>\n<tr><th>layer</th><th>part</th>"
      "<th>dialect</th><th class=\"n\">experts</th><th class=\"n\">scale min</th>"
      "<th class=\"n\">median</th><th class=\"n\">max</th><th class=\"n\">weights up to</th>"
      "<th class=\"n\">saturated</th><th class=\"n\">not finite</th>"
      "<th class=\"n\">wrong scales</th></tr>\n";
  for (layer_statistics const& layer : report.layers) {
    for (projection_statistics const& part : layer.projections) {
      matrix_statistics const& all = part.all;
      bool const scaled = all.scales > 0;
      page += fmt::format(
          "<tr{}><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
          "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
          "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
          all.non_finite > 0 || all.wrong_scales > 0 ? " class=\"wrong\"" : "", layer_name(layer),
          escaped(part.projection), escaped(layer.dialect), part.experts.size(),
          scaled ? number(all.scale_min) : "", scaled ? number(all.scale_median) : "",
          scaled ? number(all.scale_max) : "", number(all.amax),
          scaled ? fmt::format("{:.3g} %", 100.0 * share(all.saturated, all.elements)) : "",
          all.non_finite, all.wrong_scales);
    }
  }
  page += "</table></div></details>\n";
}

}  // namespace

bool is_check_page(std::string_view head) {
  // the mark stands in front of every text from outside
  return head.starts_with(page_begin) &&
         head.substr(0, 256).find(page_mark) != std::string_view::npos;
}

std::string check_page(std::string const& folder, check_report const& report) {
  std::string page = fmt::format(
      "{}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{}\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>moe64 check: {}</title>\n<style>{}</style>\n</head>\n<body>\n",
      page_begin, page_mark, escaped(folder), page_parts::style());
  page += fmt::format(
      "<h1>Checkpoint check <span class=\"verdict {}\">{}</span></h1>\n<p class=\"path\">{}</p>\n"
      "<p>{} errors, {} warnings, {} notes</p>\n",
      report.ok() ? "ok" : "fail", report.ok() ? "ok" : "FAIL", escaped(folder),
      report.count(finding_level::error), report.count(finding_level::warning),
      report.count(finding_level::note));
  add_totals(page, report.totals);
  page +=
      "<section id=\"heat\">\n<h2>Experts</h2>\n<div class=\"controls\">\n"
      "<label>Projection <select id=\"part\"></select></label>\n"
      "<label>Colour <select id=\"measure\"></select></label>\n"
      "<canvas id=\"legend\" width=\"330\" height=\"34\"></canvas>\n</div>\n"
      "<div class=\"map\" id=\"map\"><canvas id=\"cells\"></canvas></div>\n"
      "<p class=\"hint\">One row per layer, one column per expert. Red frame: an error was "
      "found there. Orange frame: a warning or a note. Grey: nothing of that kind there. Point at "
      "a "
      "cell for its numbers; findings below lead to their cells.</p>\n"
      "<noscript><p>The heat map needs scripts; the tables below do not.</p></noscript>\n"
      "</section>\n";
  add_findings(page, report);
  add_layers(page, report);
  page += fmt::format(
      "<p class=\"hint\">Written by moe64 {}.</p>\n<div id=\"tip\"></div>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{}</script>\n"
      "</body>\n</html>\n",
      version(), page_data(report, expert_marks(report)), page_parts::script());
  return page;
}

}  // namespace moe64::cli
