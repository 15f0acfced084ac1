#include "checkpoint/convert_manifest.hpp"

#include "checkpoint/checksum.hpp"
#include "checkpoint/json_write.hpp"
#include "checkpoint/quoted.hpp"
#include "core/fail.hpp"
#include "moe64/version.hpp"

#include <charconv>
#include <errno.h>

namespace moe64::checkpoint {
namespace {

constexpr index_t manifest_limit = index_t{256} << 20;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(std::string_view text) {
  std::uint64_t value = 0;
  auto const [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (status != std::errc{} || end != text.data() + text.size()) {
    fail(errc::malformed_file, "[convert] {} is not a checksum", quoted(text));
  }
  return value;
}

std::string text_sum(std::string_view text) {
  checksum sum;
  sum.add(std::as_bytes(std::span(text)));
  return hex(sum.value());
}

/// Names, types, shapes and places of every shard's tensors: what its header says.
std::vector<std::string> header_sums(folder const& files) {
  std::vector<checksum> sums(files.shards().size());
  for (tensor_entry const& tensor : files.tensors()) {
    checksum& sum = sums[static_cast<std::size_t>(tensor.shard)];
    index_t const facts[] = {static_cast<index_t>(tensor.name.size()),
                             static_cast<index_t>(tensor.type),
                             static_cast<index_t>(tensor.shape.size()), tensor.begin, tensor.bytes};
    sum.add(std::as_bytes(std::span(facts)));
    sum.add(std::as_bytes(std::span(tensor.name)));
    sum.add(std::as_bytes(tensor.shape));
  }
  std::vector<std::string> texts;
  for (checksum const& sum : sums) texts.push_back(hex(sum.value()));
  return texts;
}

std::string line_of(shard_record const& record) {
  std::string line = "{\"shard\":";
  append_json_text(line, record.name);
  line += fmt::format(
      ",\"bytes\":{},\"checksum\":\"{}\",\"overflows\":{},\"not_finite\":{},\"anomalies\":[",
      record.bytes, hex(record.checksum), record.counts.overflows, record.counts.not_finite);
  for (std::size_t i = 0; i < record.anomalies.size(); ++i) {
    if (i != 0) line += ',';
    append_json_text(line, record.anomalies[i]);
  }
  return line + "]}\n";
}

shard_record record_of(json_value const& line) {
  shard_record record;
  record.name = line.at("shard").text();
  record.bytes = line.at("bytes").integer();
  record.checksum = from_hex(line.at("checksum").text());
  record.counts.overflows = line.at("overflows").integer();
  record.counts.not_finite = line.at("not_finite").integer();
  for (json_value const& text : line.at("anomalies")) record.anomalies.emplace_back(text.text());
  return record;
}

}  // namespace

conversion_identity identity_of(folder const& files, convert_options const& options,
                                std::vector<std::string> const& assumed,
                                std::string const& configs) {
  conversion_identity identity;
  identity.library = version();
  std::string settings =
      fmt::format("{} {} {}", name(options.to), options.shard_bytes, options.unsound);
  for (std::string const& text : assumed) settings += "\n" + text;
  identity.options = text_sum(settings);
  std::string inputs;
  std::vector<std::string> const headers = header_sums(files);
  for (std::size_t i = 0; i < files.shards().size(); ++i) {
    shard const& file = files.shards()[i];
    inputs += i == 0 ? "{\"file\":" : ",{\"file\":";
    append_json_text(inputs, file.name);
    inputs += fmt::format(",\"bytes\":{},\"modified_ns\":{},\"header\":\"{}\"}}", file.bytes,
                          file.status.modified_ns, headers[i]);
  }
  identity.inputs = text_sum(inputs + "\n" + configs);
  identity.text = fmt::format(
      "{{\"moe64_convert\":1,\"library\":\"{}\",\"to\":\"{}\",\"options\":\"{}\",\"inputs\":\"{}\","
      "\"files\":[{}]}}\n",
      identity.library, name(options.to), identity.options, identity.inputs, inputs);
  return identity;
}

std::optional<earlier_run> read_manifest(output_folder const& folder) {
  auto const file =
      input_file::open_if_present(folder.files(), folder.path_of(manifest_name), link_rule::none);
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
      json_value const& line = document->root();
      if (first) {
        if (line.at("moe64_convert").integer() != 1) return std::nullopt;
        run.identity.library = line.at("library").text();
        run.identity.options = line.at("options").text();
        run.identity.inputs = line.at("inputs").text();
      } else if (line.find("complete") != nullptr) {
        run.complete = line.at("complete").boolean();
      } else {
        run.shards.push_back(record_of(line));
      }
    } catch (error const&) {
      if (first) return std::nullopt;
      break;  // what follows a damaged line is not trusted
    }
    first = false;
    begin = end + 1;
  }
  if (first) return std::nullopt;
  return run;
}

manifest_writer::manifest_writer(output_folder const& folder, conversion_identity const& identity,
                                 std::vector<shard_record> const& kept)
    : folder_(folder), path_(folder.path_of(manifest_name)) {
  std::string text = identity.text;
  for (shard_record const& record : kept) text += line_of(record);
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
void manifest_writer::complete() { append("{\"complete\":true}\n"); }

}  // namespace moe64::checkpoint
