"""Plain values come out of a stream as Python's own pickle has them."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpx.inert.errors import AbsurdError, DamagedError
from hpx.inert.machine import Machine
from hpx.inert.rebuild import call_of, storage_from
from hpx.inert.shortcut import Shortcut
from hpx.inert.values import Bag, Name, Object, Opaque, Tensor
from hpx.inert.weigh import check_weight

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Own:
    """An instance with attributes."""


def read(stream: bytes) -> object:
    machine = Machine(stream, 0, call_of, storage_from)
    value = machine.run()
    assert machine.position == len(stream)
    return value


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
keys = st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-(2**40), 2**40)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner, inner, inner) | st.dictionaries(keys, inner)
    ),
    max_leaves=20,
)


@given(value=values, protocol=st.sampled_from(range(3, 6)))
def test_plain_values_are_as_pickled(value: object, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_is_read(protocol: int) -> None:
    value = {"a": [1, -1, 2**70, True, None, 1.5, "text \u00e9\n", ("x",)], "b": {7: ()}}
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_mapping_that_keeps_its_order_is_a_mapping(protocol: int) -> None:
    assert read(pickle.dumps(OrderedDict(b=1, a=2), protocol)) == {"b": 1, "a": 2}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_instance_has_its_class_and_attributes(protocol: int) -> None:
    own = Own()
    own.__dict__.update(a=1, b=[own])
    found = read(pickle.dumps(own, protocol))
    assert isinstance(found, Object)
    assert found.text == f"{Own.__module__}.Own"
    assert found.field("a") == 1
    assert found.field("b") == [found]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_set_is_a_bag(protocol: int) -> None:
    for value in ({1, 2}, frozenset("ab")):
        found = read(pickle.dumps(value, protocol))
        assert isinstance(found, Bag)
        assert set(found.items) == value


def test_a_value_inside_itself_is_read() -> None:
    inside: list[object] = []
    inside.append(inside)
    found = read(pickle.dumps(inside))
    assert isinstance(found, list)
    assert found[0] is found


def test_a_key_that_is_no_text_is_not_hashed() -> None:
    found = read(pickle.dumps({(1, 2): "x", 1.5: "y", 2**60: "z"}))
    assert isinstance(found, dict)
    assert all(type(key) is Opaque for key in found)


def test_a_name_is_only_a_name() -> None:
    found = read(pickle.dumps(len))
    assert isinstance(found, Name)
    assert found.text == "builtins.len"


def test_text_that_is_no_utf8_shows_as_escapes() -> None:
    assert read(b"\x80\x02X\x02\x00\x00\x00\xffa.") == "\\xffa"


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\x80\x02",
        b"\x80\x63N.",
        b"0.",
        b"t.",
        b"h\x07.",
        b"]R.",
        b"\xff.",
        b"X\xff\xff\xff\x7fa.",
        b"\x8a\xffa.",
        b"I12",
        b"Iabc\n.",
        b"I" + b"9" * 5000 + b"\n.",
        b"cposix\nsystem",
        b"NN\x93.",
        b"}(K\x01u.",
        b"]K\x01a]K\x01e.",
        b"\x97.",
        b"(}K\x01K\x02s",
    ],
)
def test_a_stream_that_no_pickler_writes_is_damaged(stream: bytes) -> None:
    with pytest.raises(DamagedError):
        read(stream)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(stream: bytes) -> None:
    try:
        check_weight(Machine(stream, 0, call_of, storage_from).run())
    except (DamagedError, AbsurdError):
        pass
    else:
        assert b"." in stream


def test_a_number_in_the_memo_that_is_larger_than_the_stream_is_absurd() -> None:
    with pytest.raises(AbsurdError, match="numbers a value"):
        read(b"\x80\x02]r\xff\xff\xff\xff.")


def test_marks_without_end_are_absurd() -> None:
    with pytest.raises(AbsurdError, match="deep"):
        read(b"(" * 200_000 + b".")


def test_deep_values_need_no_recursion() -> None:
    depth = 50_000
    value = read(b"]" * (depth + 1) + b"a" * depth + b".")
    check_weight(value)
    for _ in range(depth):
        assert isinstance(value, list)
        value = value[0]
    assert value == []


@pytest.mark.parametrize("level", [b"2\x86", b"q\x00(h\x00h\x00h\x00t"], ids=["twice", "thrice"])
def test_a_memo_bomb_is_absurd(level: bytes) -> None:
    # Each level holds the one below several times: 2 ** 200 values in 400 bytes.
    with pytest.raises(AbsurdError, match="memo bomb"):
        check_weight(read(b"\x80\x02N\x85" + level * 200 + b"."))


def test_a_memo_bomb_of_lists_is_absurd() -> None:
    value: list[object] = []
    for _ in range(100):
        value = [value, value]
    with pytest.raises(AbsurdError, match="memo bomb"):
        check_weight(read(pickle.dumps(value)))


def test_a_list_that_is_given_again_and_again_is_gone_through_once() -> None:
    size = 3000
    items = b"](" + b"X\x01\x00\x00\x00aK\x01\x86" * size + b"eq\x00"
    calls = b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00\x85R0" * size
    assert read(b"\x80\x02" + items + calls + b"0.") == []


def test_a_call_of_what_is_no_name_is_a_description() -> None:
    assert isinstance(read(b"N)R."), Object)


# -- the shortcut for tensors --------------------------------------------------------------------


def saved(content: object) -> bytes:
    """The pickle in a file of torch.save."""
    with io.BytesIO() as file:
        torch.save(content, file)
        with zipfile.ZipFile(file) as archive:
            return archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))


def described(value: object) -> object:
    """A value without its identities, to compare two."""
    if isinstance(value, dict):
        return {key: described(inner) for key, inner in value.items()}
    if isinstance(value, Tensor):
        fields = [getattr(value, name) for name in Tensor.__slots__]
        return [repr(type(value)), *map(described, fields)]
    return [described(inner) for inner in value] if isinstance(value, list | tuple) else value


def many(**more: object) -> dict[str, object]:
    """So many tensors that the memo's numbers are long, of every kind that the shortcut takes."""
    content: dict[str, object] = {f"t{n}": torch.zeros(n % 3 + 1, 2) for n in range(60)}
    content["long"] = torch.zeros(70_000)
    content["middle"] = torch.zeros(300, 2, 5).permute(2, 0, 1)[1:]
    content["scalar"] = torch.zeros(())
    content["four"] = torch.zeros(1, 2, 3, 4)
    content["half"] = torch.zeros(2, dtype=torch.float16)
    content["trained"] = torch.zeros(2, requires_grad=True)
    content["parameter"] = torch.nn.Parameter(torch.zeros(2))
    content["again"] = content["t50"]
    return content | more


def test_the_shortcut_reads_what_the_opcodes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = saved(many())
    short = read(stream)
    monkeypatch.setattr(Shortcut, "tensor", lambda *_: None)
    assert described(short) == described(read(stream))
    assert isinstance(short, dict)
    assert short["again"] is short["t50"]


def test_the_shortcut_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    real = Shortcut.tensor

    def tensor(*args: Any) -> object:
        found = real(*args)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(Shortcut, "tensor", tensor)
    read(saved(many()))
    assert sum(taken) > 30


@pytest.mark.parametrize("seek", [b"q\x05", b"\x94"], ids=["a number", "the next number"])
def test_a_stream_that_refers_to_what_the_shortcut_left_out_is_read_again(seek: bytes) -> None:
    stream = saved(many())
    # The shape of the tensor under "t50", by the number that the stream gives it.
    inner = stream[stream.index(b"t50") :]
    number = inner[inner.index(b"\x86r") + 2 :][:4]
    found = read(stream[:-1] + seek + b"j" + number + b"\x86.")
    assert isinstance(found, tuple)
    assert found[1] == (3, 2)
