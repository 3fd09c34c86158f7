"""Draw the pictures of docs/images, all of them from the bundled models and the example plans.

python docs/pictures.py            draws them (svg; with --png also png, to look at)
python docs/pictures.py --check    exits with 1 if one is not what the code draws now

What Graphviz lays out differs from version to version, so the check compares the DOT text that a
picture was drawn from, of which the picture keeps the hash.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import hpx
from hpx.errors import HpxError
from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.graph.edit import set_key
from hpx.layout import Layout
from hpx.mesh import MeshSpec
from hpx.pipeline import as_passes, schedule
from hpx.pipeline.manager import failed_step
from hpx.render import Options, draw
from hpx.render.picture import draw_dot
from hpx.render.pipeline import (
    PipelinePicture,
    failure_to_json,
    picture_of_failure,
    pipeline_to_dot,
)
from hpx.render.ranks_svg import ranks_svg
from hpx.run import Run

IMAGES: Final = Path(__file__).parent / "images"
EXAMPLES: Final = Path(__file__).parent / "examples"
MARK: Final = "<!-- drawn by docs/pictures.py from DOT text of sha256 {} -->"


class Source(NamedTuple):
    """What a picture is drawn from: DOT text, or a whole svg that needs no Graphviz."""

    dot: str
    svg: str


def dot(target: Any, **options: Any) -> Source:
    """A picture by Graphviz of a model or run."""
    return Source(draw(target, "dot", Options(**options)).decode(), "")


def outline(target: Any, **options: Any) -> Source:
    """A picture by the built-in writer."""
    return Source("", draw(target, "svg", Options(engine="builtin", **options)).decode())


@cache
def run(name: str) -> Run:
    """The run of an example plan, on the example's config or the bundled model of its name."""
    config = Path(name, "config.json")
    model = str(config) if config.exists() else f"hpx.bundled:{name.replace('-', '_')}"
    return hpx.run(model, f"{name}/plan.yaml")


@cache
def odd_expert() -> ModuleGraph:
    """The 44,953 parameters of the bundled mixture, one expert placed unlike all others."""
    hidden, width, heads = 7168, 2048, (16384, 2048)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (129280, hidden)}
    cuts = {"model.embed_tokens.weight": "tp:S(0)"}

    def add(name: str, shape: tuple[int, ...], layout: str) -> None:
        shapes[name], cuts[name] = shape, layout

    for layer in (f"model.layers.{i}" for i in range(58)):
        add(f"{layer}.self_attn.q_proj.weight", (heads[0], hidden), "tp:S(0)")
        add(f"{layer}.self_attn.k_proj.weight", (heads[1], hidden), "tp:S(0)")
        add(f"{layer}.self_attn.v_proj.weight", (heads[1], hidden), "tp:S(0)")
        add(f"{layer}.self_attn.o_proj.weight", (hidden, heads[0]), "tp:S(1)")
        add(f"{layer}.mlp.gate.weight", (256, hidden), "R")
        for expert in (f"{layer}.mlp.experts.{j}" for j in range(256)):
            add(f"{expert}.gate_proj.weight", (width, hidden), "tp:S(0)")
            add(f"{expert}.up_proj.weight", (width, hidden), "tp:S(0)")
            add(f"{expert}.down_proj.weight", (hidden, width), "tp:S(1)")
        add(f"{layer}.input_layernorm.weight", (hidden,), "R")
        add(f"{layer}.post_attention_layernorm.weight", (hidden,), "R")
    add("model.norm.weight", (hidden,), "R")
    add("lm_head.weight", (129280, hidden), "tp:S(0)")
    cuts["model.layers.30.mlp.experts.137.up_proj.weight"] = "R"
    return _placed(shapes, cuts)


def _placed(shapes: dict[str, tuple[int, ...]], cuts: dict[str, str]) -> ModuleGraph:
    builder = GraphBuilder()
    ids: dict[str, int] = {}

    def module(path: str) -> int:
        if path not in ids:
            parent, _, name = path.rpartition(".")
            ids[path] = builder.module(module(parent) if path else -1, name, ModuleSpec(""))
        return ids[path]

    module("")
    by_layout: dict[str, list[int]] = {}
    for path, shape in shapes.items():
        parent, _, name = path.rpartition(".")
        node = builder.tensor("parameter", module(parent), name, TensorSpec(shape, "bfloat16"))
        by_layout.setdefault(cuts[path], []).append(node)
    graph = builder.finish(source="a checkpoint of 44,953 parameters")
    for text, nodes in by_layout.items():
        set_key(graph, nodes, "layout", Layout.parse(text))
    return graph


@cache
def changed_moe() -> Run:
    """The small mixture with another plan."""
    text = Path("tiny-moe/plan.yaml").read_text()
    text = text.replace("layout: {tp: S(1)}", "layout: replicate")
    head = text.index('  "lm_head.weight"')
    text = text[:head] + text[head:].replace("{tp: S(0)}", "replicate")
    return hpx.run("hpx.bundled:tiny_moe", _plan(text))


