"""Plain values come out of a stream as Python's own pickle has them."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpx.inert.errors import AbsurdError, DamagedError
from hpx.inert.machine import Machine
from hpx.inert.rebuild import call_of, storage_from
from hpx.inert.values import Bag, Name, Object, Opaque
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
