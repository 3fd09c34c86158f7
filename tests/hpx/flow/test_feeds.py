"""Dataflow edges between the modules of traced models."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import hpx
from hpx.bundled import tiny_llama, tiny_moe
from hpx.flow.edges import Operator, points_of

Edge = tuple[str, str]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x))) * self.scale
        return out


class Stream(nn.Module):
    """Two residual blocks between tied ends."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.layers = nn.ModuleList([Mlp(), Mlp()])
        self.head = nn.Linear(4, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        scores: Tensor = self.head(x)
        return scores


class Branches(nn.Module):
    """What it does depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x) if x.sum() > 0 else self.b(x)
        return out


STREAM = [
    ("embed", "layers.0.up"),
    ("layers.0.up", "layers.0.down"),
    ("embed", ""),
    ("layers.0.down", ""),
    ("", "layers.1.up"),
    ("layers.1.up", "layers.1.down"),
    ("layers.1.down", ""),
    ("", "head"),
]


def edges(graph: hpx.ModuleGraph) -> list[Edge]:
    return [(graph.path(origin), graph.path(target)) for origin, target in graph.feeds]


def traced(model: nn.Module, inputs: object = None) -> list[Edge]:
    graph = hpx.ModuleGraph.from_module(model)
    graph.trace(model, inputs)
    return edges(graph)


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Stream(), (torch.zeros(2, 3, dtype=torch.long),))


def test_a_residual_stream_has_some_edges_a_layer() -> None:
    assert traced(Stream()) == STREAM


def test_attention_takes_q_k_and_v_and_feeds_o() -> None:
    found = traced(tiny_llama())
    here = "model.layers.1.self_attn"
    assert [e for e in found if here in e] == [
        (f"{here}.q_proj", here),
        (f"{here}.k_proj", here),
        (f"{here}.v_proj", here),
        (here, f"{here}.o_proj"),
    ]


def test_a_norm_hands_on_its_input_to_the_residual_only_past_itself() -> None:
    found = traced(tiny_llama())
    norm = "model.layers.0.input_layernorm"
    assert {target for origin, target in found if origin == norm} == {
        f"model.layers.0.self_attn.{name}_proj" for name in "qkv"
    }


def test_the_stream_around_experts_is_traced() -> None:
    found = traced(tiny_moe())
    assert ("model.layers.0.post_attention_layernorm", "model.layers.0.mlp.gate") in found


def test_a_model_without_example_inputs_is_traced_symbolically() -> None:
    class Two(Mlp):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            out: Tensor = self.down(self.up(x) + y)
            return out

    model = Two()
    graph = hpx.ModuleGraph.from_module(model)
    assert graph.trace(model).how == "fx"
    assert edges(graph) == [("up", "down")]


def test_a_model_that_cannot_be_traced_says_why_and_has_no_edges() -> None:
    model = Branches()
    graph = hpx.ModuleGraph.from_module(model)
    found = graph.trace(model)
    assert found.how is None
    assert graph.feeds == ()
    assert "export: " in found.why
    assert "fx: TraceError" in found.why
    assert str(graph.hints["dataflow"]).startswith("dataflow is not traced: ")


def test_tracing_says_nothing_and_leaves_the_model(capfd: pytest.CaptureFixture[str]) -> None:
    model = Branches()
    before = [id(p) for p in model.parameters()]
    hpx.ModuleGraph.from_module(model).trace(model)
    assert capfd.readouterr() == ("", "")
    assert [id(p) for p in model.parameters()] == before
    assert "forward" not in vars(model)


def test_edges_are_in_a_saved_run_and_come_back(tmp_path: Path) -> None:
    model = Stream()
    graph = hpx.ModuleGraph.from_module(model)
    graph.trace(model)
    plan = hpx.ShardingPlan({"layers.*.up.weight": {"tp": "S(0)"}}, default="replicate")
    run = hpx.run(graph, plan, "tp=2", "shard-params")
    run.save(tmp_path / "run.json")
    loaded = hpx.Run.load(tmp_path / "run.json")
    assert edges(loaded.entry) == STREAM
    assert edges(loaded.graph) == STREAM


def test_a_traced_graph_is_the_same_model() -> None:
    model = Stream()
    graph = hpx.ModuleGraph.from_module(model)
    plan = hpx.ShardingPlan({"layers.*.up.weight": {"tp": "S(0)"}}, default="replicate")
    before = hpx.run(graph, plan, "tp=2", "shard-params").entry_fingerprint
    graph.trace(model)
    assert hpx.run(graph, plan, "tp=2", "shard-params").entry_fingerprint == before


def test_a_saved_edge_to_nowhere_is_refused(tmp_path: Path) -> None:
    model = Stream()
    graph = hpx.ModuleGraph.from_module(model)
    graph.trace(model)
    plan = hpx.ShardingPlan({"layers.*.up.weight": {"tp": "S(0)"}}, default="replicate")
    path = hpx.run(graph, plan, "tp=2", "shard-params").save(tmp_path / "run.json")
    path.write_text(path.read_text().replace('"flow":[[', '"flow":[[900,[]],[', 1))
    with pytest.raises(hpx.InputError, match=r"graph\.flow\[0\]"):
        hpx.Run.load(path)


def test_a_graph_module_brings_its_edges() -> None:
    assert edges(hpx.ModuleGraph.from_module(fx.symbolic_trace(Stream()))) == STREAM


def test_an_exported_program_is_a_graph_with_classes_ties_and_edges() -> None:
    graph = hpx.ModuleGraph.from_module(exported())
    assert graph.paths(graph.get("head.weight").id) == ["embed.weight", "head.weight"]
    assert [graph.path(node.id) for node in graph.buffers()] == ["layers.0.scale", "layers.1.scale"]
    assert graph.module(graph.get("layers.1.up").id).spec.cls == "torch.nn.modules.linear.Linear"
    assert edges(graph) == STREAM


def test_a_saved_program_reads_as_the_one_in_memory(tmp_path: Path) -> None:
    torch.export.save(exported(), tmp_path / "stream.pt2")
    graph = hpx.ModuleGraph.from_file(tmp_path / "stream.pt2")
    assert graph == hpx.ModuleGraph.from_module(exported())
    assert edges(graph) == STREAM


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_damaged_program_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "stream.pt2"
    torch.export.save(exported(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(hpx.InputError, match="no exported program"):
        hpx.ModuleGraph.from_file(path)


def test_a_value_that_no_parameter_touched_has_no_edges() -> None:
    operators = [Operator("mask", ()), Operator("w", (), owner="a"), Operator("y", ("w",), "a")]
    operators += [Operator("sum", ("y", "mask"), "top"), Operator("z", ("sum",), "b", is_call=True)]
    assert points_of(operators, ["a", "b"]) == [("a", ()), ("b", (0,))]


def test_a_parameter_that_another_module_reads_leaves_from_its_owner() -> None:
    operators = [Operator("w", (), owner="a"), Operator("y", ("w",), "top")]
    operators += [Operator("z", ("y",), "b", is_call=True)]
    assert points_of(operators, ["a", "b"]) == [("a", ()), ("b", (0,))]


def test_tracing_leaves_the_levels_that_a_program_does_not_log() -> None:
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        traced(Mlp())
        assert logging.root.manager.disable == logging.INFO
    finally:
        logging.disable(before)
