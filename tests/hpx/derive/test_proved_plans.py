"""What structure does not tell, the forward does: what it would break is left whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hpx
from hpx.plan import Rule
from tests.hpx.prove.models import Attention, Model
from tests.hpx.prove.test_passing import Mlp, Residual


class Softmaxed(Mlp):
    """A softmax over all channels between the matrices."""

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down(self.up(hidden).softmax(-1))
        return out


class Named(Attention):
    """Heads that are told by their size, under names that people use."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.q_proj, self.k_proj = (nn.Linear(32, 32, bias=False) for _ in range(2))
        self.v_proj, self.o_proj = (nn.Linear(32, 32, bias=False) for _ in range(2))
        self.num_heads, self.head_dim = 8, 4

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = (self.heads(f(hidden)) for f in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        mixed = torch.einsum("bhqk,bkhd->bqhd", self.done(scores).softmax(-1), v)
        out: Tensor = self.o_proj(mixed.flatten(2))
        return out

    def done(self, scores: Tensor) -> Tensor:
        return scores


class Paired(Named):
    """The second half of the heads is taken from the first."""

    def done(self, scores: Tensor) -> Tensor:
        one, two = scores.chunk(2, dim=1)
        return torch.cat([one - two, two], dim=1)


def rules(layer: nn.Module) -> dict[str, Rule]:
    model = Model(layer)
    plan = hpx.plan(model, "tp=2")
    done = hpx.run(model, plan, "tp=2")
    return {param.name: param.rule for param in done.params if param.rule is not None}


def test_what_the_proof_refuses_is_whole_with_what_it_says() -> None:
    rule = rules(Softmaxed())["layers.0.up.weight"]
    assert str(rule.layout) == "R"
    reason = rule.reason or ""
    assert reason.startswith("cut on tp, it would not compute the same: softmax goes along dim 2")
    assert "test_proved_plans.py:" in reason
    assert "self.down" not in reason


def test_its_matrices_are_whole_together() -> None:
    assert str(rules(Softmaxed())["layers.0.down.weight"].layout) == "R"


def test_heads_in_pairs_stay_whole() -> None:
    found = rules(Paired())
    assert {str(rule.layout) for name, rule in found.items() if "layers" in name} == {"R"}


def test_a_residual_inside_the_module_keeps_it_whole() -> None:
    assert str(rules(Residual())["layers.0.up.weight"].layout) == "R"


def test_what_is_proved_is_cut() -> None:
    assert str(rules(Mlp())["layers.0.up.weight"].layout) == "tp:S(0)"
    assert str(rules(Named())["layers.0.q_proj.weight"].layout) == "tp:S(0)"


def test_a_model_that_cannot_run_gets_what_structure_tells() -> None:
    class Silent(Mlp):
        def forward(self, hidden: Tensor) -> Tensor:
            raise NotImplementedError

    assert str(rules(Silent())["layers.0.up.weight"].layout) == "tp:S(0)"


def test_a_graph_has_no_code_to_run() -> None:
    graph = hpx.ModuleGraph.from_module(Model(Softmaxed()))
    (rule,) = [r for r in hpx.plan(graph, "tp=2").params if "up.weight" in r.pattern]
    assert str(rule.layout) == "tp:S(0)"
