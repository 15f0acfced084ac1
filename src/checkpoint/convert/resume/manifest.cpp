#include "checkpoint/convert/resume/manifest.hpp"

#include "checkpoint/files/input_file.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/write.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <cmath>
#include <errno.h>
#include <limits>

namespace moe64::checkpoint {
namespace {

constexpr index_t manifest_limit = index_t{256} << 20;

std::string facts_of(file_record const& record) {
  return fmt::format(",\"bytes\":{},\"head_bytes\":{},\"head\":\"{}\"", record.bytes,
                     record.head_bytes, hex(record.head));
}

std::string line_of(file_record const& record) {
  std::string line = "{\"file\":";
  append_json_text(line, record.name);
  return line + facts_of(record) + "}\n";
}

/// A sum that is not finite is null: JSON has no such numbers.
std::string text_of(double sum) { return std::isfinite(sum) ? fmt::format("{}", sum) : "null"; }
double sum_of(json_value const& value) {
  return value.is(json_kind::null) ? std::numeric_limits<double>::quiet_NaN() : value.real();
}

std::string text_of(std::vector<std::pair<std::string, delta_sums>> const& merged) {
  std::string text;
  for (auto const& [tensor, sums] : merged) {
    text += text.empty() ? "[" : ",[";
    append_json_text(text, tensor);
    text +=
        fmt::format(",{},{},{}]", text_of(sums.delta), text_of(sums.along), text_of(sums.error));
  }
  return text;
}

std::string line_of(shard_record const& record) {
  std::string line = "{\"shard\":";
  append_json_text(line, record.file.name);
  line += facts_of(record.file);
  line += fmt::format(",\"checksum\":\"{}\",\"overflows\":{},\"not_finite\":{},\"anomalies\":[",
                      hex(record.checksum), record.counts.overflows, record.counts.not_finite);
  for (std::size_t i = 0; i < record.anomalies.size(); ++i) {
    if (i != 0) line += ',';
    append_json_text(line, record.anomalies[i]);
  }
  line += "]";
  if (!record.merged.empty()) line += ",\"merged\":[" + text_of(record.merged) + "]";
  return line + "}\n";
}

std::string line_of(std::vector<std::string> const& outputs) {
  std::string line = "{\"outputs\":[";
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (i != 0) line += ',';
    append_json_text(line, outputs[i]);
  }
  return line + "]}\n";
}

file_record file_of(json_value const& line, std::string_view kind) {
  file_record record;
  record.name = line.at(kind).text();
  record.bytes = line.at("bytes").integer();
  record.head_bytes = line.at("head_bytes").integer();
  record.head = from_hex(line.at("head").text());
  if (record.head_bytes < 0 || record.head_bytes > record.bytes) {
    fail(errc::malformed_file, "[convert] {} of {} bytes", record.head_bytes, record.bytes);
  }
  return record;
}

shard_record shard_of(json_value const& line) {
  shard_record record;
  record.file = file_of(line, "shard");
  record.checksum = from_hex(line.at("checksum").text());
  record.counts.overflows = line.at("overflows").integer();
  record.counts.not_finite = line.at("not_finite").integer();
  for (json_value const& text : line.at("anomalies")) record.anomalies.emplace_back(text.text());
  if (json_value const* const merged = line.find("merged")) {
    for (json_value const& entry : *merged) {
      delta_sums const sums{sum_of(entry.item(1)), sum_of(entry.item(2)), sum_of(entry.item(3))};
      record.merged.emplace_back(entry.item(0).text(), sums);
    }
  }
  return record;
}

/// The last line of a name counts.
void put(earlier_run& run, shard_record record) {
  std::erase_if(run.shards,
                [&](shard_record const& old) { return old.file.name == record.file.name; });
  run.shards.push_back(std::move(record));
}
void put(earlier_run& run, file_record record) {
  std::erase_if(run.files, [&](file_record const& old) { return old.name == record.name; });
  run.files.push_back(std::move(record));
}

void read_identity(json_value const& line, earlier_run& run) {
  if (index_t const format = line.at("moe64_convert").integer(); format != manifest_format) {
    fail(errc::unsupported, "format {}, expected {}", format, manifest_format);
  }
  run.identity.library = line.at("library").text();
  run.identity.options = line.at("options").text();
  run.identity.inputs = line.at("inputs").text();
  run.identity.declaration = line.at("declaration").text();
  if (json_value const* const adapter = line.find("adapter")) {
    run.identity.adapter = adapter->text();
  }
}

void read_line(json_value const& line, earlier_run& run) {
  if (line.find("complete") != nullptr) {
    run.complete = line.at("complete").boolean();
  } else if (line.find("outputs") != nullptr) {
    for (json_value const& name : line.at("outputs")) run.outputs.emplace_back(name.text());
  } else if (line.find("shard") != nullptr) {
    shard_record record = shard_of(line);
    put(run, record.file);
    put(run, std::move(record));
  } else {
    put(run, file_of(line, "file"));
  }
}

[[noreturn]] void refuse(std::string const& path, std::string_view why) {
  fail(errc::invalid_argument,
       "[convert] {}: is not understood ({}), so that nobody can say which files beside it may be "
       "replaced; empty the folder or choose another one",
       escaped_path(path), why);
}

}  // namespace

