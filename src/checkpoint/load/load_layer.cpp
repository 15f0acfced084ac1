#include "checkpoint/convert/parallel_work.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/load/layer_memory.hpp"
#include "checkpoint/load/opened.hpp"
#include "checkpoint/load/repack.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace moe64 {
namespace checkpoint {
namespace {

/// What one thread reads at a time: long enough for full speed, short enough to share and to stop.
constexpr index_t piece_bytes = index_t{8} << 20;

/// Bytes of a tensor and the place they go to.
struct piece {
  tensor_entry const* tensor = nullptr;
  index_t offset = 0;
  index_t bytes = 0;
  std::byte* into = nullptr;
  value_repack repack = value_repack::none;

  [[nodiscard]] bool is_followed_by(piece const& next) const noexcept {
    return tensor == next.tensor && offset + bytes == next.offset && into + bytes == next.into &&
           repack == next.repack;
  }
};

/// One expert's grid of scales that goes to gate and up, a row of scales for each row.
struct grid {
  tensor_entry const* tensor = nullptr;
  index_t offset = 0;
  std::byte* gate = nullptr;
  std::byte* up = nullptr;
};

/// The integers beside packed weights must be the extents that their shape was read as.
struct stated_shape {
  tensor_entry const* tensor = nullptr;
  index_t rows = 0;
  index_t cols = 0;
};

/// Everything that has to be read for some experts of a layer.
class reading_list {
 public:
  reading_list(expert_range const& range, layer_memory const& memory) : range_(range) {
    layer_entry const& layer = *range.layer;
    bool const fused = layer.gate.module.fused;
    bool const expanded = layer.gate.format.expand_scale_rows;
    add(layer.gate, memory.gate, !expanded);
    if (!fused && layer.up.present()) add(layer.up, memory.up, true);
    add(layer.down, memory.down, true);
    if (expanded) add_grids(layer.gate, memory);
  }

  [[nodiscard]] std::vector<grid> const& grids() const noexcept { return grids_; }
  [[nodiscard]] std::vector<stated_shape> const& shapes() const noexcept { return shapes_; }
  [[nodiscard]] index_t bytes() const noexcept { return bytes_; }

  /// Of at most piece_bytes, in the order of the files.
  [[nodiscard]] std::vector<piece> pieces() const {
    std::vector<piece> result;
    for (piece const& whole : wholes_) {
      for (index_t at = 0; at < whole.bytes; at += piece_bytes) {
        result.push_back({whole.tensor, whole.offset + at, std::min(piece_bytes, whole.bytes - at),
                          whole.into + at, whole.repack});
      }
    }
    std::sort(result.begin(), result.end(), [](piece const& left, piece const& right) {
      if (left.tensor->shard != right.tensor->shard) {
        return left.tensor->shard < right.tensor->shard;
      }
      return left.tensor->begin + left.offset < right.tensor->begin + right.offset;
    });
    return result;
  }

 private:
  void add(projection_entry const& entry, projection_memory const& memory, bool with_scales) {
    stack_format const& format = entry.format;
    index_t const values = value_slice_bytes(format);
    index_t const scales = scale_slice_bytes(format);
    index_t const pitch = scale_pitch(format);
    index_t const bias = bias_slice_bytes(entry);
    bool const scaled = format.layout.kind != scale_kind::none && with_scales;
    for (index_t e = 0; e < range_.count; ++e) {
      auto const& source = entry.experts[static_cast<std::size_t>(range_.first + e)];
      add(*source.values, source.slice * values, values, memory.stack.values, e * values,
          format.repack);
      if (scaled && (pitch > 0 || e == 0)) {
        add(*source.scales, pitch > 0 ? source.slice * scales : 0, scales, memory.stack.scales,
            e * pitch);
      }
      constexpr index_t number = 4;  // a global scale is one F32
      if (format.has_global) {
        add(*source.global, 0, number, memory.stack.globals, e * number);
      }
      if (entry.has_bias) add(*source.bias, source.slice * bias, bias, memory.bias, e * bias);
      if (source.weight_shape != nullptr) {
        shapes_.push_back({source.weight_shape, format.rows, format.cols});
      }
    }
  }

  void add(tensor_entry const& tensor, index_t offset, index_t bytes, void* memory, index_t at,
           value_repack repack = value_repack::none) {
    piece const next{&tensor, offset, bytes, static_cast<std::byte*>(memory) + at, repack};
    bytes_ += bytes;
    if (!wholes_.empty() && wholes_.back().is_followed_by(next)) {
      wholes_.back().bytes += bytes;
    } else {
      wholes_.push_back(next);
    }
  }

  void add_grids(projection_entry const& gate, layer_memory const& memory) {
    index_t const stored = scale_slice_bytes(gate.format);
    index_t const pitch = scale_pitch(gate.format);
    for (index_t e = 0; e < range_.count; ++e) {
      auto const& source = gate.experts[static_cast<std::size_t>(range_.first + e)];
      grids_.push_back({source.scales, source.slice * stored,
                        static_cast<std::byte*>(memory.gate.stack.scales) + e * pitch,
                        static_cast<std::byte*>(memory.up.stack.scales) + e * pitch});
      bytes_ += stored;
    }
  }

