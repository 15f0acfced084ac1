"""The activation of a checkpoint: read per layer, by family; what is not understood is refused, but only where it runs."""

import json
import random
import struct
import subprocess
import unittest

from checkpoint_test import (BAD_INPUT, CONFIG, EXPERTS, FAILED, HIDDEN, INTER, LAYERS, OK, TOOL, UNSUPPORTED, Tool,
                             codes, expert_tensors)

GEOMETRY = {"hidden_size": HIDDEN, "moe_intermediate_size": INTER, "num_experts": EXPERTS, "num_experts_per_tok": 2,
            "num_hidden_layers": LAYERS}


def plain(name, parts, layers=LAYERS, experts=EXPERTS):
    """F32 matrices of ones over 64: `name` has places for layer, expert and part."""
    tensors = {}
    for layer in range(layers):
        for expert in range(experts):
            for part, (rows, cols) in parts.items():
                data = struct.pack("<f", 1 / 64) * (rows * cols)
                tensors[name.format(layer=layer, expert=expert, part=part)] = ("F32", (rows, cols), data)
    return tensors


UP, DOWN = (INTER, HIDDEN), (HIDDEN, INTER)
GATED = {"gate_proj": UP, "up_proj": UP, "down_proj": DOWN}
NUMBERED = {"w1": UP, "w3": UP, "w2": DOWN}
MLP = "model.layers.{layer}.mlp.experts.{expert}.{part}.weight"


class Described(Tool):
    def describe(self, config, tensors=None):
        self.write(config, tensors if tensors is not None else plain(MLP, GATED))
        return self.object(OK, "inspect")

    def kinds(self, config, tensors=None):
        return [layer["activation"] for layer in self.describe(config, tensors)["layers"]]

    def refused(self, code, config, *words):
        """Nothing stops but running it."""
        self.write(config, plain(MLP, GATED))
        self.runs_not(code, *words)

    def check_alone(self):
        done = subprocess.run([TOOL, "check", self.folder / "model.safetensors"], capture_output=True, text=True)
        self.assertEqual(done.returncode, OK, done.stdout + done.stderr)

    def runs_not(self, code, *words):
        found = self.object(OK, "inspect")
        self.assertIn("unknown-activation", [entry["rule"] for entry in found["findings"]], found)
        self.assertEqual(found["totals"]["errors"], 0, found)
        # As a folder it lacks what is not of the experts; a file alone lacks nothing, and reads the config beside it.
        self.check_alone()
        self.assertTrue(all(layer["activation"] is None for layer in found["layers"]))
        stopped = self.expect(code, "run", "--layer", "0").stderr
        for word in words:
            self.assertIn(word, stopped)


