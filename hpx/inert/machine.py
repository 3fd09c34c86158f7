"""Read a pickle stream without running it: every opcode makes inert values, and calls nothing.

1. Nothing is imported: a name stays a `Name`, an instance an `Object`, a call an `Object` or, for
   what torch writes, the `Tensor` it stands for.
2. Each opcode takes time and memory in proportion to its own bytes and the values that it takes
   off the stack, so the whole stream does.
3. Nothing from the stream is hashed, compared or printed but text and small numbers: deep and
   exponential structures cost nothing until somebody walks them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import Final

from hpx.inert.effects import call, text_of
from hpx.inert.errors import AbsurdError, DamagedError
from hpx.inert.opcodes import RARE
from hpx.inert.pause import no_collection
from hpx.inert.shortcut import Shortcut
from hpx.inert.values import Name

__all__ = ["Machine"]

_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_I32: Final = struct.Struct("<i").unpack_from

_DEEPEST: Final = 100_000
"""Open marks. A pickler needs a few for each level, and Python ends at some 1,000 levels."""
_RENAMED: Final = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_BROKEN: Final = (
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    struct.error,
)


class Machine:
    """The state of one reading.

    Args:
        data: All bytes.
        start: Where the stream begins.
        call_of: What stands for a call of a name; None where nothing harmless is known.
        persistent: What a persistent id stands for.
    """

    def __init__(
        self,
        data: bytes | mmap,
        start: int,
        call_of: Callable[[str], Callable[[tuple[object, ...]], object] | None],
        persistent: Callable[[object], object],
    ) -> None:
        self.data: Final = data
        self.position = start
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.names: dict[str, Name] = {}
        self.persistent: Final = persistent
        self._call_of: Final = call_of

    def run(self) -> object:
        """The value of the stream; `position` is then behind its end.

        Raises:
            DamagedError: It is cut off, or no pickler writes such a stream.
            AbsurdError: Its numbers are made to exhaust memory.
        """
        try:
            with no_collection():
                return self._run_once_or_twice()
        except _BROKEN as error:
            if isinstance(error, IndexError) and self.position >= len(self.data):
                raise DamagedError("it ends in the middle") from None
            raise DamagedError(f"byte {self.position}: it does not go on as pickles do") from None

    def _run_once_or_twice(self) -> object:
        start = self.position
        shortcut = Shortcut(self.data, self.memo, self.persistent)
        try:
            return self._run(shortcut)
        except _BROKEN:
            if not shortcut.used:
                raise
        # It may refer to a value that the shortcut did not keep.
        self.position, self.stack, self.marks, self.memo = start, [], [], {}
        return self._run(None)

    def name(self, module: str, name: str) -> Name:
        """The one value for a name."""
        text = f"{_RENAMED.get(module, module)}.{name}"
        found = self.names.get(text)
        if found is None:
            found = self.names[text] = Name(text, self._call_of(text))
        return found

    def take(self) -> list[object]:
        """The values since the last mark, which is forgotten."""
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def put(self, number: int) -> None:
        """Remember the top of the stack under a number.

        Raises:
            AbsurdError: The number is larger than any pickle of this size needs.
        """
        if not 0 <= number <= len(self.data):
            raise AbsurdError(f"it numbers a value {number}, with {len(self.data)} bytes in all")
        self.memo[number] = self.stack[-1]

    def _run(self, shortcut: Shortcut | None) -> object:
        # One loop over the opcodes that state dicts are made of; every other one is a function of
        # its own. 100,000 tensors are three million opcodes, and a call for each would double it.
        data, position = self.data, self.position
        stack, memo, limit = self.stack, self.memo, len(self.data)
        persistent = self.persistent
        try:
            while True:
                code = data[position]
                position += 1
                if code == 0x72:  # LONG_BINPUT
                    number = _U32(data, position)[0]
                    if number > limit:
                        self.put(number)
                    memo[number] = stack[-1]
                    position += 4
                elif code == 0x4B:  # BININT1
                    stack.append(data[position])
                    position += 1
                elif code == 0x68:  # BINGET
                    stack.append(memo[data[position]])
                    position += 1
                elif code == 0x94:  # MEMOIZE
                    if shortcut and shortcut.used:
                        raise KeyError(len(memo))
                    memo[len(memo)] = stack[-1]
                elif code == 0x28:  # MARK
                    if shortcut and data[position] == 0x28 and stack:  # a tensor's arguments
                        found = shortcut.tensor(stack[-1], position)
                        if found is not None:
                            stack[-1], position = found
                            continue
                    self.marks.append(stack)
                    stack = []
                    if len(self.marks) > _DEEPEST:
                        raise AbsurdError(f"it nests values more than {_DEEPEST:,} deep")
                elif code == 0x58:  # BINUNICODE
                    start = position + 4
                    position = start + _U32(data, position)[0]
                    stack.append(text_of(data, start, position))
                elif code == 0x74:  # TUPLE
                    items = tuple(stack)
                    stack = self.marks.pop()
                    stack.append(items)
                elif code == 0x52:  # REDUCE
                    args = stack.pop()
                    function = stack[-1]
                    if type(function) is Name and type(args) is tuple:
                        stack[-1] = function.call(args)
                    else:
                        stack[-1] = call(function, args)
                elif code == 0x86:  # TUPLE2
                    second = stack.pop()
                    stack[-1] = (stack[-1], second)
                elif code == 0x8C:  # SHORT_BINUNICODE
                    start = position + 1
                    position = start + data[position]
                    stack.append(text_of(data, start, position))
                elif code == 0x51:  # BINPERSID
                    stack[-1] = persistent(stack[-1])
                elif code == 0x89:  # NEWFALSE
                    stack.append(False)
                elif code == 0x29:  # EMPTY_TUPLE
                    stack.append(())
                elif code == 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                elif code == 0x71:  # BINPUT
                    memo[data[position]] = stack[-1]
                    position += 1
                elif code == 0x4D:  # BININT2
                    stack.append(_U16(data, position)[0])
                    position += 2
                elif code == 0x4A:  # BININT
                    stack.append(_I32(data, position)[0])
                    position += 4
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(memo[_U32(data, position)[0]])
                    position += 4
                elif code == 0x87:  # TUPLE3
                    third = stack.pop()
                    second = stack.pop()
                    stack[-1] = (stack[-1], second, third)
                elif code == 0x7D:  # EMPTY_DICT
                    stack.append({})
                elif code == 0x2E:  # STOP
                    self.position = position
                    return stack.pop()
                else:
                    self.stack, self.position = stack, position
                    RARE[code](self)
                    stack, position = self.stack, self.position
        finally:
            self.stack, self.position = stack, position
