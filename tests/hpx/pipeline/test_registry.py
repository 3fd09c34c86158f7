"""Passes found by entry points and by ``register``: lazily, one at a time, one class a name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpx.errors import ContractError, PipelineError
from hpx.pipeline import Fact, Pass, PassInfo, PassRegistry

READY = Fact("ready", lambda graph, request: [])

MODULE = """
from dataclasses import dataclass
from hpx.pipeline import Pass, PassInfo, register

@register
@dataclass(frozen=True, kw_only=True)
class {cls}(Pass):
    info = PassInfo(name="{name}")
    def run(self, graph, ctx): ...
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes distributions on sys.path: name, entry points as text, modules by name."""
    before = set(sys.modules)

    def make(distribution: str, entry_points: str, **modules: str) -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text(f"[hpx.passes]\n{entry_points}\n")
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(folder)

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def registry() -> PassRegistry:
    """One that finds what is installed, as the shared one does; tests never fill the shared one."""
    return PassRegistry()


def toy(name: str, *, qualname: str = "Toy", provides: tuple[Fact, ...] = ()) -> type[Pass]:
    @dataclass(frozen=True, kw_only=True)
    class Toy(Pass):
        info = PassInfo(name=name, provides=provides)

        def run(self, graph: object, ctx: object) -> None: ...

    Toy.__qualname__ = qualname
    return Toy


def plain_module(cls: str, name: str) -> str:
    """A module whose pass is found by its entry point alone, so that no test registers anything."""
    return MODULE.format(cls=cls, name=name).replace("@register\n", "")


def test_names_are_listed_without_importing_any_pass(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "toy-pass = toy_module:ToyPass", toy_module="raise SystemExit('imported')")
    assert "toy-pass" in registry.names()
    assert "toy_module" not in sys.modules


def test_get_imports_the_one_module_that_is_asked_for(
    install: Install, registry: PassRegistry
) -> None:
    install(
        "toybox",
        "toy-pass = toy_module:ToyPass\nother-pass = other_module:OtherPass",
        toy_module=plain_module("ToyPass", "toy-pass"),
        other_module="raise SystemExit('imported')",
    )
    assert registry.get("toy-pass").__name__ == "ToyPass"
    assert "other_module" not in sys.modules


def test_describe_names_the_distribution_and_imports_nothing(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "toy-pass = toy_module:ToyPass", toy_module="raise SystemExit('imported')")
    origin = registry.describe("toy-pass")
    assert (origin.distribution, origin.version, origin.value) == (
        "toybox",
        "1.2",
        "toy_module:ToyPass",
    )


def test_a_registered_class_is_described_without_a_distribution() -> None:
    registry = PassRegistry(list)
    registry.register(toy("toy-pass"))
    origin = registry.describe("toy-pass")
    assert origin.distribution is None
    assert origin.value.endswith(":Toy")


def test_a_name_that_two_distributions_claim_is_refused_naming_both(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "toy-pass = toy_module:ToyPass")
    install("rival", "toy-pass = rival_module:RivalPass")
    with pytest.raises(PipelineError) as error:
        registry.get("toy-pass")
    assert "'toy-pass' is claimed 2 times" in str(error.value)
    assert "toy_module:ToyPass (distribution toybox)" in str(error.value)
    assert "rival_module:RivalPass (distribution rival)" in str(error.value)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    registry = PassRegistry(list)
    registry.register(toy("shard-words"))
    with pytest.raises(PipelineError, match=r"no pass 'shard-word'.*did you mean shard-words\?"):
        registry.get("shard-word")
    with pytest.raises(PipelineError, match=r"no pass 'Shard_Words'.*did you mean shard-words\?"):
        registry.describe("Shard_Words")


def test_an_entry_point_that_fails_to_import_is_one_line_naming_the_distribution(
    install: Install, registry: PassRegistry
) -> None:
    install(
        "toybox", "toy-pass = toy_module:ToyPass", toy_module="raise ValueError('no\\nsecond line')"
    )
    with pytest.raises(PipelineError) as error:
        registry.get("toy-pass")
    assert str(error.value) == (
        "pass 'toy-pass' cannot be imported from toy_module:ToyPass (distribution toybox): "
        "ValueError: no"
    )


def test_an_entry_point_without_its_class_is_a_clear_error(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "toy-pass = toy_module:Missing", toy_module="")
    with pytest.raises(PipelineError, match=r"distribution toybox.*AttributeError.*Missing"):
        registry.get("toy-pass")


def test_a_bad_pass_behind_an_entry_point_names_its_distribution(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "toy-pass = toy_module:ToyPass", toy_module="ToyPass = dict")
    with pytest.raises(ContractError, match=r"distribution toybox.*not a subclass of hpx\.Pass"):
        registry.get("toy-pass")


def test_an_entry_point_whose_pass_has_another_name_is_refused(
    install: Install, registry: PassRegistry
) -> None:
    install(
        "toybox",
        "toy-pass = toy_module:ToyPass",
        toy_module=plain_module("ToyPass", "other-name"),
    )
    with pytest.raises(ContractError, match="is called 'toy-pass', its pass 'other-name'"):
        registry.get("toy-pass")


def test_a_class_is_registered_without_entry_points() -> None:
    registry = PassRegistry(list)
    cls = registry.register(toy("toy-pass"))
    assert registry.names() == ["toy-pass"]
    assert registry.get("toy-pass") is cls


def test_the_same_class_of_a_reloaded_module_takes_the_place_of_the_first() -> None:
    registry = PassRegistry(list)
    registry.register(toy("toy-pass"))
    again = registry.register(toy("toy-pass"))
    assert registry.get("toy-pass") is again


def test_another_class_under_a_registered_name_is_refused_naming_both() -> None:
    registry = PassRegistry(list)
    registry.register(toy("toy-pass", qualname="First"))
    with pytest.raises(PipelineError, match=r"claimed 2 times.*:First .*:Second "):
        registry.register(toy("toy-pass", qualname="Second"))


def test_a_class_under_the_name_of_an_installed_pass_is_refused(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "toy-pass = toy_module:ToyPass")
    with pytest.raises(PipelineError, match=r"claimed 2 times.*distribution toybox.*:Toy "):
        registry.register(toy("toy-pass"))


def test_the_class_that_its_own_entry_point_names_may_register_itself(
    install: Install, registry: PassRegistry
) -> None:
    install(
        "toybox",
        "toy-pass = toy_module:ToyPass",
        toy_module=plain_module("ToyPass", "toy-pass"),
    )
    cls = registry.get("toy-pass")
    assert registry.register(cls) is cls


def test_an_unsound_class_is_not_registered() -> None:
    registry = PassRegistry(list)
    with pytest.raises(ContractError):
        registry.register(type("NoInfo", (Pass,), {}))
    assert registry.names() == []


def test_providers_of_a_fact_are_named_and_broken_passes_skipped(
    install: Install, registry: PassRegistry
) -> None:
    install("toybox", "broken-pass = toy_module:ToyPass", toy_module="1 / 0")
    registry.register(toy("make-ready", provides=(READY,)))
    assert registry.providers_of("ready") == ["make-ready"]
