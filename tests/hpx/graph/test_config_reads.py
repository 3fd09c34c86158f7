"""Counts that a module's code reads from its config at call time, and the config it then gets."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hpx
from hpx import ShardingPlan
from hpx.graph.config_reads import config_reads
from hpx.local_config import LocalConfig, set_integer, whole_config


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


class Reads(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.head_dim = 4
        self.qkv_proj = nn.Linear(8, 3 * config.num_attention_heads * 4, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * 4, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = self.config.num_attention_heads * self.head_dim
        q, k, v = self.qkv_proj(x).split(width, dim=-1)
        out: torch.Tensor = self.o_proj(q + k + v)
        return out


class ReadsWrapped(Reads):
    @noted
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(sum(self.config.num_key_value_heads for _ in range(2)))


class ReadsWhenMade(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.num_heads = self.config.num_attention_heads

    def _init_weights(self) -> int:
        return int(self.config.num_attention_heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(self.num_heads)


CONFIG = SimpleNamespace(num_attention_heads=4, num_key_value_heads=4, dropout=0.5)
PLAN = ShardingPlan(
    {"attn.qkv_proj.weight": {"tp": "S(0)"}, "attn.o_proj.weight": {"tp": "S(1)"}},
    packed={"attn.qkv_proj.weight": {"dim": 0, "parts": {"q": 16, "k": 16, "v": 16}}},
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(**vars(CONFIG))
        self.attn = Reads(self.config)


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Reads, ("num_attention_heads",)),
        (ReadsWrapped, ("num_key_value_heads",)),
        (ReadsWhenMade, ()),
        (nn.Linear, ()),
    ],
)
def test_what_methods_read_at_call_time_is_found(cls: type, names: tuple[str, ...]) -> None:
    assert config_reads(cls) == names


def test_such_a_count_is_an_integer_of_its_module() -> None:
    graph = hpx.ModuleGraph.from_module(Model())
    assert graph.module(graph.find("attn") or 0).spec.attributes == (
        ("head_dim", 4),
        ("config.num_attention_heads", 4),
    )


def test_modules_with_other_configs_are_not_mixed_up() -> None:
    both = nn.ModuleList([Reads(SimpleNamespace(num_attention_heads=n)) for n in (2, 4)])
    graph = hpx.ModuleGraph.from_module(both)
    found = [graph.module(graph.find(name) or 0).attributes for name in ("0", "1")]
    assert [one["config.num_attention_heads"] for one in found] == [2, 4]


def test_it_is_divided_like_any_other_head_count() -> None:
    done = hpx.run(Model(), PLAN, "tp=2")
    found = done.graph.module(done.graph.find("attn") or 0).attributes
    assert found["config.num_attention_heads"] == 2
    text = str(done.explain("attn"))
    assert "config.num_attention_heads = 4 -> 2" in text
    one = done.explain("attn.config.num_attention_heads")
    assert {event.key for event in one.events} == {"attributes.config.num_attention_heads"}


def test_a_count_that_does_not_divide_is_refused_by_its_name() -> None:
    with pytest.raises(hpx.HpxError, match=r"config\.num_attention_heads"):
        hpx.run(
            Model(),
            ShardingPlan(
                PLAN.params,
                packed={
                    "attn.qkv_proj.weight": {
                        "dim": 0,
                        "repeat": 16,
                        "parts": {"q": 16, "k": 16, "v": 16},
                    }
                },
            ),
            "tp=8",
        )


def test_a_local_config_differs_in_its_counts_alone_and_follows_the_whole_one() -> None:
    whole = SimpleNamespace(**vars(CONFIG))
    local = LocalConfig(whole, {"num_attention_heads": 2})
    whole.dropout = 0.25
    assert (local.num_attention_heads, local.num_key_value_heads, local.dropout) == (2, 4, 0.25)
    assert whole.num_attention_heads == 4


def test_what_a_module_writes_to_its_config_is_written_to_the_whole_one() -> None:
    whole = SimpleNamespace(**vars(CONFIG))
    LocalConfig(whole, {"num_attention_heads": 2}).kernel = "eager"
    assert whole.kernel == "eager"


def test_the_count_of_one_rank_cannot_be_set_by_chance() -> None:
    local = LocalConfig(CONFIG, {"num_attention_heads": 2})
    with pytest.raises(AttributeError, match="that of one rank"):
        local.num_attention_heads = 8
    with pytest.raises(AttributeError):
        _ = local.no_such_field


def test_copies_of_a_model_share_a_config_as_the_model_does() -> None:
    model = Model()
    setattr(model.attn, *set_integer(model.attn, "config.num_attention_heads", 2))
    twin = copy.deepcopy(model)
    assert whole_config(twin.attn.config) is twin.config
    assert twin.config is not model.config
    assert twin.attn.config.num_attention_heads == 2
    loaded = pickle.loads(pickle.dumps(model.attn.config))
    assert (loaded.num_attention_heads, loaded.num_key_value_heads) == (2, 4)


def test_a_second_count_keeps_the_first() -> None:
    model = Model()
    for name, value in (("num_attention_heads", 2), ("num_key_value_heads", 1)):
        setattr(model.attn, *set_integer(model.attn, f"config.{name}", value))
    config = model.attn.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (2, 1)
    assert whole_config(config) is model.config


def test_a_compiler_takes_the_code_in_one_graph() -> None:
    model = Model()
    setattr(model.attn, *set_integer(model.attn, "config.num_attention_heads", 4))
    compiled = torch.compile(model.attn, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), model.attn(x))
