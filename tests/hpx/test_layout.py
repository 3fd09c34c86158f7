"""Layouts: their forms, how they fit a mesh and a tensor, and what each rank holds."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from hpx.errors import LayoutError
from hpx.layout import (
    REPLICATED,
    Layout,
    Range,
    chunk_range,
    index_range,
    is_even,
    local_shape,
    per_rank_sizes,
)
from hpx.mesh import MeshSpec

MESH = MeshSpec.parse("dp=4,tp=2,ep=4")
AXES = ("tp", "ep", "dp", "cp")


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout, dict[str, int]]:
    """A shape of any number of dims, cuts on it (several may share a dim), and axis sizes."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    axes = draw(st.permutations(AXES))
    sizes = {axis: draw(st.integers(1, 4)) for axis in axes}
    layout = REPLICATED
    for axis in axes[: draw(st.integers(0, len(axes)))]:
        layout = layout.then(axis, draw(st.integers(0, len(shape) - 1)))
    return shape, layout, sizes


def coordinates(sizes: dict[str, int]) -> list[dict[str, int]]:
    places = itertools.product(*(range(size) for size in sizes.values()))
    return [dict(zip(sizes, place, strict=True)) for place in places]


def elements(ranges: tuple[Range, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(start, end) for start, end in ranges))


def offset_and_shape(ranges: tuple[Range, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(end - start for start, end in ranges), tuple(start for start, _ in ranges)


@given(cases())
def test_the_ranges_cover_every_element_once_per_replica_group(
    case: tuple[tuple[int, ...], Layout, dict[str, int]],
) -> None:
    shape, layout, sizes = case
    held: Counter[tuple[int, ...]] = Counter()
    for place in coordinates(sizes):
        held.update(elements(index_range(shape, layout, sizes, place)))
    copies = math.prod(size for axis, size in sizes.items() if layout.dim(axis) is None)
    assert held == dict.fromkeys(elements(tuple((0, n) for n in shape)), copies)


@given(cases())
def test_the_local_shape_is_the_extent_of_the_ranges(
    case: tuple[tuple[int, ...], Layout, dict[str, int]],
) -> None:
    shape, layout, sizes = case
    for place in coordinates(sizes):
        ranges = index_range(shape, layout, sizes, place)
        assert local_shape(shape, layout, sizes, place) == offset_and_shape(ranges)[0]


@given(cases())
def test_a_layout_is_even_exactly_if_all_ranks_hold_the_same_shape(
    case: tuple[tuple[int, ...], Layout, dict[str, int]],
) -> None:
    shape, layout, sizes = case
    shapes = {local_shape(shape, layout, sizes, place) for place in coordinates(sizes)}
    assert is_even(shape, layout, sizes) == (len(shapes) == 1)


@given(cases())
def test_ranges_are_those_of_torch_for_cuts_in_the_order_of_its_mesh(
    case: tuple[tuple[int, ...], Layout, dict[str, int]],
) -> None:
    shape, layout, sizes = case
    if not layout.shards:
        return
    placements = [Shard(dim) for _, dim in layout.shards]
    mesh_shape = tuple(sizes[axis] for axis, _ in layout.shards)
    for place in coordinates(sizes):
        position = [place[axis] for axis, _ in layout.shards]
        torchs = _compute_local_shape_and_global_offset(shape, mesh_shape, position, placements)
        ours = offset_and_shape(index_range(shape, layout, sizes, place))
        assert ours[0] == torchs[0]
        if math.prod(ours[0]):  # where an empty piece begins says nothing
            assert ours[1] == torchs[1]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4))
def test_fsdp_after_tp_is_the_strided_shard_of_torch(dp: int, tp: int, rows: int) -> None:
    shape = (rows * dp * tp, 3)
    layout = Layout.parse("tp:S(0)").then("dp", 0)
    placements = [_StridedShard(0, split_factor=tp), Shard(0)]
    for place in coordinates({"dp": dp, "tp": tp}):
        torchs = _compute_local_shape_and_global_offset(
            shape, (dp, tp), [place["dp"], place["tp"]], placements
        )
        ranges = index_range(shape, layout, {"dp": dp, "tp": tp}, place)
        if rows:
            assert offset_and_shape(ranges) == torchs
        assert offset_and_shape(ranges)[0] == torchs[0]


