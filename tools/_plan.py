"""``hpx plan``: derive a plan, translate one, or check one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpx._files import read_text, write_text
from hpx.errors import InputError, UsageError
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.tools._progress import Progress
from hpx.tools._streams import tell

if TYPE_CHECKING:
    from hpx.prove import Opened

__all__ = ["check", "plan_text", "planned", "write"]


def write(
    model: str, mesh: str | None, given: str | None, output: str | None, *, json: bool
) -> None:
    """Print the plan that is derived or translated, or write it to a file.

    Raises:
        UsageError: There is no mesh.
        HpxError: The model cannot be read, or a given plan does not fit it.
    """
    if mesh is None:
        raise UsageError("there is no mesh", fix="give --mesh such as dp=4,tp=8")
    spec = MeshSpec.parse(mesh)
    with Progress(f"reading {model}"):
        from hpx.graph.sources import open_model
        from hpx.prove import Opened, open_with_model

        opened = open_with_model(model) if given is None else Opened(open_model(model))
        found = planned(opened, spec, given)
    if spec.size("tp", 1) > 1 and not any(rule.layout.shards for rule in found.params):
        tell(
            f"hpx: warning: nothing of {model} is cut on {spec}: each rule says why; the plan runs,"
            " and every rank of tp would hold and compute the same"
        )
    from hpx.tools._tables import emit_json, emit_text

    if output is not None:
        write_text(Path(output), plan_text(found, model, given))
        tell(f"hpx: wrote {output}")
    if json:
        emit_json(found.to_json())
    elif output is None:
        emit_text(plan_text(found, model, given).rstrip("\n"))


def check(
    model: str,
    request: tuple[ShardingPlan, MeshSpec],
    pipeline: str,
    pattern: str | None,
    output: str | None,
    *,
    every: bool,
    json: bool,
    prove: bool = True,
) -> bool:
    """Print the table of a plan and what is wrong with it; whether it fits."""
    from hpx.pipeline.textform import as_passes

    passes = as_passes(pipeline)
    with Progress(f"reading {model}") as progress:
        from hpx.derive.compare import differences
        from hpx.prove import open_with_model
        from hpx.tools._check import check_plan

        graph, module, inputs = open_with_model(model)
        result = check_plan(
            graph, *request, passes, progress.step, model=module, inputs=inputs, proving=prove
        )
        params = result.matching(pattern)
        other = list(differences(graph, params, request[1], module, inputs))
    from hpx.tools._tables import Block, emit_report, json_text, plain_report

    table: list[Block] = result.report(params, every=every)
    if json:
        table = [json_text({**result.to_json(params), "differences": other})]
    if output is not None:
        write_text(Path(output), plain_report(table) + "\n")
        table = []
    if other and not json:
        table += ["", f"other than the derived plan ({len(other)})"]
        table += [f"  info: {line}" for line in other]
    emit_report([*table, *([] if json else result.verdict())])
    if output is not None:
        tell(f"hpx: wrote {output}")
    return result.ok


def planned(opened: Opened, mesh: MeshSpec, given: str | None) -> ShardingPlan:
    """The derived plan of a model, or the translation of a plan in another form.

    Args:
        opened: The model.
        mesh: The mesh.
        given: A JSON or YAML file of module names and styles, or a model that ships such a plan.

    Raises:
        UsageError: There is no such file, or the model ships no plan.
        PlanError: It is no such plan, or does not fit the model.
    """
    if given is None:
        from hpx.derive.proved import proved_plan

        return proved_plan(opened.graph, mesh, opened.model, opened.inputs)
    from hpx.derive.tp_plan import plan_from_styles, read_styles

    return plan_from_styles(opened.graph, mesh, read_styles(_styles(given), given), given)


def plan_text(plan: ShardingPlan, model: str, given: str | None) -> str:
    """The plan as a file, with what made it on top."""
    made = f"hpx plan {model} --mesh {plan.mesh}"
    if given is not None:
        made += f" --from-tp-plan {given}"
    return f"# {made}\n{plan.to_yaml()}"


def _styles(given: str) -> object:
    path = Path(given)
    if path.is_file() and path.suffix in (".json", ".yaml", ".yml"):
        content = _read(path, given)
        is_config = isinstance(content, dict) and (
            "model_type" in content or "architectures" in content or "weight_map" in content
        )
        if not is_config:
            return content
    from hpx.graph.sources import open_model

    graph = open_model(given)
    if "tp_plan" not in graph.hints:
        raise UsageError(
            f"{given} ships no tp plan",
            why="its class in transformers declares none",
            fix="derive one: leave --from-tp-plan out",
        )
    return graph.hints["tp_plan"]


def _read(path: Path, given: str) -> object:
    import yaml

    try:
        content: object = yaml.safe_load(read_text(path))  # JSON is YAML
    except yaml.YAMLError as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{given} is neither JSON nor YAML", why=text) from None
    return content