class Activation(Described):
    def test_limits_are_read_per_layer(self):
        for family, key in (("step3p5", "swiglu_limits"), ("step3p7", "swiglu_limits"),
                            ("bailing_moe_v3", "expert_swiglu_limit_list")):
            config = {**GEOMETRY, "model_type": family, "hidden_act": "silu", key: [0.0, None, 7]}
            self.assertEqual([kind["kind"] for kind in self.kinds(config)], ["silu_glu", "silu_glu", "step_glu"])
            self.assertEqual(self.kinds(config)[2]["limit"], 7)
            self.assertIn("silu_glu in layers 0 to 1; step_glu, limit 7 in layer 2", self.expect(OK, "inspect").stdout)
            self.expect(OK, "run", "--layer", "2")

    def test_a_list_that_ends_before_a_layer_is_refused(self):
        config = {**GEOMETRY, "model_type": "step3p5", "hidden_act": "silu", "swiglu_limits": [7.0, 7.0]}
        self.write(config, plain(MLP, GATED))
        self.expect(OK, "run", "--layer", "1")
        self.assertIn("has 2 entries, none for layer 2", self.expect(BAD_INPUT, "run", "--layer", "2").stderr)

    def test_keys_that_are_not_understood_are_named(self):
        base = {**GEOMETRY, "model_type": "qwen3_moe", "hidden_act": "silu"}
        for key, value in (("gate_softcap", 4.0), ("up_softcap", 25), ("swiglu_limits", [7.0] * LAYERS),
                           ("expert_swiglu_limit_list", [7.0]), ("swiglu_limit", 7.0), ("expert_scale", 0.5),
                           ("moe_output_multiplier", 2), ("mlp_activation_clamp", True), ("situ_beta", 1.0)):
            self.refused(UNSUPPORTED, {**base, key: value}, key, "ignore=" + key)
        self.refused(UNSUPPORTED, {**base, "ffn_config": {"limit": 7}}, "ffn_config.limit")
        for key, value in (("moe_activation", {"type": "relu6"}), ("ffn_act_fn", {"name": "gelu"})):
            self.refused(UNSUPPORTED, {**base, key: value}, key + " is an object", "ignore=" + key)
        self.refused(UNSUPPORTED, {**base, "ffn_config": {"act": {"name": "gelu"}}}, "ffn_config.act")
        self.refused(UNSUPPORTED, {**base, "expert_kinds": [{"limit": 7}]}, "expert_kinds[0].limit")
        self.refused(UNSUPPORTED, {**GEOMETRY, "model_type": "qwen3_5_moe", "text_config": {
            "hidden_act": "silu", "gate_softcap": 4}}, "text_config.gate_softcap")

    def test_keys_of_other_parts_do_not_matter(self):
        config = {**GEOMETRY, "model_type": "qwen3_moe", "hidden_act": "silu", "routed_scaling_factor": 2.5,
                  "final_logit_softcapping": 30.0, "attention_multiplier": 0.1, "swiglu_limits_shared": [16.0],
                  "moe_router_logit_softcapping": 3.0, "gate_softcap": None, "up_softcap": False, "rope_scaling": {},
                  "vision_config": {"hidden_act": "gelu"}, "mamba_hidden_act": "relu", "expert_capacity": 4}
        self.assertEqual(self.kinds(config), [{"kind": "silu_glu"}] * LAYERS)

    def test_the_function_of_the_experts_comes_before_that_of_the_model(self):
        config = {**GEOMETRY, "model_type": "a", "hidden_act": "silu", "moe_hidden_act": "gelu"}
        self.assertEqual(self.kinds(config)[0], {"kind": "gelu_glu"})

    def test_defaults_of_a_family_are_part_of_its_dialect(self):
        for family in ("hy_v4", "glm5_next"):
            self.assertEqual(self.kinds({**GEOMETRY, "model_type": family})[0],
                             {"kind": "clamped_silu_glu", "limit": 10})
            self.assertEqual(self.kinds({**GEOMETRY, "model_type": family, "swiglu_limit": 6})[0]["limit"], 6)
        found = self.kinds({**GEOMETRY, "model_type": "openai_privacy_filter"})[0]
        self.assertEqual((found["kind"], found["limit"], round(found["alpha"], 3)), ("gptoss_glu", 7, 1.702))
        self.refused(BAD_INPUT, {**GEOMETRY, "model_type": "deepseek_v4", "hidden_act": "silu"}, "swiglu_limit")
        self.refused(UNSUPPORTED, {**GEOMETRY, "model_type": "muse_spark", "hidden_act": "silu"}, "norm")

    def test_assumptions_override_and_are_recorded(self):
        self.write({**GEOMETRY, "model_type": "a", "hidden_act": "silu", "gate_softcap": 4}, plain(MLP, GATED))
        for assumed, kind in ((["activation=step_glu", "limit=7"], {"kind": "step_glu", "limit": 7}),
                              (["ignore=gate_softcap"], {"kind": "silu_glu"}),
                              (["activation=gelu_glu"], {"kind": "gelu_glu"})):
            options = [word for text in assumed for word in ("--assume", text)]
            found = self.object(OK, "inspect", *options)
            self.assertEqual(found["assumed"], assumed)
            self.assertEqual(found["activation"], kind)
            self.expect(OK, "run", "--layer", "0", *options)
        for assumed in (["activation=step_glu"], ["limit=7"], ["activation=silu_glu", "limit=7"], ["activation=x"],
                        ["activation=gptoss_glu", "limit=7"], ["limit=nan", "activation=step_glu"], ["ignore="]):
            self.expect(BAD_INPUT, "inspect", *[word for text in assumed for word in ("--assume", text)])
        self.assertIn("is not gated", self.expect(BAD_INPUT, "run", "--layer", "0", "--assume",
                                                  "activation=relu2").stderr)
        self.assertIn("unused-assumption", self.expect(OK, "inspect", "--assume", "ignore=softcap").stdout)

    def test_what_states_nothing_is_not_run_as_silu(self):
        for text in ("{}", "[]", "7", json.dumps({**GEOMETRY, "model_type": 7, "hidden_act": "silu"})):
            self.write(CONFIG, plain(MLP, GATED))
            (self.folder / "config.json").write_text(text)
            self.runs_not(BAD_INPUT, "activation")
        (self.folder / "config.json").unlink()
        self.runs_not(BAD_INPUT, "no config.json", "activation=KIND")
        self.expect(OK, "convert", str(self.folder / "out"), "--to", "bf16")

    def test_a_single_shard_has_the_config_beside_it(self):
        self.write({**GEOMETRY, "model_type": "step3p5", "swiglu_limits": [5.0] * LAYERS},
                   plain(MLP, GATED, layers=1))
        self.folder = self.folder / "model.safetensors"
        self.assertEqual(self.object(OK, "inspect")["activation"], {"kind": "step_glu", "limit": 5})
        self.expect(OK, "check")
        (self.folder.parent / "config.json").write_text("{broken")
        self.assertIn("neighbour-config", self.expect(OK, "inspect").stdout)
        self.assertIn("no config.json", self.expect(BAD_INPUT, "run", "--layer", "0").stderr)

    def test_a_single_quantised_shard_runs_with_the_declaration_beside_it(self):
        tensors = {name: value for name, value in expert_tensors().items() if ".layers.1." in name}
        self.write(CONFIG, tensors)
        self.folder = self.folder / "model.safetensors"
        self.expect(OK, "run", "--layer", "1")


