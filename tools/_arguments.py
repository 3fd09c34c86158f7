"""What several commands of ``hpx`` take: a model, a plan, a mesh, a pipeline, a place to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpx.tools._streams import tell

if TYPE_CHECKING:
    from hpx.mesh import MeshSpec
    from hpx.plan import ShardingPlan

__all__ = [
    "Json",
    "Mesh",
    "Model",
    "PipelineText",
    "RunFile",
    "check_writable",
    "request_of",
    "wrote",
]

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Checkpoint, config.json or package.module:factory.")
]
Mesh = Annotated[
    str | None,
    typer.Option(
        metavar="AXES", help="Such as dp=4,tp=8,ep=16. May be left out if the plan names its mesh."
    ),
]
PipelineText = Annotated[
    str,
    typer.Option(
        "--pipeline",
        "-p",
        metavar="TEXT",
        help="Passes, such as '@default, shard-params{uneven=allow}, !localize'.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunFile = Annotated[
    str, typer.Argument(metavar="RUN", help="A run saved by hpx run ... -o run.json.")
]


def request_of(plan: str, mesh: str | None) -> tuple[ShardingPlan, MeshSpec]:
    """The plan and the mesh, before anything slow is started.

    Args:
        plan: The file of the plan.
        mesh: The text of a mesh; the plan's own if not given.

    Raises:
        UsageError: One of them is wrong, they do not go together, or there is no mesh.
    """
    from hpx.errors import UsageError
    from hpx.mesh import MeshSpec
    from hpx.plan import ShardingPlan

    given = None if mesh is None else MeshSpec.parse(mesh)
    sharding = ShardingPlan.from_file(plan)
    if given is None and sharding.mesh is None:
        raise UsageError(
            "there is no mesh",
            why=f"{plan} names none",
            fix="give --mesh such as dp=4,tp=8, or write mesh: in the plan",
        )
    spec = given or MeshSpec.parse(sharding.mesh or "")
    sharding.check_mesh(spec)
    return sharding, spec


def check_writable(output: str | None, *inputs: str | None) -> None:
    """Refuse a place that cannot be written, or is read, before the work is done, not after it."""
    if output is None:
        return
    from pathlib import Path

    from hpx import _files

    _files.check_writable(Path(output), inputs)


def wrote(output: str | None) -> None:
    """Say where something was written, if it was."""
    if output is not None:
        tell(f"hpx: wrote {output}")
