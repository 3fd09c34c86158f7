"""Run a ``torch.fx`` graph transform on a module, and have the module compute what came out."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx, nn

from hpx.errors import HpxError
from hpx.flow.tracing import quiet, short
from hpx.graph.from_factory import named_object
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes

__all__ = ["Transform", "find_transform", "install"]

Transform = Callable[[fx.GraphModule], "fx.GraphModule | None"]
"""Changes a graph module in place, or gives another one."""


def find_transform(name: str) -> Transform:
    """The function that ``package.module:function`` names.

    Raises:
        HpxError: There is no such module or function, or it cannot be called.
    """
    made = named_object(name)
    if not callable(made):
        raise HpxError(f"{name} is a {type(made).__name__}, and cannot be called")
    transform: Transform = made
    return transform


def install(
    module: nn.Module, options: Mapping[str, Any], _meshes: Meshes, journal: Journal
) -> None:
    """Trace a module, transform its graph, and put the code of it in place of its forward.

    Modules inside, their parameters and hooks stay the objects that they are.

    Args:
        module: The module.
        options: ``using`` (``package.module:function``) and ``name`` of the module, for messages.
        journal: Where the change is noted.

    Raises:
        HpxError: The module cannot be traced, the transform fails, or it adds parameters.
    """
    name, using = options["name"], options["using"]
    transform = find_transform(using)
    try:
        with quiet():
            graph = _KeepsHooks().trace(module)
            traced = fx.GraphModule(module, graph, type(module).__name__)
    except Exception as error:  # noqa: BLE001 - a model's code can raise anything
        raise HpxError(
            "it cannot be traced by torch.fx",
            where=name,
            why=short(error),
            fix="name a module inside it whose forward has no branches on data",
        ) from None
    try:
        changed = transform(traced)
        changed = traced if changed is None else changed
        changed.graph.lint()
        changed.recompile()
    except Exception as error:  # noqa: BLE001 - so can a transform
        raise HpxError(f"{using} failed", where=name, why=short(error)) from None
    _add_modules(module, changed, journal, name, using)
    forward = types.MethodType(type(changed).forward, module)
    had = "forward" in vars(module)
    journal.handles.append(_Undo(module, vars(module).get("forward") if had else None))
    journal.set_attribute(module, "forward", forward)


class _KeepsHooks(fx.Tracer):
    """Modules with parameters or hooks are called as they are, so that their hooks run."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = any(p is not None for p in m._parameters.values())
        hooked = bool(m._forward_hooks or m._forward_pre_hooks)
        return own or hooked or super().is_leaf_module(m, module_qualified_name)


def _add_modules(
    module: nn.Module, changed: fx.GraphModule, journal: Journal, name: str, using: str
) -> None:
    """Put modules that the transform added in place; they may hold no tensors."""
    for path in {str(node.target) for node in changed.graph.nodes if node.op == "call_module"}:
        try:
            module.get_submodule(path)
        except AttributeError:
            added = changed.get_submodule(path)
        else:
            continue
        if "." in path or [*added.parameters(), *added.buffers()]:
            raise HpxError(
                f"{using} adds {path}, a {type(added).__name__}",
                where=name,
                why="no pass has decided the layout of what is in it",
                fix="add it to the model before hpx sees it",
            )
        journal.set_module(module, path, added)
        journal.handles.append(_Undo(module, None, path))
    known = {n for n, _ in (*module.named_parameters(), *module.named_buffers())}
    for node in changed.graph.nodes:
        if node.op == "get_attr" and str(node.target) not in known:
            raise HpxError(
                f"{using} adds the tensor {node.target}",
                where=name,
                why="no pass has decided its layout",
                fix="add it to the model before hpx sees it",
            )


class _Undo:
    """Takes the code off again as a hook's handle takes off a hook, for `hpx.restore`."""

    def __init__(self, module: nn.Module, forward: object, child: str | None = None) -> None:
        self.module = module
        self.forward = forward
        self.child = child

    def hooks_dict_ref(self) -> dict[str, Any]:
        """The table that changes."""
        return self.module.__dict__ if self.child is None else self.module._modules

    def remove(self) -> None:
        """Put back what stood there."""
        table = self.hooks_dict_ref()
        table.pop("forward" if self.child is None else self.child, None)
        if self.child is None and self.forward is not None:
            table["forward"] = self.forward
