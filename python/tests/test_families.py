"""Every experts class of the installed Transformers: how moe64 serves it, and that this is what the class computes."""

import importlib
import re
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", minversion="5.7")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64 import families  # noqa: E402
from test_transformers import fp8_experts, near  # noqa: E402
from transformers import AutoConfig, AutoModel  # noqa: E402
from transformers.integrations import finegrained_fp8  # noqa: E402

MODELS = Path(transformers.__file__).parent / "models"

# A class that is not here fails test_every_experts_class_has_its_place: place it by what the tests below say of it.
FUSED = """
afmoe.AfmoeExperts aria.AriaExperts axk1.AXK1Experts axk2.AXK2Experts bailing_hybrid.BailingHybridExperts
cohere2_moe.Cohere2MoeExperts deepseek_ocr2.DeepseekOcr2TextExperts deepseek_v2.DeepseekV2Experts
deepseek_v3.DeepseekV3Experts deepseek_v32.DeepseekV32Experts deepseek_v4.DeepseekV4Experts
diffusion_gemma.DiffusionGemmaTextExperts dots1.Dots1Experts dots3_note.Dots3NoteExperts ernie4_5_moe.Ernie4_5_MoeExperts
ernie4_5_vl_moe.Ernie4_5_VLMoeMoeExperts exaone_moe.ExaoneMoeExperts flex_olmo.FlexOlmoExperts flint.FlintExperts
gemma4.Gemma4TextExperts glm4_moe.Glm4MoeExperts glm4_moe_lite.Glm4MoeLiteExperts glm4v_moe.Glm4vMoeTextExperts
glm5_next.Glm5NextTextExperts glm_moe_dsa.GlmMoeDsaExperts gpt_oss.GptOssExperts granitemoe.GraniteMoeExperts
granitemoe_swa.GraniteMoeSWAExperts granitemoehybrid.GraniteMoeHybridExperts granitemoeshared.GraniteMoeSharedExperts
hunyuan_v1_moe.HunYuanMoEV1Experts hy_v3.HYV3Experts hy_v4.HYV4Experts inkling.InklingExperts jamba.JambaExperts
kimi_linear.KimiLinearExperts kolibri1.Kolibri1Experts laguna.LagunaExperts lfm2_moe.Lfm2MoeExperts mellum.MellumExperts
mimo_v2_flash.MiMoV2FlashExperts minimax.MiniMaxExperts minimax_m2.MiniMaxM2Experts minimax_m3_vl.MiniMaxM3VLExperts
mistral4.Mistral4Experts mistral_large4.MistralLarge4TextExperts mixtral.MixtralExperts nemotron_h.NemotronHExperts
olmoe.OlmoeExperts openai_privacy_filter.OpenAIPrivacyFilterExperts phimoe.PhimoeExperts qwen2_moe.Qwen2MoeExperts
qwen3_5_moe.Qwen3_5MoeExperts qwen3_moe.Qwen3MoeExperts qwen3_next.Qwen3NextExperts
qwen3_omni_moe.Qwen3OmniMoeThinkerTextExperts qwen3_omni_moe.Qwen3OmniMoeTalkerTextExperts
qwen3_vl_moe.Qwen3VLMoeTextExperts qwen4_exp.Qwen4ExpTextExperts solar_open.SolarOpenExperts
unlimited_ocr.UnlimitedOcrTextExperts zaya.ZayaExperts
""".split()
UNFUSED = {
    "beam.BeamExperts": "gate and product are in float32",
    "inkling2.Inkling2Experts": "soft caps on gate and up",
    "muse_spark.MuseSparkExperts": "a norm behind each expert",
}
# Not decorated: the name "moe64" is accepted, the class's own forward runs, and a warning says so. With a model small
# enough to build.
EAGER = {
    "llama4.Llama4TextExperts": ("Llama4TextModel", {"num_local_experts": 4, "intermediate_size": 24}),
    "dbrx.DbrxExperts": ("DbrxModel", {"d_model": 64, "n_heads": 4, "n_layers": 1,
                                       "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2}}),
    "granitemoe.GraniteMoeParallelExperts": ("GraniteMoeModel", {"num_local_experts": 4, "intermediate_size": 24}),
    "granitemoehybrid.GraniteMoeHybridParallelExperts": ("GraniteMoeHybridModel", {
        "num_local_experts": 4, "intermediate_size": 24, "layer_types": ["attention", "attention"]}),
    "granitemoeshared.GraniteMoeSharedParallelExperts": ("GraniteMoeSharedModel", {"num_local_experts": 4,
                                                                                   "intermediate_size": 24}),
    "jetmoe.JetMoeParallelExperts": ("JetMoeModel", {"num_local_experts": 4, "intermediate_size": 24, "kv_channels": 16}),
    "doge.DogeCDMoE": ("DogeModel", {"is_moe": True, "intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 2}),
    "longcat_flash.LongcatFlashExperts": ("LongcatFlashModel", {"num_layers": 1, "n_routed_experts": 4}),
    "nllb_moe.NllbMoeExperts": ("NllbMoeModel", {"num_experts": 2, "encoder_layers": 4, "decoder_layers": 4, "d_model": 64,
                                                 "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}),
    "step3p7.Step3p7Experts": ("Step3p7TextModel", {"num_local_experts": 4, "moe_intermediate_size": 24,
                                                    "mlp_layer_types": ["sparse", "sparse"]}),
    "switch_transformers.SwitchTransformersExperts": ("SwitchTransformersModel", {"num_experts": 2, "d_model": 64,
                                                                                  "d_ff": 24}),
    "vitpose_backbone.VitPoseNaiveMoe": ("VitPoseBackbone", {"num_experts": 2, "part_features": 16}),
}
NOT_ROUTED = {"inkling.InklingSharedExperts": "all tokens pass through them"}
PLACED = {*FUSED, *UNFUSED, *EAGER, *NOT_ROUTED}


def installed():
    """family.Class of every class of Transformers that is called ...Experts; ...MoE of families that have none."""
    found = set()
    for file in MODELS.glob("*/modeling_*.py"):
        text = file.read_text()
        names = re.findall(r"^class (\w+Experts)\(", text, re.MULTILINE) or re.findall(
            r"^class (\w+(?:MoE|Moe|MoeBlock))\(", text, re.MULTILINE)
        found |= {f"{file.parent.name}.{name}" for name in names}
    return found


def class_of(place):
    family, name = place.split(".")
    if not (MODELS / family).is_dir():
        pytest.skip(f"Transformers {transformers.__version__} has no {family}")
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name, None) or pytest.skip(
        f"Transformers {transformers.__version__} has no {name}")


def settings(**more):
    """What the constructors of all families read of their configs."""
    sizes = dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4)
    sizes |= dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 24)
    sizes |= dict.fromkeys(("hidden_size", "moe_hidden_size"), 32)
    return types.SimpleNamespace(**sizes, hidden_act="silu", hidden_activation="gelu_pytorch_tanh", mlp_hidden_act="relu2",
                                 moe_latent_size=None, swiglu_limit=0.5, swiglu_alpha=1.702, mlp_gate_softcap=0.8,
                                 mlp_up_softcap=0.6, post_norm_eps=1e-5, **more)


def test_every_experts_class_has_its_place():
    assert not installed() - PLACED, "place them: FUSED, UNFUSED, EAGER or NOT_ROUTED"


@pytest.mark.parametrize("place", [*FUSED, *UNFUSED])
def test_experts_of_a_family_equal_its_own_loop(place):
    kind = class_of(place)
    config = settings(_experts_implementation="moe64")
    module = kind(config)
    if not families.is_decorated(module):
        pytest.skip(f"Transformers {transformers.__version__} does not decorate {place}")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.4)
    assert (moe64.transformers.activation_of(module) is not None) == (place in FUSED)
    x, ids = torch.randn(9, 32, requires_grad=True), torch.randint(0, 4, (9, 3))
    weights = torch.rand(9, 3, requires_grad=True)
    results = []
    for config._experts_implementation in ("moe64", "eager"):
        y = module(x, ids, weights)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, weights, *module.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        near(ours, theirs, 1e-4, place)


@pytest.mark.parametrize("place", UNFUSED)
def test_a_gate_that_is_called_takes_no_tokens_too(place):
    module = class_of(place)(settings(_experts_implementation="moe64"))
    x = torch.empty(0, 32, requires_grad=True)
    y = module(x, torch.empty(0, 3, dtype=torch.int64), torch.empty(0, 3))
    assert y.shape == (0, 32) and torch.autograd.grad(y.sum(), x)[0].shape == (0, 32)


@pytest.mark.parametrize("place", EAGER)
def test_experts_that_no_implementation_reaches_are_told_once(place, monkeypatch):
    kind = class_of(place)
    name, options = EAGER[place]
    model_class = getattr(importlib.import_module(kind.__module__), name)
    monkeypatch.setattr(families, "_told", set())
    config = model_class.config_class(**{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 97,
                                         "num_key_value_heads": 2, "head_dim": 16, **options})
    with torch.device("meta"), pytest.warns(UserWarning, match=f"{kind.__name__} of .* its own forward runs") as seen:
        model = model_class._from_config(config, experts_implementation="moe64")
        model.set_experts_implementation("moe64")
    assert sum("own forward" in str(one.message) for one in seen) == 1
    families._told.clear()
    with pytest.warns(UserWarning, match=kind.__name__):
        model.set_experts_implementation("moe64")


def test_models_whose_experts_are_served_are_told_nothing(monkeypatch):
    monkeypatch.setattr(families, "_told", set())
    from test_transformers import tiny
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny("qwen3_moe").set_experts_implementation("moe64")
        model = AutoModel.from_config(AutoConfig.for_model("llama4_text", num_hidden_layers=1, hidden_size=64,
                                                           num_attention_heads=4, vocab_size=97, num_local_experts=2,
                                                           intermediate_size=24, intermediate_size_mlp=24, head_dim=16))
    assert model.config._experts_implementation != "moe64"


def soft_capped(self, gate_up):
    """The gate of FP8Experts since Transformers 5.23."""
    gate, up = gate_up.chunk(2, dim=-1)
    if self.gate_softcap is not None:
        return torch.tanh(gate / self.gate_softcap) * self.gate_softcap * torch.sigmoid(gate) * (
            torch.tanh(up / self.up_softcap) * self.up_softcap)
    return self.act_fn(gate) * up


def behind_a_default(self, gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return self.act_fn(gate) * up * (1 if getattr(self, "cap_of_tomorrow", None) is None else 2)


def clamped_after_the_activation(self, gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    if self.limit is not None:
        return self.act_fn(gate).clamp(max=self.limit) * up.clamp(min=-self.limit, max=self.limit)
    return self.act_fn(gate) * up


@pytest.mark.parametrize("gate,attributes,fused", [
    (soft_capped, {"gate_softcap": 4.0, "up_softcap": 25.0}, False),
    (soft_capped, {"gate_softcap": None, "up_softcap": None}, True),
    (behind_a_default, {"cap_of_tomorrow": 3.0}, False),
    (clamped_after_the_activation, {"limit": 0.4}, False),
    (clamped_after_the_activation, {"limit": None}, True)])
def test_a_gate_is_known_by_all_that_it_reads_and_by_what_it_does(gate, attributes, fused, monkeypatch):
    """FP8Experts whose gate is another version's: computed, whatever it is."""
    monkeypatch.setattr(finegrained_fp8.FP8Experts, "_apply_gate", gate)
    module, exact = fp8_experts()
    for name, given in attributes.items():
        setattr(module, name, given)
    assert (moe64.transformers.activation_of(module) is not None) == fused
    x, ids, weights = torch.randn(9, 128), torch.randint(0, 4, (9, 3)), torch.rand(9, 3)
    truth = torch.zeros(9, 128)
    for t in range(9):
        for e, weight in zip(ids[t].tolist(), weights[t]):
            inner = gate(module, exact["gate_up_proj"][e] @ x[t])
            truth[t] += weight * (exact["down_proj"][e] @ inner)
    near(module(x, ids, weights), truth, 1e-4, gate.__name__)


def test_soft_caps_of_fp8_experts_are_theirs_to_compute():
    module, exact = fp8_experts(mlp_gate_softcap=4.0, mlp_up_softcap=25.0)
    if not hasattr(module, "gate_softcap"):
        pytest.skip(f"FP8Experts of Transformers {transformers.__version__} has no soft caps")
    for parameter in (module.gate_up_proj_scale_inv, module.down_proj_scale_inv):
        parameter.mul_(4)
    x, ids, weights = torch.randn(9, 128), torch.randint(0, 4, (9, 3)), torch.rand(9, 3)
    truth = torch.zeros(9, 128)
    for t in range(9):
        for e, weight in zip(ids[t].tolist(), weights[t]):
            gate, up = (4 * exact["gate_up_proj"][e] @ x[t]).chunk(2)
            inner = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
            truth[t] += weight * (4 * exact["down_proj"][e] @ inner)
    near(module(x, ids, weights), truth, 1e-4, "soft caps")


def test_a_gate_of_an_instance_is_its_own():
    module, _ = fp8_experts()
    assert moe64.transformers.activation_of(module) == moe64.Activation("silu_glu")
    module._apply_gate = lambda gate_up: gate_up.chunk(2, dim=-1)[0]
    assert moe64.transformers.activation_of(module) is None


def hooked(act_fn, _monkeypatch):
    act_fn.register_forward_hook(lambda _module, _inputs, output: output * 2)


def replaced(act_fn, _monkeypatch):
    act_fn.forward = torch.tanh


def replaced_for_all(_act_fn, monkeypatch):
    monkeypatch.setattr(nn.SiLU, "forward", lambda self, gate: torch.tanh(gate))


@pytest.mark.parametrize("change", [hooked, replaced, replaced_for_all])
@pytest.mark.parametrize("recorded", [True, False], ids=["gradients", "no gradients"])
def test_a_function_that_somebody_has_changed_is_called(change, recorded, monkeypatch):
    """By hooks on the module, or by another forward, also after the first call, and where calls are remembered."""
    module = class_of("mixtral.MixtralExperts")(settings(_experts_implementation="moe64"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.4)
    x, ids, weights = torch.randn(9, 32), torch.randint(0, 4, (9, 3)), torch.rand(9, 3)
    module.act_fn = nn.SiLU()
    with torch.set_grad_enabled(recorded):
        before = module(x, ids, weights)
        change(module.act_fn, monkeypatch)
        after = module(x, ids, weights)
        module.config._experts_implementation = "eager"
        near(after, module(x, ids, weights), 1e-4, change.__name__)
    assert (after - before).abs().max() > 1e-2


def test_an_alpha_without_a_limit_is_named():
    module, _ = fp8_experts(swiglu_alpha=1.702)
    if not hasattr(module, "swiglu_alpha"):
        pytest.skip(f"FP8Experts of Transformers {transformers.__version__} has no clamped gates")
    with pytest.raises(moe64.InvalidArgumentError, match="FP8Experts has swiglu_alpha 1.702 and swiglu_limit None"):
        module(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))


def test_gates_are_tried_under_modes_and_while_compiling():
    """What a gate does is found out with plain tensors, whatever the call itself runs under."""
    from torch._subclasses import FakeTensorMode
    families._tried.cache_clear()
    module, _ = fp8_experts(swiglu_limit=0.5)
    if not hasattr(module, "limit"):
        pytest.skip(f"FP8Experts of Transformers {transformers.__version__} has no clamped gates")
    with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
        assert moe64.transformers.activation_of(module) == moe64.Activation("clamped_silu_glu", limit=0.5)
    with FakeTensorMode(), torch.no_grad(), warnings.catch_warnings():  # nothing is remembered of what has no address
        warnings.simplefilter("error")
        fake = class_of("mixtral.MixtralExperts")(settings(_experts_implementation="moe64"))
        assert fake(torch.randn(9, 32), torch.zeros(9, 3, dtype=torch.int64), torch.rand(9, 3)).shape == (9, 32)
    families._tried.cache_clear()
    x, ids, weights = torch.randn(5, 128), torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    compiled = torch.compile(lambda *a: module(*a), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x, ids, weights), module(x, ids, weights))


@pytest.mark.parametrize("place", ["mixtral.MixtralExperts", "beam.BeamExperts"])
def test_experts_are_traced_as_operators(place):
    """torch.jit.trace records operators, and none of what the library writes to memory: it ended in words about pointers."""
    module = class_of(place)(settings(_experts_implementation="moe64")).requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(0, 0.4)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # it is deprecated
        traced = torch.jit.trace(lambda *call: module(*call), (torch.randn(9, 32), torch.randint(0, 4, (9, 3)),
                                                               torch.rand(9, 3)), check_trace=False)
        call = torch.randn(9, 32), torch.randint(0, 4, (9, 3)), torch.rand(9, 3)
        near(traced(*call), module(*call), 1e-6, place)


def test_what_an_fp8_module_in_place_of_a_class_leaves_out_is_told(monkeypatch):
    """Transformers' quantizer puts FP8Experts, with the gates that it knows, in place of any class."""
    from moe64 import codes
    from test_transformers import tiny

    def put_fp8(_quantizer, model):
        finegrained_fp8.replace_with_fp8_linear(model, ["lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate"],
                                                transformers.FineGrainedFP8Config())
    monkeypatch.setattr(codes, "_preprocess_model", put_fp8)

    def told(change, implementation="moe64"):
        model = tiny("qwen3_moe")
        model.set_experts_implementation(implementation)
        for layer in model.model.layers:
            change(layer.mlp.experts)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            codes._preprocess_and_wait(None, model)
        assert isinstance(model.model.layers[0].mlp.experts, finegrained_fp8.FP8Experts)
        return {str(one.message) for one in seen if "[transformers]" in str(one.message)}

    def odd(module):
        module.__class__ = type("OddExperts", (type(module),), {"_apply_gate": interleaved_tanh})

    assert told(lambda module: None) == set()
    message, = told(odd)
    assert "FP8Experts in place of OddExperts computes silu_glu, where the class has a gate of its own" in message
    message, = told(lambda module: setattr(module, "has_post_expert_norm", True))
    assert "leaves out the norm behind the experts" in message
    assert told(odd, "eager") == set()
    monkeypatch.setattr(finegrained_fp8.FP8Experts, "_apply_gate", behind_a_default)  # neither is known, and they differ
    message, = told(odd)
    assert "computes another gate than the class" in message
    monkeypatch.setattr(finegrained_fp8.FP8Experts, "_apply_gate", interleaved_tanh)
    assert told(odd) == set()


def interleaved_tanh(_module, gate_up):
    return torch.tanh(gate_up[..., ::2]) * gate_up[..., 1::2]


def test_experts_of_a_module_list_are_no_experts_class():
    assert families.call_of(nn.ModuleList([nn.Linear(2, 2)])) is None
