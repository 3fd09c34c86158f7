"""Scales are cut with their weight, and LoRA's A and B as their layer is."""

from __future__ import annotations

import pytest

import hpx
from hpx import ShardingPlan
from hpx.check.companions import lora_pairs, scales
from hpx.graph.graph import ModuleGraph
from hpx.testing import graph_of
from tests.hpx.check.asking import EMBEDDING, LINEAR, ask, levels, where


def quantised(
    weight: str, scale: str, shape: tuple[int, ...] = (4, 2), buffers: tuple[str, ...] = ()
) -> ModuleGraph:
    return graph_of(
        {"up.weight": (512, 256), "up.weight_scale_inv": shape},
        classes={"up": LINEAR},
        buffers=buffers,
        layouts={"up.weight": weight, "up.weight_scale_inv": scale},
    )


@pytest.mark.parametrize("layout", ["tp:S(0)", "tp:S(1)", "R"])
def test_scales_that_are_cut_with_their_weight_are_silent(layout: str) -> None:
    assert ask(scales, quantised(layout, layout)) == []


def test_scales_that_stay_whole_beside_a_cut_weight_are_an_error_with_the_fix() -> None:
    graph = quantised("tp:S(0)", "R")
    (problem,) = found = ask(scales, graph)
    assert levels(found) == ["error"]
    assert where(graph, found) == [["up.weight_scale_inv"]]
    assert (
        problem.text
        == "it is R, and weight [512, 256] tp:S(0) asks for tp:S(0) of its [4, 2] scales"
    )
    assert problem.hint == "give it {tp: S(0)}"


def test_scales_that_are_cut_beside_a_whole_weight_are_an_error() -> None:
    (problem,) = found = ask(scales, quantised("R", "tp:S(0)"))
    assert levels(found) == ["error"]
    assert problem.hint == "give it {replicate}"


def unclear(rows: int) -> ModuleGraph:
    names = {"up.weight": (rows, 256), "up.scales": (2, 1)}
    layouts = dict.fromkeys(names, "tp:S(0)")
    return graph_of(names, classes={"up": LINEAR}, layouts=layouts)


def test_blocks_that_the_shapes_do_not_tell_are_a_warning() -> None:
    (problem,) = found = ask(scales, unclear(12))
    assert levels(found) == ["warning"]
    assert "12 has 2 scales, which does not tell their blocks" in problem.text


def test_blocks_that_the_shapes_tell_are_silent() -> None:
    assert ask(scales, unclear(16)) == []


def test_scales_cut_on_another_dim_are_an_error() -> None:
    assert len(ask(scales, quantised("tp:S(0)", "tp:S(1)"))) == 1


def test_one_scale_a_row_stays_whole_beside_a_rowwise_weight() -> None:
    assert ask(scales, quantised("tp:S(1)", "R", (512, 1))) == []
    assert ask(scales, quantised("tp:S(1)", "R", (512,))) == []


def test_a_vector_of_scales_is_cut_with_the_rows() -> None:
    assert ask(scales, quantised("tp:S(0)", "tp:S(0)", (512,))) == []
    assert len(ask(scales, quantised("tp:S(0)", "R", (512,)))) == 1


def test_one_scale_for_all_stays_whole() -> None:
    assert ask(scales, quantised("tp:S(0)", "R", (1, 1))) == []


def test_scales_in_a_buffer_cannot_be_cut() -> None:
    graph = quantised("tp:S(0)", "R", buffers=("up.weight_scale_inv",))
    (problem,) = ask(scales, graph)
    assert problem.text.startswith("it is a buffer, whole on every rank")
    assert problem.hint == "register it as a parameter, or replicate the weight"


def test_the_scales_of_experts_are_on_ep_with_them() -> None:
    shapes = {"experts.w1": (8, 256, 128), "experts.w1_scale_inv": (8, 2, 1)}
    layouts = {"experts.w1": "ep:S(0)", "experts.w1_scale_inv": "R"}
    graph = graph_of(shapes, layouts=layouts)
    assert [p.hint for p in ask(scales, graph, "tp=2,ep=2")] == ["give it {ep: S(0)}"]


