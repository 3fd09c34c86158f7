"""One step under the derived plan of a family, and of the unsharded model."""

from __future__ import annotations

from typing import Any

import hpx
from tests.distributed.equality import deviation, no_casts, sharded_step, whole_step
from tests.distributed.equality_models import MODELS, PADDING, VOCABULARY
from tests.hpx.derive.models import family

__all__ = ["derived_deviations"]

_NOISE = 1e-15
_CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "opt": {"dropout": 0.0, "attention_dropout": 0.0},
    "phi3": {"pad_token_id": PADDING},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gpt_neox": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    "starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
    "gpt_oss": {"pad_token_id": PADDING},
    "t5": {"dropout_rate": 0.0, "pad_token_id": PADDING},
}


def derived_deviations(
    name: str, mesh: str, pipeline: str = "@run", wrap: str | None = None
) -> tuple[int, dict[str, float]]:
    """How many parameters the derived plan cuts, and deviations by tensor.

    Experts are stacked in transformers already, so that every name is the model's own.
    """
    changes: dict[str, Any] = {"vocab_size": VOCABULARY, **_CHANGES.get(name, {})}

    def build() -> object:
        model = family(name, "cpu", **changes)
        model.config._experts_implementation = "eager"
        return model

    plan = hpx.plan(family(name, **changes), mesh)
    # A name of its own: the workers live on, and other tests read their models from the same table.
    key = f"derived {name}"
    MODELS[key] = (build, plan.to_yaml())  # type: ignore[assignment]
    number = sum(bool(rule.layout.shards) for rule in plan.params)
    with no_casts():
        expected, found = whole_step(key, 1), sharded_step(key, mesh, pipeline, wrap)
    assert found.keys() <= expected.keys(), found.keys() - expected.keys()
    far = {name: deviation(value, expected[name]) for name, value in found.items()}
    # The bias of a key moves all scores of a query alike: its gradient is nothing but rounding.
    noise = [name for name in far if expected[name].abs().max() < _NOISE]
    return number, {name: value for name, value in far.items() if name not in noise}
