#include "checkpoint/convert/resume/identity.hpp"

#include "checkpoint/convert/resume/manifest.hpp"
#include "checkpoint/files/checksum.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/write.hpp"
#include "core/fail.hpp"
#include "moe64/version.hpp"

#include <charconv>

namespace moe64::checkpoint {
namespace {

std::string text_sum(std::string_view text) {
  checksum sum;
  sum.add(std::as_bytes(std::span(text)));
  return hex(sum.value());
}

/// Numbers and texts, none of which can be taken for a part of its neighbour.
class fact_sum {
 public:
  void add(index_t number) { sum_.add(std::as_bytes(std::span(&number, 1))); }
  void add(std::string_view text) {
    add(static_cast<index_t>(text.size()));
    sum_.add(std::as_bytes(std::span(text)));
  }
  void add(tensor_entry const* tensor) {
    add(tensor == nullptr ? std::string_view() : std::string_view(tensor->name));
  }
  void add(axis_blocks const& axis) {
    add(axis.block);
    add(axis.half);
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { add(static_cast<index_t>(value)); }
  [[nodiscard]] std::string text() const { return hex(sum_.value()); }

 private:
  checksum sum_;
};

/// Names, types, shapes and places of every shard's tensors: what its header says.
std::vector<std::string> header_sums(folder const& files) {
  std::vector<fact_sum> sums(files.shards().size());
  for (tensor_entry const& tensor : files.tensors()) {
    fact_sum& sum = sums[static_cast<std::size_t>(tensor.shard)];
    sum.add(tensor.name);
    sum.add(tensor.type);
    sum.add(static_cast<index_t>(tensor.shape.size()));
    for (index_t const extent : tensor.shape) sum.add(extent);
    sum.add(tensor.begin);
    sum.add(tensor.bytes);
  }
  std::vector<std::string> texts;
  for (fact_sum const& sum : sums) texts.push_back(sum.text());
  return texts;
}

void add_matrices(fact_sum& sum, stored_matrices const& m) {
  sum.add(m.values);
  sum.add(m.scales);
  sum.add(m.global);
  sum.add(m.type);
  sum.add(m.scale_type);
  sum.add(static_cast<index_t>(m.offset_nibbles));
  for (index_t const number : {m.count, m.rows, m.cols, m.pitch, m.grid_cols, m.grid_slice}) {
    sum.add(number);
  }
  sum.add(m.row_blocks);
  sum.add(m.col_blocks);
  sum.add(m.direction);
}

void add_job(fact_sum& sum, conversion_job const& job) {
  sum.add(job.kind);
  sum.add(job.from);
  if (job.matrices != nullptr) add_matrices(sum, *job.matrices);
  for (index_t const number :
       {job.slice, job.slices, static_cast<index_t>(job.transposed), job.first, job.step, job.rows,
        job.cols, job.values, job.scales, job.layout.block_rows, job.layout.block_cols}) {
    sum.add(number);
  }
  sum.add(job.type);
  sum.add(job.layout.kind);
  sum.add(job.scale_type);
}

/// The configs to the byte, and what was made of them and of all that stands beside them. Either
/// alone would do for what is known today: the bytes do not depend on the plan being complete here,
/// and the plan not on every source of a declaration being listed.
std::string declaration_sum(folder const& files, conversion_plan const& plan) {
  fact_sum sum;
  for (document_source const& document : files.documents()) {
    sum.add(document.name);
    sum.add(hex(document.checksum));
  }
  sum.add(plan.to);
  sum.add(plan.scale_type);
  for (planned_shard const& shard : plan.shards) {
    for (conversion_job const& job : shard.jobs) add_job(sum, job);
  }
  return sum.text();
}

std::string library_text() {
  return fmt::format("{} arithmetic {}", version(), conversion_arithmetic);
}

}  // namespace

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(std::string_view text) {
  std::uint64_t value = 0;
  auto const [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (status != std::errc{} || end != text.data() + text.size()) {
    fail(errc::malformed_file, "[convert] {} is not a checksum", quoted(text));
  }
  return value;
}

std::string_view conversion_identity::difference(
    conversion_identity const& earlier) const noexcept {
  if (earlier.library != library) return "library";
  if (earlier.options != options) return "options";
  if (earlier.inputs != inputs) return "input";
  if (earlier.adapter != adapter) return "adapter";
  if (earlier.declaration != declaration) return "declaration";
  return {};
}

conversion_identity identity_of(folder const& files, convert_options const& options,
                                std::vector<std::string> const& assumed,
                                conversion_plan const& plan) {
  conversion_identity identity;
  identity.library = library_text();
  std::string settings =
      fmt::format("{} {} {}", name(options.to), options.shard_bytes, options.unsound);
  if (!options.part.whole()) settings += " " + to_string(options.part);
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
  identity.inputs = text_sum(inputs);
  identity.declaration = declaration_sum(files, plan);
  std::string merged;
  if (plan.deltas != nullptr) {
    identity.adapter = hex(plan.deltas->sum());
    merged = fmt::format("\"adapter\":\"{}\",", identity.adapter);
  }
  identity.text = fmt::format(
      "{{\"moe64_convert\":{},\"library\":\"{}\",\"to\":\"{}\",\"options\":\"{}\",\"inputs\":\"{}"
      "\","
      "\"declaration\":\"{}\",{}\"files\":[{}]}}\n",
      manifest_format, identity.library, name(options.to), identity.options, identity.inputs,
      identity.declaration, merged, inputs);
  return identity;
}

}  // namespace moe64::checkpoint
