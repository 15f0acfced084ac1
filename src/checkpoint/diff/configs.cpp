#include "checkpoint/diff/configs.hpp"

#include "checkpoint/findings/quoted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace moe64::checkpoint {
namespace {

constexpr char const* absent = "absent";

/// Keys that a conversion changes, and those that say who wrote the file: their last part.
constexpr std::array<std::string_view, 10> storage_keys = {"quantization_config",
                                                           "compression_config",
                                                           "quantization",
                                                           "torch_dtype",
                                                           "dtype",
                                                           "expert_dtype",
                                                           "transformers_version",
                                                           "_name_or_path",
                                                           "scale_fmt",
                                                           "routed_experts_quant_method"};

std::string text_of(json_value const& value) {
  switch (value.kind()) {
    case json_kind::null:
      return "null";
    case json_kind::boolean:
      return value.boolean() ? "true" : "false";
    case json_kind::integer:
    case json_kind::real:
      return std::string(value.number_text());
    case json_kind::text:
      return quoted(value.text());
    case json_kind::array:
    case json_kind::object:
      break;
  }
  bool const object = value.is(json_kind::object);
  std::string text = object ? "{" : "[";
  for (json_value const& item : value) {
    if (text.size() > 1) text += ", ";
    if (object) text += quoted(item.key()) + ": ";
    text += text_of(item);
  }
  return text + (object ? "}" : "]");
}

bool same_value(json_value const& a, json_value const& b);

bool same_number(json_value const& a, json_value const& b) {
  if (a.number_text() == b.number_text()) return true;  // NaN too
  bool const exact = a.is(json_kind::integer) && b.is(json_kind::integer);
  return !exact && a.real() == b.real();
}

bool same_items(json_value const& a, json_value const& b) {
  if (a.size() != b.size()) return false;
  if (a.is(json_kind::array)) return std::equal(a.begin(), a.end(), b.begin(), same_value);
  return std::all_of(a.begin(), a.end(), [&](json_value const& member) {
    json_value const* const other = b.find(member.key());
    return other != nullptr && same_value(member, *other);
  });
}

bool is_number(json_value const& value) {
  return value.is(json_kind::integer) || value.is(json_kind::real);
}

bool same_value(json_value const& a, json_value const& b) {
  if (is_number(a) && is_number(b)) return same_number(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case json_kind::null:
      return true;
    case json_kind::boolean:
      return a.boolean() == b.boolean();
    case json_kind::text:
      return a.text() == b.text();
    default:
      return same_items(a, b);
  }
}

class config_comparison {
 public:
  explicit config_comparison(std::vector<config_difference>& into) : into_(into) {}

  void compare(std::string_view file, json_value const* a, json_value const* b, bool of_storage) {
    file_ = file;
    if (a == nullptr && b == nullptr) return;
    bool const members =
        a != nullptr && b != nullptr && a->is(json_kind::object) && b->is(json_kind::object);
    members ? compare_members("", *a, *b, of_storage) : compare_values("", a, b, of_storage);
  }

 private:
  void compare_members(std::string const& path, json_value const& a, json_value const& b,
                       bool of_storage) {
    auto const compare = [&](json_value const* left, json_value const* right) {
      std::string_view const key = left != nullptr ? left->key() : right->key();
      std::string const below = path + (path.empty() ? "" : ".") + escaped(key);
      bool const stored = of_storage || std::find(storage_keys.begin(), storage_keys.end(), key) !=
                                            storage_keys.end();
      bool const both = left != nullptr && right != nullptr;
      if (both && left->is(json_kind::object) && right->is(json_kind::object)) {
        compare_members(below, *left, *right, stored);
      } else {
        compare_values(below, left, right, stored);
      }
    };
    for (json_value const& member : a) compare(&member, b.find(member.key()));
    for (json_value const& member : b) {
      if (a.find(member.key()) == nullptr) compare(nullptr, &member);
    }
  }

  void compare_values(std::string const& path, json_value const* a, json_value const* b,
                      bool of_storage) {
    if (a != nullptr && b != nullptr && same_value(*a, *b)) return;
    into_.push_back({file_, path, shown(a), shown(b), of_storage});
  }

  static std::string shown(json_value const* value) {
    constexpr std::size_t longest = 80;
    if (value == nullptr) return absent;
    std::string text = text_of(*value);
    if (text.size() > longest) text = escaped(text, longest);
    return text;
  }

  std::vector<config_difference>& into_;
  std::string file_;
};

}  // namespace

std::vector<config_difference> config_differences(folder const& first, folder const& second) {
  std::vector<config_difference> found;
  config_comparison comparison(found);
  // the configs of a file that was opened by itself are those beside it, if any: no difference
  bool const one_alone = first.is_single_file() || second.is_single_file();
  comparison.compare("config.json", first.config(), second.config(), one_alone);
  comparison.compare("params.json", first.params(), second.params(), one_alone);
  comparison.compare("hf_quant_config.json", first.hf_quant_config(), second.hf_quant_config(),
                     true);
  return found;
}

}  // namespace moe64::checkpoint
