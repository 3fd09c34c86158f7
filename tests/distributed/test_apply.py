"""On real ranks: local values are slices of the original, and the original comes back whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpx
from hpx.lineage import sources
from hpx.numeric.pool import Pool
from hpx.runtime.record import Applied
from tests.distributed.sharded_models import MODELS, built, plan_for
from tests.hpx.runtime.snapshot import bits

MESHES = ["tp=2", "dp=2,tp=2", "dp=2,tp=2,ep=4", "tp=4,ep=2", "dp=2,tp=4,ep=8"]
SIZES_OF_ONE = ["tp=1", "dp=1,tp=1,ep=1", "dp=2,tp=1,ep=1", "dp=1,tp=2,ep=1", "dp=2,tp=1,ep=2"]


# -- on every rank --------------------------------------------------------------------------------


def carried_out(name: str, mesh: str) -> list[str]:
    """What is wrong after apply, after state_dict, and after restore."""
    model = built(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    described = repr(model)
    integers = list(_integers(model))
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        answer = _logits(model(ids))
    applied = hpx.apply(model, plan_for(name, mesh), mesh, verify="full")
    faults = list(wrong_slices(applied, before, mesh))
    faults += _differences("state_dict", hpx.state_dict(model), before)
    hpx.restore(model)
    faults += _differences("restore", model.state_dict(), before)
    faults += [f"{n} is a DTensor" for n, p in model.named_parameters() if isinstance(p, DTensor)]
    if repr(model) != described or list(_integers(model)) != integers:
        faults.append("modules or their attributes differ")
    with torch.no_grad():
        if bits(_logits(model(ids))) != bits(answer):
            faults.append("it computes something else")
    return faults


def _logits(out: Any) -> Tensor:
    found: Tensor = out if isinstance(out, Tensor) else out.logits
    return found


def _integers(model: nn.Module) -> Iterator[tuple[str, str, int]]:
    for path, module in model.named_modules():
        yield from ((path, k, v) for k, v in vars(module).items() if type(v) is int)


def wrong_slices(applied: Applied, before: dict[str, Tensor], mesh: str) -> Iterator[str]:
    """Every parameter against torch's own chunks of the original."""
    run, model = applied.run, applied.model
    sizes = {axis: hpx.MeshSpec.parse(mesh).size(axis, 1) for axis in ("tp", "ep")}
    found = dict(model.named_parameters())
    yield from (f"{param.name} is missing" for param in run.params if param.name not in found)
    for param in run.params:
        node = run.graph.tensor(param.id)
        whole = before[run.entry.path(param.id)] if node.lineage is None else None
        if node.lineage is not None:
            whole = torch.stack([before[run.entry.path(i)] for i in sources(node.lineage)])
        assert whole is not None
        parameter: Tensor = found[param.name]
        if isinstance(parameter, DTensor) is not (node.layout is not None):
            yield f"{param.name} has the layout {node.layout}, and is a {type(parameter)}"
        expert = ".experts." in param.name and hpx.MeshSpec.parse(mesh).has("ep")
        if (node.layout is not None) is not (sizes["ep" if expert else "tp"] > 1):
            yield f"{param.name} has the layout {node.layout}"
        if parameter.shape != whole.shape or parameter.stride() != whole.stride():
            yield f"{param.name} is {parameter.shape}, {parameter.stride()}"
        # Both axes are the last of their mesh, so neighbours differ in them first.
        for axis, dim in node.layout.shards if node.layout is not None else ():
            whole = whole.chunk(sizes[axis], dim)[dist.get_rank() % sizes[axis]]
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if bits(local) != bits(whole):
            yield f"{param.name} is not its slice of the original"
        if local.untyped_storage().nbytes() != local.numel() * local.element_size():
            yield f"{param.name} keeps more memory than it has elements"


def _differences(what: str, found: dict[str, Any], before: dict[str, Tensor]) -> Iterator[str]:
    if list(found) != list(before):
        yield f"{what}: other names or another order"
    for name in found.keys() & before.keys():
        if found[name].dtype != before[name].dtype or bits(found[name]) != bits(before[name]):
            yield f"{what}: {name} differs"


# -- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [*MESHES, *SIZES_OF_ONE])
@pytest.mark.parametrize("name", MODELS)
def test_every_rank_holds_its_slices_and_the_model_comes_back(
    name: str, mesh: str, gloo: Pool
) -> None:
    size = hpx.MeshSpec.parse(mesh).world_size
    assert gloo.run(carried_out, size, name, mesh) == [[]] * size