def _plan(text: str) -> hpx.ShardingPlan:
    return hpx.ShardingPlan.from_text(text, file="plan.yaml")


def failed() -> Source:
    """A pipeline that fails, because 4 key-value heads are not divided by 16."""
    text = Path("tiny-llama/plan.yaml").read_text().replace("mesh: dp=2,tp=4", "mesh: dp=1,tp=16")
    plan = _plan(text)
    error = _refusal(plan)
    step = failed_step(error)
    assert step is not None, error
    title = "hpx.bundled:tiny_llama on dp=1,tp=16"
    value = failure_to_json(step, title=title, pipeline="@run", order="auto", error=str(error))
    return Source(pipeline_to_dot(picture_of_failure(value)), "")


def _refusal(plan: hpx.ShardingPlan) -> HpxError:
    try:
        hpx.run("hpx.bundled:tiny_llama", plan, pipeline="@run")
    except HpxError as error:
        return error
    raise AssertionError("this plan is to be refused")


def pipeline() -> Source:
    """The preset @run."""
    made = PipelinePicture("the preset @run", schedule(as_passes("@run"), None))
    return Source(pipeline_to_dot(made), "")


def ranks(shape: tuple[int, ...], layout: Layout, mesh: str, name: str, rank: int) -> Source:
    """Who holds what of one parameter."""
    return Source("", ranks_svg(shape, layout, MeshSpec.parse(mesh), name=name, rank=rank))


PICTURES: Final[dict[str, Callable[[], Source]]] = {
    "tiny-llama": lambda: dot(run("tiny-llama")),
    "llama-70b": lambda: dot(run("llama-70b")),
    "moe-671b": lambda: dot(run("moe-671b")),
    "gpt2-tied": lambda: dot(run("gpt2")),
    "odd-expert": lambda: dot(odd_expert(), mesh=MeshSpec.parse("dp=32,tp=8")),
    "diff": lambda: dot(run("tiny-moe"), against=changed_moe()),
    "step": lambda: dot(run("moe-671b"), step=1),
    "rank": lambda: dot(run("moe-671b"), rank=77),
    "by-bytes": lambda: dot(run("llama-70b"), color_by="bytes"),
    "one-axis": lambda: dot(run("moe-671b"), axis="ep"),
    "outline": lambda: outline(run("moe-671b")),
    "pipeline": pipeline,
    "pipeline-failed": failed,
    "ranks-fsdp": lambda: ranks(
        (16, 16), Layout.parse("tp:S(0)").then("dp", 0), "dp=2,tp=4", "weight, tp and then FSDP", 5
    ),
    "ranks-experts": lambda: ranks(
        (8, 2, 2), Layout.parse("ep:S(0)").then("edp", 1), "dp=4,tp=2,ep=4", "experts.gate_proj", 6
    ),
    "ranks-uneven": lambda: ranks(
        (5, 4), Layout.parse("tp:S(0)"), "dp=2,tp=4", "five rows over four ranks", 2
    ),
}


def drawn(source: Source) -> str:
    """The svg, with the hash of its DOT text."""
    if source.svg:
        return source.svg
    svg = draw_dot(source.dot, "svg").decode()
    head, end, rest = svg.partition("?>\n")
    return f"{head}{end}{marked(source)}\n{rest}"


def marked(source: Source) -> str:
    """The comment that a picture by Graphviz carries."""
    return MARK.format(hashlib.sha256(source.dot.encode()).hexdigest())


def stale() -> Iterator[str]:
    """The pictures that are not what the code draws now."""
    for name, make in PICTURES.items():
        place = IMAGES / f"{name}.svg"
        there = place.read_text() if place.exists() else ""
        source = make()
        if there != source.svg if source.svg else marked(source) not in there:
            yield place.name
    yield from sorted(p.name for p in IMAGES.glob("*.svg") if p.stem not in PICTURES)


def main() -> int:
    """Draw the pictures, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--png", metavar="FOLDER", help="write png as well, to look at")
    parser.add_argument("names", nargs="*", help="only these")
    given = parser.parse_args()
    png = Path(given.png).resolve() if given.png else None
    os.chdir(EXAMPLES)  # so that tooltips name plans as a reader of the examples would
    if given.check:
        found = list(stale())
        for name in found:
            sys.stderr.write(f"docs/images/{name} is stale: run python docs/pictures.py\n")
        return 1 if found else 0
    for name, make in PICTURES.items():
        if given.names and name not in given.names:
            continue
        source = make()
        (IMAGES / f"{name}.svg").write_text(drawn(source))
        if png is not None and source.dot:
            (png / f"{name}.png").write_bytes(draw_dot(source.dot, "png"))
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
