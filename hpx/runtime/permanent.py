"""``localize{mode=permanent}``: plain local parameters for good, and the guards that go with it.

What is left on a rank looks like a whole parameter of a smaller model, so whatever would save or
shard it as one is refused: the state dict, stock ``fully_shard`` (seen at the first forward), and
`hpx.fully_shard`. `hpx.state_dict` and `hpx.restore` know the record and rebuild the whole.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.run import Run
from hpx.runtime.gather import module_at
from hpx.runtime.journal import Journal

__all__ = ["guard"]


def guard(model: nn.Module, run: Run, journal: Journal) -> None:
    """Guard a model whose parameters are local for good."""
    guarded = [
        (run.graph.registered_path(parent), name)
        for node in run.graph.parameters()
        if node.props.get("localized") == "permanent"
        for parent, name in ((node.parent, node.name), *node.more)
    ]
    journal.add_hook(model.register_state_dict_pre_hook, _refuse_state_dict)
    journal.add_hook(model.register_forward_pre_hook, _StillPlain(guarded), prepend=True)


def _refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> NoReturn:
    del prefix, keep_vars
    raise HpxError(
        f"the parameters of this {type(module).__name__} are local pieces for good",
        why="a state dict would save one rank's pieces under the names of whole parameters",
        fix="use hpx.state_dict(model), which gathers the whole ones",
    )


class _StillPlain:
    """A forward pre-hook of the root: nobody took a local piece for the whole and sharded it.

    FSDP may have put plain parameters back by now, so its modules are looked for as well.
    """

    def __init__(self, guarded: list[tuple[str, str]]) -> None:
        self.guarded = guarded

    def __call__(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        del args
        if torch.compiler.is_compiling():
            return
        for path, module in model.named_modules():
            if isinstance(module, FSDPModule):
                start = f"{path}." if path else ""
                inside = [f"{p}.{n}" for p, n in self.guarded if f"{p}.".startswith(start)]
                if inside:
                    raise _sharded(inside[0])
        for path, name in self.guarded:
            if isinstance(module_at(model, path)._parameters.get(name), DTensor):
                raise _sharded(f"{path}.{name}")


def _sharded(where: str) -> HpxError:
    return HpxError(
        "a local piece was sharded as if it were the whole parameter",
        where=where.removeprefix("."),
        why="fully_shard saw a plain parameter, as localize{mode=permanent} left it",
        fix="use localize{mode=forward}, and hpx.fully_shard",
    )
