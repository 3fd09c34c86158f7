"""What an installed hpx must have; run by smoke.sh in a clean environment."""

from __future__ import annotations

import sys
import tarfile
from importlib.metadata import distribution, entry_points
from pathlib import Path

import hpx
import hpx.passes
import hpx.tools
from hpx.graph import GraphBuilder, ModuleSpec, TensorSpec
from hpx.render import Options, draw

site = Path(sys.argv[1])
archive = Path(sys.argv[2])

for package in (hpx, hpx.passes, hpx.tools):
    assert site in Path(str(package.__file__)).parents, f"{package} is not the installed one"

top = {path.name for path in site.iterdir()} - {"__pycache__"}
assert top == {"hpx", f"hpx_passes-{hpx.__version__}.dist-info", "borrowed.pth"}, top
assert (site / "hpx" / "py.typed").is_file()
assert not (site / "hpx" / "tools" / "bench").exists()

builder = GraphBuilder()
builder.tensor(
    "parameter", builder.module(-1, "", ModuleSpec("Model")), "a", TensorSpec((2,), "bfloat16")
)
page = draw(builder.finish(source="smoke"), "html", Options())
assert page.rstrip().endswith(b"</html>"), "the parts of the page are not installed"

metadata = distribution("hpx-passes").metadata
assert metadata["Version"] == hpx.__version__
assert metadata["License-Expression"] == "Apache-2.0"

passes = entry_points(group="hpx.passes")
assert len(passes) >= 6, passes.names
for point in passes:
    assert point.load().info.name == point.name, point

with tarfile.open(archive) as tar:
    names = {name.partition("/")[2] for name in tar.getnames()}
for needed in (
    "LICENSE",
    "pyproject.toml",
    "setup.py",
    "hpx/errors.py",
    "hpx/render/page/main.js",
    "passes/__init__.py",
):
    assert needed in names, f"{needed} is missing in {archive.name}"
