"""Where the packages lie: ``passes/`` and ``tools/`` are installed inside the ``hpx`` namespace.

Everything else about the project stands in ``pyproject.toml``. This part is code because the
packages under the three folders are found, not listed, and setuptools cannot find packages
through a ``package-dir`` mapping by itself.
"""

from setuptools import find_packages, setup

FOLDERS = {"hpx": "hpx", "hpx.passes": "passes", "hpx.tools": "tools"}
NOT_INSTALLED = ("bench", "bench.*")  # benchmarks run from a checkout


def packages() -> list[str]:
    """The three packages and all that is below them, by the names they are imported under."""
    found: list[str] = []
    for package, folder in FOLDERS.items():
        below = find_packages(folder, exclude=NOT_INSTALLED)
        found += [package, *(f"{package}.{name}" for name in below)]
    return found


PARTS = {"hpx": ["py.typed"], "hpx.render.page": ["*.html", "*.css", "*.js"]}

setup(packages=packages(), package_dir=FOLDERS, package_data=PARTS)
