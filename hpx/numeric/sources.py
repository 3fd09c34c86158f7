"""What a person names as the model of a check: its source, its graph, and a plan that fits it."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpx.errors import InputError, PlanError, UsageError
from hpx.graph.graph import ModuleGraph
from hpx.graph.json_file import read_json_object
from hpx.mesh import MeshSpec
from hpx.numeric.building import (
    Built,
    Config,
    Factory,
    Function,
    Pickled,
    Source,
    built_of,
    choose_attention,
    refuse_meta,
)
from hpx.numeric.pool import reference
from hpx.numeric.shrinking import Shrunk, shrink
from hpx.plan import ShardingPlan

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Named", "source_of"]

_SMALL: Final = {"hpx.bundled:moe_671b": "hpx.bundled:tiny_moe"}
"""Bundled models that are too large to run, and the small ones of their families."""
_GIVE: Final = "give the config.json of a model of transformers, or package.module:factory"
_WEIGHTS: Final = "a check builds the model with random weights, and a checkpoint has no code"


class Named(NamedTuple):
    """What a person named.

    Attributes:
        source: Where the model comes from.
        graph: Its graph.
        plan: The plan that was given, for the size that the model has then.
        model: The model, built once: that of a configuration on the meta device.
        inputs: Example inputs that came with it, or None.
    """

    source: Source
    graph: ModuleGraph
    plan: ShardingPlan | None
    model: nn.Module
    inputs: object = None


def source_of(
    model: str | Path | Callable[[], object] | nn.Module,
    spec: MeshSpec,
    plan: ShardingPlan | None,
    shrunk: bool | None,
    attention: str | None,
    *,
    in_place: bool,
) -> Named:
    """Where the model comes from, its graph, and the plan for the size that it has then.

    Args:
        model: See `hpx.check`.
        spec: The mesh.
        plan: A plan that was given.
        shrunk: Whether a configuration is made small.
        attention: An implementation of attention to choose.
        in_place: Whether this process is a rank, so that nothing has to travel.

    Raises:
        HpxError: It is no model, or cannot reach other processes.
    """
    from torch import nn

    if model == "":
        raise UsageError("no model is named", fix=_GIVE)
    if isinstance(model, (str, Path)):
        if _is_config(Path(model)):
            return _config(str(model), spec, plan, shrunk, attention)
        text = str(model)
        if shrunk is not False:
            text = _SMALL.get(text, text)
        if shrunk and text == str(model):
            raise UsageError(
                "a factory decides its own sizes",
                fix="leave --shrink out, or give a config.json",
            )
        _refuse_weights(text)
        return _of_source(Factory(text), plan, attention)
    if shrunk:
        raise UsageError("a model or function decides its own sizes", fix="leave shrink= out")
    if isinstance(model, nn.Module):
        return _of_source(_pickled(model), plan, attention)
    if not callable(model):
        raise UsageError(
            f"a {type(model).__name__} is no model",
            fix="give a config.json, package.module:factory, a function, or a torch.nn.Module",
        )
    return _of_source(_function(model, in_place=in_place), plan, attention)


def _is_config(path: Path) -> bool:
    try:
        return path.is_dir() or (path.is_file() and path.suffix == ".json")
    except (OSError, ValueError):
        return False


def _refuse_weights(text: str) -> None:
    path = Path(text)
    if ":" in text and not path.exists():
        return
    from hpx.graph.sources import open_model

    graph = open_model(text)  # which says what is wrong with it
    raise InputError(
        f"{graph.source} cannot be checked",
        why=_WEIGHTS,
        fix="give its config.json, or package.module:factory",
    )


def _config(
    text: str,
    spec: MeshSpec,
    plan: ShardingPlan | None,
    shrunk: bool | None,
    attention: str | None,
) -> Named:
    path = Path(text)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{text} has no config.json", why=_WEIGHTS, fix=_GIVE)
    values: Mapping[str, Any] = read_json_object(file, text)
    if "model_type" not in values:
        raise InputError(
            f"{text} is no configuration of a model", why="it names no model_type", fix=_GIVE
        )
    name = text
    if shrunk is not False:
        small = shrink(values, spec, text)
        values, plan = small.values, None if plan is None else _scaled(plan, small)
        name = f"{text}, shrunk"
        if small.layers[0] != small.layers[1]:
            name += f" to {small.layers[1]} of {small.layers[0]} layers"
    source = Config(name, values, attention)
    from hpx.graph.from_module import graph_from_module

    model = source.on("meta")
    return Named(source, graph_from_module(model, source=f"config:{path.name}"), plan, model)


def _of_source(source: Source, plan: ShardingPlan | None, attention: str | None) -> Named:
    from hpx.graph.from_module import graph_from_module

    built = source.build()
    model = built.model
    if attention is not None:
        choose_attention(model, attention)
    refuse_meta(model, source.name)
    kind = "factory" if isinstance(source, Factory) else "module"
    graph = graph_from_module(model, source=f"{kind}:{source.name}")
    return Named(source, graph, plan, model, built.inputs)


def _pickled(model: nn.Module) -> Pickled:
    name = type(model).__name__
    try:
        return Pickled(name, pickle.dumps(model))
    except Exception as error:  # noqa: BLE001 - whatever a module has inside
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"this {name} cannot reach the other processes",
            why=f"{type(error).__name__}: {text}",
            fix="give a function at the top level of a module that returns it, or its name as "
            "package.module:function; or call hpx.check on every rank, under torchrun",
        ) from None


@dataclasses.dataclass(frozen=True)
class _Called:
    """A function of this process, where it is a rank itself."""

    name: str
    function: Callable[[], object]

    def build(self) -> Built:
        return built_of(self.function(), self.name)


def _function(function: Callable[[], object], *, in_place: bool) -> Source:
    name = getattr(function, "__name__", type(function).__name__)
    if in_place:
        return _Called(name, function)
    try:
        if function.__module__ == "__main__":
            raise ValueError(f"{name} stands in the program itself")  # noqa: TRY301
        return Function(name, reference(function))
    except (ValueError, AttributeError) as error:
        raise UsageError(
            f"{name} cannot reach the other processes",
            why=str(error),
            fix="define it at the top level of a module, or name it as package.module:function; "
            "or call hpx.check on every rank, under torchrun",
        ) from None


def _scaled(plan: ShardingPlan, small: Shrunk) -> ShardingPlan:
    """The plan with the parts of fused weights in the sizes of the small model.

    Raises:
        PlanError: A size is not one of the configuration's.
    """
    packed = []
    for entry in plan.packed:
        parts = tuple((name, small.sizes.get(size, -1)) for name, size in entry.parts)
        repeat = entry.repeat if entry.repeat == 1 else small.counts.get(entry.repeat, -1)
        if repeat < 0 or any(size < 0 for _, size in parts):
            raise PlanError(
                f"the parts of {entry.pattern!r} are not sizes of the configuration",
                where=plan.file,
                why="so it is not known how large they are in the shrunk model",
                fix="--no-shrink, or leave --plan out to check the derived one",
            )
        packed.append(dataclasses.replace(entry, repeat=repeat, parts=parts))
    if not packed:
        return plan
    saved = plan.to_json()
    saved["packed"] = [entry.to_json() for entry in packed]
    return ShardingPlan.from_json(saved)
