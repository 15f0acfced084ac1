#include "checkpoint/config/activation_facts.hpp"

#include "checkpoint/config/activation_keys.hpp"
#include "checkpoint/config/activation_words.hpp"
#include "checkpoint/config/model_config.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "moe64/error.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

/// null, false, "" and lists and objects without anything in them say nothing where no role is
/// known.
bool is_silent(json_value const& value) {
  if (value.is(json_kind::null)) return true;
  if (value.is(json_kind::boolean)) return !value.boolean();
  if (value.is(json_kind::text)) return value.text().empty();
  if (!value.is(json_kind::array)) return value.is(json_kind::object) && value.size() == 0;
  return std::all_of(value.begin(), value.end(),
                     [](json_value const& item) { return item.is(json_kind::null); });
}

/// Swish is the other name of SiLU, and SwiGLU what it is with a gate.
bool same_function(std::string_view left, std::string_view right) {
  auto const is_silu = [](std::string_view word) {
    return word == "silu" || word == "swish" || word == "swiglu";
  };
  return left == right || (is_silu(left) && is_silu(right));
}

std::string shown(json_value const& value) {
  if (value.is(json_kind::text)) return quoted(value.text(), 60);
  if (value.is(json_kind::boolean)) return value.boolean() ? "true" : "false";
  if (value.is(json_kind::integer) || value.is(json_kind::real)) {
    return escaped(value.number_text(), 40);
  }
  return std::string(name(value.kind()));
}

std::string shown(std::string const& value) { return quoted(value, 60); }
std::string shown(double value) { return fmt::format("{}", value); }
std::string shown(std::vector<double> const& values) {
  return fmt::format("a list of {}", values.size());
}

class activation_reader {
 public:
  explicit activation_reader(model_config const& model) : model_(model) {}

  activation_facts read(config_sources const& sources) {
    result_.nothing_read = sources.config == nullptr && sources.params == nullptr;
    refuse_kind(sources.config);
    result_.mistral_native =
        sources.config == nullptr && sources.params != nullptr &&
        sources.params->is(json_kind::object) &&
        (sources.params->find("moe") != nullptr || sources.params->find("dim") != nullptr);
    objects_ = language_objects(sources);
    for (json_value const* const object : objects_) {
      refuse_type(object->find("model_type"));
      // beside a language part the other parts of the model have functions of their own
      bool const has_part =
          object == sources.config && objects_.size() > 1 && objects_[1] != sources.params;
      names_functions_ = !has_part;
      for (json_value const& member : *object) read_member(member, false);
    }
    result_.function = for_experts_ ? std::move(for_experts_) : std::move(for_all_);
    for (json_value const* const other : functions_inside_) {
      if (!result_.function || !same_function(other->text(), result_.function->value)) {
        unknown(*other);
      }
    }
    return std::move(result_);
  }

 private:
  /// A config that is no object, or a model type that is no text, states nothing to rely on.
  void refuse_kind(json_value const* config) {
    if (config == nullptr) return;
    if (!config->is(json_kind::object)) {
      contradict(fmt::format("{} is {}, expected an object", config->path(), name(config->kind())));
    }
  }

  void refuse_type(json_value const* type) {
    if (type == nullptr || type->is(json_kind::null) || type->is(json_kind::text)) return;
    contradict(fmt::format("{} is {}, expected text", type->path(), name(type->kind())));
  }

  void contradict(std::string text) {
    if (result_.contradiction.empty()) result_.contradiction = std::move(text);
  }

  void read_member(json_value const& member, bool of_experts) {
    std::string_view const key = member.key();
    for (activation_key const& row : activation_keys()) {
      if (row.key != key) continue;
      if (!row.model_types.empty() && !model_.is_one_of(row.model_types)) continue;
      // of an object inside the config only what is named `elsewhere` is known
      if (of_experts && row.role != activation_role::elsewhere) continue;
      // of a key whose meaning is known null alone says nothing
      if (!member.is(json_kind::null)) take(row.role, member);
      return;
    }
    if (is_silent(member)) return;
    bool const function = may_hold_experts(key) && holds_function(member);
    if (looks_like_activation(key, of_experts) ||
        (function && (of_experts || !member.is(json_kind::text)))) {
      unknown(member);
    } else if (function) {
      functions_inside_.push_back(&member);
    } else if (of_experts || names_experts(key)) {
      read_inside(member);
    } else if (may_hold_experts(key)) {
      find_clamps(member);
    }
  }

