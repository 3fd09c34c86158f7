"""The pictures of the pages are what the code draws."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
IMAGES = sorted((DOCS / "images").glob("*.svg"))
GALLERY = (DOCS / "gallery.md").read_text()


def test_the_pictures_are_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "pictures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("picture", IMAGES, ids=lambda path: path.stem)
def test_a_picture_is_small_and_fits_a_screen(picture: Path) -> None:
    root = ET.parse(picture).getroot()
    assert root is not None
    width, height = (float(re.sub("pt$", "", root.get(side, ""))) for side in ("width", "height"))
    # Of Graphviz the sizes are points: 1600 x 1000 pixels are 1200 x 750, and a little is scrolled.
    assert width <= 1200
    assert height <= 850
    assert picture.stat().st_size <= 300_000


@pytest.mark.parametrize("picture", IMAGES, ids=lambda path: path.stem)
def test_a_picture_is_in_the_gallery_and_names_no_folder_of_a_machine(picture: Path) -> None:
    assert f"images/{picture.name}" in GALLERY
    assert re.search(r"(?<![\w.])/(?:home|work|root|tmp|Users)/", picture.read_text()) is None


def test_every_picture_of_the_gallery_is_there() -> None:
    named = set(re.findall(r"\(images/([^)]*)\)", GALLERY))
    assert named == {picture.name for picture in IMAGES}