file_record const* earlier_run::file(std::string_view name) const noexcept {
  for (file_record const& record : files) {
    if (record.name == name) return &record;
  }
  return nullptr;
}

std::optional<earlier_run> read_manifest(file_system const& files, std::string const& folder) {
  std::string const path = fmt::format("{}/{}", folder, manifest_name);
  auto const file = input_file::open_if_present(files, path, link_rule::none);
  if (!file) return std::nullopt;
  std::string const text = file->read_text(manifest_limit);
  earlier_run run;
  bool first = true;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t const end = text.find('\n', begin);
    if (end == std::string::npos) break;  // the process ended while it wrote this line
    try {
      auto const document =
          parse_json(std::string_view(text).substr(begin, end - begin), manifest_name);
      first ? read_identity(document->root(), run) : read_line(document->root(), run);
    } catch (error const& damaged) {
      if (first) refuse(path, damaged.what());
      break;  // what follows a damaged line is not trusted
    }
    first = false;
    begin = end + 1;
  }
  if (first) refuse(path, "it has no line");
  return run;
}

manifest_writer::manifest_writer(output_folder const& folder, conversion_identity const& identity,
                                 std::vector<std::string> const& outputs, earlier_run const& kept)
    : folder_(folder), path_(folder.path_of(manifest_name)) {
  std::vector<std::string> names = outputs;
  for (std::string const& name : kept.outputs) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text = identity.text + line_of(names);
  for (shard_record const& record : kept.shards) text += line_of(record);
  for (file_record const& record : kept.files) {
    bool const shard =
        std::any_of(kept.shards.begin(), kept.shards.end(),
                    [&](shard_record const& other) { return other.file.name == record.name; });
    if (!shard) text += line_of(record);
  }
  write_file(folder_, manifest_name, std::as_bytes(std::span(text)), true);
  end_ = static_cast<index_t>(text.size());
  descriptor_ = folder_.files().open_or_create(path_);
  if (descriptor_ < 0) {
    fail(errc::io_failure, "[convert] {}: opening: {}", escaped_path(path_),
         error_text(-descriptor_));
  }
}

manifest_writer::~manifest_writer() {
  if (descriptor_ >= 0) folder_.files().close(descriptor_);
}

void manifest_writer::append(std::string const& line) {
  std::span<std::byte const> rest = std::as_bytes(std::span(line));
  while (!rest.empty()) {
    index_t const written = folder_.files().write_at(descriptor_, rest, end_);
    if (written == -EINTR) continue;
    if (written <= 0) {
      fail(errc::io_failure, "[convert] {}: writing: {}", escaped_path(path_),
           error_text(written == 0 ? EIO : static_cast<int>(-written)));  // narrow-ok: an errno
    }
    end_ += written;
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  if (int const result = folder_.files().sync(descriptor_); result < 0) {
    fail(errc::io_failure, "[convert] {}: making it permanent (fsync): {}", escaped_path(path_),
         error_text(-result));
  }
}

void manifest_writer::add(shard_record const& record) { append(line_of(record)); }
void manifest_writer::add(file_record const& record) { append(line_of(record)); }
void manifest_writer::complete() { append("{\"complete\":true}\n"); }

}  // namespace moe64::checkpoint
