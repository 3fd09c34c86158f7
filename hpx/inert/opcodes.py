"""The opcodes that state dicts hardly use, one function each; all of protocols 0 to 5."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hpx.inert.effects import add_items, call, make, set_items, set_state, text_of
from hpx.inert.errors import DamagedError
from hpx.inert.values import Bag

if TYPE_CHECKING:
    from hpx.inert.machine import Machine

__all__ = ["RARE"]

_HIGHEST: Final = 5


def _number(machine: Machine, size: int, *, signed: bool = False) -> int:
    return int.from_bytes(_bytes(machine, size), "little", signed=signed)


def _bytes(machine: Machine, size: int) -> bytes:
    start = machine.position
    if size > len(machine.data) - start:
        raise DamagedError("it ends in the middle")
    machine.position = start + size
    return bytes(machine.data[start : start + size])


def _raw_line(machine: Machine) -> bytes:
    end = machine.data.find(b"\n", machine.position)
    if end < 0:
        raise DamagedError("it ends in the middle")
    line = machine.data[machine.position : end]
    machine.position = end + 1
    return line


def _line(machine: Machine) -> str:
    return _raw_line(machine).decode("utf-8", "backslashreplace")


# -- values ------------------------------------------------------------------------------------


def _push(value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _int_line(machine: Machine) -> None:
    line = _line(machine)
    machine.stack.append({"00": False, "01": True}[line] if line in ("00", "01") else int(line))


def _long_line(machine: Machine) -> None:
    machine.stack.append(int(_line(machine).rstrip("L")))


def _float_line(machine: Machine) -> None:
    machine.stack.append(float(_line(machine)))


def _float(machine: Machine) -> None:
    machine.stack.append(struct.unpack(">d", _bytes(machine, 8))[0])


def _long(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(
        _number(machine, _number(machine, width), signed=True)
    )


def _quoted_line(machine: Machine) -> None:
    line = _raw_line(machine)
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise DamagedError("it has text without its quotes")
    machine.stack.append(_decoded(line[1:-1], "unicode_escape"))


def _text_line(machine: Machine) -> None:
    machine.stack.append(_decoded(_raw_line(machine), "raw_unicode_escape"))


def _decoded(raw: bytes, how: str) -> str:
    """Text from its escapes, where a half of a pair of surrogates stays an escape."""
    text = raw.decode(how)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(width: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        stop = _number(machine, width) + machine.position
        machine.stack.append(text_of(machine.data, machine.position, stop))
        machine.position = stop

    return push


def _raw(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(_bytes(machine, _number(machine, width)))


# -- containers --------------------------------------------------------------------------------


def _list(machine: Machine) -> None:
    items = machine.take()
    machine.stack.append(items)


def _dict(machine: Machine) -> None:
    items = machine.take()
    made: dict[object, object] = {}
    set_items(made, items)
    machine.stack.append(made)


def _frozen_set(machine: Machine) -> None:
    items = machine.take()
    machine.stack.append(Bag(items))


def _append(machine: Machine) -> None:
    item = machine.stack.pop()
    add_items(machine.stack[-1], [item])


def _extend(machine: Machine) -> None:
    items = machine.take()
    add_items(machine.stack[-1], items)


def _set_item(machine: Machine) -> None:
    value = machine.stack.pop()
    key = machine.stack.pop()
    set_items(machine.stack[-1], [key, value])


def _set_items(machine: Machine) -> None:
    items = machine.take()
    set_items(machine.stack[-1], items)


# -- the stack and the memo --------------------------------------------------------------------


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.take()


def _pop_mark(machine: Machine) -> None:
    machine.take()


def _duplicate(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _get_line(machine: Machine) -> None:
    machine.stack.append(machine.memo[int(_line(machine))])


def _put_line(machine: Machine) -> None:
    machine.put(int(_line(machine)))


# -- names, instances, calls -------------------------------------------------------------------


def _global(machine: Machine) -> None:
    module = _line(machine)
    machine.stack.append(machine.name(module, _line(machine)))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise DamagedError("it has a name that is no text")
    machine.stack.append(machine.name(module, name))


def _extension(width: int) -> Callable[[Machine], None]:
    # What the number means is registered in the process that loads it.
    return lambda machine: machine.stack.append(
        machine.name("copyreg", f"extension {_number(machine, width)}")
    )


def _inst(machine: Machine) -> None:
    module = _line(machine)
    cls = machine.name(module, _line(machine))
    args = machine.take()
    machine.stack.append(call(cls, tuple(args)))


def _obj(machine: Machine) -> None:
    cls, *args = machine.take()
    machine.stack.append(call(cls, tuple(args)))


def _new_obj(machine: Machine) -> None:
    args = machine.stack.pop()
    machine.stack[-1] = make(machine.stack[-1], args)


def _new_obj_ex(machine: Machine) -> None:
    options, args = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1] = make(machine.stack[-1], (args, options))


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    set_state(machine.stack[-1], state)


def _persistent_line(machine: Machine) -> None:
    machine.stack.append(machine.persistent(_line(machine)))


# -- the stream --------------------------------------------------------------------------------


def _protocol(machine: Machine) -> None:
    if (protocol := _number(machine, 1)) > _HIGHEST:
        raise DamagedError(f"it is of protocol {protocol}, and {_HIGHEST} is the highest")


def _frame(machine: Machine) -> None:
    _bytes(machine, 8)  # says how much may be read at once, which changes nothing


def _out_of_band(machine: Machine) -> None:
    raise DamagedError(f"byte {machine.position}: it refers to a buffer outside of it")


RARE: Final[dict[int, Callable[[Machine], None]]] = {
    0x80: _protocol,
    0x95: _frame,
    0x4E: _push(None),
    0x88: _push(True),
    0x5D: lambda machine: machine.stack.append([]),
    0x8F: lambda machine: machine.stack.append(Bag([])),
    0x49: _int_line,
    0x4C: _long_line,
    0x8A: _long(1),
    0x8B: _long(4),
    0x46: _float_line,
    0x47: _float,
    0x53: _quoted_line,
    0x54: _text(4),
    0x55: _text(1),
    0x56: _text_line,
    0x8D: _text(8),
    0x42: _raw(4),
    0x43: _raw(1),
    0x8E: _raw(8),
    0x96: _raw(8),
    0x6C: _list,
    0x64: _dict,
    0x91: _frozen_set,
    0x61: _append,
    0x65: _extend,
    0x90: _extend,
    0x73: _set_item,
    0x75: _set_items,
    0x30: _pop,
    0x31: _pop_mark,
    0x32: _duplicate,
    0x67: _get_line,
    0x70: _put_line,
    0x63: _global,
    0x93: _stack_global,
    0x82: _extension(1),
    0x83: _extension(2),
    0x84: _extension(4),
    0x69: _inst,
    0x6F: _obj,
    0x81: _new_obj,
    0x92: _new_obj_ex,
    0x62: _build,
    0x50: _persistent_line,
    0x97: _out_of_band,
    0x98: _out_of_band,
}
"""What an opcode does, by its byte; codes are those of the standard library's ``pickletools``."""
