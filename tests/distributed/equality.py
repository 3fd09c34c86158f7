"""One training step in float64, whole and sharded, on the same data: what should be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import hpx
from hpx.graph.nodes import TensorNode
from hpx.lineage import Permute, Source, invert
from hpx.plan import ShardingPlan
from hpx.runtime import boundaries, inputs, local
from hpx.runtime.apply import apply
from hpx.runtime.around import Call
from hpx.runtime.gather import part_at
from hpx.runtime.record import Applied
from tests.distributed.equality_models import MODELS, PADDING, PADDING_LATE, VOCABULARY


def built(name: str) -> nn.Module:
    """The same model on every rank, in float64; its biases are not the zeros they start from."""
    torch.manual_seed(0)
    model = MODELS[name][0]().double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "embed_tokens" in path:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def batches(number: int) -> list[Tensor]:
    """Different tokens for every data-parallel rank; every id is in each, so that a row of the
    embedding whose gradient is lost shows, and padding stands before, as far as there is any."""
    torch.manual_seed(1)
    ids = torch.stack([torch.randperm(VOCABULARY) for _ in range(number)]).view(number, 2, -1)
    padding = torch.tensor([[PADDING, PADDING_LATE]] * 2).expand(number, 2, 2)
    # A causal loss gives the last token of a row no gradient: that one is there twice.
    return list(torch.cat((padding, ids, ids[..., :1]), dim=-1))


def forward(name: str, model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and loss."""
    more = {"decoder_input_ids": ids} if name.endswith("t5") else {}
    out = model(ids) if name.startswith("tiny") else model(input_ids=ids, use_cache=False, **more)
    logits = out if isinstance(out, Tensor) else out.logits
    assert isinstance(logits, Tensor)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return logits, loss


def step(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def whole_step(name: str, number: int) -> dict[str, Tensor]:
    """Outputs, losses, gradients and new parameters of the unsharded model."""
    model = built(name)
    optimizer = step(model)
    found: dict[str, Tensor] = {}
    for index, ids in enumerate(batches(number)):
        logits, loss = forward(name, model, ids)
        (loss / number).backward()  # type: ignore[no-untyped-call]
        found[f"logits of batch {index}"], found[f"loss of batch {index}"] = logits, loss
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f"gradient of {path}"] = parameter.grad.clone()
    optimizer.step()
    for path, parameter in model.named_parameters():
        found[f"new {path}"] = parameter
    return {key: value.detach().clone() for key, value in found.items()}


def sharded_step(
    name: str,
    mesh: str,
    pipeline: str,
    wrap: str | None = None,
) -> dict[str, Tensor]:
    """The same of the sharded model, whole tensors gathered; batches of this dp rank only."""
    model = built(name)
    plan = ShardingPlan.from_text(MODELS[name][1], "plan.yaml")
    applied = apply(model, plan, mesh, pipeline)
    computed = WRAPS[wrap](model, applied) if wrap is not None else model
    averaged = wrap in ("fsdp", "fsdp of leaves")
    coordinate = applied.meshes.coordinate("dense")
    number = applied.meshes.spec.size("dp", 1)
    optimizer = step(model)
    index = coordinate.get("dp", 0)
    logits, loss = forward(name, computed, batches(number)[index])
    (loss if averaged else loss / number).backward()  # type: ignore[no-untyped-call]
    found = {f"logits of batch {index}": logits, f"loss of batch {index}": loss}
    if number > 1 and not averaged:
        _sum_over_dp(model, applied)
    found |= {f"gradient of {p}": in_order(applied, p, t) for p, t in gradients(model)}
    optimizer.step()
    found |= {f"new {p}": in_order(applied, p, t) for p, t in model.named_parameters()}
    return {_plain(key): value.detach().clone() for key, value in found.items()}


def _plain(key: str) -> str:
    return key.replace("_checkpoint_wrapped_module.", "")


def gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        yield path, parameter.grad


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def in_order(applied: Applied, path: str, tensor: Tensor) -> Tensor:
    """What is gathered of a parameter or its gradient, packed dims in the order of the model."""
    node = applied.run.graph.get(_plain(path))
    assert isinstance(node, TensorNode)
    made = Source(node.id) if node.order is None else Permute(Source(node.id), node.order)
    (place,) = invert(made, lambda _: node.shape)
    return part_at(whole(tensor), place.index)


def _sum_over_dp(model: nn.Module, applied: Applied) -> None:
    group = applied.meshes.sub("dp").get_group()
    for _, gradient in gradients(model):
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        dist.all_reduce(local, group=group)


def _layers(model: nn.Module) -> nn.ModuleList:
    found = next(m for n, m in model.named_modules() if n in ("model.layers", "transformer.h"))
    assert isinstance(found, nn.ModuleList)
    return found


def _fsdp(model: nn.Module, applied: Applied) -> nn.Module:
    return hpx.fully_shard(applied)


