"""Headers of ``.safetensors`` files: those that are written, and those that lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hpx.errors import HpxError, InputError, TooLargeError
from hpx.inert.safetensors_header import read_header

ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def write(file: Path, header: object, size: int = 4) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))


def test_names_shapes_and_dtypes_are_those_that_safetensors_reads(file: Path) -> None:
    content = {"z": torch.zeros(2, 3), "a": torch.zeros((), dtype=torch.int64)}
    content["empty"] = torch.zeros(0, dtype=torch.bfloat16)
    save_file(content, file, {"made": "here"})
    header = read_header(file, "m")
    assert header.metadata == {"made": "here"}
    with safe_open(file, "numpy") as real:
        assert [tensor.name for tensor in header.tensors] == list(real.keys())
        for name, shape, dtype in header.tensors:
            assert list(shape) == real.get_slice(name).get_shape()
            assert dtype == str(content[name].dtype).removeprefix("torch.")


def test_numbers_of_four_bits_have_the_shape_that_torch_gives_them(file: Path) -> None:
    pairs = torch.zeros(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file({"a": pairs}, file)
    assert b"[3,8]" in file.read_bytes()
    (tensor,) = read_header(file, "m").tensors
    assert tensor.shape == tuple(pairs.shape) == (3, 4)
    assert tensor.dtype == "float4_e2m1fn_x2"


LIES = {
    "half a byte": (
        {"a": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}},
        3,
        r"'a' \[2, 3\] ends in half a byte",
    ),
    "shape": ({"a": ONE | {"shape": [2]}}, 4, "needs 8 bytes, and its place has 4"),
    "huge shape": ({"a": ONE | {"shape": [2**62, 2**62]}}, 4, "needs"),
    "negative": ({"a": ONE | {"shape": [-1]}}, 4, "no shape or place"),
    "truth": ({"a": ONE | {"shape": [True]}}, 4, "no shape or place"),
    "overlap": ({"a": ONE, "b": ONE}, 4, "'b' at byte 0 lies over another tensor"),
    "gap": ({"a": ONE | {"data_offsets": [4, 8]}}, 8, "leaves a gap"),
    "out of the file": ({"a": ONE}, 2, "end at byte 4 behind the header, the file at 2"),
    "more than it says": ({"a": ONE}, 9, "end at byte 4 behind the header, the file at 9"),
    "backwards": ({"a": ONE | {"data_offsets": [4, 0]}}, 4, "needs 4 bytes"),
    "dtype": ({"a": ONE | {"dtype": "X9"}}, 4, "'X9', which the format lacks"),
    "no mapping": ({"a": 3}, 4, "is described by no mapping"),
    "metadata": ({"__metadata__": {"a": 3}, "a": ONE}, 4, "metadata"),
    "twice": (b'{"a": {}, "a": {}}', 0, "it has 'a' twice"),
    "deep": (b"[" * 100_000, 0, "invalid header"),
    "no text": (b"\xff\xfe", 0, "invalid header"),
    "a list": (b"[]", 0, "no JSON object"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_refused(file: Path, lie: str) -> None:
    header, size, message = LIES[lie]
    write(file, header, size)
    with pytest.raises(InputError, match=message) as caught:
        read_header(file, "m")
    assert "\n" not in str(caught.value)


def test_a_header_beyond_the_limit_is_too_large(file: Path) -> None:
    with file.open("wb") as stream:
        stream.write((200_000_000).to_bytes(8, "little"))
        stream.truncate(300_000_000)
    with pytest.raises(TooLargeError, match="the format allows 100,000,000"):
        read_header(file, "m")


def test_a_file_cut_off_anywhere_is_refused(file: Path) -> None:
    save_file({"a": torch.zeros(2), "b": torch.zeros(3)}, file)
    content = file.read_bytes()
    for size in range(len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(InputError):
            read_header(file, "m")


def test_a_byte_that_is_changed_is_refused_wherever_safetensors_refuses_it(file: Path) -> None:
    save_file({"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.int8)}, file)
    content = file.read_bytes()
    for place in range(len(content) - 11):
        changed = bytearray(content)
        changed[place] ^= 0x11
        file.write_bytes(changed)
        try:
            with safe_open(file, "numpy"):
                continue
        except SafetensorError:
            with pytest.raises(HpxError):
                read_header(file, "m")
