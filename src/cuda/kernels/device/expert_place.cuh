#pragma once

#include "cuda/kernels/device/expert_place.hpp"

/// No host has looked at a table of places: an entry that is no place is found out here.
namespace moe64::cuda {

inline constexpr index_t no_place = -1;

/// The place of an expert's matrix, or no_place.
__device__ inline index_t place_of(matrix_places const& places, index_t expert) {
  if (places.table == nullptr) return expert;
  // Not from the first-level cache: the kernel may have begun early (early.cuh).
  index_t const place = __ldcg(places.table + expert * places.stride);
  return place >= 0 && place < places.count ? place : no_place;
}

/// The same, but 0 for no_place: for kernels that mark the results of lost experts in the end.
__device__ inline index_t readable_place(matrix_places const& places, index_t expert) {
  index_t const place = place_of(places, expert);
  return place < 0 ? 0 : place;
}

/// The place of an expert's scales; no_place also where its values have none. So scales alone can
/// say that an expert is lost: they become NaN.
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