@given(st.integers(0, 300), st.integers(1, 40))
def test_pieces_have_the_sizes_of_torch_chunk_and_empty_ones_behind(size: int, parts: int) -> None:
    chunks = [len(chunk) for chunk in torch.empty(size).chunk(parts)]
    assert per_rank_sizes(size, parts) == chunks + [0] * (parts - len(chunks))


@given(st.integers(0, 300), st.integers(1, 40))
def test_pieces_follow_each_other_without_a_gap(size: int, parts: int) -> None:
    ranges = [chunk_range(size, parts, index) for index in range(parts)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))


@pytest.mark.parametrize("index", [-1, 4])
def test_a_piece_that_is_not_there_is_an_error(index: int) -> None:
    with pytest.raises(LayoutError, match=f"no piece {index} of 4"):
        chunk_range(8, 4, index)


layouts = st.lists(
    st.tuples(st.sampled_from(AXES), st.one_of(st.none(), st.integers(-4, 4))),
    unique_by=lambda entry: entry[0],
).map(lambda entries: Layout(tuple(entries)))


@given(layouts)
def test_a_layout_prints_as_the_text_that_it_parses_from(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@given(layouts)
def test_a_layout_survives_json_with_its_order(layout: Layout) -> None:
    assert Layout.from_json(layout.to_json()) == layout


@pytest.mark.parametrize(
    "value",
    [
        "tp:S(0)",
        " tp : shard( 0 ) ",
        {"tp": "S(0)"},
        {"tp": "shard(0)"},
        {"tp": "Shard(dim=0)"},
        {"tp": Shard(0)},
        Layout((("tp", 0),)),
    ],
)
def test_every_form_of_a_cut_is_the_same_layout(value: object) -> None:
    assert Layout.parse(value) == Layout((("tp", 0),))


@pytest.mark.parametrize("value", ["R", "replicate", " Replicate() ", {}, Replicate(), REPLICATED])
def test_every_form_of_replicate_is_the_empty_layout(value: object) -> None:
    assert Layout.parse(value) == REPLICATED


@pytest.mark.parametrize("value", ["tp:R", {"tp": "replicate"}, {"tp": Replicate()}])
def test_an_explicit_replicate_is_kept_until_the_layout_is_resolved(value: object) -> None:
    layout = Layout.parse(value)
    assert layout == Layout((("tp", None),))
    assert layout.resolve(MESH, 2) == REPLICATED


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "'' is no layout. Fix: write S(dim) or R, such as {tp: S(0)}"),
        ("column", "'column' is no layout"),
        ("tp=S(0)", "'tp=S(0)' is no layout"),
        ("tp:S(0),", "is no layout"),
        ("S(1)", "layout 'S(1)' names no mesh axis. Fix: write {tp: S(1)}"),
        (Shard(1), "names no mesh axis. Fix: write {'tp': "),
        (None, "None is no layout"),
        (0, "0 is no layout"),
        (["tp"], "['tp'] is no layout"),
        ({"tp": "S"}, "axis tp has placement 'S': a placement is S(dim) or R"),
        ({"tp": "S(x)"}, "axis tp has placement 'S(x)'"),
        ({"tp": "S(0.0)"}, "axis tp has placement 'S(0.0)'"),
        ({"tp": "S(\u0660)"}, "axis tp has placement"),
        ({"tp": 0}, "axis tp has placement 0: a placement is S(dim) or R. Fix: write {tp: S(0)}"),
        ({"tp": None}, "axis tp has placement None"),
        ({"tp": True}, "axis tp has placement True"),
        ({0: "S(0)"}, "0 is no name of a mesh axis"),
        ({"t p": "S(0)"}, "'t p' is no name of a mesh axis"),
        ({"tp": _StridedShard(0, split_factor=2)}, "only Shard and Replicate are taken"),
        ("tp:S(0),tp:S(1)", "layout tp:S(0),tp:S(1) names axis tp twice"),
        ("tp:S(0),tp:S(0)", "names axis tp twice"),
    ],
)
def test_a_bad_layout_is_an_error_that_says_what_is_wrong(value: object, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse(value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "P",
        "partial",
        "Partial(sum)",
        "tp:P",
        {"tp": "partial"},
        {"tp": "P(sum)"},
        {"tp": Partial()},
    ],
)
def test_a_partial_parameter_is_refused(value: object) -> None:
    with pytest.raises(LayoutError, match="is partial"):
        Layout.parse(value)


