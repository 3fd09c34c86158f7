from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.errors import InputError, UnsafeInputError
from hpx.graph.torch_file import read_torch_file


class RunsWhenLoaded:
    """Pickled, it makes a file where it is loaded: proof that something ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def names(file: Path) -> list[str]:
    return [tensor.name for tensor in read_torch_file(file, file.name).tensors]


def test_a_state_dict_gives_names_shapes_dtypes_and_strides(file: Path) -> None:
    torch.save({"a.weight": torch.zeros(3, 2, dtype=torch.bfloat16).t()}, file)
    (tensor,) = read_torch_file(file, file.name).tensors
    assert tensor.name == "a.weight"
    assert (tensor.shape, tensor.dtype, tensor.strides) == ((2, 3), "bfloat16", (1, 2))


def test_one_storage_under_two_names_is_one_tensor(file: Path) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    torch.save(model.state_dict(), file)
    embed, head = read_torch_file(file, file.name).tensors
    assert embed.same_as is None
    assert (head.name, head.same_as) == ("head.weight", "embed.weight")


def test_a_part_of_another_tensor_is_refused(file: Path) -> None:
    whole = torch.zeros(4, 2)
    torch.save({"whole": whole, "part": whole[1:]}, file)
    with pytest.raises(InputError, match=r"^model\.pt: 'part' \[3, 2\] overlaps a part of 'whole'"):
        names(file)


def test_the_requires_grad_of_saved_parameters_is_kept(file: Path) -> None:
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    torch.save({"frozen": frozen, "plain": torch.zeros(1)}, file)
    found = read_torch_file(file, file.name).tensors
    assert [tensor.requires_grad for tensor in found] == [False, True]


def test_entries_that_are_no_tensors_are_left_out_and_listed(file: Path) -> None:
    torch.save({"w": torch.zeros(1), "step": 3, "note": "x"}, file)
    found = read_torch_file(file, file.name)
    assert [tensor.name for tensor in found.tensors] == ["w"]
    assert found.ignored == ["step", "note"]


@pytest.mark.parametrize("key", ["state_dict", "model", "anything"])
def test_the_only_state_dict_inside_is_taken(file: Path, key: str) -> None:
    torch.save({"epoch": 3, key: {"w": torch.zeros(1)}, "optimizer": {"state": {}}}, file)
    assert names(file) == ["w"]
    assert read_torch_file(file, file.name).inside == key


def test_a_state_dict_of_the_usual_name_goes_before_others(file: Path) -> None:
    weights, average = {"w": torch.zeros(1)}, {"v": torch.zeros(1)}
    torch.save({"average": average, "model": weights, "rng": torch.zeros(1)}, file)
    assert names(file) == ["w"]


def test_two_state_dicts_are_refused_with_the_keys(file: Path) -> None:
    torch.save({"generator": {"w": torch.zeros(1)}, "critic": {"w": torch.zeros(1)}}, file)
    with pytest.raises(InputError, match="several state dicts: its keys are generator, critic"):
        names(file)


def test_a_file_without_tensors_is_refused_with_the_keys(file: Path) -> None:
    torch.save({"epoch": 1}, file)
    with pytest.raises(InputError, match="holds no tensors: its keys are epoch"):
        names(file)


def test_a_file_that_holds_a_list_is_refused(file: Path) -> None:
    torch.save([torch.zeros(1)], file)
    with pytest.raises(InputError, match="no state dict: it is a list"):
        names(file)


def test_a_tensor_under_a_number_is_refused(file: Path) -> None:
    torch.save({0: torch.zeros(1)}, file)
    with pytest.raises(InputError, match="a tensor under 0"):
        names(file)


def test_a_pickled_module_is_refused_in_one_line_that_says_what_to_do(file: Path) -> None:
    torch.save(nn.Linear(2, 2), file)
    with pytest.raises(UnsafeInputError) as caught:
        names(file)
    assert str(caught.value) == (
        "refused model.pt: it needs torch.nn.modules.linear.Linear, and reading that could run"
        " code. Fix: save model.state_dict() instead, or give package.module:factory"
    )


def test_code_in_a_checkpoint_is_not_run(file: Path, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1), "x": RunsWhenLoaded(tmp_path / "ran")}, file)
    with pytest.raises(UnsafeInputError, match=r"refused model\.pt"):
        names(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_is_refused(file: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), file)
    with pytest.raises(UnsafeInputError, match="TorchScript"):
        names(file)


def test_the_old_format_is_read_as_well(file: Path) -> None:
    shared = torch.zeros(2, 3)
    content = {"a": shared, "b": shared, "c": torch.zeros(4, dtype=torch.float16)}
    torch.save(content, file, _use_new_zipfile_serialization=False)
    found = read_torch_file(file, file.name).tensors
    assert [(tensor.name, tensor.shape, tensor.same_as) for tensor in found] == [
        ("a", (2, 3), None),
        ("b", (2, 3), "a"),
        ("c", (4,), None),
    ]


def test_a_plain_pickle_is_refused_and_not_run(file: Path, tmp_path: Path) -> None:
    file.write_bytes(pickle.dumps(RunsWhenLoaded(tmp_path / "ran")))
    with pytest.raises(InputError, match=r"is a pickle, and no file of torch\.save"):
        names(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_file_that_was_cut_off_is_refused(file: Path, keep: float) -> None:
    torch.save({"w": torch.zeros(100)}, file)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match=r"model\.pt cannot be read: it is cut off or damaged"):
        names(file)


def test_a_zip_of_something_else_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "hello")
    with pytest.raises(InputError, match="cut off or damaged"):
        names(file)


def test_an_empty_file_is_refused(file: Path) -> None:
    file.touch()
    with pytest.raises(InputError, match=r"^model\.pt is empty$"):
        names(file)


def test_a_text_file_is_refused(file: Path) -> None:
    file.write_text("hello")
    with pytest.raises(InputError, match="no torch checkpoint"):
        names(file)


def test_reading_warns_of_nothing(file: Path) -> None:
    torch.save({"w": torch.zeros(1)}, file)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        names(file)
    assert heard == []
