from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpx.errors import InputError, UsageError
from hpx.graph.from_factory import result_of_factory
from hpx.graph.sources import open_model

Write = Callable[[str], str]
_NUMBERS = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module of a fresh name into the current folder and gives the name."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def write(text: str) -> str:
        name = f"factory_{next(_NUMBERS)}"
        Path(f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{text}\n")
        return name

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("factory_"):
            del sys.modules[name]


def test_a_function_in_the_current_folder_gives_the_model(write: Write) -> None:
    name = write("def make(): return nn.Linear(3, 2)")
    graph = open_model(f"{name}:make")
    assert [graph.path(node.id) for node in graph.parameters()] == ["weight", "bias"]
    assert graph.source == f"factory:{name}:make"


def test_a_bundled_model_is_named_by_its_function() -> None:
    assert open_model("hpx.bundled:tiny_moe").find("model.layers.1.mlp.experts.7") is not None


def test_the_factory_decides_the_device(write: Write) -> None:
    name = write("def make():\n    with torch.device('meta'): return nn.Linear(3, 2)")
    devices = {node.spec.device for node in open_model(f"{name}:make").parameters()}
    assert devices == {"meta"}


def test_the_first_of_several_results_is_the_model(write: Write) -> None:
    name = write("def make(): return nn.Linear(3, 2), 'tokenizer'")
    assert open_model(f"{name}:make").find("weight") is not None


@pytest.mark.parametrize("target", ["model", "Model", "Models.make"])
def test_module_objects_classes_and_nested_names_do_as_well(write: Write, target: str) -> None:
    name = write(
        "class Model(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.x = nn.Linear(1, 1)\n"
        "class Models:\n"
        "    make = staticmethod(Model)\n"
        "model = Model()"
    )
    assert open_model(f"{name}:{target}").find("x.weight") is not None


def test_what_the_factory_prints_is_no_data(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write("print('importing')\ndef make(): print('making'); return nn.Linear(1, 1)")
    open_model(f"{name}:make")
    assert capsys.readouterr() == ("", "importing\nmaking\n")


def test_the_import_path_is_set_back(write: Write) -> None:
    before = list(sys.path)
    open_model(f"{write('make = nn.Identity')}:make")
    assert sys.path == before


def test_an_error_in_the_factory_names_its_file_and_line(write: Write) -> None:
    name = write("def make():\n    raise KeyError('hidden_size')")
    with pytest.raises(InputError) as caught:
        open_model(f"{name}:make")
    assert str(caught.value) == f"{name}.py:4: calling {name}:make failed: KeyError: 'hidden_size'"


def test_an_error_inside_torch_names_the_line_of_the_factory(write: Write) -> None:
    name = write("def make():\n    return nn.Linear(2, 2)(torch.zeros(1, 3))")
    with pytest.raises(InputError, match=rf"^{name}\.py:4: calling .* failed: RuntimeError: mat1"):
        open_model(f"{name}:make")


def test_an_error_while_importing_names_its_file_and_line(write: Write) -> None:
    name = write("1 / 0")
    with pytest.raises(InputError, match=rf"^{name}\.py:3: importing {name} failed: ZeroDivision"):
        open_model(f"{name}:make")


def test_a_syntax_error_names_its_file_and_line(write: Write) -> None:
    name = write("def make(:")
    with pytest.raises(InputError, match=rf"^{name}\.py:3: importing {name} failed: SyntaxError"):
        open_model(f"{name}:make")


def test_a_program_that_exits_is_an_error_of_the_program(write: Write) -> None:
    name = write("raise SystemExit(0)")
    with pytest.raises(InputError, match="SystemExit: 0"):
        open_model(f"{name}:make")


def test_errors_of_many_lines_become_one(write: Write) -> None:
    name = write("def make(): raise ValueError('a\\nb' * 1000)")
    with pytest.raises(InputError) as caught:
        open_model(f"{name}:make")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_module_that_the_users_module_lacks_is_an_error_of_the_users_module(write: Write) -> None:
    name = write("import not_installed_anywhere")
    with pytest.raises(InputError, match=rf"^{name}\.py:3: .*No module named 'not_installed"):
        open_model(f"{name}:make")


def test_a_missing_module_is_a_usage_error_with_the_nearest(write: Write) -> None:
    name = write("")
    with pytest.raises(UsageError, match=rf"there is no module {name}x\. Fix: did you mean {name}"):
        open_model(f"{name}x:make")


def test_a_missing_module_of_a_package_is_told_with_its_neighbours() -> None:
    with pytest.raises(UsageError, match=r"no module hpx\.bundle\. Fix: did you mean hpx\.bundled"):
        open_model("hpx.bundle:tiny_moe")


def test_a_missing_name_is_a_usage_error_with_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"hpx\.bundled has no 'tiny_mo'. Fix: did you mean tiny_moe"
    ):
        open_model("hpx.bundled:tiny_mo")


def test_a_dot_in_place_of_the_colon_is_told() -> None:
    with pytest.raises(UsageError, match=r"did you mean hpx\.bundled:tiny_moe\?"):
        open_model("hpx.bundled.tiny_moe")


def test_a_dot_in_place_of_the_colon_is_told_of_a_program_in_the_current_folder(
    write: Write,
) -> None:
    name = write("def make(): return nn.Linear(3, 2)")
    with pytest.raises(UsageError, match=rf"did you mean {name}:make\?"):
        open_model(f"{name}.make")


@pytest.mark.parametrize("before", ["", "./"])
def test_a_file_in_place_of_a_module_is_told_how_the_module_is_written(
    write: Write, before: str
) -> None:
    name = write("def make(): return nn.Linear(3, 2)")
    with pytest.raises(UsageError, match=rf"Fix: write {name}:make$"):
        open_model(f"{before}{name}.py:make")


def test_a_file_in_a_folder_is_told_as_a_module_of_a_package(write: Write) -> None:
    name = write("")
    Path("models").mkdir()
    Path(f"{name}.py").rename(f"models/{name}.py")
    with pytest.raises(UsageError, match=rf"Fix: write models\.{name}:make$"):
        result_of_factory(f"models/{name}.py:make")


def test_a_file_elsewhere_is_told_with_its_folder(write: Write, tmp_path: Path) -> None:
    name = write("")
    with pytest.raises(UsageError, match=rf"write {name}:make, in the folder {tmp_path}$"):
        result_of_factory(f"{tmp_path}/{name}.py:make")


def test_something_that_cannot_be_called_is_refused(write: Write) -> None:
    with pytest.raises(InputError, match="is not callable: it is a int"):
        open_model(f"{write('make = 3')}:make")


def test_something_that_is_no_model_is_refused(write: Write) -> None:
    with pytest.raises(InputError, match="gives no model: it returned a dict"):
        open_model(f"{write('def make(): return {}')}:make")


def test_a_function_that_needs_arguments_is_refused_with_their_names(write: Write) -> None:
    name = write("def make(config, *, size, dtype=None, **more): ...")
    with pytest.raises(InputError, match="it needs config, size"):
        open_model(f"{name}:make")
