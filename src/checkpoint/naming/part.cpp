#include "checkpoint/naming/part.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <charconv>
#include <set>

namespace moe64 {
namespace {

std::optional<index_t> number_of(std::string_view text) noexcept {
  index_t number = 0;
  char const* const end = text.data() + text.size();
  auto const [stop, status] = std::from_chars(text.data(), end, number);
  if (text.empty() || status != std::errc{} || stop != end || number < 0) return std::nullopt;
  return number;
}

std::string text_of(std::vector<number_range> const& ranges) {
  std::string text;
  for (number_range const& range : ranges) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", range.first);
    if (range.last != range.first) text += fmt::format("-{}", range.last);
  }
  return text;
}

bool contains(std::vector<number_range> const& ranges, index_t number) noexcept {
  return std::any_of(ranges.begin(), ranges.end(), [&](number_range const& range) {
    return range.first <= number && number <= range.last;
  });
}

}  // namespace

std::vector<number_range> parse_ranges(std::string_view text, std::string_view what) {
  std::vector<number_range> ranges;
  std::string_view rest = text;
  for (bool more = true; more;) {
    std::size_t const comma = rest.find(',');
    std::string_view const word = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    std::size_t const dash = std::min(word.find('-'), word.size());
    auto const first = number_of(word.substr(0, dash));
    auto const last = dash == word.size() ? first : number_of(word.substr(dash + 1));
    if (!first || !last || *last < *first) {
      fail(errc::invalid_argument, "{} {}: expected numbers and ranges such as 3 or 0-5,9", what,
           checkpoint::escaped(text));
    }
    ranges.push_back({*first, *last});
  }
  return ranges;
}

std::string to_string(checkpoint_part const& part) {
  std::string text;
  if (!part.layers.empty()) text = "layers " + text_of(part.layers);
  if (!part.shards.empty()) {
    text += (text.empty() ? "files " : "; files ") + text_of(part.shards);
  }
  return text.empty() ? "everything" : text;
}

namespace checkpoint {

std::optional<index_t> layer_in_name(std::string_view name) noexcept {
  bool behind = false;
  while (!name.empty()) {
    std::size_t const dot = std::min(name.find('.'), name.size());
    std::string_view const word = name.substr(0, dot);
    if (behind) {
      if (auto const number = number_of(word)) return number;
    }
    behind = word == "layers" || word == "blocks" || word == "h";
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return std::nullopt;
}

bool includes(checkpoint_part const& part, tensor_entry const& tensor) noexcept {
  if (!part.shards.empty() && !contains(part.shards, tensor.shard + 1)) return false;
  if (part.layers.empty()) return true;
  auto const layer = layer_in_name(tensor.name);
  return layer && contains(part.layers, *layer);
}

void require_present(checkpoint_part const& part, folder const& files, std::string_view operation) {
  index_t const count = std::ssize(files.shards());
  for (number_range const& range : part.shards) {
    if (range.first >= 1 && range.last <= count) continue;
    fail(errc::invalid_argument, "[{}] files {} of {}, which has {}", operation, text_of({range}),
         escaped_path(files.path().native()), count);
  }
  if (part.layers.empty()) return;
  std::set<index_t> layers;
  for (tensor_entry const& tensor : files.tensors()) {
    if (auto const layer = layer_in_name(tensor.name)) layers.insert(*layer);
  }
  for (number_range const& range : part.layers) {
    if (layers.contains(range.first) && layers.contains(range.last)) continue;
    std::string const there =
        layers.empty() ? "no layers"
                       : fmt::format("layers {} to {}", *layers.begin(), *layers.rbegin());
    fail(errc::invalid_argument, "[{}] layers {} of {}, whose names have {}", operation,
         text_of({range}), escaped_path(files.path().native()), there);
  }
}

}  // namespace checkpoint
}  // namespace moe64
