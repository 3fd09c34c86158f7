"""The conservation proof: it holds for every kind of model, and it can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import hpx
from hpx import layout, lineage, params
from hpx.bundled import tiny_llama, tiny_moe
from hpx.errors import HpxError
from hpx.layout import Range
from hpx.lineage import Lineage, Piece, Place
from hpx.runtime import conservation, gather, install, materialize
from hpx.testing import prove_conservation
from tests.hpx.runtime.conftest import FakeGroup
from tests.hpx.runtime.snapshot import assert_same, snapshot

ATTENTION = {"**.{q,k,v}_proj.weight": {"tp": "S(0)"}, "**.o_proj.weight": {"tp": "S(1)"}}
EXPERTS = {"**.experts.*": {"ep": "S(0)"}}


def _plan(*rules: dict[str, dict[str, str]], **more: Any) -> hpx.ShardingPlan:
    merged: dict[str, Any] = {}
    for some in rules:
        merged |= some
    return hpx.ShardingPlan(params=merged, default="replicate", **more)


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2,ep=4", "tp=4,ep=2", "dp=2,tp=4,ep=8", "tp=1"])
def test_a_mixture_of_experts_is_conserved(mesh: str) -> None:
    spec = hpx.MeshSpec.parse(mesh)
    plan = _plan(ATTENTION, EXPERTS if spec.has("ep") else {})
    model = tiny_moe()
    before = snapshot(model)
    proven = prove_conservation(model, plan, mesh)
    elements = sum(parameter.numel() for parameter in model.parameters())
    assert proven.elements == elements
    assert proven.ranks == spec.world_size
    assert elements <= proven.held <= elements * spec.world_size
    assert_same(before, model)


def test_a_tied_model_is_conserved_with_its_collectives() -> None:
    embedding = {"model.embed_tokens.weight": {"tp": "S(0)"}}
    proven = prove_conservation(tiny_llama(tied=True), _plan(ATTENTION, embedding), "tp=2", "@run")
    assert proven.parameters == 20


def test_a_declared_tie_is_conserved() -> None:
    tied = (("model.embed_tokens.weight", "lm_head.weight"),)
    plan = _plan(ATTENTION, {"lm_head.weight": {"tp": "S(0)"}}, tied=tied)
    assert prove_conservation(tiny_llama(), plan, "tp=2").parameters == 20


def test_a_meta_model_is_conserved() -> None:
    model = tiny_moe().to("meta")
    proven = prove_conservation(model, _plan(EXPERTS), "tp=2,ep=2")
    assert proven.parameters == 65
    assert all(parameter.is_meta for parameter in model.parameters())


def test_what_is_local_for_good_is_conserved() -> None:
    pipeline = "@default,localize{mode=permanent}"
    prove_conservation(tiny_moe(), _plan(ATTENTION, EXPERTS), "dp=2,tp=2,ep=4", pipeline)


def _odd() -> nn.Module:
    model: Any = nn.Module()
    model.scale = nn.Parameter(torch.tensor(1.0))
    model.uneven = nn.Parameter(torch.randn(5, 3))
    model.short = nn.Parameter(torch.randn(260, 260, dtype=torch.bfloat16), requires_grad=False)
    model.byte = nn.Parameter(torch.zeros(300, dtype=torch.float8_e4m3fn), requires_grad=False)
    model.long = nn.Parameter(torch.randn(4, 10, dtype=torch.float64))
    model.complex = nn.Parameter(torch.randn(4, 2, dtype=torch.complex128))
    model.counts = nn.Parameter(torch.arange(8), requires_grad=False)
    model.none = nn.Parameter(torch.randn(0, 4))
    model.turned = nn.Parameter(torch.randn(4, 8).t())
    model.inner = model.again = nn.Linear(4, 4)
    model.register_buffer("kept", torch.arange(3))
    model.register_buffer("unsaved", torch.arange(2.0), persistent=False)
    found: nn.Module = model
    return found


def test_odd_shapes_dtypes_and_buffers_are_conserved() -> None:
    names = ["uneven", "short", "byte", "counts", "none", "turned", "complex"]
    rules = {name: {"tp": "S(0)"} for name in names} | {"long": {"tp": "S(1)"}}
    proven = prove_conservation(
        _odd(), _plan(rules), "dp=2,tp=4", "@default,shard-params{uneven=allow}"
    )
    cut = proven.elements - 1 - 20  # scale and inner are whole
    assert proven.held == cut * 2 + 21 * 8


def test_a_parameter_of_single_bits_is_conserved() -> None:
    model = nn.Linear(4, 4)
    model.mask = nn.Parameter(torch.ones(4, 2, dtype=torch.bool), requires_grad=False)
    proven = prove_conservation(model, _plan({"mask": {"tp": "S(0)"}}), "tp=2")
    assert (proven.elements, proven.held) == (28, 8 + 2 * 20)


def test_the_ranks_of_all_stages_hold_what_one_stage_has() -> None:
    proven = prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "pp=2,tp=2")
    assert proven.held == (16 + 4) * 2


# -- it can fail ----------------------------------------------------------------------------------

Pull = Callable[[Lineage, Sequence[Range]], list[Piece]]


def _shifted(real: Pull) -> Pull:
    """Every rank pulls its slots in the opposite order."""

    def pull(of: Lineage, ranges: Sequence[Range]) -> list[Piece]:
        pieces = real(of, ranges)
        nodes = [piece.node for piece in reversed(pieces)]
        return [piece._replace(node=node) for piece, node in zip(pieces, nodes, strict=True)]

    return pull


def _short(real: Pull) -> Pull:
    """The last piece is forgotten."""
    return lambda of, ranges: real(of, ranges)[: -1 or None]


def _first_rank(real: Pull) -> Pull:
    """Every rank gets what the first one has to get."""

    def pull(of: Lineage, ranges: Sequence[Range]) -> list[Piece]:
        return real(of, [(0, end - start) for start, end in ranges])

    return pull


@pytest.mark.parametrize("wrong", [_shifted, _short, _first_rank])
def test_a_wrong_pull_is_found(
    wrong: Callable[[Pull], Pull], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "pull", wrong(lineage.pull))
    with pytest.raises(AssertionError, match=r"on rank \d.*\[.*\] holds .* instead of element"):
        prove_conservation(tiny_moe(), _plan(EXPERTS), "tp=2,ep=2")


def test_experts_that_are_inverted_in_the_wrong_order_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def invert(of: Lineage, shape: Any) -> list[Place]:
        places = lineage.invert(of, shape)
        nodes = [place.node for place in reversed(places)]
        return [Place(node, place.index) for place, node in zip(places, nodes, strict=True)]

    monkeypatch.setattr(gather, "invert", invert)
    with pytest.raises(AssertionError, match=r"on the way back.*instead of element"):
        prove_conservation(tiny_moe(), _plan(EXPERTS), "tp=2,ep=2")


@pytest.mark.parametrize(
    ("cut", "what"), [(slice(1, None), "does not come back"), (slice(0, -1), "does not")]
)
def test_an_original_that_does_not_come_back_is_found(
    cut: slice, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "invert", lambda of, shape: lineage.invert(of, shape)[cut])
    with pytest.raises(AssertionError, match=what):
        prove_conservation(tiny_moe(), _plan(EXPERTS), "tp=2,ep=2")


def test_an_original_that_comes_back_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "invert", lambda of, shape: lineage.invert(of, shape) * 2)
    with pytest.raises(AssertionError, match="comes back twice"):
        prove_conservation(tiny_moe(), _plan(EXPERTS), "tp=2,ep=2")


def test_a_rank_that_holds_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = materialize.local_ranges

    def ranges(node: Any, meshes: Any) -> Any:
        return (
            tuple((0, size) for size in node.shape)
            if node.name == "weight"
            else whole(node, meshes)
        )

    monkeypatch.setattr(materialize, "local_ranges", ranges)
    with pytest.raises(AssertionError, match=r"weight on rank 0: has shape \[4, 4\], not \[2, 4\]"):
        prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "tp=2")


def test_ranges_that_torch_would_not_cut_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranges(shape: Any, of: Any, sizes: Any, at: Any) -> Any:
        turned = {axis: sizes[axis] - 1 - place for axis, place in at.items()}
        return real(shape, of, sizes, turned)

    real = layout.index_range
    monkeypatch.setattr(params, "index_range", ranges)
    monkeypatch.setattr(materialize, "index_range", ranges)
    with pytest.raises(AssertionError, match=r"torch.chunk disagree"):
        prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "tp=2")


def test_a_changed_buffer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def localize(model: nn.Module, *_: Any) -> None:
        model.get_buffer("kept").add_(1)

    monkeypatch.setattr(install, "localize", localize)
    model = nn.Linear(4, 4)
    model.register_buffer("kept", torch.arange(3))
    with pytest.raises(AssertionError, match="buffer kept was replaced or changed"):
        prove_conservation(model, _plan({"weight": {"tp": "S(0)"}}), "tp=2")


def test_a_broken_tie_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def localize(model: Any, *_: Any) -> None:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())

    monkeypatch.setattr(install, "localize", localize)
    rules = {"model.embed_tokens.weight": {"tp": "S(0)"}}
    with pytest.raises(AssertionError, match="its name weight holds another parameter"):
        prove_conservation(tiny_llama(tied=True), _plan(rules), "tp=2")


def test_a_lost_digit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def cast(model: Any, *_: Any) -> None:
        local: Tensor = model.weight.to_local()
        with torch.no_grad():
            local.copy_(local.half())  # as a pass that goes through another dtype

    monkeypatch.setattr(install, "localize", cast)
    with pytest.raises(AssertionError, match="weight on rank 0"):
        prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "tp=2")


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float8_e5m2,
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.bool,
    ],
)
def test_numbers_survive_in_the_bits_of_any_dtype(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0, 1, 127, 128, 255, 32768, 65535, 2**24 + 1, 2**31, 2**32 - 1, 2**40])
    width = 1 if dtype == torch.bool else 8 * min(dtype.itemsize, 8)
    read = torch.zeros_like(numbers)
    for digit in range(-(-41 // width) + 1):
        tensor = torch.zeros(numbers.shape, dtype=dtype)
        conservation._write(tensor, numbers, digit)
        read |= conservation._read(tensor.clone(), digit)
    assert torch.equal(read, numbers)


def test_the_proof_refuses_a_process_group_that_is_there(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    with pytest.raises(HpxError, match="there is a process group already"):
        prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "tp=2")


def test_the_proof_leaves_no_process_group_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "tp=2")
    assert not dist.is_initialized()
    monkeypatch.setattr(conservation, "apply", None)
    with pytest.raises(TypeError):
        prove_conservation(nn.Linear(4, 4), _plan({"weight": {"tp": "S(0)"}}), "tp=2")
    assert not dist.is_initialized()
