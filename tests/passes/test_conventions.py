"""What holds for every built-in pass."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import is_dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import hpx.passes
from hpx.graph import ModuleGraph
from hpx.passes.localize import Localize
from hpx.passes.shard_params import ShardParams
from hpx.passes.stack_experts import StackExperts
from hpx.pipeline import Pass, as_passes, format_pipeline, schedule
from hpx.pipeline.registry import get, names

ORDER = (
    "tie-weights",
    "stack-experts",
    "pack-fused",
    "shard-params",
    "update-heads",
    "build-source-info",
    "localize",
)
FILES = sorted(
    path.stem
    for path in Path(str(hpx.passes.__file__)).parent.glob("*.py")
    if path.stem != "__init__"
)


def pass_named(name: str) -> Pass:
    (found,) = as_passes(name)
    return found


def test_every_file_is_a_registered_pass_and_every_pass_a_file() -> None:
    points = [p for p in entry_points(group="hpx.passes") if p.value.startswith("hpx.passes.")]
    assert {point.name.replace("-", "_") for point in points} == set(FILES)
    assert set(ORDER) <= set(names())


@pytest.mark.parametrize("stem", FILES)
def test_text_name_file_and_class_are_one_name(stem: str) -> None:
    cls = get(stem.replace("_", "-"))
    assert cls.info.name == stem.replace("_", "-")
    assert cls.__module__ == f"hpx.passes.{stem}"
    assert cls.__name__ == "".join(part.capitalize() for part in stem.split("_"))


@pytest.mark.parametrize("name", ORDER)
def test_a_docstring_lists_numbered_rules_without_a_gap(name: str) -> None:
    text = type(pass_named(name)).__doc__ or ""
    numbers = [int(number) for number in re.findall(r"^ +(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers


@pytest.mark.parametrize("name", ORDER)
def test_every_option_has_a_default_and_a_pass_is_frozen(name: str) -> None:
    found = pass_named(name)
    assert is_dataclass(found)
    assert found == type(found)()
    with pytest.raises(AttributeError):
        found.uneven = "allow"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "found",
    [
        *(pass_named(name) for name in ORDER),
        StackExperts(optional=True),
        ShardParams(uneven="allow", nothing="allow"),
        Localize(mode="permanent", exclude=("model.norm", "layers.*.mlp")),
    ],
    ids=str,
)
def test_a_pass_with_its_options_survives_the_text_form(found: Pass) -> None:
    assert as_passes(format_pipeline([found])) == [found]


@pytest.mark.parametrize("stem", FILES)
def test_a_pass_does_not_import_torch(stem: str) -> None:
    source = Path(str(hpx.passes.__file__)).with_name(f"{stem}.py").read_text()
    assert "torch" not in re.sub(r'""".*?"""', "", source, flags=re.DOTALL)


def order_of(listed: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(step.name for step in schedule(as_passes(", ".join(listed)), ()).steps)


def test_the_default_pipeline_has_the_order_of_its_declarations() -> None:
    assert tuple(step.name for step in schedule(as_passes("@default"), ()).steps) == ORDER


def test_the_default_passes_get_one_order_however_they_are_listed() -> None:
    listed = list(itertools.permutations(ORDER))
    sample = random.Random(0).sample(listed, 120)
    assert {order_of(tuple(reversed(ORDER))), *map(order_of, sample)} == {ORDER}


@pytest.mark.slow
def test_the_default_passes_get_one_order_in_all_permutations() -> None:
    found = set()
    for listed in itertools.permutations([pass_named(name) for name in ORDER]):
        found.add(tuple(step.name for step in schedule(listed, ()).steps))
    assert found == {ORDER}


def test_every_step_of_the_default_order_has_a_reason_except_the_first() -> None:
    steps = schedule(as_passes("@default"), ()).steps
    assert [bool(step.because) for step in steps] == [False, True, True, True, True, True, True]


def test_the_default_order_has_no_ambiguous_writes() -> None:
    assert schedule(as_passes("@default"), ()).warnings == ()


def test_the_passes_leave_a_model_without_anything_to_do_as_it_is() -> None:
    from hpx.run import run
    from hpx.testing import graph_of, outline

    before: ModuleGraph = graph_of({"a.weight": (4, 4), "b": (3,)})
    done = run(before, hpx.ShardingPlan({}, default="replicate"), "dp=8")
    assert outline(done.graph) == outline(before)
