#include "checkpoint/convert/tiles.hpp"

#include "checkpoint/load/repack.hpp"
#include "core/fail.hpp"
#include "core/number.hpp"
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"

#include <cstring>

namespace moe64::checkpoint {
namespace {

/// Bytes of output in a tile: input and output stay in the second cache.
constexpr index_t tile_bytes = index_t{1} << 20;
/// The same where the source lies the other way round, and each stored row gives a few bytes.
constexpr index_t turned_tile_bytes = index_t{16} << 20;

index_t row_bytes(conversion_job const& job) { return checked_mul(job.cols, bits(job.type)) / 8; }

index_t rows_per_tile(conversion_job const& job) {
  index_t const wanted = job.transposed ? turned_tile_bytes : tile_bytes;
  index_t rows = wanted / std::max<index_t>(1, row_bytes(job));
  // whole blocks of the target; packed columns are cut at whole bytes
  bool const quantised = job.kind == job_kind::quantise;
  index_t const per_scale = quantised ? job.layout.rows_per_scale(job.rows) : 1;
  index_t const unit = per_scale > 1 ? per_scale : job.transposed ? 64 : 1;
  rows = std::max(rows - rows % unit, unit);
  index_t const block =
      job.transposed ? job.matrices->col_blocks.block : job.matrices->row_blocks.block;
  if (!quantised && rows > block) rows -= rows % block;
  return rows;
}

void cut_matrices(conversion_job const& job, tile piece,
                  std::function<void(tile const&)> const& visit) {
  index_t const step = rows_per_tile(job);
  bool const scaled = job.scales >= 0;
  index_t const scale_row = scaled ? job.layout.grid_cols(job.cols) * bits(job.scale_type) / 8 : 0;
  index_t const rows_per_scale = scaled ? job.layout.rows_per_scale(job.rows) : 1;
  index_t const grid_rows = ceil_div(job.rows, rows_per_scale);
  for (index_t slice = 0; slice < job.slices; ++slice) {
    for (index_t row = 0; row < job.rows; row += step) {
      piece.slice = job.slice + slice;
      piece.begin = row;
      piece.end = std::min(job.rows, row + step);
      piece.values_at = (slice * job.rows + row) * row_bytes(job);
      piece.values_bytes = (piece.end - row) * row_bytes(job);
      if (scaled) {
        piece.scales_at = (slice * grid_rows + row / rows_per_scale) * scale_row;
        piece.scales_bytes = ceil_div(piece.end - row, rows_per_scale) * scale_row;
      }
      visit(piece);
    }
  }
}

/// Bytes of a copy or numbers as f32: `width` output bytes and `unit` input bytes each.
void cut_bytes(index_t count, index_t width, tile piece,
               std::function<void(tile const&)> const& visit) {
  index_t const step = tile_bytes / width;
  for (index_t at = 0; at < count; at += step) {
    piece.begin = at;
    piece.end = std::min(count, at + step);
    piece.values_at = at * width;
    piece.values_bytes = (piece.end - at) * width;
    visit(piece);
  }
}

/// f32 of a tile before it is quantised: every stored row, also those that a step passes over.
index_t scratch_rows(conversion_job const& job, tile const& piece) {
  return (piece.end - piece.begin - 1) * job.step + 1;
}

/// Of elements [begin, end) of a tensor.
index_t stored_bytes(conversion_job const& job, tile const& piece) {
  return (piece.end - piece.begin) * bits(job.from->type) / 8;
}

delta_region delta_region_of(conversion_job const& job, tile const& piece) {
  return {job.delta,      piece.slice,
          is_turned(job), job.first + piece.begin * job.step,
          job.step,       piece.end - piece.begin,
          job.cols};
}

tile_memory memory_of(conversion_job const& job, tile const& piece) {
  tile_memory memory;
  memory.out = piece.values_bytes;
  memory.out_scales = piece.scales_bytes;
  if (job.kind == job_kind::copy) return memory;
  if (job.kind == job_kind::numbers || job.kind == job_kind::recast) {
    memory.values = std::max(piece.values_bytes, stored_bytes(job, piece));
    return memory;
  }
  region_bytes const stored =
      bytes_of(*job.matrices, region_of(job, piece.slice, piece.begin, piece.end));
  memory.values = stored.values;
  memory.scales = stored.scales;
  if (job.kind == job_kind::quantise || job.delta != nullptr) {
    memory.numbers = checked_mul(checked_mul(scratch_rows(job, piece), job.cols), 4);
  }
  if (job.delta != nullptr) {
    memory.merge = memory_of(delta_region_of(job, piece), job.kind == job_kind::quantise);
  }
  return memory;
}

/// The view that read_numbers() fills so that stored positions come out as rows of the output.
tensor_view turned(tensor_view out, bool transposed) {
  return transposed ? out.as_stack().transposed() : out.as_stack();
}

number_counts count_scales(std::span<std::byte const> bytes, dtype type) {
  number_counts counts;
  index_t const count = static_cast<index_t>(bytes.size()) * 8 / bits(type);
  visit_number(type, [&](auto number) {
    for (index_t i = 0; i < count; ++i) {
      float const scale = number.get(bytes.data(), i);
      counts.not_finite += scale - scale == 0.0F ? 0 : 1;
    }
  });
  return counts;
}

number_counts count_numbers(std::span<std::byte const> bytes, dtype type) {
  if (type == dtype::f32) return count_scales(bytes, type);
  auto const* const numbers = reinterpret_cast<std::uint16_t const*>(bytes.data());
  std::size_t const count = bytes.size() / 2;
  bool const bf16 = type == dtype::bf16;
  std::uint16_t const exponent = bf16 ? 0x7f80 : 0x7c00;
  index_t special = 0;
  for (std::size_t i = 0; i < count; ++i) special += (numbers[i] & exponent) == exponent ? 1 : 0;
  if (special == 0) return {};
  index_t infinite = 0;
  for (std::size_t i = 0; i < count; ++i) infinite += (numbers[i] & 0x7fff) == exponent ? 1 : 0;
  return bf16 ? number_counts{0, special} : number_counts{infinite, special - infinite};
}

void write_numbers(file_dtype type, std::span<std::byte const> from, std::span<std::byte> out) {
  auto const count = static_cast<index_t>(out.size() / 4);
  for (index_t i = 0; i < count; ++i) {
    float number = 0.0F;
    switch (library_scale_type(type)) {
      case dtype::bf16:
        number = bf16_number::get(from.data(), i);
        break;
      case dtype::f16:
        number = f16_number::get(from.data(), i);
        break;
      case dtype::e8m0:
        number = e8m0_number::get(from.data(), i);
        break;
      default:
        number = f32_number::get(from.data(), i);
        break;
    }
    f32_number::set(out.data(), i, number);
  }
}

template <class From, class To>
void recast_each(std::span<std::byte const> from, std::span<std::byte> out) {
  auto const count = static_cast<index_t>(out.size() / 2);
  for (index_t i = 0; i < count; ++i) To::set(out.data(), i, From::get(from.data(), i));
}

void recast_numbers(file_dtype type, std::span<std::byte const> from, convert_target to,
                    std::span<std::byte> out) {
  bool const wide = type == file_dtype::f32;
  if (to == convert_target::bf16) {
    wide ? recast_each<f32_number, bf16_number>(from, out)
         : recast_each<f16_number, bf16_number>(from, out);
  } else {
    wide ? recast_each<f32_number, f16_number>(from, out)
         : recast_each<bf16_number, f16_number>(from, out);
  }
}

dtype float_dtype(convert_target target) {
  return target == convert_target::bf16 ? dtype::bf16 : dtype::f16;
}

}  // namespace

bool is_turned(conversion_job const& job) noexcept {
  return job.delta != nullptr && job.delta->transposed != job.transposed;
}

stored_region region_of(conversion_job const& job, index_t slice, index_t begin, index_t end) {
  index_t const first = job.first + begin * job.step;
  index_t const last = job.first + (end - 1) * job.step + 1;
  if (job.transposed) return {slice, 0, job.matrices->rows, first, last};
  return {slice, first, last, 0, job.matrices->cols};
}

void for_each_tile(planned_shard const& shard, std::function<void(tile const&)> const& visit) {
  for (std::size_t i = 0; i < shard.jobs.size(); ++i) {
    conversion_job const& job = shard.jobs[i];
    tile piece;
    piece.job = static_cast<index_t>(i);
    if (job.kind == job_kind::copy) {
      cut_bytes(job.from->bytes, 1, piece, visit);
    } else if (job.kind == job_kind::recast) {
      cut_bytes(job.from->bytes * 8 / bits(job.from->type), 2, piece, visit);
    } else if (job.kind == job_kind::numbers) {
      cut_bytes(job.from->bytes * 8 / bits(job.from->type), 4, piece, visit);
    } else {
      cut_matrices(job, piece, visit);
    }
  }
}

tile_memory memory_of(conversion_plan const& plan) {
  tile_memory memory;
  for (planned_shard const& shard : plan.shards) {
    for_each_tile(shard, [&](tile const& piece) {
      memory.cover(memory_of(shard.jobs[static_cast<std::size_t>(piece.job)], piece));
    });
  }
  return memory;
}

tile_worker::tile_worker(folder const& files, conversion_plan const& plan,
                         tile_memory const& memory)
    : files_(files),
      to_(plan.to),
      values_(memory.values),
      scales_(memory.scales),
      numbers_(memory.numbers),
      out_(memory.out),
      out_scales_(memory.out_scales),
      memory_(memory) {
  if (plan.deltas != nullptr) merger_.emplace(*plan.deltas, memory.merge);
}

tile_worker::result tile_worker::run(conversion_job const& job, tile const& piece) {
  result done;
  std::span<std::byte> const out = out_.first(piece.values_bytes);
  std::span<std::byte> const scales = out_scales_.first(piece.scales_bytes);
  switch (job.kind) {
    case job_kind::copy:
      files_.read(*job.from, piece.begin, out);
      break;
    case job_kind::numbers: {
      index_t const width = bits(job.from->type) / 8;
      auto const stored = values_.first((piece.end - piece.begin) * width);
      files_.read(*job.from, piece.begin * width, stored);
      write_numbers(job.from->type, stored, out);
      done.counts = count_scales(out, dtype::f32);
      break;
    }
    case job_kind::recast: {
      auto const stored = values_.first(stored_bytes(job, piece));
      files_.read(*job.from, piece.begin * bits(job.from->type) / 8, stored);
      recast_numbers(job.from->type, stored, to_, out);
      done.counts = count_numbers(out, float_dtype(to_));
      break;
    }
    case job_kind::widen:
      done.merged = widen(job, piece);
      done.counts = count_numbers(out, job.type);
      break;
    case job_kind::quantise:
      done.merged = quantise(job, piece);
      done.counts = count_scales(scales, job.scale_type);
      break;
  }
  done.values = out;
  done.scales = scales;
  return done;
}

void tile_worker::read(conversion_job const& job, tile const& piece, tensor_view const& out) {
  read_numbers(files_, *job.matrices, region_of(job, piece.slice, piece.begin, piece.end),
               values_.first(memory_.values), scales_.first(memory_.scales),
               turned(out, job.transposed));
}

delta_sums tile_worker::widen(conversion_job const& job, tile const& piece) {
  index_t const rows = piece.end - piece.begin;
  tensor_view const out =
      tensor_view::contiguous(out_.first(piece.values_bytes).data(), job.type, {rows, job.cols});
  if (job.delta == nullptr) {
    read(job, piece, out);
    return {};
  }
  auto* const numbers = reinterpret_cast<float*>(numbers_.first(memory_.numbers).data());
  read(job, piece, tensor_view::contiguous(numbers, dtype::f32, {rows, job.cols}));
  return merger_->widen(delta_region_of(job, piece), numbers, out);
}

delta_sums tile_worker::quantise(conversion_job const& job, tile const& piece) {
  auto* const memory = reinterpret_cast<float*>(numbers_.first(memory_.numbers).data());
  tensor_view const numbers =
      tensor_view::contiguous(memory, dtype::f32, {scratch_rows(job, piece), job.cols});
  read(job, piece, numbers);
  delta_region const region = delta_region_of(job, piece);
  index_t const pitch = job.step * job.cols;
  if (job.delta != nullptr) merger_->add(region, memory, pitch);
  index_t const rows = piece.end - piece.begin;
  std::span<std::byte> const codes = out_.first(piece.values_bytes);
  quantize_args args;
  args.x = job.step == 1 ? numbers : numbers.every(0, 0, job.step);
  args.layout = job.layout;
  args.values = tensor_view::contiguous(codes.data(), job.type, {rows, job.cols});
  args.scales =
      tensor_view::contiguous(out_scales_.first(piece.scales_bytes).data(), job.scale_type,
                              {job.layout.grid_rows(rows), job.layout.grid_cols(job.cols)});
  quantize(args, cpu_stream());
  delta_sums sums;
  if (job.delta != nullptr) {
    quantized_view const made = quantized_view::scaled(args.values, args.scales, args.layout);
    sums = merger_->measure(region, memory, pitch, made);
  }
  if (job.offset_nibbles) int4_from_offset(codes);  // the same bit either way
  return sums;
}

}  // namespace moe64::checkpoint
