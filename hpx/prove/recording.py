"""One forward of the unsharded model on fake tensors: what enters and leaves each region."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from hpx.arguments import Arguments
from hpx.prove.contractions import Contraction
from hpx.prove.keeping import kept
from hpx.prove.outside import Outside
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
        read: Where others than regions read its tensors after the first, by position; of all
            regions that are like it.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: list[Tensor]
    contractions: list[Contraction]
    steps: list[Step]
    read: dict[int, str] = field(default_factory=dict)


class _EnoughError(Exception):
    """Every region was met: what follows need not run."""


def tensors_in(result: object) -> list[Tensor]:
    """All tensors in what a module gave."""
    return [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def record(
    model: nn.Module,
    paths: Collection[str],
    alike: Mapping[str, str],
    call: Arguments,
    mode: FakeTensorMode,
    deadline: float,
    found: dict[str, Recorded],
) -> None:
    """Run a model until each of its modules at ``paths`` was called once.

    Where one of them gives several tensors, it runs to its end: only the first of them is put
    together from what the ranks have, so who reads the others is noted.

    Args:
        model: A fake copy; hooks are added to it and removed again.
        paths: The modules.
        alike: For these and all other regions, the one of ``paths`` that each is like.
        call: What its forward gets.
        mode: The mode of its tensors.
        deadline: When to give up, on the monotonic clock.
        found: Gets what was recorded, also where the forward fails later.

    Raises:
        Exception: Whatever the model raises on fake tensors.
    """
    waiting = {path for path in paths if path not in found}
    noted = Outside(model, deadline)
    handles: list[RemovableHandle] = []
    for path, kind in alike.items():
        module = model.get_submodule(path)
        handles.extend(_edges(module, kind, noted))
    for path in waiting.copy():
        module = model.get_submodule(path)
        before, after = _hooks(path, waiting, found, noted)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    args, kwargs = call
    try:
        with mode, torch.no_grad(), noted:
            noted.given_out(model(*args, **kwargs))
    except _EnoughError:
        pass
    except Exception:
        if waiting:
            raise
    finally:
        for handle in handles:
            handle.remove()


def _edges(module: nn.Module, kind: str, noted: Outside) -> Iterator[RemovableHandle]:
    """Hooks that tell where a region begins and ends."""

    def leave(_module: nn.Module, _args: object, result: object) -> None:
        noted.leave(kind, result)

    yield module.register_forward_pre_hook(lambda *_: noted.enter())
    yield module.register_forward_hook(leave, always_call=True)


def _hooks(
    path: str, waiting: set[str], found: dict[str, Recorded], noted: Outside
) -> tuple[Callable[..., None], Callable[..., None]]:
    entered: list[tuple[tuple[Any, ...], dict[str, Any], int, int]] = []

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        marks = len(noted.found), len(noted.steps)
        entered.append((*kept((args, dict(kwargs))), *marks))

    def after(_module: nn.Module, _args: object, result: object) -> None:
        args, kwargs, start, step = entered.pop()
        if path not in found:
            seen, steps = noted.found[start:], noted.steps[step:]
            read = noted.read.setdefault(path, {})
            found[path] = Recorded(args, kwargs, tensors_in(result), seen, steps, read)
            waiting.discard(path)
            if not waiting:  # what follows tells less, so it may take less
                now = time.monotonic()
                noted.deadline = now + (noted.deadline - now) / 4
        if not waiting and not noted.watches:
            raise _EnoughError

    return before, after
