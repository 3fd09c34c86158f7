"""Pickles that want to run something: nothing runs, and the reader hears of it."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.errors import HpxError, InputError, UnsafeInputError
from hpx.graph.sources import open_for_viewing, open_model
from hpx.inert import open_inert


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


class Restores:
    """Pickled, it is an instance that its own class restores from a state."""

    def __init__(self, state: object) -> None:
        self.state = state

    def __getstate__(self) -> object:
        return self.state

    def __setstate__(self, state: object) -> None:
        Path("ran").touch()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran() -> bool:
    return Path("ran").exists()


def replace_pickle(stream: bytes, file: str = "evil.pt") -> None:
    """A file of torch.save with another pickle in it."""
    with io.BytesIO() as saved:
        torch.save({"w": torch.zeros(1)}, saved)
        with zipfile.ZipFile(saved) as old, zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                is_pickle = name.endswith("data.pkl")
                new.writestr(name, stream if is_pickle else old.read(name))


def tensor_pickle() -> bytes:
    """The pickle of ``{"w": tensor}`` in a file of torch.save, without its end."""
    with io.BytesIO() as saved:
        torch.save({"w": torch.zeros(1)}, saved)
        with zipfile.ZipFile(saved) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return archive.read(name)[:-1]


SHELL = b"cposix\nsystem\n"
RUN = b"(X\x09\x00\x00\x00touch rant"
# Each is put under a key of a state dict, with what the reader has to name.
STREAMS = {
    "reduce": (SHELL + RUN + b"R", "posix.system"),
    "eval": (b"cbuiltins\neval\n(X\x15\x00\x00\x00open('ran','w').closetR", "builtins.eval"),
    "eval of python 2": (b"c__builtin__\neval\n(X\x01\x00\x00\x001tR", "builtins.eval"),
    "inst": (b"(X\x09\x00\x00\x00touch raniposix\nsystem\n", "posix.system"),
    "obj": (b"(" + SHELL + b"X\x09\x00\x00\x00touch rano", "posix.system"),
    "newobj": (b"csubprocess\nPopen\n" + RUN + b"\x81", "subprocess.Popen"),
    "newobj_ex": (b"csubprocess\nPopen\n" + RUN + b"}\x92", "subprocess.Popen"),
    "stack_global": (b"\x8c\x05posix\x8c\x06system\x93" + RUN + b"R", "posix.system"),
    "extension": (b"\x82\x07)R", "copyreg.extension 7"),
    "wide extension": (b"\x84\x07\x00\x00\x00)R", "copyreg.extension 7"),
    "a call of a call": (b"cbuiltins\ngetattr\n)R)R", "builtins.getattr"),
    "a class that is changed": (b"ctorch\nTensor\n}X\x01\x00\x00\x00aNsb", "torch.Tensor"),
    "another pickle": (
        b"ctorch.storage\n_load_from_bytes\n(C\x00tR",
        "torch.storage._load_from_bytes",
    ),
    "a name that is only there": (SHELL, "posix.system"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_call_in_a_state_dict_is_named_and_not_run(name: str) -> None:
    stream, foreign = STREAMS[name]
    replace_pickle(tensor_pickle() + b"X\x01\x00\x00\x00x" + stream + b"s.")
    graph = open_inert("evil.pt")
    assert graph.hints["foreign"] == [foreign]
    assert [graph.path(node.id) for node in graph.parameters()] == ["w"]
    assert not ran()


@pytest.mark.parametrize("name", STREAMS)
def test_a_foreign_name_is_refused_where_asked_and_for_runs(name: str) -> None:
    stream, foreign = STREAMS[name]
    replace_pickle(tensor_pickle() + b"X\x01\x00\x00\x00x" + stream + b"s.")
    with pytest.raises(UnsafeInputError, match=rf"^refused evil\.pt: it needs {foreign}") as caught:
        open_inert("evil.pt", strict=True)
    assert caught.value.exit_code == 4
    with pytest.raises(UnsafeInputError, match=rf"it needs {foreign}"):
        open_model("evil.pt")
    assert not ran()


def test_a_call_in_place_of_the_state_dict_is_no_state_dict() -> None:
    replace_pickle(b"\x80\x02" + SHELL + RUN + b"R.")
    with pytest.raises(HpxError, match=r"holds no state dict: it is a posix\.system"):
        open_inert("evil.pt")
    assert not ran()


def test_a_foreign_name_is_told_and_refused_where_there_is_no_state_dict_either() -> None:
    replace_pickle(b"\x80\x02]" + SHELL + RUN + b"Ra.")
    with pytest.raises(InputError, match=r"it is a list; it has the foreign name posix\.system"):
        open_inert("evil.pt")
    with pytest.raises(UnsafeInputError, match=r"it needs posix\.system"):
        open_inert("evil.pt", strict=True)
    assert not ran()


def test_a_call_below_a_tensor_is_named_and_not_run() -> None:
    torch.save(
        {"model": {"w": torch.zeros(1)}, "x": [{"y": Calls(Path.touch, Path("ran"))}]}, "m.pt"
    )
    assert open_inert("m.pt").hints["foreign"] == ["builtins.getattr"]
    assert not ran()


def test_a_class_that_restores_itself_is_named_and_not_run() -> None:
    torch.save({"w": torch.zeros(1), "x": Restores({"a": 1})}, "m.pt")
    assert open_inert("m.pt").hints["foreign"] == [f"{Restores.__module__}.Restores"]
    assert not ran()


def test_a_call_in_a_persistent_id_is_not_run() -> None:
    replace_pickle(b"\x80\x02(X\x07\x00\x00\x00storage" + SHELL + RUN + b"RtQ.")
    with pytest.raises(HpxError, match="cut off or damaged"):
        open_inert("evil.pt")
    assert not ran()


def test_a_call_inside_a_pickled_module_is_told_apart_from_its_classes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model.extra = Calls(Path.touch, Path("ran"))  # type: ignore[assignment]
    torch.save(model, "m.pt")
    graph = open_inert("m.pt")
    assert "torch.nn.modules.linear.Linear" in graph.hints["classes"]  # type: ignore[operator]
    foreign = graph.hints["foreign"]
    assert isinstance(foreign, list)
    assert len(foreign) == 1
    with pytest.raises(UnsafeInputError):
        open_inert("m.pt", strict=True)
    assert not ran()


def test_a_plain_pickled_module_is_no_alarm() -> None:
    torch.save(nn.Linear(2, 3), "m.pt")
    graph = open_inert("m.pt", strict=True)
    assert "foreign" not in graph.hints
    assert graph.hints["classes"] == ["torch.nn.modules.linear.Linear"]


def test_only_trust_loads_a_pickle_for_real() -> None:
    torch.save({"model": nn.Linear(2, 2), "x": Calls(Path.touch, Path("ran"))}, "m.pt")
    open_for_viewing("m.pt")
    assert not ran()
    graph = open_for_viewing("m.pt", trust_pickle=True)
    assert ran()
    assert [graph.path(node.id) for node in graph.parameters()] == ["weight", "bias"]


def test_a_plain_pickle_is_no_checkpoint() -> None:
    Path("evil.pt").write_bytes(pickle.dumps(Calls(Path.touch, Path("ran"))))
    with pytest.raises(HpxError, match="is a pickle"):
        open_inert("evil.pt")
    assert not ran()


def test_a_call_in_the_metadata_of_a_distributed_checkpoint_is_not_run() -> None:
    Path("dcp").mkdir()
    Path("dcp/.metadata").write_bytes(b"\x80\x02" + SHELL + RUN + b"R.")
    with pytest.raises(HpxError, match="is no metadata"):
        open_inert("dcp")
    assert not ran()
