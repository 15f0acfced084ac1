#pragma once

#include "cuda/kernels/device/expert_place.hpp"

/// Tables of places are in device memory, so the host has not checked them: it is done here.
namespace moe64::cuda {

inline constexpr index_t no_place = -1;

/// The place of an expert's matrix, or no_place.
__device__ inline index_t place_of(matrix_places const& places, index_t expert) {
  if (places.table == nullptr) return expert;
  // Past L1: with PDL this kernel may have begun before the table was written (pdl.cuh).
  index_t const place = __ldcg(places.table + expert * places.stride);
  return place >= 0 && place < places.count ? place : no_place;
}

/// The same, but 0 for no_place: for kernels whose epilogue makes the NaN of lost experts.
__device__ inline index_t readable_place(matrix_places const& places, index_t expert) {
  index_t const place = place_of(places, expert);
  return place < 0 ? 0 : place;
}

/// The place of an expert's scales; no_place also where its values have none, so that NaN as scales
/// is enough to mark a lost expert.
__device__ inline index_t scale_place_of(part_places const& part, index_t expert) {
  index_t const scales = place_of(part.scales, expert);
  return place_of(part.values, expert) < 0 ? no_place : scales;
}

/// Whether an expert's values or scales have no place.
__device__ inline bool is_lost(part_places const& part, index_t expert) {
  return scale_place_of(part, expert) < 0;
}

__device__ inline float not_a_number() { return __int_as_float(0x7fc00000); }

}  // namespace moe64::cuda
