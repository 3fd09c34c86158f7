"""Fused projections that are reordered: a step, restore and saving, on gloo processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx.numeric.pool import Pool
from tests.distributed.equality import (
    Wrap,
    checkpointed_in_parts,
    compiled,
    deviations,
    fsdp,
    too_far,
)
from tests.distributed.packed import (
    OTHERS,
    PACKED,
    orders_of,
    packed_subject,
    resumed,
    saved,
    there_and_back,
)

REORDERED = [name for name in PACKED if not name.startswith(("gpt_neox", "falcon"))]
FOUR = [name for name in PACKED if name not in ("phi3", "falcon by group")]
"""Those with four heads of each kind."""

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _transformers() -> None:
    pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, "tp=2") for name in PACKED] + [(name, "tp=4") for name in FOUR],
)
def test_a_step_with_fused_projections_cut_equals_the_unsharded_one(
    name: str, mesh: str, gloo: Pool
) -> None:
    subject = packed_subject(name, mesh)
    assert bool(orders_of(subject)) == (name in REORDERED)
    for found in deviations(gloo, subject):
        assert too_far(found) == {}


@pytest.mark.parametrize("name", OTHERS)
def test_a_step_of_more_models_whose_code_is_known_equals_the_unsharded_one(
    name: str, gloo: Pool
) -> None:
    subject = packed_subject(name, "tp=2")
    assert bool(orders_of(subject)) == (name not in ("gpt_bigcode by head", "persimmon"))
    for found in deviations(gloo, subject):
        assert too_far(found) == {}


@pytest.mark.parametrize("name", ["phi3", "gpt2"])
def test_parts_that_are_declared_in_another_order_than_the_code_reads_show(
    name: str, gloo: Pool
) -> None:
    subject = packed_subject(name, "tp=2", repeat=2)
    assert orders_of(subject) == []
    for found in deviations(gloo, subject):
        assert max(found.values()) > 1e-3


@pytest.mark.parametrize("name", ["phi3", "gpt2", "falcon by group"])
def test_a_step_with_the_stream_cut_on_the_sequence_equals_the_unsharded_one(
    name: str, gloo: Pool
) -> None:
    pipeline = "@run, insert-collectives{sp=true}"
    for found in deviations(gloo, packed_subject(name, "tp=2", pipeline)):
        assert too_far(found) == {}


@pytest.mark.parametrize("wrap", [compiled, checkpointed_in_parts])
@pytest.mark.parametrize("name", ["phi3", "gpt2"])
def test_a_step_compiled_or_checkpointed_equals_the_unsharded_one(
    name: str, wrap: Wrap, gloo: Pool
) -> None:
    for found in deviations(gloo, packed_subject(name, "tp=2", wrap=wrap)):
        assert too_far(found) == {}


@pytest.mark.parametrize("wrap", [None, fsdp])
@pytest.mark.parametrize("name", PACKED)
def test_a_step_with_data_parallelism_on_top_equals_the_unsharded_one(
    name: str, wrap: Wrap | None, gloo: Pool
) -> None:
    for found in deviations(gloo, packed_subject(name, "dp=2,tp=2", wrap=wrap)):
        assert too_far(found) == {}


@pytest.mark.parametrize("name", PACKED)
def test_restore_gives_back_the_order_of_the_model_bit_for_bit(name: str, gloo: Pool) -> None:
    for faults in gloo.run(there_and_back, 2, name, "tp=2"):
        assert faults == []


def test_what_stays_local_for_good_is_restored_in_the_order_of_the_model(gloo: Pool) -> None:
    for faults in gloo.run(there_and_back, 2, "gpt2", "tp=2", "@run, localize{mode=permanent}"):
        assert faults == []


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("name", ["phi3", "gpt2"])
def test_only_the_state_dict_of_hpx_is_given_and_it_has_the_order_of_the_model(
    name: str, fsdp: bool, gloo: Pool
) -> None:
    for found in gloo.run(saved, 4, name, "dp=2,tp=2", fsdp):
        assert found["reordered"]
        for way in ("stock", "part", "distributed", "gathered"):
            assert "use hpx.state_dict(model)" in found[way], way
            assert found["order"] in found[way]
        assert "use hpx.load_state_dict(model, state)" in found["loaded"]
        assert found["loaded by hpx"] == []
        assert found["something else loaded"] == ""
        assert (found["differences"], found["again"]) == ([], [])


@pytest.mark.parametrize("name", ["phi3, four kv heads", "gpt2"])
def test_a_checkpoint_of_pieces_is_resumed_on_the_mesh_that_it_was_saved_on(
    name: str, gloo: Pool, tmp_path: Path
) -> None:
    for faults in gloo.run(resumed, 4, name, "dp=2,tp=2", "dp=2,tp=2", str(tmp_path / "saved")):
        assert faults == []


def test_a_checkpoint_of_pieces_is_refused_where_they_are_others(
    gloo: Pool, tmp_path: Path
) -> None:
    for faults in gloo.run(resumed, 4, "gpt2", "dp=2,tp=2", "dp=1,tp=4", str(tmp_path / "saved")):
        assert len(faults) == 1
        assert "the checkpoint has its rows in another order" in faults[0]
        assert "each in 2, and the model has dim 1: q 32, k 32, v 32, each in 4" in faults[0]
