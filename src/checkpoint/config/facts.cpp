#include "checkpoint/config/facts.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "moe64/error.hpp"

#include <type_traits>

namespace moe64::checkpoint {
namespace {

std::string shown(std::string const& value) { return quoted(value); }
template <class Number>
std::string shown(Number value) {
  return fmt::format("{}", value);
}

void add_object(std::vector<json_value const*>& objects, json_value const* candidate) {
  if (candidate != nullptr && candidate->is(json_kind::object)) objects.push_back(candidate);
}

}  // namespace

template <class T, class Read>
fact<T> config_facts::first(std::initializer_list<std::string_view> names, Read const& read) const {
  fact<T> result;
  for (json_value const* const object : objects_) {
    for (std::string_view const name : names) {
      json_value const* const member = object->find(name);
      if (member == nullptr || member->is(json_kind::null)) continue;
      try {
        T value = read(*member);
        if (!result) {
          result = stated<T>{std::move(value), member->path()};
        } else if (!(result->value == value)) {
          found_->error(errc::invalid_argument, "config-conflict", "", "{} is {}, but {} is {}",
                        result->source, shown(result->value), member->path(), shown(value));
        }
      } catch (moe64::error const& refused) {
        found_->error(refused.code(), "config-kind", "", "{}", refused.what());
      }
    }
  }
  return result;
}

fact<index_t> config_facts::integer(std::initializer_list<std::string_view> names) const {
  return first<index_t>(names, [](json_value const& value) { return value.integer(); });
}

fact<double> config_facts::real(std::initializer_list<std::string_view> names) const {
  return first<double>(names, [](json_value const& value) { return value.real(); });
}

fact<std::string> config_facts::text(std::initializer_list<std::string_view> names) const {
  return first<std::string>(names,
                            [](json_value const& value) { return std::string(value.text()); });
}

json_value const* config_facts::value(std::initializer_list<std::string_view> names) const {
  for (json_value const* const object : objects_) {
    for (std::string_view const name : names) {
      json_value const* const member = object->find(name);
      if (member != nullptr && !member->is(json_kind::null)) return member;
    }
  }
  return nullptr;
}

std::vector<json_value const*> language_objects(config_sources const& sources) {
  std::vector<json_value const*> objects;
  add_object(objects, sources.config);
  if (sources.config != nullptr && sources.config->is(json_kind::object)) {
    for (std::string_view const part : {"text_config", "language_config", "llm_config"}) {
      add_object(objects, sources.config->find(part));
    }
  }
  add_object(objects, sources.params);
  if (sources.params != nullptr && sources.params->is(json_kind::object)) {
    add_object(objects, sources.params->find("moe"));
  }
  return objects;
}

}  // namespace moe64::checkpoint
