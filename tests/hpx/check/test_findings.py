from __future__ import annotations

from hpx.check.findings import Finding, grouped
from hpx.errors import PlacementMismatchError
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.pipeline import Pass, PassInfo
from hpx.pipeline.context import PassContext
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.provenance import Provenance
from hpx.testing import graph_of


class Checker(Pass):
    """Only lends its name."""

    info = PassInfo(name="checker")

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None: ...


GRAPH = graph_of({f"layers.{i}.{name}": (2,) for i in range(3) for name in "ab"})
CTX = PassContext(GRAPH, Request(ShardingPlan({}), MeshSpec.parse("tp=2")), Provenance(), Checker())


def id_of(path: str) -> int:
    found = GRAPH.find(path)
    assert found is not None
    return found


def test_findings_that_differ_in_their_node_only_are_one_error() -> None:
    errors = grouped(CTX, [Finding(id_of(f"layers.{i}.a"), "no", "1 % 2") for i in range(3)])
    assert list(map(str, errors)) == ["pass checker, layers.{0-2}.a: no: 1 % 2"]


def test_findings_that_differ_in_a_number_stay_apart() -> None:
    errors = grouped(CTX, [Finding(id_of("layers.0.a"), "no", f"{k} % 2") for k in (1, 3)])
    assert len(errors) == 2


def test_errors_come_in_the_order_of_the_first_finding_of_each() -> None:
    findings = [
        Finding(id_of("layers.0.b"), "second kind"),
        Finding(id_of("layers.0.a"), "first kind"),
        Finding(id_of("layers.1.b"), "second kind"),
    ]
    assert list(map(str, grouped(CTX, findings))) == [
        "pass checker, layers.{0-1}.b: second kind",
        "pass checker, layers.0.a: first kind",
    ]


def test_an_error_is_of_the_kind_of_its_finding() -> None:
    finding = Finding(id_of("layers.0.a"), "no", kind=PlacementMismatchError)
    assert isinstance(grouped(CTX, [finding])[0], PlacementMismatchError)
