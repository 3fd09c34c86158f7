"""One forward of the unsharded model on fake tensors: what enters and leaves each region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from hpx.arguments import Arguments
from hpx.prove.contractions import Contraction, Contractions
from hpx.prove.keeping import kept
from hpx.prove.steps import Step

__all__ = ["Recorded", "record", "tensors_in"]


@dataclass(frozen=True)
class Recorded:
    """One call of a region.

    Attributes:
        args: Its positional arguments, as they were before it.
        kwargs: The others.
        tensors: The tensors that came out.
        contractions: What was multiplied inside.
        steps: All operations inside.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: list[Tensor]
    contractions: list[Contraction]
    steps: list[Step]


class _EnoughError(Exception):
    """Every region was met: what follows need not run."""


def tensors_in(result: object) -> list[Tensor]:
    """All tensors in what a module gave."""
    return [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def record(
    model: nn.Module,
    paths: Iterable[str],
    call: Arguments,
    mode: FakeTensorMode,
    deadline: float,
    found: dict[str, Recorded],
) -> None:
    """Run a model until each of its modules at ``paths`` was called once.

    Args:
        model: A fake copy; hooks are added to it and removed again.
        paths: The modules.
        call: What its forward gets.
        mode: The mode of its tensors.
        deadline: When to give up, on the monotonic clock.
        found: Gets what was recorded, also where the forward fails later.

    Raises:
        Exception: Whatever the model raises on fake tensors.
    """
    waiting = {path for path in paths if path not in found}
    contractions = Contractions(deadline)
    handles = []
    for path in waiting:
        module = model.get_submodule(path)
        before, after = _hooks(path, waiting, found, contractions)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    args, kwargs = call
    try:
        with mode, torch.no_grad(), contractions:
            model(*args, **kwargs)
    except _EnoughError:
        pass
    finally:
        for handle in handles:
            handle.remove()


def _hooks(
    path: str, waiting: set[str], found: dict[str, Recorded], contractions: Contractions
) -> tuple[Callable[..., None], Callable[..., None]]:
    entered: list[tuple[tuple[Any, ...], dict[str, Any], int, int]] = []

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        marks = len(contractions.found), len(contractions.steps)
        entered.append((*kept((args, dict(kwargs))), *marks))

    def after(_module: nn.Module, _args: object, result: object) -> None:
        args, kwargs, start, step = entered.pop()
        if path not in found:
            seen = contractions.found[start:]
            found[path] = Recorded(
                args, kwargs, tensors_in(result), seen, contractions.steps[step:]
            )
            waiting.discard(path)
            if not waiting:
                raise _EnoughError

    return before, after
