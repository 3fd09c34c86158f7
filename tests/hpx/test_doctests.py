from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hpx
import hpx.passes
import hpx.tools

MODULES = sorted(
    module.name
    for package in (hpx, hpx.passes, hpx.tools)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if "__main__" not in module.name and ".bench" not in module.name
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_give_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
