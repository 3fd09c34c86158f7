"""What a report of a check says to other programs."""

from __future__ import annotations

import json
import math

from hpx.numeric.measure import Deviation, Key
from hpx.numeric.report import Blame, figures_of


def test_what_is_infinitely_far_is_null_as_json_has_no_infinity() -> None:
    off = Deviation(Key("output", "logits"), math.inf, 1.0, "its shape is (2,), not (3,)")
    (figure,) = figures_of([[off]], 1e-9)
    blame = Blame("head", "Linear", "forward", "its output differs", math.inf)
    text = json.dumps([figure.to_json(), blame.to_json()], allow_nan=False)
    first, second = json.loads(text)
    assert (first["wrong"], first["largest"], first["note"]) == (1, None, off.note)
    assert second["by"] is None
