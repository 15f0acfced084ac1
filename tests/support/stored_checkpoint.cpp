#include "support/stored_checkpoint.hpp"

#include "checkpoint/check/findings.hpp"
#include "checkpoint/load/opened.hpp"
#include "core/float8.hpp"
#include "moe64/cpu.hpp"
#include "support/random.hpp"
#include "support/safetensors_text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

namespace moe64::test {
namespace {

using enum file_dtype;

bool is_scale(std::string const& name) {
  return name.find("scale") != std::string::npos && !name.ends_with("weight_shape");
}

/// As a quantiser would leave them: every code but NaN, never a whole block of zeros.
std::vector<std::byte> sound_bytes(checkpoint_builder const& from, std::string const& name) {
  std::vector<std::byte> bytes = from.bytes_of(name);
  if (from.type_of(name) != f8_e4m3) return bytes;
  for (std::byte& code : bytes) {
    if ((code & std::byte{0x7f}) == std::byte{0x7f}) code = std::byte{0x31};
  }
  return bytes;
}

}  // namespace

index_t counting_files::read_at(int descriptor, std::span<std::byte> into, index_t offset) const {
  std::scoped_lock const lock(mutex);
  if (fails_after == 0) return -EIO;
  if (fails_after > 0) --const_cast<counting_files*>(this)->fails_after;
  index_t const got = memory_files::read_at(descriptor, into, offset);
  auto& counts = reads[descriptor];
  counts.resize(std::max(counts.size(), static_cast<std::size_t>(offset + got)));
  for (index_t i = offset; i < offset + got; ++i) ++counts[static_cast<std::size_t>(i)];
  return got;
}

stored_checkpoint::stored_checkpoint(checkpoint_builder described, index_t shards)
    : described_(std::move(described)), shards_(shards) {
  for (std::string const& name : described_.names()) fill(name);
  complete();
}

void stored_checkpoint::fill(std::string const& name) {
  bytes_[name] = sound_bytes(described_, name);
  file_dtype const type = described_.type_of(name);
  auto const elements = static_cast<index_t>(bytes_[name].size()) * 8 / checkpoint::bits(type);
  random_source const draw(std::hash<std::string>{}(name));
  for (index_t i = 0; i < elements; ++i) {
    if (name.ends_with("weight_shape")) {
      bool const down = name.find("down_proj") != std::string::npos;
      set<std::int64_t>(name, i, down == (i == 0) ? case_extents::hidden : case_extents::inter);
    } else if (name.ends_with("weight_global_scale")) {
      set_number(name, i, 0x1p11);  // it divides
    } else if (is_scale(name) && type == f8_e4m3) {
      set<std::uint8_t>(name, i, static_cast<std::uint8_t>(draw.between(i, 0x30, 0x40)));
    } else if (is_scale(name)) {
      set_number(name, i, std::ldexp(1.0, -static_cast<int>(draw.between(i, 10, 12))));
    } else if (checkpoint::is_plain(type)) {
      set_number(name, i, static_cast<double>(draw.between(i, -64, 64)) / 64.0);
    }
  }
}

void stored_checkpoint::complete() {
  std::vector<std::string> names;
  try {
    write_files();
    for (auto const& missing : checkpoint::missing_tensors(open({}))) {
      names.insert(names.end(), missing.names.begin(), missing.names.end());
    }
  } catch (error const&) {
    return;  // a test of what cannot be opened
  }
  for (std::string& name : names) {
    if (name.ends_with('*')) name.replace(name.size() - 1, 1, "o_proj.weight");
    if (described_.has(name)) continue;
    described_.add(name, bf16, {8});
    fill(name);
  }
}

void stored_checkpoint::set_number(std::string const& name, index_t i, double value) {
  auto const number = static_cast<float>(value);
  switch (described_.type_of(name)) {
    case f32:
      return set(name, i, number);
    case bf16:
      return set(name, i, encode_bf16(number));
    case f16:
      return set(name, i, static_cast<std::uint16_t>(encode_float<f16_format>(number)));
    case u8:
    case f8_e8m0:
      return set(name, i, static_cast<std::uint8_t>(std::ilogb(value) + 127));
    case f8_e4m3:
      return set(name, i, static_cast<std::uint8_t>(encode_float<e4m3_format>(number)));
    default:
      throw std::invalid_argument(name + " holds no numbers");
  }
}

void stored_checkpoint::fill_number(std::string const& name, double value) {
  index_t const size = checkpoint::bits(described_.type_of(name)) / 8;
  for (index_t i = 0; i < static_cast<index_t>(bytes(name).size()) / size; ++i) {
    set_number(name, i, value);
  }
}

index_t stored_checkpoint::data_bytes() const {
  index_t total = 0;
  for (auto const& [name, content] : bytes_) total += static_cast<index_t>(content.size());
  return total;
}

/// Tensors go round the shards, so that a weight and its scale are often apart.
void stored_checkpoint::write_files() {
  files.contents.clear();
  files.reads.clear();
  data_begin_.clear();
  std::vector<std::string> headers(static_cast<std::size_t>(shards_));
  std::vector<std::string> data(static_cast<std::size_t>(shards_));
  std::string weight_map;
  auto const path_of = [&](std::size_t shard) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, headers.size());
  };
  std::size_t next = 0;
  for (std::string const& name : described_.names()) {
    std::size_t const shard = next++ % static_cast<std::size_t>(shards_);
    std::vector<std::byte> const& content = bytes_.at(name);
    std::string shape;
    for (index_t const extent : described_.shape_of(name)) {
      shape += fmt::format("{}{}", shape.empty() ? "" : ",", extent);
    }
    headers[shard] +=
        (headers[shard].empty() ? "" : ",") +
        entry_text(name, checkpoint::name(described_.type_of(name)), shape,
                   fmt::format("{},{}", data[shard].size(), data[shard].size() + content.size()));
    weight_map +=
        fmt::format(R"({}"{}": "{}")", weight_map.empty() ? "" : ", ", name, path_of(shard));
    data[shard].append(reinterpret_cast<char const*>(content.data()), content.size());
  }
  constexpr std::array<char const*, 3> configs = {"config.json", "hf_quant_config.json",
                                                  "params.json"};
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (!described_.texts()[i].empty()) {
      files.contents[std::string("m/") + configs[i]] = described_.texts()[i];
    }
  }
  files.contents["m/model.safetensors.index.json"] = fmt::format(
      R"({{"metadata": {{"total_size": {}}}, "weight_map": {{{}}}}})", data_bytes(), weight_map);
  std::map<std::string, index_t> begins;
  for (std::size_t shard = 0; shard < headers.size(); ++shard) {
    std::string const path = "m/" + path_of(shard);
    std::string const header = "{" + headers[shard] + "}";
    files.contents[path] = safetensors_bytes(header, data[shard]);
    begins[path] = static_cast<index_t>(header.size()) + 8;
  }
  for (auto const& [path, begin] : begins) data_begin_[files.open_read(path, false)] = begin;
}

