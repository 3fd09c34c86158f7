"""Names that a stacked parameter cannot have."""

from __future__ import annotations

from torch import nn

from hpx.check.module_fields import MODULE_FIELDS
from hpx.testing import graph_of
from tests.passes.experts import moe, refused


def test_two_paths_that_give_one_stacked_name_are_refused() -> None:
    before = graph_of({f"experts.{i}.{name}": (2,) for i in range(2) for name in ("a.b", "a_b")})
    assert "cannot stack 'a.b' as 'a_b': 'a_b' exists there already" in refused(before)


def test_a_stacked_name_that_the_container_has_already_is_refused() -> None:
    model = moe()
    model.experts.up = nn.Linear(2, 2)
    assert "'up' exists there already" in refused(model)


def test_a_stacked_name_that_hides_a_method_of_the_container_is_refused() -> None:
    before = graph_of({f"experts.{i}.forward.weight": (2,) for i in range(2)})
    assert "'forward' names a field of every module" in refused(before)


def test_a_stacked_name_made_of_digits_is_refused() -> None:
    model = nn.Module()
    model.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
    assert "'0' would be taken for an expert's number" in refused(model)


def _of_torch(field: object) -> bool:
    """Not one that another library, such as transformers, put on torch's class."""
    return getattr(field, "__module__", "torch").startswith("torch")


def test_the_refused_names_are_the_fields_that_torch_has() -> None:
    public = {
        name
        for cls in (nn.Module, nn.ModuleList, nn.ModuleDict)
        for name in dir(cls())
        if not name.startswith("_") and _of_torch(getattr(cls, name, None))
    }
    assert public - MODULE_FIELDS == set()
