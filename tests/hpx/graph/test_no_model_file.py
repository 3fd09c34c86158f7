"""What is not taken as the file of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx.errors import InputError, UsageError
from hpx.graph.sources import open_model
from tests.hpx.graph.saving import save, save_json

pytestmark = pytest.mark.usefixtures("in_the_folder")


def test_a_file_that_is_not_there_is_a_usage_error_with_the_nearest_names() -> None:
    save("model.safetensors", "w")
    with pytest.raises(UsageError, match=r"did you mean model\.safetensors\?"):
        open_model("model.safetensor")


def test_files_that_share_little_but_the_suffix_are_no_nearest_names() -> None:
    for name in ("z.pt", "n.pt", "e.pt"):
        save(name, "w")
    with pytest.raises(UsageError, match=r"no file or folder zzz\.pt\. Fix: give \.safetensors"):
        open_model("zzz.pt")


def test_the_name_of_a_model_on_a_hub_is_no_file() -> None:
    with pytest.raises(UsageError, match="no file or folder some/model: there is no folder some"):
        open_model("some/model")


def test_no_name_at_all_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no model is named"):
        open_model("")


@pytest.mark.parametrize("file", ["model.onnx", "model", "model.txt"])
def test_other_kinds_of_files_are_refused_with_what_is_taken(file: str) -> None:
    Path(file).write_text("hello")
    with pytest.raises(InputError, match=r"no kind that hpx takes.*give \.safetensors, \.pt"):
        open_model(file)


def test_a_program_is_refused_with_the_way_to_name_a_function_in_it() -> None:
    Path("mine.py").touch()
    with pytest.raises(InputError, match="mine:function"):
        open_model("mine.py")


def test_a_device_file_is_refused() -> None:
    with pytest.raises(InputError, match="neither a file nor a folder"):
        open_model("/dev/null")


def test_a_saved_run_is_no_model() -> None:
    save_json("run.json", {"schema": "hpx.run/1"})
    with pytest.raises(InputError, match="a saved run, not a model"):
        open_model("run.json")


def test_what_a_failed_run_left_is_no_model_and_says_what_draws_it() -> None:
    save_json("run.failed.json", {"schema": "hpx.failed/1"})
    with pytest.raises(InputError, match=r"Fix: hpx passes run.failed.json -o F.svg draws"):
        open_model("run.failed.json")


def test_other_json_is_no_model() -> None:
    save_json("x.json", {"a": 1})
    with pytest.raises(InputError, match="neither a weight_map nor a model_type"):
        open_model("x.json")
