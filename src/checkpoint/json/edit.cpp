#include "checkpoint/json/edit.hpp"

#include "checkpoint/json/write.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

class editor {
 public:
  explicit editor(std::vector<json_edit> const& edits) : edits_(edits) {}

  void write_root(json_value const& root,
                  std::vector<std::pair<std::string, std::string>> const& appended) {
    if (!root.is(json_kind::object)) {
      write(root, 0);
      return;
    }
    write_object(root, 0, appended);
  }

  [[nodiscard]] std::string take() { return std::move(out_) + "\n"; }

 private:
  [[nodiscard]] json_edit const* edit_of(json_value const& value) const {
    auto const found = std::find_if(edits_.begin(), edits_.end(),
                                    [&](json_edit const& edit) { return edit.at == &value; });
    return found == edits_.end() ? nullptr : &*found;
  }

  void new_line(int depth) {
    out_ += '\n';
    out_.append(static_cast<std::size_t>(depth) * 2, ' ');
  }

  void write(json_value const& value, int depth) {
    switch (value.kind()) {
      case json_kind::null:
        out_ += "null";
        break;
      case json_kind::boolean:
        out_ += value.boolean() ? "true" : "false";
        break;
      case json_kind::integer:
      case json_kind::real:
        out_ += value.number_text();
        break;
      case json_kind::text:
        append_json_text(out_, value.text());
        break;
      case json_kind::array:
        write_array(value, depth);
        break;
      case json_kind::object:
        write_object(value, depth, {});
        break;
    }
  }

  void write_array(json_value const& array, int depth) {
    out_ += '[';
    bool first = true;
    for (json_value const& item : array) {
      if (!first) out_ += ',';
      first = false;
      new_line(depth + 1);
      write(item, depth + 1);
    }
    if (!first) new_line(depth);
    out_ += ']';
  }

  void write_key(std::string_view key, bool& first, int depth) {
    if (!first) out_ += ',';
    first = false;
    new_line(depth + 1);
    append_json_text(out_, key);
    out_ += ": ";
  }

  void write_object(json_value const& object, int depth,
                    std::vector<std::pair<std::string, std::string>> const& appended) {
    out_ += '{';
    bool first = true;
    for (json_value const& member : object) {
      json_edit const* const edit = edit_of(member);
      if (edit != nullptr && edit->text.empty()) continue;
      write_key(member.key(), first, depth);
      if (edit != nullptr) {
        out_ += edit->text;
      } else {
        write(member, depth + 1);
      }
    }
    for (auto const& [key, text] : appended) {
      write_key(key, first, depth);
      out_ += text;
    }
    if (!first) new_line(depth);
    out_ += '}';
  }

  std::vector<json_edit> const& edits_;
  std::string out_;
};

}  // namespace

std::string edited(json_value const& root, std::vector<json_edit> const& edits,
                   std::vector<std::pair<std::string, std::string>> const& appended) {
  editor writer(edits);
  writer.write_root(root, appended);
  return writer.take();
}

}  // namespace moe64::checkpoint