def test_one_more_cut_on_an_axis_that_cuts_already_is_an_error() -> None:
    with pytest.raises(LayoutError, match="names axis tp twice"):
        Layout.parse("tp:S(0)").then("tp", 1)


def test_a_saved_layout_that_is_no_mapping_is_an_error() -> None:
    with pytest.raises(LayoutError, match="no saved layout"):
        Layout.from_json("R")


def test_a_layout_answers_for_its_axes_and_dims() -> None:
    layout = Layout.parse("tp:S(0),ep:R").then("dp", 0)
    assert layout.shards == (("tp", 0), ("dp", 0))
    assert (layout.dim("tp"), layout.dim("ep"), layout.dim("cp")) == (0, None, None)
    assert (layout.placement("tp"), layout.placement("cp")) == ("S(0)", "R")
    assert (layout.axes_on(0), layout.axes_on(1)) == (("tp", "dp"), ())


def test_resolving_counts_dims_from_the_front() -> None:
    assert Layout.parse({"tp": "S(-1)"}).resolve(MESH, 3) == Layout((("tp", 2),))


@pytest.mark.parametrize(
    ("dim", "ndim", "said"),
    [
        (2, 2, "layout tp:S(2) cuts dim 2 of a tensor of 2 dims: dims are 0..1 or -2..-1"),
        (-2, 1, "layout tp:S(-2) cuts dim -2 of a tensor of 1 dim: dims are 0..0 or -1..-1"),
        (0, 0, "layout tp:S(0) cuts dim 0 of a tensor of 0 dims: it has no dim to cut"),
    ],
)
def test_a_dim_out_of_range_is_an_error(dim: int, ndim: int, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout((("tp", dim),)).resolve(MESH, ndim)
    assert str(caught.value) == said


def test_a_cut_on_an_axis_of_size_1_is_kept_and_leaves_the_tensor_whole() -> None:  # case M8
    mesh = MeshSpec.parse("dp=8,tp=1")
    layout = Layout.parse({"tp": "S(0)"}).resolve(mesh, 2)
    assert layout == Layout((("tp", 0),))
    shapes = {
        local_shape((5, 3), layout, mesh.dense.sizes, mesh.coordinate(rank)) for rank in range(8)
    }
    assert shapes == {(5, 3)}


def test_a_misspelt_axis_is_an_error_with_the_mesh_and_the_nearest_names() -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse({"tpp": "S(0)"}).resolve(MeshSpec.parse("dp=4,tp=2"), 2)
    assert str(caught.value) == (
        "layout tpp:S(0) names axis 'tpp', which mesh dp=4,tp=2 does not have: "
        "its weight axes are tp. Fix: did you mean tp?"
    )


def test_an_axis_that_looks_like_none_is_an_error_with_the_weight_axes() -> None:
    with pytest.raises(LayoutError, match="Fix: use tp or ep"):
        Layout.parse({"model": "S(0)"}).resolve(MESH, 2)


def test_no_axis_is_proposed_on_a_mesh_without_weight_axes() -> None:
    with pytest.raises(LayoutError, match=r"its weight axes are none\. Fix: write R"):
        Layout.parse({"dpp": "S(0)"}).resolve(MeshSpec.parse("dp=4"), 2)


@pytest.mark.parametrize("placement", ["S(0)", "R"])
def test_a_known_axis_that_the_mesh_lacks_is_an_error_that_tells_to_declare_it(
    placement: str,
) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse({"tp": placement}).resolve(MeshSpec.parse("dp=4"), 2)
    assert "'tp', which mesh dp=4 does not have: its weight axes are none." in str(caught.value)
    assert str(caught.value).endswith("Fix: declare it as tp=1 if it is meant to be inactive")


@pytest.mark.parametrize("axis", ["dp", "dp_replicate", "dp_shard", "edp", "edp_shard"])
def test_a_cut_on_an_axis_of_fsdp_is_refused(axis: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse({axis: "S(0)"}).resolve(MESH, 2)
    assert str(caught.value) == (
        f"layout {axis}:S(0) cuts a parameter on axis {axis}: it belongs to FSDP. "
        "Fix: cut on tp or ep only"
    )


@pytest.mark.parametrize("axis", ["cp", "pp"])
def test_a_cut_on_an_axis_that_shards_no_weight_is_refused(axis: str) -> None:
    with pytest.raises(LayoutError, match=f"on axis {axis}: it .* shards no weight"):
        Layout.parse({axis: "S(0)"}).resolve(MESH, 2)


def test_replicating_on_an_axis_of_fsdp_says_nothing_wrong() -> None:
    assert Layout.parse("dp:R,edp:R,tp:S(1)").resolve(MESH, 2) == Layout((("tp", 1),))


def test_ep_together_with_another_axis_is_refused() -> None:
    with pytest.raises(
        LayoutError, match=r"layout ep:S\(0\),tp:S\(1\) cuts on ep together with tp"
    ):
        Layout.parse({"ep": "S(0)", "tp": "S(1)"}).resolve(MESH, 3)


def test_ep_beside_an_explicit_replicate_is_fine() -> None:
    assert Layout.parse("ep:S(0),tp:R").resolve(MESH, 3) == Layout((("ep", 0),))


def test_rows_of_a_colwise_weight_under_fsdp_are_cut_by_tp_first() -> None:  # case M5
    mesh = MeshSpec.parse("dp=2,tp=4")
    layout = Layout.parse({"tp": Shard(0)}).resolve(mesh, 2).then("dp", 0)
    for rank in range(8):
        place = mesh.coordinate(rank)
        first = place["tp"] * 4 + place["dp"] * 2
        rows, columns = index_range((16, 16), layout, mesh.dense.sizes, place)
        assert (rows, columns) == ((first, first + 2), (0, 16))


def test_5_rows_over_4_leave_the_last_rank_empty() -> None:  # case M6
    assert per_rank_sizes(5, 4) == [2, 2, 1, 0]
    assert not is_even((5,), Layout.parse("tp:S(0)"), {"tp": 4})


def test_10_columns_over_4_are_three_of_3_and_one_of_1() -> None:  # case M7
    mesh = MeshSpec.parse("tp=4")
    layout = Layout.parse({"tp": "S(1)"}).resolve(mesh, 2)
    shapes = [
        local_shape((4, 10), layout, mesh.dense.sizes, mesh.coordinate(rank)) for rank in range(4)
    ]
    assert shapes == [(4, 3), (4, 3), (4, 3), (4, 1)]


def test_a_vocabulary_of_50257_over_8_is_seven_of_6283_and_one_of_6276() -> None:
    assert per_rank_sizes(50257, 8) == [6283] * 7 + [6276]


def test_a_stacked_expert_weight_has_a_range_in_each_of_its_3_dims() -> None:  # case N9
    view = MeshSpec.parse("dp=4,tp=2,ep=4").view("expert")
    layout = Layout.parse("ep:S(0)").resolve(MESH, 3)
    ranges = [index_range((8, 2, 2), layout, view.sizes, view.coordinate(rank)) for rank in (1, 7)]
    assert ranges == [((2, 4), (0, 2), (0, 2)), ((6, 8), (0, 2), (0, 2))]


def test_ranges_of_an_unresolved_layout_are_refused() -> None:
    with pytest.raises(LayoutError, match="Fix: resolve the layout on the mesh first"):
        index_range((4,), Layout.parse("tp:S(-1)"), {"tp": 2}, {"tp": 0})


def test_ranges_need_the_size_and_the_position_of_every_axis() -> None:
    layout = Layout.parse("tp:S(0)")
    with pytest.raises(LayoutError, match="'tp', whose size is not given: given are dp"):
        is_even((4,), layout, {"dp": 2})
    with pytest.raises(LayoutError, match="where the rank has no position"):
        index_range((4,), layout, {"tp": 2}, {"dp": 0})
