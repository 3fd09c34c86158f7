from __future__ import annotations

import importlib

import pytest

import hpx


@pytest.mark.parametrize("name", hpx.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(hpx, name) is not None
    assert name in dir(hpx)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'hpx' has no attribute 'shard_everything'"):
        hpx.shard_everything  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_submodule_run_leaves_the_function_run_in_place() -> None:
    module = importlib.import_module("hpx.run")
    assert hpx.run is module.run


def test_importing_the_package_plan_leaves_the_function_plan_in_place() -> None:
    package = importlib.import_module("hpx.plan")
    assert hpx.plan is importlib.import_module("hpx.derive.derive").plan
    assert package.ShardingPlan is hpx.ShardingPlan
