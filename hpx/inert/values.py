"""What a pickle holds when nothing of it is run: names, objects, storages, tensors.

Each value refers to its parts and copies none, so that a stream of n bytes never makes more than
some n values. None of them compares or hashes by its contents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hpx.inert.dtypes import STORAGES

__all__ = ["Bag", "Name", "Object", "Opaque", "Storage", "Tensor"]


class Name:
    """A name that the stream refers to, such as ``torch.float32``; never what it stands for.

    Attributes:
        text: Module and qualified name.
        call: What stands for a call of it; makes a value, and calls nothing.
        called: The stream calls it, and nothing harmless is known to be meant by that.
        made: It is the class of an object.
        patched: The stream sets attributes on it.
        elements: If it is a class of storages: the dtype of their elements.
    """

    __slots__ = ("call", "called", "elements", "made", "patched", "text")

    def __init__(self, text: str, call: Callable[[tuple[object, ...]], object] | None) -> None:
        self.text: Final = text
        self.call: Callable[[tuple[object, ...]], object] = call or self._unknown
        self.elements: Final = (
            STORAGES.get(text.rpartition(".")[2]) if text.startswith("torch.") else None
        )
        self.called = False
        self.made = False
        self.patched = False

    def _unknown(self, args: tuple[object, ...]) -> Object:
        self.called = True
        return Object(self, args)


class Object:
    """An instance, or the result of a call that was not made.

    Attributes:
        cls: The class or function; nearly always a `Name`.
        args: What it was given.
        state: What its attributes are to be set from.
        items: What is to be put into it: values of a list, or pairs of a mapping.
        mapping: Those pairs as a dictionary, once somebody asked for it.
    """

    __slots__ = ("args", "cls", "items", "mapping", "state")

    def __init__(self, cls: object, args: object, state: object = None) -> None:
        self.cls = cls
        self.args = args
        self.state = state
        self.items: list[object] = []
        self.mapping: dict[object, object] | None = None

    @property
    def text(self) -> str:
        """The qualified name of its class."""
        return self.cls.text if isinstance(self.cls, Name) else "something computed"

    @property
    def states(self) -> list[dict[object, object]]:
        """The dictionaries that its attributes are set from: those with slots stand in a second."""
        state = self.state
        parts = state if type(state) is tuple and len(state) == 2 else (state,)
        return [part for part in parts if type(part) is dict]

    def field(self, name: str) -> object:
        """An attribute; None where it has none of that name."""
        for state in self.states:
            if name in state:
                return state[name]
        return None


class Bag:
    """A set, as the list of what was put into it."""

    __slots__ = ("items",)

    def __init__(self, items: list[object]) -> None:
        self.items = items


class Opaque:
    """A dictionary key other than text or a small number: nothing of it is hashed."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<a {type(self.value).__name__}>"


class Storage(NamedTuple):
    """A piece of memory that the file describes."""

    key: str
    """Its name in the file."""
    dtype: str
    """What its elements are; ``uint8`` where the file does not say."""
    elements: int
    """How many elements."""
    device: str
    """Where it was, such as ``cuda``."""
    bytes: int
    """Its size."""
    start: int = 0
    """First element, of a view on a larger storage."""


class Tensor:
    """A tensor without its values.

    Attributes:
        storage: The memory it is a view of; None for one that has none of its own.
        offset: First element.
        shape: In elements.
        strides: In elements; None for a sparse tensor.
        requires_grad: As saved.
        dtype: Such as ``bfloat16``.
        cls: Qualified class; empty for a plain tensor, ``Parameter`` for a plain parameter.
        extra: State of a subclass or of attributes that were set on it.
    """

    __slots__ = (
        "cls",
        "dtype",
        "extra",
        "offset",
        "requires_grad",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self,
        storage: Storage | None,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        requires_grad: bool,
        dtype: str,
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.requires_grad = requires_grad
        self.dtype = dtype
        self.cls = ""
        self.extra: object = None

    def copy(self) -> Tensor:
        """The same tensor as an object of its own."""
        twin = Tensor(
            self.storage, self.offset, self.shape, self.strides, self.requires_grad, self.dtype
        )
        twin.cls, twin.extra = self.cls, self.extra
        return twin

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, of a subclass or not."""
        return self.cls == "Parameter" or self.attribute("_is_param") is True

    @property
    def states(self) -> list[dict[object, object]]:
        """The dictionaries that its attributes are set from, those of a subclass first."""
        found: list[dict[object, object]] = []
        for part in self.extra if type(self.extra) is tuple else (self.extra,):
            inner = part if type(part) is tuple and len(part) == 2 else (part,)
            found.extend(state for state in inner if type(state) is dict)
        return found

    def attribute(self, name: str) -> object:
        """An attribute; None where it has none of that name."""
        return next((state[name] for state in self.states if name in state), None)

    def public_attributes(self) -> tuple[str, ...]:
        """Names of the attributes that somebody set on it."""
        if self.extra is None:
            return ()
        names = {name for state in self.states for name in state if type(name) is str}
        return tuple(sorted(name for name in names if not name.startswith("_")))