  /// Of what nothing else is read from, the keys that clamp something, what is about experts, and
  /// functions.
  void find_clamps(json_value const& value) {
    bool const object = value.is(json_kind::object) && !is_language(value);
    if (!object && !value.is(json_kind::array)) return;
    for (json_value const& inner : value) {
      if (!object) {
        find_clamps(inner);
      } else if (looks_like_clamp(inner.key()) && !is_silent(inner)) {
        unknown(inner);
      } else if (names_experts(inner.key())) {
        read_member(inner, true);
      } else if (may_hold_experts(inner.key())) {
        find_clamps(inner);
        if (names_functions_ && names_function_of_experts(inner)) {
          functions_inside_.push_back(&inner);
        }
      }
    }
  }

  [[nodiscard]] bool is_language(json_value const& value) const {
    return std::find(objects_.begin(), objects_.end(), &value) != objects_.end();
  }

  static bool names_function_of_experts(json_value const& member) {
    if (!member.is(json_kind::text) || !names_function(member.text())) return false;
    return std::none_of(activation_keys().begin(), activation_keys().end(),
                        [&](activation_key const& row) {
                          return row.role == activation_role::elsewhere && row.key == member.key();
                        });
  }

  /// A text that names a function, or a list with one.
  static bool holds_function(json_value const& value) {
    if (value.is(json_kind::text)) return names_function(value.text());
    return value.is(json_kind::array) &&
           std::any_of(value.begin(), value.end(), [](json_value const& item) {
             return item.is(json_kind::text) && names_function(item.text());
           });
  }

  void unknown(json_value const& member) {
    result_.unknown.push_back(
        {std::string(member.key()), fmt::format("{} is {}", member.path(), shown(member))});
  }

  /// Of what is about experts, the objects in it, and those of its lists.
  void read_inside(json_value const& value) {
    if (value.is(json_kind::object) && !is_language(value)) {
      for (json_value const& member : value) read_member(member, true);
    } else if (value.is(json_kind::array)) {
      for (json_value const& item : value) read_inside(item);
    }
  }

  void take(activation_role role, json_value const& member) {
    try {
      if (role == activation_role::expert_function) keep(for_experts_, text_of(member), member);
      if (role == activation_role::function) keep(for_all_, text_of(member), member);
      if (role == activation_role::alpha) keep(result_.alpha, member.real(), member);
      if (role == activation_role::limit) keep(result_.limit, member.real(), member);
      if (role == activation_role::limits) keep(result_.limits, list_of(member), member);
    } catch (error const& refused) {
      contradict(refused.what());
    }
  }

  static std::string text_of(json_value const& value) { return std::string(value.text()); }

  static std::vector<double> list_of(json_value const& list) {
    if (!list.is(json_kind::array)) (void)list.item(0);  // fails, and says what it is
    std::vector<double> result;
    for (json_value const& item : list) {
      result.push_back(item.is(json_kind::null) ? 0.0 : item.real());
    }
    return result;
  }

  template <class T>
  void keep(fact<T>& known, T value, json_value const& from) {
    if (!known) {
      known = stated<T>{std::move(value), from.path()};
    } else if (!(known->value == value)) {
      contradict(fmt::format("{} is {}, but {} is {}", known->source, shown(known->value),
                             from.path(), shown(value)));
    }
  }

  model_config const& model_;
  std::vector<json_value const*> objects_;
  std::vector<json_value const*> functions_inside_;  ///< named where nothing is read
  bool names_functions_ = true;
  fact<std::string> for_experts_;
  fact<std::string> for_all_;
  activation_facts result_;
};

}  // namespace

activation_facts read_activation(config_sources const& sources, model_config const& model) {
  return activation_reader(model).read(sources);
}

}  // namespace moe64::checkpoint
