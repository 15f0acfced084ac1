// mode=auto on the GPU: FP8 layers whose checkpoint states dynamic activations run in w8a8, right
// by the oracle and with the bits of mode=w8a8; what `sm90_w8a8` does not take runs in w8a16.
#include "cases/problem_case.hpp"
#include "cuda/hopper_product.hpp"
#include "support/layer_fixture.hpp"
#include "support/target.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

class hopper_mode : public testing::Test {
 protected:
  void SetUp() override {
    std::string const lacking = lacks_hopper(product::w8a8, target().where);
    if (!lacking.empty()) GTEST_SKIP() << lacking;
  }
};

struct outcome {
  std::map<std::string, std::vector<std::uint64_t>> bits;
  std::string remark, wrong;
};

outcome run_line(std::string const& line) {
  problem const p = parse_problem(line + " device=cuda:0");
  cases::problem_case c(p);
  cases::queue const queue(p.device, nullptr);
  run(c, queue.get());
  auto const found = c.verify(queue.get(), 2e7);
  outcome result{{}, c.remark(), found.ok() ? "" : found.message()};
  for (cases::named_tensor const& output : c.outputs()) {
    result.bits[output.name] = bits_of(output.tensor);
  }
  return result;
}

/// The layer that `words` describe with scheme=dynamic: right, in `mode`, and with its bits.
void expect_auto_is(std::string const& mode, std::string const& words, std::string const& reason) {
  SCOPED_TRACE(words);
  outcome const automatic = run_line(words + " scheme=dynamic");
  outcome const asked = run_line(words + " mode=" + mode);
  EXPECT_EQ(automatic.wrong, "");
  EXPECT_EQ(asked.wrong, "");
  EXPECT_THAT(automatic.remark, testing::HasSubstr("mode " + mode + ": " + reason));
  EXPECT_EQ(automatic.bits, asked.bits);
}

TEST_F(hopper_mode, dynamic_fp8_is_w8a8) {
  std::string const reason = "the checkpoint states dynamic quantisation";
  std::string const sizes = " hidden=512 inter=384 experts=5 top_k=3";
  for (std::string const words :
       {"tokens=1", "tokens=16", "tokens=40 backward=1", "tokens=300", "tokens=40 io=f16",
        "tokens=40 scale=row backward=1", "tokens=40 scale=tensor scale_dtype=bf16",
        "tokens=40 layout=interleaved scale=row", "tokens=40 weight_on=input bias=1",
        "tokens=40 act=relu2 routing=sentinel:0.3"}) {
    expect_auto_is("w8a8", words + sizes, reason);
  }
  expect_auto_is("w8a8", "tokens=40 hidden=2880 inter=208 experts=3 top_k=2", reason);
}

TEST_F(hopper_mode, what_sm90_w8a8_does_not_take_is_w8a16) {
  std::string const sizes = " tokens=40 experts=5 top_k=3";
  std::string const usual = " hidden=512 inter=384" + sizes;
  expect_auto_is("w8a16", "lora=8 backward=1" + usual, "gate_up: there is a low-rank term");
  expect_auto_is("w8a16", "io=f32" + usual, "gate_up: y ");
  expect_auto_is("w8a16", "scale=block:64x64" + usual, "gate_up: weights have scale block:64x64");
  expect_auto_is("w8a16", "scale_dtype=f16" + usual, "gate_up: scales are f16");
  expect_auto_is("w8a16", "weight=e5m2" + usual, "gate_up: x is e4m3 and weights are e5m2");
  expect_auto_is("w8a16", "weight=int8 scale=row" + usual, "gate_up: x is int8");
  expect_auto_is("w8a16", "weight=mxfp4" + usual, "gate_up is fp4");
  expect_auto_is("w8a16", "hidden=200 inter=384" + sizes, "gate_up: x ");
  expect_auto_is("w8a16", "hidden=512 inter=72" + sizes, "down: x ");
  expect_auto_is("w8a16", "impl=sm80_mma" + usual, "gate_up: implementation sm80_mma is asked for");
}

}  // namespace
}  // namespace moe64::test
