"""``localize{mode=permanent}``: plain local parameters for good, and the guards that go with it.

What is left on a rank looks like a whole parameter of a smaller model, so whatever would save or
shard it as one is refused: the state dict, stock ``fully_shard`` (seen at the first forward), and
`hpx.fully_shard`. `hpx.state_dict` and `hpx.restore` know the record and rebuild the whole.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.run import Run
from hpx.runtime.journal import Journal

__all__ = ["guard"]


def guard(model: nn.Module, run: Run, journal: Journal) -> None:
    """Guard a model whose parameters are local for good."""
    guarded: dict[int, list[str]] = {}
    for node in run.graph.parameters():
        if node.props.get("localized") == "permanent":
            for parent, name in ((node.parent, node.name), *node.more):
                guarded.setdefault(parent, []).append(name)
    journal.add_hook(model.register_state_dict_pre_hook, _refuse_state_dict)
    for parent, names in guarded.items():
        path = run.graph.registered_path(parent)
        still = _StillPlain(path, tuple(names))
        journal.add_hook(model.get_submodule(path).register_forward_pre_hook, still)


def _refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> NoReturn:
    del prefix, keep_vars
    raise HpxError(
        f"the parameters of this {type(module).__name__} are local pieces for good",
        why="a state dict would save one rank's pieces under the names of whole parameters",
        fix="use hpx.state_dict(model), which gathers the whole ones",
    )


class _StillPlain:
    """A forward pre-hook: nobody took a local piece for a whole parameter and sharded it."""

    def __init__(self, path: str, names: tuple[str, ...]) -> None:
        self.path = path
        self.names = names

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        del args
        for name in self.names:
            if isinstance(module._parameters.get(name), DTensor):
                raise HpxError(
                    "a local piece was sharded as if it were the whole parameter",
                    where=f"{self.path}.{name}" if self.path else name,
                    why="fully_shard saw a plain parameter, as localize{mode=permanent} left it",
                    fix="use localize{mode=forward}, and hpx.fully_shard",
                )
