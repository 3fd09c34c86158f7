"""Whole runs on real models: configurations on meta, checkpoints in every form, 671B elements."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import hpx
import hpx.bundled
from hpx import HpxError, MeshSpec, Run, ShardingPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"

SMALL: dict[str, dict[str, object]] = {
    "llama-70b": {
        "vocab_size": 64,
        "hidden_size": 128,
        "intermediate_size": 256,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "mixtral-8x7b": {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "deepseek-v3": {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "moe_intermediate_size": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 64,
    },
    "qwen3-moe-235b": {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "moe_intermediate_size": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "num_experts": 64,
    },
    "gpt2": {"vocab_size": 64, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 8},
}
"""The example configurations at toy size, with sizes that the meshes of their plans divide."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def plan_of(name: str) -> ShardingPlan:
    return ShardingPlan.from_file(EXAMPLES / name / "plan.yaml")


def run_small(name: str, folder: Path, mesh: str | None = None) -> Run:
    pytest.importorskip("transformers")
    values = json.loads((EXAMPLES / name / "config.json").read_text())
    config = folder / "config.json"
    config.write_text(json.dumps(values | SMALL[name]))
    plan = plan_of(name)
    return hpx.run(config, plan, mesh or plan.mesh or "")


def shown(done: Run, name: str) -> tuple[tuple[int, ...], str, str | None, tuple[int, ...]]:
    param = done.by_name[name]
    return param.shape, str(param.layout), param.mesh, param.local_shape


# -- configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_of_an_example_at_toy_size_has_a_rule_with_file_and_line(
    name: str, tmp_path: Path
) -> None:
    done = run_small(name, tmp_path)
    assert [param.name for param in done.params if param.rule is None] == []
    assert {param.rule.line is not None for param in done.params if param.rule} == {True}
    assert [problem for problem in done.problems if problem.level == "error"] == []


def test_llama_cuts_whole_heads_and_logs_that_views_follow(tmp_path: Path) -> None:
    done = run_small("llama-70b", tmp_path)
    attn = "model.layers.1.self_attn"
    assert shown(done, f"{attn}.q_proj.weight") == ((128, 128), "tp:S(0)", "dense", (16, 128))
    assert shown(done, f"{attn}.k_proj.weight") == ((64, 128), "tp:S(0)", "dense", (8, 128))
    assert shown(done, f"{attn}.o_proj.weight") == ((128, 128), "tp:S(1)", "dense", (128, 16))
    assert shown(done, "lm_head.weight") == ((64, 128), "tp:S(0)", "dense", (8, 128))
    text = str(done.explain(attn))
    assert "derived from shape: 16 query heads, 8 kv heads" in text
    (problem,) = done.problems
    assert problem.text == (
        "non-persistent buffers on the meta device hold nothing: no state dict has them"
    )


def test_llama_on_more_ranks_than_kv_heads_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    values = json.loads((EXAMPLES / "llama-70b" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | SMALL["llama-70b"]))
    text = (EXAMPLES / "llama-70b" / "plan.yaml").read_text().replace("mesh: dp=8,tp=8\n", "")
    with pytest.raises(HpxError, match=r"model.layers.\{0-1\}.self_attn.*8 % 16 = 8"):
        hpx.run(tmp_path / "config.json", ShardingPlan.from_text(text, "plan.yaml"), "tp=16")


def test_mixtral_has_its_stacked_experts_on_the_expert_mesh(tmp_path: Path) -> None:
    done = run_small("mixtral-8x7b", tmp_path)
    experts = "model.layers.0.mlp.experts"
    assert shown(done, f"{experts}.gate_up_proj") == (
        *((8, 256, 64), "ep:S(0)", "expert"),
        (1, 256, 64),
    )
    assert shown(done, "model.layers.0.mlp.gate.weight")[1:3] == ("R", "dense")
    assert "its parameters are stacked already" in str(done.explain(experts))
    assert done.by_name[f"{experts}.down_proj"].ranges(done.mesh, 11)[0] == (3, 4)


