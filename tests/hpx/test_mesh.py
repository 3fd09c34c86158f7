"""Meshes: their text, their two views, and the groups that experts get."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import MeshError
from hpx.layout import REPLICATED, Layout
from hpx.mesh import MeshSpec, MeshView, divisors


def expert(text: str) -> MeshView:
    view = MeshSpec.parse(text).expert
    assert view is not None
    return view


@st.composite
def meshes(draw: st.DrawFn) -> MeshSpec:
    data = draw(st.sampled_from([[], ["dp"], ["dp_shard"], ["dp_replicate", "dp_shard"]]))
    others = draw(st.permutations(["cp", "tp"]))
    names = [*data, *others[: draw(st.integers(0 if data else 1, 2))]]
    if draw(st.booleans()):
        names.insert(draw(st.integers(0, len(names))), "pp")
    axes = tuple((name, draw(st.integers(1, 4))) for name in names)
    plain = MeshSpec(axes)
    room = plain.world_size // plain.size("pp", 1) // plain.size("dp_replicate", 1)
    return MeshSpec(axes, draw(st.sampled_from([None, *divisors(room)])))


@given(meshes())
def test_a_mesh_prints_as_the_text_that_it_parses_from(mesh: MeshSpec) -> None:
    assert MeshSpec.parse(str(mesh)) == mesh


@given(meshes())
def test_a_mesh_survives_json(mesh: MeshSpec) -> None:
    assert MeshSpec.from_json(mesh.to_json()) == mesh


@given(meshes())
def test_the_groups_of_every_axis_hold_every_rank_once(mesh: MeshSpec) -> None:
    for view in filter(None, (mesh.dense, mesh.expert)):
        for axis, size in view.axes:
            groups = view.groups(axis)
            assert {len(group) for group in groups} == {size}
            assert sorted(r for group in groups for r in group) == list(range(mesh.world_size))


@given(meshes())
def test_ranks_of_a_group_differ_in_their_axis_only_and_in_its_order(mesh: MeshSpec) -> None:
    for view in filter(None, (mesh.dense, mesh.expert)):
        for axis, size in view.axes:
            for group in view.groups(axis):
                places = [view.coordinate(rank) for rank in group]
                assert [place[axis] for place in places] == list(range(size))
                assert len({tuple((place | {axis: 0}).items()) for place in places}) == 1


@given(meshes())
def test_the_expert_mesh_has_the_ranks_of_the_dense_mesh(mesh: MeshSpec) -> None:
    for view in filter(None, (mesh.expert,)):
        assert sorted(view.ranks) == list(range(mesh.world_size))
        places = {tuple(view.coordinate(rank).items()) for rank in view.ranks}
        assert len(places) == mesh.world_size


@given(meshes())
def test_an_ep_group_stays_in_its_stage_and_replica(mesh: MeshSpec) -> None:
    for view in filter(None, (mesh.expert,)):
        for group in view.groups("ep"):
            places = [mesh.coordinate(rank) for rank in group]
            assert len({(p.get("pp"), p.get("dp_replicate")) for p in places}) == 1


def test_ep_2_on_dp_4_tp_2_makes_the_tp_pairs_the_ep_groups() -> None:
    mesh = MeshSpec.parse("dp=4,tp=2,ep=2")
    assert mesh.view("expert").groups("ep") == mesh.dense.groups("tp")


def test_ep_8_on_dp_4_tp_2_makes_one_group_with_edp_1() -> None:
    view = expert("dp=4,tp=2,ep=8")
    assert view.groups("ep") == [list(range(8))]
    assert view.size("edp") == 1


def test_ep_3_on_dp_4_tp_2_is_an_error_with_the_numbers_and_the_sizes_that_would_do() -> None:
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse("dp=4,tp=2,ep=3")
    assert str(caught.value) == (
        "mesh 'dp=4,tp=2,ep=3': ep=3 does not divide D = 8: there are dp=4 x tp=2 = 8 ranks. "
        "Fix: use an ep of 1, 2, 4, 8"
    )


def test_ep_4_on_dp_2_cp_2_tp_2_makes_groups_of_neighbours() -> None:
    assert expert("dp=2,cp=2,tp=2,ep=4").groups("ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_ep_2_on_tp_2_alone_is_the_tp_group() -> None:
    mesh = MeshSpec.parse("tp=2,ep=2")
    assert mesh.view("expert").groups("ep") == mesh.dense.groups("tp") == [[0, 1]]


def test_the_edp_groups_of_dp_4_tp_2_ep_4_step_over_the_ep_groups() -> None:
    assert expert("dp=4,tp=2,ep=4").groups("edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_split_dp_splits_edp_alike() -> None:
    view = expert("dp_replicate=2,dp_shard=4,tp=2,ep=4")
    assert view.axes == (("edp_replicate", 2), ("edp_shard", 2), ("ep", 4))
    assert view.groups("edp_replicate")[0] == [0, 8]
    assert view.groups("edp_shard")[0] == [0, 4]


def test_an_ep_that_reaches_over_replicas_is_an_error_that_counts_one_replica() -> None:
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse("dp_replicate=2,dp_shard=2,ep=4")
    assert "ep=4 does not divide D = 2" in str(caught.value)
    assert "2 in each of the 2 replicas" in str(caught.value)
    assert "use an ep of 1, 2" in str(caught.value)


def test_a_replica_that_is_no_run_of_neighbours_is_an_error_with_ep() -> None:
    with pytest.raises(MeshError, match="dp_replicate stands after dp_shard"):
        MeshSpec.parse("dp_shard=2,dp_replicate=2,ep=2")


def test_pp_is_cut_off_first_and_is_the_first_axis_of_the_expert_mesh() -> None:
    view = expert("pp=2,dp=2,tp=2,ep=4")
    assert str(view) == "pp=2,edp=1,ep=4"
    assert view.groups("ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_pp_between_other_axes_is_cut_off_first_as_well() -> None:
    view = expert("dp=2,pp=2,tp=2,ep=4")
    assert str(view) == "pp=2,edp=1,ep=4"
    assert view.groups("ep") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert view.coordinate(4) == {"pp": 0, "edp": 0, "ep": 2}


def test_an_ep_that_fits_the_world_but_no_stage_is_an_error() -> None:
    with pytest.raises(MeshError, match=r"does not divide D = 4: .* outside pp"):
        MeshSpec.parse("pp=2,dp=2,tp=2,ep=8")


def test_the_position_of_a_rank_is_row_major() -> None:
    assert MeshSpec.parse("dp=2,tp=4").coordinate(6) == {"dp": 1, "tp": 2}


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_mesh_is_an_error(rank: int) -> None:
    with pytest.raises(MeshError, match=rf"no rank {rank}: its 8 ranks are 0\.\.7"):
        MeshSpec.parse("dp=2,tp=4,ep=8").coordinate(rank, "expert")


def test_an_optional_axis_counts_as_1_and_a_required_one_is_an_error() -> None:  # case M2
    mesh = MeshSpec.parse("tp=4")
    assert mesh.size("dp", 1) == 1
    with pytest.raises(MeshError) as caught:
        mesh.size("dp")
    assert str(caught.value) == (
        "mesh tp=4 has no axis 'dp': its axes are tp. "
        "Fix: add dp to the mesh; dp=1 if it is meant to be inactive"
    )


def test_asking_for_a_misspelt_axis_names_the_nearest() -> None:
    with pytest.raises(MeshError, match="Fix: did you mean tp"):
        MeshSpec.parse("dp=2,tp=4").size("tpp")


def test_an_axis_of_size_1_is_there_but_not_active() -> None:  # case M8
    mesh = MeshSpec.parse("dp=8,tp=1")
    assert (mesh.has("tp"), mesh.weight_axes, mesh.active_axes) == (True, ("tp",), ())


def test_ep_is_the_last_axis_wherever_it_was_written() -> None:
    assert str(MeshSpec.parse(" ep = 4, dp=4 ,tp=2")) == "dp=4,tp=2,ep=4"


def test_ep_adds_no_ranks() -> None:
    assert MeshSpec.parse("dp=4,tp=8,ep=16").world_size == 32


def test_a_parameter_lives_on_the_expert_mesh_only_if_ep_cuts_it() -> None:
    mesh = MeshSpec.parse("dp=4,tp=2,ep=4")
    assert mesh.view_of(Layout.parse("ep:S(0)")) is mesh.expert
    assert mesh.view_of(Layout.parse("tp:S(0),ep:R")) is mesh.dense
    assert mesh.view_of(REPLICATED) is mesh.dense


def test_the_expert_view_of_a_mesh_without_ep_is_an_error() -> None:
    with pytest.raises(MeshError, match="no expert view: it names no ep axis"):
        MeshSpec.parse("dp=4").view_of(Layout.parse("ep:S(0)"))


def test_an_unknown_view_or_axis_of_a_view_is_an_error() -> None:
    mesh = MeshSpec.parse("dp=4,ep=2")
    with pytest.raises(MeshError, match="its views are dense and expert"):
        mesh.view("experts")
    with pytest.raises(MeshError, match=r"its axes are edp, ep\. Fix: did you mean edp"):
        mesh.view("expert").groups("dp")


def test_a_mesh_as_json_says_what_a_run_file_holds() -> None:
    assert MeshSpec.parse("dp=4,tp=2,ep=4").to_json() == {
        "text": "dp=4,tp=2,ep=4",
        "axes": {"dp": 4, "tp": 2},
        "world_size": 8,
        "expert": {"edp": 2, "ep": 4},
    }


@pytest.mark.parametrize("value", [None, {}, {"text": 1}])
def test_a_saved_mesh_without_text_is_an_error(value: object) -> None:
    with pytest.raises(MeshError, match="no saved mesh"):
        MeshSpec.from_json(value)


def test_a_saved_mesh_that_contradicts_itself_is_an_error() -> None:
    with pytest.raises(MeshError, match="contradicts itself"):
        MeshSpec.from_json(MeshSpec.parse("dp=4").to_json() | {"world_size": 8})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "mesh '' names no axis. Fix: write axis=size pairs, such as dp=4,tp=8,ep=16"),
        ("  ", "names no axis"),
        ("dp=0", "axis dp has size 0: a size is a whole number from 1. Fix: write dp=1"),
        ("ep=0,dp=1", "axis ep has size 0"),
        ("dp=x", "axis dp has size 'x': a size is a whole number from 1"),
        ("dp=-2", "axis dp has size '-2'"),
        ("dp=2.0", "axis dp has size '2.0'"),
        ("dp=1_0", "axis dp has size '1_0'"),
        ("dp=\u0664", "axis dp has size '\u0664'"),
        ("dp=", "axis dp has size ''"),
        ("dp=2=3", "axis dp has size '2=3'"),
        ("dp=" + "9" * 5000, "axis dp has size"),
        ("dp=4 tp=2", "with commas between them"),
        ("dp=4;tp=2", "with commas between them"),
        ("dp=2,dp=4", "mesh 'dp=2,dp=4': axis dp is named twice"),
        ("ep=2,dp=2,ep=2", "axis ep is named twice"),
        ("dp 4", "'dp 4' is not axis=size. Fix: write dp=4"),
        ("dp:4", "Fix: write dp=4"),
        ("8", "'8' is not axis=size. Fix: write axis=size pairs, such as"),
        ("tp=8,", "nothing between two commas, or before the first or after the last"),
        (",tp=8", "Fix: remove the comma"),
        ("dp=2,,tp=8", "Fix: remove the comma"),
        ("tpp=2", "unknown axis 'tpp': the axes are dp, dp_replicate, dp_shard, cp, pp, tp, ep."),
        ("TP=2", "unknown axis 'TP': the axes are dp, dp_replicate, dp_shard, cp, pp, tp, ep. F"),
        ("TP=2", "did you mean tp"),
        ("data=2", "unknown axis 'data'"),
        ("edp=2,ep=2", "axis edp cannot be given: it follows from the dense axes and ep"),
        ("dp=2,dp_shard=2", "axes dp and dp_shard stand in one mesh"),
        ("ep=2", "no dense axis: ep adds no ranks"),
        ("dp=1,tp=999999999", "the mesh has 999,999,999 ranks: hpx takes 1,048,576 at most"),
    ],
)
def test_a_bad_mesh_text_is_an_error_that_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ep_among_the_dense_axes_is_an_error() -> None:
    with pytest.raises(MeshError, match="ep is no dense axis"):
        MeshSpec((("dp", 4), ("ep", 2)))


def test_meshes_and_layouts_do_not_import_torch() -> None:
    code = "import sys, hpx.mesh, hpx.layout; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mesh_of_16384_ranks_answers_for_its_last_rank() -> None:
    mesh = MeshSpec.parse("pp=8,dp=256,tp=8,ep=64")
    assert mesh.coordinate(16383, "expert") == {"pp": 7, "edp": 31, "ep": 63}