def test_an_error_of_a_check_is_an_error_of_the_run() -> None:
    model = graph_of({"up.weight": (512, 256), "up.weight_scale_inv": (4, 2)})
    plan = ShardingPlan({"up.weight": {"tp": "S(0)"}}, default="replicate")
    assert "error" in [problem.level for problem in hpx.run(model, plan, "tp=2").problems]


# -- R11: LoRA ---------------------------------------------------------------------------------


def lora(base: str, first: str, second: str, *, kind: str = LINEAR) -> ModuleGraph:
    table = kind == EMBEDDING
    shapes: dict[str, tuple[int, ...]] = {
        "q.base_layer.weight": (64, 32),
        "q.lora_A.default.weight": (4, 64 if table else 32),
        "q.lora_B.default.weight": (32 if table else 64, 4),
    }
    layouts = dict(zip(shapes, (base, first, second), strict=True))
    return graph_of(shapes, classes={"q.base_layer": kind}, layouts=layouts)


@pytest.mark.parametrize(
    ("base", "first", "second"),
    [("tp:S(0)", "R", "tp:S(0)"), ("tp:S(1)", "tp:S(1)", "R"), ("R", "R", "R")],
    ids=["colwise", "rowwise", "whole"],
)
def test_r11_a_pair_that_is_cut_as_its_layer_is_silent(base: str, first: str, second: str) -> None:
    assert ask(lora_pairs, lora(base, first, second)) == []


@pytest.mark.parametrize(
    ("layouts", "name", "text", "hint"),
    [
        (
            ("tp:S(0)", "R", "R"),
            "q.lora_B.default.weight",
            "LoRA's B is R on a colwise layer, where it has to be S(0)",
            "give it {tp: S(0)}",
        ),
        (
            ("tp:S(0)", "tp:S(0)", "tp:S(0)"),
            "q.lora_A.default.weight",
            "LoRA's A is S(0) on a colwise layer, where it has to be R",
            "give it replicate",
        ),
        (
            ("tp:S(1)", "R", "R"),
            "q.lora_A.default.weight",
            "LoRA's A is R on a rowwise layer, where it has to be S(1)",
            "give it {tp: S(1)}",
        ),
        (
            ("R", "R", "tp:S(0)"),
            "q.lora_B.default.weight",
            "LoRA's B is S(0) on a whole layer, where it has to be R",
            "give it replicate",
        ),
    ],
)
def test_r11_a_pair_that_is_cut_otherwise_is_an_error(
    layouts: tuple[str, str, str], name: str, text: str, hint: str
) -> None:
    graph = lora(*layouts)
    (problem,) = found = ask(lora_pairs, graph)
    assert (levels(found), where(graph, found)) == (["error"], [[name]])
    assert (problem.text, problem.hint) == (text, hint)


def test_r11_an_adapter_of_an_embedding_is_cut_on_the_vocabulary() -> None:
    assert ask(lora_pairs, lora("tp:S(0)", "tp:S(1)", "R", kind=EMBEDDING)) == []


def test_r11_matrices_that_stand_in_the_layer_itself_are_a_pair_too() -> None:
    shapes = {"q.weight": (64, 32), "q.lora_A": (4, 32), "q.lora_B": (64, 4)}
    layouts = {"q.weight": "tp:S(0)", "q.lora_A": "R", "q.lora_B": "R"}
    graph = graph_of(shapes, classes={"q": LINEAR}, layouts=layouts)
    assert where(graph, ask(lora_pairs, graph)) == [["q.lora_B"]]


def test_r11_every_adapter_of_a_layer_is_checked() -> None:
    shapes = {
        "q.base_layer.weight": (64, 32),
        **{f"q.lora_A.{name}.weight": (4, 32) for name in ("one", "two")},
        **{f"q.lora_B.{name}.weight": (64, 4) for name in ("one", "two")},
    }
    layouts = dict.fromkeys(shapes, "R")
    layouts |= {"q.base_layer.weight": "tp:S(0)", "q.lora_B.one.weight": "tp:S(0)"}
    graph = graph_of(shapes, classes={"q.base_layer": LINEAR}, layouts=layouts)
    assert where(graph, ask(lora_pairs, graph)) == [["q.lora_B.two.weight"]]