def test_deepseek_divides_its_heads_and_marks_latent_gradients_as_partial(tmp_path: Path) -> None:
    done = run_small("deepseek-v3", tmp_path)
    attn = "model.layers.3.self_attn"
    assert shown(done, f"{attn}.q_b_proj.weight")[3] == (192 // 8, 24)
    assert shown(done, f"{attn}.kv_b_proj.weight")[3] == (256 // 8, 16)
    partial = {param.name.removeprefix(f"{attn}.") for param in done.params if param.reduce}
    assert {name for name in partial if not name.startswith("model.")} == {
        "q_a_proj.weight",
        "q_a_layernorm.weight",
        "kv_a_proj_with_mqa.weight",
        "kv_a_layernorm.weight",
    }
    assert done.graph.module(done.graph.find(attn) or -1).attributes["num_heads"] == 2
    assert shown(done, "model.layers.3.mlp.experts.gate_up_proj")[1:] == (
        *("ep:S(0)", "expert"),
        (1, 64, 64),
    )
    assert shown(done, "model.layers.3.mlp.shared_experts.down_proj.weight")[1] == "tp:S(1)"


def test_qwen3_moe_sums_the_gradients_of_its_head_norms_over_tp(tmp_path: Path) -> None:
    done = run_small("qwen3-moe-235b", tmp_path)
    summed = {param.name.rpartition("self_attn.")[2] for param in done.params if param.reduce}
    assert summed == {"q_norm.weight", "k_norm.weight"}
    text = str(done.explain("model.layers.0.self_attn.q_norm.weight"))
    assert "its gradient must be summed over tp" in text
    assert shown(done, "model.layers.1.mlp.experts.down_proj")[3] == (2, 64, 32)


def test_gpt2_is_tied_and_cut_on_the_output_dims_of_its_transposed_linears(
    tmp_path: Path,
) -> None:
    done = run_small("gpt2", tmp_path)
    assert done.by_name["lm_head.weight"] is done.by_name["transformer.wte.weight"]
    assert shown(done, "transformer.h.0.mlp.c_fc.weight") == (
        *((64, 256), "tp:S(1)", "dense"),
        (64, 64),
    )
    assert shown(done, "transformer.h.0.mlp.c_fc.bias")[1] == "tp:S(0)"
    assert shown(done, "transformer.h.0.mlp.c_proj.bias")[1] == "R"
    assert shown(done, "transformer.h.0.attn.c_attn.weight")[1] == "R"


def test_an_ep_axis_on_a_model_without_experts_is_a_reported_problem(tmp_path: Path) -> None:
    plan = plan_of("tiny-llama")
    text = (EXAMPLES / "tiny-llama" / "plan.yaml").read_text().replace(f"mesh: {plan.mesh}\n", "")
    done = hpx.run(
        hpx.bundled.tiny_llama(), ShardingPlan.from_text(text, "plan.yaml"), "dp=2,tp=4,ep=2"
    )
    assert [problem.text for problem in done.problems] == [
        "the mesh has ep=2, and no parameter is sharded on ep"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked", "local", "where"),
    [
        ("llama-70b", "model.layers.79.self_attn.q_proj.weight", (1024, 8192), "dense"),
        ("mixtral-8x7b", "model.layers.31.mlp.experts.gate_up_proj", (1, 28672, 4096), "expert"),
        ("deepseek-v3", "model.layers.60.mlp.experts.gate_up_proj", (4, 4096, 7168), "expert"),
        ("qwen3-moe-235b", "model.layers.93.mlp.experts.down_proj", (4, 4096, 1536), "expert"),
        ("gpt2", "transformer.h.11.mlp.c_fc.weight", (768, 768), "dense"),
    ],
)
def test_an_example_at_full_size_answers(
    name: str, asked: str, local: tuple[int, ...], where: str
) -> None:
    pytest.importorskip("transformers")
    plan = plan_of(name)
    done = hpx.run(EXAMPLES / name / "config.json", plan, plan.mesh or "")
    assert (done.by_name[asked].local_shape, done.by_name[asked].mesh) == (local, where)
    assert f"{name}/plan.yaml:" in str(done.explain(asked))


# -- checkpoints -------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="llama")
def _llama() -> PreTrainedModel:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = transformers.LlamaForCausalLM(config)
    return model


@pytest.fixture(name="saved", params=["state_dict", "one file", "several files"])
def _saved(request: pytest.FixtureRequest, llama: PreTrainedModel, tmp_path: Path) -> Path:
    if request.param == "state_dict":
        torch.save(llama.state_dict(), tmp_path / "llama.pt")
        return tmp_path / "llama.pt"
    size = "1GB" if request.param == "one file" else "60KB"
    llama.save_pretrained(tmp_path / "llama", max_shard_size=size)
    files = list((tmp_path / "llama").glob("*.safetensors"))
    assert (len(files) == 1) == (request.param == "one file")
    return tmp_path / "llama"


def test_a_checkpoint_gets_the_layouts_of_the_model_it_was_saved_from(
    saved: Path, llama: PreTrainedModel
) -> None:
    plan = plan_of("tiny-llama")
    done, of_model = (hpx.run(model, plan, plan.mesh or "") for model in (saved, llama))
    records = {param.name: (param.layout, param.mesh, param.local_shape) for param in done.params}
    assert records == {p.name: (p.layout, p.mesh, p.local_shape) for p in of_model.params}


def test_a_parameter_of_a_checkpoint_is_explained(saved: Path) -> None:
    plan = plan_of("tiny-llama")
    done = hpx.run(saved, plan, plan.mesh or "")
    text = str(done.explain("model.layers.1.self_attn.q_proj.weight", rank=6))
    assert "tiny-llama/plan.yaml:12" in text
    assert "rank 6, at dp=1, tp=2" in text
    assert "[32:48, 0:64]" in text


def test_head_counts_of_a_checkpoint_are_checked_by_the_config_beside_it(saved: Path) -> None:
    text = (EXAMPLES / "tiny-llama" / "plan.yaml").read_text().replace("mesh: dp=2,tp=4\n", "")
    plan = ShardingPlan.from_text(text, "plan.yaml")
    if saved.is_dir():
        with pytest.raises(HpxError, match=r"4 % 8 = 4 \(kv heads: k_proj rows / head_dim"):
            hpx.run(saved, plan, "tp=8")
    else:
        (problem,) = hpx.run(saved, plan, "tp=8").problems
        assert "from names alone it is not known how many there are" in problem.text


# -- 671B elements in 44,953 parameters --------------------------------------------------------


@pytest.fixture(scope="module", name="moe")
def _moe() -> Run:
    plan = plan_of("moe-671b")
    assert plan.mesh == "dp=32,tp=8,ep=64"
    return hpx.run("hpx.bundled:moe_671b", plan, plan.mesh)


def test_the_671b_model_has_its_numbers(moe: Run) -> None:
    assert moe.model["num_parameters"] == 44953
    assert moe.model["num_elements"] // 10**9 == 671
    assert moe.mesh == MeshSpec.parse("dp=32,tp=8,ep=64")
    assert len(moe.params) == 583


def test_an_expert_of_the_671b_model_is_stacked_from_256_sources(moe: Run) -> None:
    name = "model.layers.30.mlp.experts.gate_proj"
    param = moe.by_name[name]
    assert shown(moe, name) == ((256, 2048, 7168), "ep:S(0)", "expert", (4, 2048, 7168))
    assert param.lineage == "stack(model.layers.30.mlp.experts.{0-255}.gate_proj.weight)"
    assert param.rule is not None
    assert param.rule.where.endswith("docs/examples/moe-671b/plan.yaml:26")
    assert param.ranges(moe.mesh, 255) == ((252, 256), (0, 2048), (0, 7168))


def test_the_671b_model_is_explained_by_the_old_name_of_an_expert(moe: Run) -> None:
    text = str(moe.explain("model.layers.30.mlp.experts.200.gate_proj.weight", rank=50))
    assert "slot 200 of 256 of model.layers.30.mlp.experts.gate_proj" in text
    assert "experts 200..203 of 256" in text
    assert "model.layers.30.mlp.experts.{200-203}.gate_proj.weight" in text
    assert "expert mesh edp=4,ep=64 (256 ranks)" in text


def test_the_run_of_the_671b_model_saves_to_at_most_1_mb_and_loads_equal(
    moe: Run, tmp_path: Path
) -> None:
    path = moe.save(tmp_path / "run.json")
    assert path.stat().st_size <= 1_000_000
    assert Run.load(path) == moe


@pytest.mark.slow
def test_the_run_with_experts_left_apart_saves_to_at_most_6_mb(tmp_path: Path) -> None:
    text = (EXAMPLES / "moe-671b" / "plan.yaml").read_text()
    text = text.replace('"model.layers.*.mlp.experts.*":', '"model.layers.*.mlp.experts.**":')
    text = text.replace("{ep: S(0)}", "replicate") + "experts: []\n"
    done = hpx.run("hpx.bundled:moe_671b", ShardingPlan.from_text(text, "plan.yaml"),
                   "dp=32,tp=8,ep=64")  # fmt: skip
    assert len(done.params) == 44953
    assert done.save(tmp_path / "run.json").stat().st_size <= 6_000_000
