"""Zip archives that are made to do harm, and those that are cut off."""

from __future__ import annotations

import struct
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from hpx.errors import HpxError, InputError, UnsafeInputError
from hpx.inert import open_inert


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.zeros(4), "b": torch.zeros(2, 3)}, "m.pt")
    return Path("m.pt")


def rewrite(file: Path, more: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """The same archive with more entries, or others of the same name."""
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in (entries | more).items():
            archive.writestr(name, content)


@pytest.mark.parametrize("name", ["../../evil", "m/../../evil", "/etc/evil", "m\\..\\evil", "C:/x"])
def test_an_entry_that_leaves_the_archive_is_refused(file: Path, name: str) -> None:
    rewrite(file, {name: b""})
    with pytest.raises(UnsafeInputError, match="leaves the archive"):
        open_inert(file)


def test_dots_inside_a_name_are_no_way_out(file: Path) -> None:
    rewrite(file, {"m/a..b": b""})
    assert len(list(open_inert(file).parameters())) == 2


def test_an_entry_that_is_there_twice_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("m/data.pkl", b"")
    with pytest.raises(UnsafeInputError, match=r"has the entry 'm/data\.pkl' twice"):
        open_inert(file)


def test_a_zip_bomb_is_refused(file: Path) -> None:
    rewrite(file, {"m/more": bytes(10_000_000)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(UnsafeInputError, match="a zip bomb"):
        open_inert(file)


def test_a_compressed_archive_is_read(file: Path) -> None:
    rewrite(file, {}, zipfile.ZIP_DEFLATED)
    assert len(list(open_inert(file).parameters())) == 2


def test_entries_over_each_other_are_refused(file: Path) -> None:
    content = bytearray(file.read_bytes())
    first = content.find(b"PK\1\2")
    second = content.find(b"PK\1\2", first + 1)
    content[second + 42 : second + 46] = content[first + 42 : first + 46]
    file.write_bytes(content)
    with pytest.raises(UnsafeInputError, match="lies over the entry before it"):
        open_inert(file)


def test_a_stored_entry_of_two_sizes_is_refused(file: Path) -> None:
    content = bytearray(file.read_bytes())
    at = content.find(b"PK\1\2")
    content[at + 24 : at + 28] = struct.pack("<I", 10)
    file.write_bytes(content)
    with pytest.raises(UnsafeInputError, match="unpack to 10"):
        open_inert(file)


def test_a_storage_of_another_size_than_the_pickle_says_is_refused(file: Path) -> None:
    rewrite(file, {"m/data/0": b"1234"})
    with pytest.raises(InputError, match="storage '0' is said to have 16 bytes, and has 4"):
        open_inert(file)


def test_a_storage_that_is_missing_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    del entries["m/data/1"]
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match="storage '1' is not in it"):
        open_inert(file)


def test_a_large_file_with_wide_numbers_is_read(file: Path) -> None:
    content = file.read_bytes()
    # torch writes the numbers of 64 bits into every file, whether it needs them or not.
    assert b"PK\6\6" in content
    assert len(list(open_inert(file).parameters())) == 2


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old format"])
def test_a_file_cut_off_anywhere_is_one_clear_error(file: Path, old: bool) -> None:
    torch.save(
        {"model": {"a": torch.zeros(4), "b": torch.nn.Parameter(torch.zeros(2, 3))}},
        file,
        _use_new_zipfile_serialization=not old,
    )
    content = file.read_bytes()
    for size in range(1, len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(InputError) as caught:
            open_inert(file)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old format"])
def test_a_file_with_any_byte_changed_is_read_or_one_error(file: Path, old: bool) -> None:
    torch.save(
        {"a": torch.zeros(1), "n": 3, "b": torch.zeros(2, dtype=torch.uint16)},
        file,
        _use_new_zipfile_serialization=not old,
    )
    content = file.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x55
        file.write_bytes(changed)
        with suppress(HpxError):
            assert {node.spec.dtype for node in open_inert(file).walk() if node.kind != "module"}


@pytest.mark.parametrize(
    ("written", "instead"),
    [(b"K\x04\x85", b"K\x05\x85"), (b"K\x00K\x04\x85", b"K\x01K\x04\x85")],
    ids=["a longer shape", "a later start"],
)
def test_a_tensor_that_reaches_behind_its_storage_is_refused(
    file: Path, written: bytes, instead: bytes
) -> None:
    with zipfile.ZipFile(file) as archive:
        stream = archive.read("m/data.pkl")
    assert written in stream
    rewrite(file, {"m/data.pkl": stream.replace(written, instead)})
    with pytest.raises(InputError, match=r"'a' \[\d\] reaches behind the end of its storage"):
        open_inert(file)