check_report stored_checkpoint::check(index_t threads, progress_report const& progress,
                                      std::vector<std::string> const& assumed) {
  int const fails_after = std::exchange(files.fails_after, -1);
  write_files();
  checkpoint_reader::state const state = open(assumed);
  files.reads.clear();
  files.fails_after = fails_after;
  cpu_pool pool(threads);
  return checkpoint::check_opened(state, {}, cpu_stream(&pool), progress);
}

checkpoint_reader::state stored_checkpoint::open(std::vector<std::string> const& assumed) {
  checkpoint::open_options how;
  how.files = &files;
  checkpoint::folder opened = checkpoint::folder::open("m", how);
  checkpoint::resolve_options resolving;
  resolving.assumed = checkpoint::parse_assumptions(assumed);
  checkpoint::resolved_checkpoint resolved = checkpoint::resolve(opened, resolving);
  return {"m", std::move(opened), std::move(resolved)};
}

index_t stored_checkpoint::bytes_not_read_once() const {
  index_t wrong = 0;
  for (auto const& [descriptor, begin] : data_begin_) {
    auto const size =
        static_cast<index_t>(std::next(files.contents.begin(), descriptor)->second.size());
    auto const found = files.reads.find(descriptor);
    for (index_t i = 0; i < size; ++i) {
      bool const seen =
          found != files.reads.end() && i < static_cast<index_t>(found->second.size());
      int const count = seen ? found->second[static_cast<std::size_t>(i)] : 0;
      wrong += count != (i < begin ? 0 : 1) ? 1 : 0;
    }
  }
  return wrong;
}

index_t count_of(check_report const& report, std::string_view rule) {
  index_t total = 0;
  for (rule_total const& entry : report.rules) total += entry.rule == rule ? entry.count : 0;
  return total;
}

std::string texts_of(check_report const& report) {
  std::string texts;
  for (finding const& found : report.findings) {
    texts += fmt::format("{} {}: {}\n", static_cast<int>(found.level), found.rule, found.text);
  }
  return texts;
}

}  // namespace moe64::test
