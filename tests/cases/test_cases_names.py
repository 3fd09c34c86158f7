"""Field cases N1 to N4, N6 and N8 to N10: names, containers, wrappers, size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hpx
from hpx import HpxError, ShardingPlan
from hpx.graph import ModuleGraph
from hpx.graph.from_names import NamedTensor, graph_from_names
from tests.cases.models import ATTENTION_PLAN, Attention, Moe, Wrapped, values_of

CUT = {"tp": "S(0)"}


def test_n1_digits_in_a_name_are_the_registered_name_and_no_index() -> None:
    model = nn.ModuleDict({"1": nn.Linear(4, 4, bias=False), "0": nn.Linear(4, 8, bias=False)})
    model.add_module("7", nn.Linear(4, 6, bias=False))
    done = hpx.run(model, ShardingPlan({"0.weight": CUT}, default="replicate"), "tp=2")
    assert done.by_name["0.weight"].shape == (8, 4)
    assert done.by_name["0.weight"].shape == model.state_dict()["0.weight"].shape
    assert str(done.by_name["7.weight"].layout) == "R"


def test_n2_keys_such_as_type_and_forward_are_names_like_any_other() -> None:
    model = nn.ModuleDict()
    for key in ("type", "forward"):  # torch refuses such keys, some versions let them in
        model._modules[key] = nn.Linear(4, 4, bias=False)
    done = hpx.run(model, ShardingPlan({"{type,forward}.weight": CUT}), "tp=2")
    assert set(done.by_name) == {"type.weight", "forward.weight"}


@pytest.mark.parametrize("key", ["type", "forward", "parameters"])
def test_n2_stacking_never_picks_a_name_that_hides_a_method(key: str) -> None:
    experts: list[nn.Module] = []
    for _ in range(2):
        expert = nn.Module()
        expert._modules[key] = nn.Linear(4, 4, bias=False)
        experts.append(expert)
    with pytest.raises(HpxError, match=f"'{key}' names a field of every module"):
        hpx.run(Moe(experts), ShardingPlan({}, default="replicate"), "dp=2")


def checkpointed() -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Wrapped()
    model.layers[0] = checkpoint_wrapper(model.layers[0])
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    return model


def compiled() -> nn.Module:
    outer = torch.compile(Wrapped(), backend="eager")
    assert isinstance(outer, nn.Module)
    return outer


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (checkpointed, "layers.*._checkpoint_wrapped_module.attn"),
        (compiled, "_orig_mod.layers.*.attn"),
    ],
    ids=["checkpoint", "compile"],
)
@pytest.mark.parametrize("written", ["canonical", "registered"])
def test_n3_wrapper_parts_are_not_in_names_and_both_forms_are_accepted(
    make: object, part: str, written: str
) -> None:
    assert callable(make)
    prefix = part if written == "registered" else "layers.*.attn"
    rules = {pattern.replace("attn", prefix): layout for pattern, layout in ATTENTION_PLAN.items()}
    done = hpx.run(make(), ShardingPlan(rules), "tp=2")
    assert set(done.by_name) == {
        f"layers.{i}.attn.{x}_proj.weight" for i in range(2) for x in "qkvo"
    }
    asked = part.replace("*", "1") + ".q_proj.weight"
    assert "canonical name: layers.1.attn.q_proj.weight" in str(done.explain(asked))


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_n3_patterns_of_containers_counts_and_exclusions_take_both_forms(prefix: str) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = Attention(4, 4, 4, 16, n=4)
            self.mlp = Moe([nn.Linear(16, 16, bias=False) for _ in range(2)], 16)

    model = torch.compile(Layer(), backend="eager")
    assert isinstance(model, nn.Module)
    plan = ShardingPlan(
        {**ATTENTION_PLAN, "mlp.experts.weight": {"ep": "S(0)"}, "mlp.gate.weight": "replicate"},
        experts=[f"{prefix}mlp.experts"],
        heads={f"{prefix}attn": ["n"]},
    )
    pipeline = ["@default", "!localize", f"localize{{exclude=[{prefix}mlp]}}"]
    done = hpx.run(model, plan, "tp=2,ep=2", pipeline)
    assert done.by_name["mlp.experts.weight"].local_shape == (1, 16, 16)
    assert done.graph.module(done.graph.find("attn") or -1).attributes["n"] == 2
    gate = done.graph.tensor(done.graph.find("mlp.gate.weight") or -1)
    assert gate.props["localized"] == "excluded"


def test_n3_module_is_a_wrapper_where_every_key_of_a_state_dict_has_it() -> None:
    tensors = [NamedTensor(f"module.{name}", (4, 4), "float32") for name in ("a.weight", "b")]
    done = hpx.run(
        graph_from_names(tensors, source="ddp"),
        ShardingPlan({"a.weight": CUT, "module.b": "replicate"}),
        "tp=2",
    )
    assert set(done.by_name) == {"a.weight", "b"}


def test_n4_a_weight_norm_linear_is_refused_whole_and_nothing_is_half_changed() -> None:
    model = nn.Module()
    model.up = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    model.down = nn.Linear(8, 4)
    before, graph = values_of(model), ModuleGraph.from_module(model)
    nodes = dict(graph.nodes)
    plan = ShardingPlan({"up.weight": CUT, "down.weight": {"tp": "S(1)"}}, default="replicate")
    with pytest.raises(HpxError, match=r"up, rule 1: up.weight cannot be sharded"):
        hpx.run(graph, plan, "tp=2")
    assert graph.nodes == nodes
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_n4_the_older_weight_norm_is_refused_too() -> None:
    model = nn.Module()
    model.up = nn.utils.weight_norm(nn.Linear(4, 8))
    plan = ShardingPlan({"up.weight_v": CUT}, default="replicate")
    with pytest.raises(HpxError, match=r"up.weight cannot be sharded"):
        hpx.run(model, plan, "tp=2")


def nested(depth: int) -> nn.Module:
    """A module inside a module, ``depth`` times, with a weight at the bottom."""
    module: nn.Module = nn.Linear(4, 4, bias=False)
    for _ in range(depth):
        outer = nn.Module()
        outer.inner = module
        module = outer
    return module


def test_n6_1200_nested_modules_import_plan_and_explain_without_recursion() -> None:
    done = hpx.run(nested(1200), ShardingPlan({"**.weight": CUT}), "tp=2")
    (param,) = done.params
    assert param.name.count(".") == 1200
    assert "tp:S(0)" in str(done.explain(param.name))
    assert len(done.graph.fold().groups) == 1202


def test_n6_a_plan_of_1200_nested_modules_is_derived_without_recursion() -> None:
    model = nested(1200)
    (param,) = hpx.run(model, hpx.plan(model, "tp=2"), "tp=2").params
    assert str(param.layout) == "R"


def test_n6_a_run_over_1200_nested_modules_saves_and_loads(tmp_path: object) -> None:
    done = hpx.run(nested(1200), ShardingPlan({"**.weight": CUT}), "tp=2")
    again = hpx.Run.from_json(done.to_json())
    assert again == done


def test_n8_equal_blocks_fold_to_one_group_and_the_odd_one_stays_apart() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(32))
    model.layers[7] = nn.Linear(4, 6, bias=False)
    done = hpx.run(model, ShardingPlan({"layers.*.weight": CUT}), "tp=2")
    groups = {group.name: group.count for group in done.graph.fold(by="layout").groups}
    assert groups["0-6,8-31"] == 31
    assert groups["7"] == 1


def test_n9_ranges_of_a_stacked_parameter_are_shown_in_every_dim() -> None:
    model = Moe([nn.Linear(2, 2, bias=False) for _ in range(8)], 2)
    plan = ShardingPlan({"experts.weight": {"ep": "S(0)"}, "gate.weight": "replicate"})
    done = hpx.run(model, plan, "dp=4,ep=4")
    assert done.by_name["experts.weight"].shape == (8, 2, 2)
    assert "[2:4, 0:2, 0:2]" in str(done.explain("experts.weight", rank=1))


def test_n10_6000_nodes_fold_to_a_handful_and_give_dot_text() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2000))
    graph = ModuleGraph.from_module(model)
    assert len(graph.nodes) > 6000
    assert len(graph.fold().groups) < 10
    assert graph.to_dot().startswith("digraph")
