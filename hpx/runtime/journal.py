"""Every change to a model goes through a journal, which can take all of it back.

A whole snapshot of 60,000 modules costs more than the work it protects, so an object is noted when
it is touched first, before it changes: its table of parameters (or modules, hooks, attributes) is
copied once, order included. Rolling back puts the copies back, newest first, into the same table
objects, so that whoever holds a table sees the old content.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from torch import nn

__all__ = ["Fault", "Handle", "Journal"]

Fault: TypeAlias = Callable[[str], None]
"""Called before each change with what it is; raises to let the change fail (for tests)."""


class Handle(Protocol):
    """Takes a hook off again."""

    def remove(self) -> None: ...


class Journal:
    """The changes of one transaction.

    Args:
        fault: Called before each change.

    Attributes:
        changes: How many changes were made.
        handles: What takes the hooks off that were added.
    """

    def __init__(self, fault: Fault | None = None) -> None:
        self._fault = fault
        self._noted: dict[int, tuple[MutableMapping[Any, Any], list[tuple[Any, Any]]]] = {}
        self._undo: list[Callable[[], None]] = []
        self.changes = 0
        self.handles: list[Handle] = []

    # -- changes -----------------------------------------------------------------------------

    def set_parameter(self, module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        """Put a parameter under a name of a module, in the place that the name has."""
        self._set(module._parameters, name, value, f"set_parameter {name}")

    def remove_parameter(self, module: nn.Module, name: str) -> None:
        """Take a parameter's name from a module."""
        self._delete(module._parameters, name, f"remove_parameter {name}")

    def set_module(self, parent: nn.Module, name: str, value: nn.Module) -> None:
        """Put a module under a name of another one."""
        self._set(parent._modules, name, value, f"set_module {name}")

    def set_attribute(self, owner: nn.Module, name: str, value: object) -> None:
        """Set a plain attribute of a module, past ``nn.Module.__setattr__``."""
        self._set(owner.__dict__, name, value, f"set_attribute {name}")

    def remove_attribute(self, owner: nn.Module, name: str) -> None:
        """Remove a plain attribute of a module."""
        self._delete(owner.__dict__, name, f"remove_attribute {name}")

    def add_hook(self, register: Callable[..., Any], hook: Callable[..., Any], **how: Any) -> None:
        """Register a hook: ``add_hook(module.register_forward_hook, f, always_call=True)``."""
        self._step(f"add_hook {register.__name__}")
        made: list[Handle] = []
        # Before the hook is there, as an interrupt may come before its handle is.
        self._undo.append(lambda: made[0].remove() if made else _take_off(register, hook))
        made.append(register(hook, **how))
        self.handles += made

    def remove_hook(self, handle: Handle) -> None:
        """Take a hook off; rolling back puts it back at its place among the others."""
        self._step("remove_hook")
        references = [
            getattr(handle, "hooks_dict_ref", None),
            *getattr(handle, "extra_dict_ref", ()),
        ]
        for reference in references:
            table = None if reference is None else reference()
            if table is not None:
                self._note(table)
        handle.remove()

    def call(self, what: str, change: Callable[[], None], undo: Callable[[], None]) -> None:
        """Any other change, with its own way back."""
        self._step(what)
        self._undo.append(undo)
        change()

    # -- the way back ------------------------------------------------------------------------

    def rollback(self) -> None:
        """Take every change back, newest first."""
        while self._undo:
            self._undo.pop()()
        self._noted.clear()

    def commit(self) -> None:
        """Keep every change; nothing can be taken back any more."""
        self._undo.clear()
        self._noted.clear()

    # -- behind them -------------------------------------------------------------------------

    def _step(self, what: str) -> None:
        self.changes += 1
        if self._fault is not None:
            self._fault(what)

    def _set(self, table: MutableMapping[Any, Any], key: str, value: object, what: str) -> None:
        self._step(what)
        self._note(table)
        table[key] = value

    def _delete(self, table: MutableMapping[Any, Any], key: str, what: str) -> None:
        self._step(what)
        self._note(table)
        del table[key]

    def _note(self, table: MutableMapping[Any, Any]) -> None:
        if id(table) in self._noted:
            return
        content = list(table.items())
        self._noted[id(table)] = (table, content)  # holds the table, so its id stays its own
        self._undo.append(lambda: _put_back(table, content))


def _take_off(register: Callable[..., Any], hook: Callable[..., Any]) -> None:
    """Take a hook off a module by itself, without its handle."""
    held = vars(register.__self__).items()  # type: ignore[attr-defined]
    tables = [table for name, table in held if "_hooks" in name and isinstance(table, dict)]
    keys = {
        key
        for table in tables
        for key, found in table.items()
        if found is hook or getattr(found, "hook", None) is hook
    }
    for table in tables:
        for key in keys & table.keys():
            del table[key]


def _put_back(table: MutableMapping[Any, Any], content: list[tuple[Any, Any]]) -> None:
    table.clear()
    table.update(content)
