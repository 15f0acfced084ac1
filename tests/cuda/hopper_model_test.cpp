// The products of real layers on the tensor cores of Hopper, at their full width: integers bit by
// bit as on the CPU, random numbers within their bound in each expert.
#include "cases/tolerance.hpp"
#include "cuda/hopper_product.hpp"
#include "huge_cuda/big_call.hpp"

#include <array>
#include <bit>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

struct layer_widths {
  char const* name;
  index_t hidden, inter;
};
/// Five models, and widths that are no multiples of tiles or of blocks of scales.
constexpr layer_widths layers[] = {
    {"dsv3", 7168, 2048},  {"glm52", 6144, 2048}, {"m3", 6144, 3072},
    {"flash", 2048, 1536}, {"q30", 2048, 768},    {"w192", 2560, 192},
    {"w320", 2880, 320},   {"w704", 2560, 704},   {"w2880", 2880, 2880}};

struct model_product {
  layer_widths widths;
  product kind;
};

/// Rows of each expert: for the tiles of few, of some and of many rows per expert, and all of them
/// on one expert, twice.
constexpr index_t experts = 8;
using row_counts = std::array<index_t, experts>;
constexpr row_counts counts[] = {{0, 1, 7, 8, 9, 0, 16, 0},
                                 {127, 0, 1, 129, 8, 9, 7, 0},
                                 {128, 0, 129, 127, 9, 8, 7, 1},
                                 {0, 0, 0, 0, 0, 0, 0, 40},
                                 {0, 0, 0, 391, 0, 0, 0, 0}};

std::vector<model_product> products() {
  std::vector<model_product> all;
  for (layer_widths const& widths : layers) {
    for (product const kind : every_product) all.push_back({widths, kind});
  }
  return all;
}

void multiply(grouped_gemm_args const& args, stream where) { grouped_gemm(args, where); }

class hopper_model : public testing::TestWithParam<model_product> {
 protected:
  void SetUp() override {
    std::string const lacking = lacks_hopper(GetParam().kind, target().where);
    if (!lacking.empty()) GTEST_SKIP() << lacking;
  }

  /// body(call, args) for gate_up and down and every list of counts, with y full of NaN.
  template <class Body>
  static void for_each_call(cases::data_mode data, Body const& body) {
    auto const& [widths, kind] = GetParam();
    for (matrices const& shape : {matrices::gate_up(experts, widths.hidden, widths.inter),
                                  matrices::down(experts, widths.hidden, widths.inter)}) {
      SCOPED_TRACE(shape.parts == 2 ? "gate_up" : "down");
      big_call call;
      for (grouped_gemm_args const& args : calls_of(kind, shape, data, call)) {
        SCOPED_TRACE(std::to_string(live(args)) + " rows");
        cases::poison(args.y, 0, args.y.extent[0]);
        body(call, args);
      }
    }
  }
  static std::vector<grouped_gemm_args> calls_of(product kind, matrices const& shape,
                                                 cases::data_mode data, big_call& call) {
    product_source const source(call.memory, kind, data, &call.pool);
    constexpr index_t most = 420;
    grouped_gemm_args args;
    args.weights = source.weights(shape);
    args.implementation = hopper_implementation(kind);
    quantized_view const x = source.x(most, shape.cols);
    tensor_view const y =
        call.memory.tensor("y", cases::purpose::output, dtype::bf16, {most, shape.rows()});
    std::vector<grouped_gemm_args> all;
    for (row_counts const& rows : counts) {
      args.expert_begin = ranges_of(call.memory, rows);
      index_t const capacity = live(args) + 3;
      args.x = rows_of(x, 0, capacity);
      args.y = y.slice(0, 0, capacity);
      all.push_back(args);
    }
    return all;
  }

  [[nodiscard]] static index_t begin_of(grouped_gemm_args const& args, index_t expert) {
    return static_cast<index_t const*>(args.expert_begin.data)[expert];
  }
  [[nodiscard]] static index_t live(grouped_gemm_args const& args) {
    return begin_of(args, experts);
  }

  /// |y - wanted| / |wanted| over the rows of every expert, and NaN in the rows of none.
  static void expect_close(grouped_gemm_args const& args, std::vector<float> const& wanted) {
    index_t const outs = args.y.extent[1];
    cases::rounding_path path;
    path.stored = 1.0;
    path.added = cases::roundings_of_sum(args.x.cols()) + 1.0;
    path.tensor_cores = !args.x.is_plain();
    double const bound = cases::allowed_error(dtype::bf16, path);
    auto const* const y = static_cast<std::uint16_t const*>(args.y.data);
    for (index_t e = 0; e < experts; ++e) {
      double error = 0.0, size = 0.0;
      for (index_t i = begin_of(args, e) * outs; i < begin_of(args, e + 1) * outs; ++i) {
        double const found = std::bit_cast<float>(std::uint32_t{y[i]} << 16U);
        double const right = double{wanted[static_cast<std::size_t>(i)]};
        error += (found - right) * (found - right);
        size += right * right;
      }
      EXPECT_LE(std::sqrt(error), bound * std::sqrt(size)) << "expert " << e;
      EXPECT_EQ(size > 0.0, begin_of(args, e) < begin_of(args, e + 1)) << "expert " << e;
    }
    for (index_t i = live(args) * outs; i < args.y.extent[0] * outs; ++i) {
      ASSERT_EQ(y[i], 0xffff) << "a row of no expert";
    }
  }
};

TEST_P(hopper_model, integers_have_the_bits_of_the_cpu) {
  for_each_call(cases::data_mode::exact, [](big_call& call, grouped_gemm_args const& args) {
    call.expect_the_bits_of_the_cpu(args, multiply);
  });
}

TEST_P(hopper_model, random_numbers_are_close_in_each_expert) {
  for_each_call(cases::data_mode::random, [](big_call& call, grouped_gemm_args const& args) {
    call.run_on_device(args, multiply);
    call.memory.download();
    grouped_gemm_args here = big_call::on_cpu(args);
    std::vector<float> wanted(static_cast<std::size_t>(here.y.extent[0] * here.y.extent[1]));
    here.y =
        tensor_view::contiguous(wanted.data(), dtype::f32, {here.y.extent[0], here.y.extent[1]});
    grouped_gemm(here, cpu_stream(&call.pool));
    expect_close(args, wanted);
  });
}

INSTANTIATE_TEST_SUITE_P(of, hopper_model, testing::ValuesIn(products()), [](auto const& given) {
  return given.param.widths.name + ("_" + name(given.param.kind));
});

}  // namespace
}  // namespace moe64::test