def _fsdp_of_leaves(model: nn.Module, applied: Applied) -> nn.Module:
    """Groups that are the very modules which own parameters, and the boundaries around them."""
    names = [n for n, m in model.named_modules() if n.endswith(("mlp", "self_attn", "o_proj"))]
    return hpx.fully_shard(applied, modules=names)


def _checkpointed(reentrant: bool) -> Callable[[nn.Module, Applied], nn.Module]:
    def wrap(model: nn.Module, _applied: Applied) -> nn.Module:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
            CheckpointImpl,
            checkpoint_wrapper,
        )

        kind = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
        layers = _layers(model)
        for index, layer in enumerate(layers):
            layers[index] = checkpoint_wrapper(layer, checkpoint_impl=kind)
        return model

    return wrap


def _checkpointed_parts(model: nn.Module, _applied: Applied) -> nn.Module:
    """Checkpoints around regions and around layers inside them."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    names = ("self_attn", "down_proj", "c_proj")
    chosen = [m for n, m in model.named_modules() if n.rpartition(".")[2] in names]
    apply_activation_checkpointing(model, check_fn=lambda m: any(m is c for c in chosen))
    return model


def _compiled(model: nn.Module, _applied: Applied) -> nn.Module:
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


WRAPS: Final[dict[str, Callable[[nn.Module, Applied], nn.Module]]] = {
    "fsdp": _fsdp,
    "fsdp of leaves": _fsdp_of_leaves,
    "checkpoint": _checkpointed(False),
    "reentrant checkpoint": _checkpointed(True),
    "checkpoint of parts": _checkpointed_parts,
    "compile": _compiled,
}


def deviation(found: Tensor, expected: Tensor) -> float:
    """``max|a-b| / max|b|``."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    scale = expected.abs().max().item()
    return (found - expected).abs().max().item() / (scale or 1.0)


def unstacked(applied_names: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stacked experts under the names of the unsharded model."""
    found: dict[str, Tensor] = {}
    for key, value in applied_names.items():
        what, path = key.rsplit(" ", 1)
        inner, _, leaf = path.rpartition(".experts.")
        if inner and leaf and not leaf[0].isdigit():
            for index, part in enumerate(value):
                found[f"{what} {inner}.experts.{index}.{leaf}.weight"] = part
        else:
            found[key] = value
    assert found.keys() <= expected.keys(), found.keys() - expected.keys()
    return found


@contextmanager
def no_casts() -> Iterator[None]:
    """Models of transformers cast to float32 in norms and elsewhere, which rounds deviations off:
    without these casts a step in float64 is one."""
    cast_float, cast_to = Tensor.float, Tensor.to

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        wanted = torch.float32 in args or kwargs.get("dtype") is torch.float32
        if tensor.dtype is torch.float64 and wanted:
            return tensor
        return cast_to(tensor, *args, **kwargs)

    patched: Any = Tensor
    patched.float = lambda x: x if x.dtype is torch.float64 else cast_float(x)
    patched.to = to
    try:
        yield
    finally:
        patched.float, patched.to = cast_float, cast_to


@contextmanager
def broken(what: str) -> Iterator[None]:
    """The runtime with one fault, to see that the comparison notices it."""
    if what == "inputs are not copied":
        with mock.patch.object(inputs, "copy_to_region", lambda x, _group: x):
            yield
    elif what == "outputs are not summed":
        with mock.patch.object(boundaries, "reduce_from_region", lambda x, _group: x):
            yield
    elif what == "partial gradients are not summed":
        with mock.patch.object(local, "all_reduce_sum", lambda x, _group: x):
            yield
    elif what == "a bias on every rank":
        with mock.patch.object(boundaries._Rowwise, "enter", return_value=None):
            yield
    elif what == "padding_idx on shifted ids":
        with mock.patch.object(Call, "swap", _swap_all_but_padding):
            yield
    else:
        assert what == "nothing"
        yield


_swap = Call.swap


def _swap_all_but_padding(call: Call, table: Any, name: str, value: object) -> None:
    if name != "padding_idx":
        _swap(call, table, name, value)


def zero_rows(name: str) -> list[int]:
    """Tokens whose row of the embedding has no gradient in the unsharded step."""
    with no_casts():
        gradient = whole_step(name, 1)["gradient of model.embed_tokens.weight"]
    rows: list[int] = (gradient.abs().amax(dim=1) == 0).nonzero().flatten().tolist()
    return rows


def deviations_if(what: str, name: str, mesh: str) -> dict[str, float]:
    """As `deviations`, with a fault in the runtime."""
    with broken(what):
        return deviations(name, mesh)


def deviations(
    name: str,
    mesh: str,
    pipeline: str = "@run",
    wrap: str | None = None,
) -> dict[str, float]:
    """By tensor, how far the sharded step is from the unsharded one, on this rank."""
    number = hpx.MeshSpec.parse(mesh).size("dp", 1)
    with no_casts():
        expected = whole_step(name, number)
        found = unstacked(sharded_step(name, mesh, pipeline, wrap), expected)
    return {key: deviation(value, expected[key]) for key, value in found.items()}