class RealCheckpoints(Described):
    def test_numbers_of_a_config_that_are_not_finite(self):
        config = {**GEOMETRY, "model_type": "a", "hidden_act": "silu", "time_step_limit": [0.0, float("inf")],
                  "x": float("-inf"), "y": [float("nan"), "NaN, Infinity", 3]}
        self.assertEqual(self.describe(config)["activation"], {"kind": "silu_glu"})
        self.expect(OK, "convert", str(self.folder / "out"), "--to", "fp8-block")
        written = json.loads((self.folder / "out" / "config.json").read_text())
        self.assertEqual(written["time_step_limit"], config["time_step_limit"])
        self.assertEqual((written["x"], written["y"][1:]), (config["x"], config["y"][1:]))
        self.write(config, plain(MLP, GATED))
        for text in ("infinity", "-NaN", "+Infinity", "NaN1", "nan"):
            (self.folder / "config.json").write_text('{"a": ' + text + "}")
            self.expect(BAD_INPUT, "inspect")
        self.refused(BAD_INPUT, {**GEOMETRY, "model_type": "hy_v4", "swiglu_limit": float("inf")}, "swiglu_limit is inf")

    def test_nemotron_has_no_gate(self):
        config = {**GEOMETRY, "model_type": "nemotron_h", "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
                  "n_routed_experts": EXPERTS, "hybrid_override_pattern": "E" * LAYERS,
                  "time_step_limit": [0.0, float("inf")]}
        name = "backbone.layers.{layer}.mixer.experts.{expert}.{part}.weight"
        parts = {"up_proj": UP, "down_proj": DOWN}
        found = self.describe(config, plain(name, parts))
        self.assertEqual(found["activation"], {"kind": "relu2"})
        self.assertEqual(found["layers"][0]["keys"], "mixer_proj")
        self.assertEqual(found["layers"][0]["parameters"], 2 * EXPERTS * HIDDEN * INTER)
        self.expect(OK, "run", "--layer", "1")
        self.check_alone()
        self.expect(OK, "convert", str(self.folder / "out"), "--to", "fp8-block")
        self.folder = self.folder / "out"
        self.assertEqual([layer["dialect"] for layer in self.object(OK, "inspect")["layers"]], ["D30"] * LAYERS)
        self.expect(OK, "run", "--layer", "1")

    def test_nemotron_in_fp8_of_modelopt(self):
        config = {**GEOMETRY, "model_type": "nemotron_h", "mlp_hidden_act": "relu2",
                  "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
        tensors, source = {}, random.Random(3)
        for layer in range(LAYERS):
            for expert in range(EXPERTS):
                for part, (rows, cols) in (("up_proj", UP), ("down_proj", DOWN)):
                    module = f"backbone.layers.{layer}.mixer.experts.{expert}.{part}"
                    tensors[module + ".weight_scale"] = ("F32", (), struct.pack("<f", 0.03))
                    tensors[module + ".weight"] = ("F8_E4M3", (rows, cols), codes(rows * cols, source))
        tensors = dict(sorted(tensors.items(), key=lambda item: item[1][0]))  # F32 first: no gaps
        found = self.describe(config, tensors)
        self.assertEqual(found["dialects"], ["D20"])
        self.assertEqual(found["totals"]["matched"], 2 * LAYERS * EXPERTS)
        self.expect(OK, "run", "--layer", "2", "--backward")
        self.check_alone()

    def test_nemotron_in_a_latent_space(self):
        config = {**GEOMETRY, "hidden_size": 4 * HIDDEN, "moe_latent_size": HIDDEN, "model_type": "nemotron_h",
                  "layers_block_type": ["moe", "mamba", "moe"]}
        tensors = plain("model.layers.{layer}.mixer.experts.{expert}.{part}.weight", {"up_proj": UP, "down_proj": DOWN})
        found = self.describe(config, {name: value for name, value in tensors.items() if ".layers.1." not in name})
        self.assertEqual([layer["layer"] for layer in found["layers"]], [0, 2])
        self.assertEqual(found["findings"], [])

    def test_lfm2_and_jamba(self):
        for family, keys, parts, more in (
                ("lfm2_moe", "feed_forward_w123", NUMBERED, {"num_dense_layers": 0}),
                ("jamba", "feed_forward_proj", GATED, {"hidden_act": "silu", "expert_layer_period": 1, "expert_layer_offset": 0})):
            name = "model.layers.{layer}.feed_forward.experts.{expert}.{part}.weight"
            found = self.describe({**GEOMETRY, "model_type": family, **more}, plain(name, parts))
            self.assertEqual(found["activation"], {"kind": "silu_glu"})
            self.assertEqual(found["layers"][0]["keys"], keys)
            self.assertEqual(found["findings"], [])
            self.expect(OK, "run", "--layer", "0")

    def test_what_nemotron_lfm2_and_jamba_must_have(self):
        mlp = [f"layers.0.feed_forward.{part}.weight" for part in ("gate_proj", "up_proj", "down_proj")]
        families = {
            "nemotron_h": (
                "backbone.", "mixer.experts", {"up_proj": UP, "down_proj": DOWN},
                {"mlp_hidden_act": "relu2", "hybrid_override_pattern": "MEE", "n_shared_experts": 1,
                 "tie_word_embeddings": False},
                ["embeddings.weight", "norm_f.weight", "layers.0.mixer.A_log", "@norm.weight", "+mixer.gate.weight",
                 "+mixer.gate.e_score_correction_bias", "+mixer.shared_experts.up_proj.weight",
                 "+mixer.shared_experts.down_proj.weight", "/lm_head.weight"]),
            "lfm2_moe": (
                "model.", "feed_forward.experts", NUMBERED,
                {"num_dense_layers": 1, "layer_types": ["full_attention", "conv", "conv"], "use_expert_bias": True},
                ["embed_tokens.weight", "embedding_norm.weight", "@operator_norm.weight", "@ffn_norm.weight",
                 "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight",
                 "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.out_proj.weight", "+conv.in_proj.weight",
                 "+conv.conv.weight", "+conv.out_proj.weight", "+feed_forward.gate.weight",
                 "+feed_forward.expert_bias", *[f"layers.0.feed_forward.{part}.weight" for part in NUMBERED]]),
            "jamba": (
                "model.", "feed_forward.experts", GATED,
                {"hidden_act": "silu", "mlp_only_layers": [0]},
                ["embed_tokens.weight", "final_layernorm.weight", "@input_layernorm.weight", "@pre_ff_layernorm.weight",
                 "layers.0.self_attn.o_proj.weight", "+mamba.out_proj.weight", "+feed_forward.router.weight", *mlp]),
        }
        for family, (prefix, place, parts, config, lines) in families.items():
            tensors = plain(prefix + "layers.{layer}." + place + ".{expert}.{part}.weight", parts)
            tensors = {name: value for name, value in tensors.items() if ".layers.0." not in name}
            for line in lines:  # @ of all layers, + of those with experts, / in front of all
                layers = range(LAYERS) if line[0] == "@" else range(1, LAYERS) if line[0] == "+" else [None]
                for layer in layers:
                    name = line if layer is None else f"layers.{layer}.{line[1:]}"
                    shape = (EXPERTS, HIDDEN) if name.endswith(("gate.weight", "router.weight")) else (HIDDEN,)
                    numbers = [(i % 7 + 1) / 256 for i in range(shape[0] * shape[-1] if len(shape) > 1 else HIDDEN)]
                    tensors[name[1:] if name[0] == "/" else prefix + name] = (
                        "F32", shape, struct.pack(f"<{len(numbers)}f", *numbers))
            config = {**GEOMETRY, "model_type": family, **config}
            self.write(config, tensors)
            self.expect(OK, "check")
            for gone in [name for name in tensors if ".experts." not in name]:
                self.write(config, {name: value for name, value in tensors.items() if name != gone})
                with self.subTest(family=family, gone=gone):
                    rules = self.object(FAILED, "check")["rules"]
                    self.assertEqual([rule["rule"] for rule in rules if rule["level"] == "error"], ["missing-tensor"])

    def test_inkling_has_alternating_rows(self):
        both = struct.pack("<2f", 1.0, 2.0)
        tensors = {}
        for layer in range(LAYERS):
            prefix = f"model.llm.layers.{layer}.mlp.experts."
            rows = b"".join(both[4 * (row % 2):][:4] * HIDDEN for row in range(2 * INTER)) * EXPERTS
            tensors[prefix + "w13_weight"] = ("F32", (EXPERTS, 2 * INTER, HIDDEN), rows)
            tensors[prefix + "w2_weight"] = ("F32", (EXPERTS, HIDDEN, INTER), bytes(4 * EXPERTS * HIDDEN * INTER))
        config = {**GEOMETRY, "model_type": "inkling_mm_model", "hidden_act": "silu"}
        found = self.describe(config, tensors)
        layer = found["layers"][0]
        self.assertEqual((layer["keys"], layer["gate"]["gate_up"], layer["gate"]["transposed"]),
                         ("mlp_stack_w13", "interleaved", False))
        self.expect(OK, "run", "--layer", "0")
        self.write({**config, "gate_softcap": 4.0, "up_softcap": 25.0}, tensors)
        self.runs_not(UNSUPPORTED, "gate_softcap")


if __name__ == "__main__":
    unittest.main()
