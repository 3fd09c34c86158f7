"""What modules and tensors are beyond their fields: wrappers, computed parameters, placements."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from hpx.graph.nodes import WRAPPER_PARTS

__all__ = ["computed_names", "placed_as", "unwrapped", "wrapped_child"]

_DATA_PARALLEL: Final = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def wrapped_child(module: nn.Module) -> str | None:
    """The child's name if this module only wraps it (compile, checkpoint, FSDP1, DDP)."""
    name = next(iter(module._modules))
    if name in WRAPPER_PARTS or (name == "module" and isinstance(module, _DATA_PARALLEL)):
        return name
    return None


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside its wrappers."""
    while len(model._modules) == 1 and (name := wrapped_child(model)) is not None:
        inner = model._modules[name]
        if inner is None:
            break
        model = inner
    return model


def computed_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters that hooks or torch's parametrizations compute from others."""
    names: list[str] = []
    if "parametrizations" in module._modules:
        inner = module._modules["parametrizations"]
        if inner is not None:
            names.extend(inner._modules)
    if getattr(module, "_forward_pre_hooks", None):
        for name in module._parameters:
            stem = name.removesuffix("_g")
            if stem != name and f"{stem}_v" in module._parameters:
                names.append(stem)
            stem = name.removesuffix("_orig")
            if stem != name:
                names.append(stem)
    return tuple(names)


def placed_as(tensor: torch.Tensor) -> tuple[tuple[str, int, str], ...] | None:
    """(axis, size, placement) of a DTensor, in mesh order."""
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return None
    names = mesh.mesh_dim_names or tuple(f"axis{k}" for k in range(mesh.ndim))
    return tuple(
        (name, mesh.size(k), _placement_text(placement))
        for k, (name, placement) in enumerate(zip(names, placements, strict=True))
    )


def _placement_text(placement: object) -> str:
    from torch.distributed.tensor import Replicate, Shard

    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    return "R" if isinstance(placement, Replicate) else "P"