  expert_range const& range_;
  std::vector<piece> wholes_;
  std::vector<grid> grids_;
  std::vector<stated_shape> shapes_;
  index_t bytes_ = 0;
};

void read_piece(folder const& files, piece const& next) {
  std::span<std::byte> const into(next.into, static_cast<std::size_t>(next.bytes));
  files.read(*next.tensor, next.offset, into);
  if (next.repack == value_repack::int4_from_offset) int4_from_offset(into);
}

void read_grid(folder const& files, layer_entry const& layer, grid const& next) {
  std::vector<std::byte> stored(static_cast<std::size_t>(scale_slice_bytes(layer.gate.format)));
  files.read(*next.tensor, next.offset, stored);
  for (auto const& [format, into] :
       {std::pair{&layer.gate.format, next.gate}, std::pair{&layer.up.format, next.up}}) {
    expand_scale_rows(*format, stored, {into, static_cast<std::size_t>(scale_pitch(*format))});
  }
}

void check_shape(folder const& files, stated_shape const& stated) {
  tensor_entry const& tensor = *stated.tensor;
  if (tensor.bytes == 0) return;  // some exporters leave it empty
  index_t const width = bits(tensor.type) / 8;
  bool const integers = tensor.type == file_dtype::i64 || tensor.type == file_dtype::i32;
  if (!integers || tensor.bytes != 2 * width) {
    fail(errc::malformed_file, "[load_layer] tensor {} is {} of {} bytes, expected two integers",
         quoted(tensor.name), name(tensor.type), tensor.bytes);
  }
  std::byte bytes[16] = {};
  files.read(tensor, 0, {bytes, static_cast<std::size_t>(tensor.bytes)});
  auto const number = [&](index_t i) -> index_t {
    if (width == 8) {
      std::int64_t value = 0;
      std::memcpy(&value, bytes + 8 * i, sizeof(value));
      return value;
    }
    std::int32_t value = 0;
    std::memcpy(&value, bytes + 4 * i, sizeof(value));
    return value;
  };
  if (number(0) == stated.rows && number(1) == stated.cols) return;
  fail(errc::shape_mismatch, "[load_layer] tensor {} says [{}, {}], but the weight is [{}, {}]",
       quoted(tensor.name), number(0), number(1), stated.rows, stated.cols);
}

void read_all(folder const& files, expert_range const& range, layer_memory const& memory,
              stream where, progress_report const& progress) {
  reading_list const list(range, memory);
  for (stated_shape const& stated : list.shapes()) check_shape(files, stated);
  std::vector<piece> const pieces = list.pieces();
  auto const piece_count = static_cast<index_t>(pieces.size());
  auto const& grids = list.grids();
  progress_counter counter(progress, list.bytes());
  run_tasks(where, piece_count + static_cast<index_t>(grids.size()), [&](index_t i) {
    if (i < piece_count) {
      piece const& next = pieces[static_cast<std::size_t>(i)];
      read_piece(files, next);
      counter.add(next.bytes);
    } else {
      read_grid(files, *range.layer, grids[static_cast<std::size_t>(i - piece_count)]);
      counter.add(scale_slice_bytes(range.layer->gate.format));
    }
  });
  std::vector<bool> used(files.shards().size(), false);
  for (piece const& read : pieces) used[static_cast<std::size_t>(read.tensor->shard)] = true;
  for (grid const& read : grids) used[static_cast<std::size_t>(read.tensor->shard)] = true;
  for (std::size_t shard = 0; shard < used.size(); ++shard) {
    if (used[shard]) files.check_unchanged(static_cast<index_t>(shard));
  }
  counter.finish();
}

}  // namespace
}  // namespace checkpoint

index_t layer_bytes(checkpoint_reader const& from, layer_request const& request) {
  auto const range = checkpoint::require_range(from.internals().resolved, request);
  arena memory(device::cpu());
  (void)checkpoint::cut_layer(memory, range);
  return memory.bytes();
}

layer_desc load_layer(checkpoint_reader const& from, layer_request const& request, workspace memory,
                      stream where, progress_report const& progress) {
  checkpoint::require_cpu(where, "load_layer");
  checkpoint_reader::state const& opened = from.internals();
  auto const range = checkpoint::require_range(opened.resolved, request);
  check_workspace("load_layer", "memory", memory, layer_bytes(from, request), where.device);
  arena lent(memory, where.device);
  auto const places = checkpoint::cut_layer(lent, range);
  checkpoint::read_all(opened.files, range, places, where, progress);

  checkpoint::model_config const& config = opened.resolved.config;
  layer_desc layer;
  layer.gate_up = checkpoint::gate_up_of(range, places);
  layer.down = checkpoint::down_of(range, places);
  layer.activation = *range.layer->activation.spec;
  layer.scheme = checkpoint::activation_scheme_of(config);
  layer.weight_on = checkpoint::weight_placement_of(config);
  if (range.count < range.layer->experts) {
    layer.experts_total = range.layer->experts;
    layer.first_expert = range.first;
  }
  return layer;
}

}  // namespace moe64
