from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrizations
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpx import bundled
from hpx.errors import InputError
from hpx.graph.from_module import graph_from_module
from hpx.graph.graph import ModuleGraph
from tests.hpx.graph.lookups import module, parameter_names, tensor


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)


@pytest.fixture
def fake_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_a_linear_gives_its_class_integers_and_parameters() -> None:
    graph = graph_from_module(nn.Linear(4, 2))
    root = module(graph, "")
    assert root.spec.cls == "torch.nn.modules.linear.Linear"
    assert root.attributes == {"in_features": 4, "out_features": 2}
    assert parameter_names(graph) == [["weight"], ["bias"]]
    assert tensor(graph, "weight").spec.shape == (2, 4)
    assert tensor(graph, "weight").spec.dtype == "float32"
    assert tensor(graph, "weight").spec.strides == (4, 1)
    assert tensor(graph, "weight").spec.cls == "torch.nn.parameter.Parameter"


def test_the_names_are_those_of_the_state_dict() -> None:
    model = bundled.tiny_moe()
    graph = graph_from_module(model)
    assert [graph.path(node.id) for node in graph.parameters()] == list(model.state_dict())


def test_ids_are_preorder_numbers_and_the_same_each_time() -> None:
    first, second = graph_from_module(bundled.tiny_moe()), graph_from_module(bundled.tiny_moe())
    assert first == second
    assert [node.id for node in first.walk()] == list(range(len(first.nodes)))


def test_ids_do_not_depend_on_modules_made_and_freed_before() -> None:
    graphs = [
        graph_from_module(nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))) for _ in range(3)
    ]
    assert graphs[0] == graphs[1] == graphs[2]
    assert len({node.id for node in graphs[0].parameters()}) == 200


def test_fake_tensors_give_the_graph_of_real_ones_but_for_their_class() -> None:
    with FakeTensorMode():
        fake = graph_from_module(Tied())
    real = graph_from_module(Tied())
    assert [graph.spec.shape for graph in fake.parameters()] == [
        graph.spec.shape for graph in real.parameters()
    ]
    assert tensor(fake, "head.weight").spec.cls.endswith(".FakeTensor")


def test_fake_tensors_keep_ties() -> None:
    with FakeTensorMode():
        model = Tied()
        model.head.weight = nn.Parameter(model.embed.weight.data)
        assert parameter_names(graph_from_module(model)) == [["embed.weight", "head.weight"]]


@pytest.mark.usefixtures("fake_ranks")
def test_a_dtensor_tells_its_global_shape_and_where_it_is_placed() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(4, 8)
    model.weight = nn.Parameter(distribute_tensor(model.weight.data, mesh, [Replicate(), Shard(0)]))
    spec = tensor(graph_from_module(model), "weight").spec
    assert spec.shape == (8, 4)
    assert spec.placed == (("dp", 2, "R"), ("tp", 2, "S(0)"))


@pytest.mark.usefixtures("fake_ranks")
def test_two_dtensors_of_one_shape_keep_their_own_placements() -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    model = nn.Module()
    model.a = nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)]))
    model.b = nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh, [Shard(1)]))
    graph = graph_from_module(model)
    assert tensor(graph, "a").spec.placed == (("tp", 4, "S(0)"),)
    assert tensor(graph, "b").spec.placed == (("tp", 4, "S(1)"),)


def test_a_shared_module_is_one_node_with_two_edges() -> None:
    model = nn.Module()
    model.a = nn.Linear(2, 2)
    model.b = nn.Sequential(model.a)
    graph = graph_from_module(model)
    assert module(graph, "a").id == module(graph, "b").children["0"]
    assert graph.paths(module(graph, "a").id) == ["a", "b.0"]
    assert parameter_names(graph) == [["a.weight", "b.0.weight"], ["a.bias", "b.0.bias"]]


def test_a_buffer_knows_whether_the_state_dict_has_it() -> None:
    model = nn.Module()
    model.register_buffer("kept", torch.zeros(2))
    model.register_buffer("left_out", torch.zeros(3, dtype=torch.int64), persistent=False)
    model.register_buffer("nothing", None)
    graph = graph_from_module(model)
    assert [(graph.path(b.id), b.spec.persistent) for b in graph.buffers()] == [
        ("kept", True),
        ("left_out", False),
    ]


def test_a_plain_tensor_attribute_is_a_tensor_that_is_no_parameter() -> None:
    model = nn.Linear(2, 2)
    model.scale = torch.ones(3)
    graph = graph_from_module(model)
    assert tensor(graph, "scale").kind == "tensor"
    assert parameter_names(graph) == [["weight"], ["bias"]]


def test_attributes_are_plain_integers_and_no_bools() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.causal, self.scale, self.name = 8, True, 0.5, "x"

    assert module(graph_from_module(Attention()), "").attributes == {"num_heads": 8}


def test_modules_of_one_class_keep_their_own_integers() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    graph = graph_from_module(model)
    assert [module(graph, name).attributes for name in "01"] == [
        {"in_features": 2, "out_features": 3},
        {"in_features": 3, "out_features": 2},
    ]


def test_an_attribute_that_one_module_of_a_class_lacks_is_kept_for_the_other() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    vars(model[1])["num_heads"] = 4
    vars(model[2])["num_heads"] = True
    graph = graph_from_module(model)
    assert [module(graph, name).attribute("num_heads") for name in "012"] == [None, 4, None]


def test_frozen_parameters_are_known_as_frozen() -> None:
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    graph = graph_from_module(model)
    assert not tensor(graph, "weight").spec.requires_grad
    assert tensor(graph, "bias").spec.requires_grad


def test_custom_attributes_of_a_parameter_are_listed_by_name() -> None:
    model = nn.Linear(2, 2)
    model.weight.sequence_parallel = True  # type: ignore[attr-defined]
    graph = graph_from_module(model)
    assert tensor(graph, "weight").spec.attributes == ("sequence_parallel",)
    assert tensor(graph, "bias").spec.attributes == ()


def test_hooks_are_listed_by_kind() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_pre_hook(lambda *_: None)
    model.register_forward_hook(lambda *_: None)
    assert module(graph_from_module(model), "").spec.hooks == ("forward", "forward_pre")


NEWER_TABLES = [
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_non_persistent_buffers_set",
]


@pytest.mark.parametrize("table", NEWER_TABLES)
@pytest.mark.parametrize("siblings", [1, 40])
def test_a_module_without_one_of_torchs_tables_is_imported_as_if_it_were_empty(
    table: str, siblings: int
) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), *(nn.Linear(2, 2) for _ in range(siblings)))
    whole = ModuleGraph.from_module(model)
    for layer in model:
        del layer.__dict__[table]
    assert ModuleGraph.from_module(model) == whole


def test_the_hooks_of_a_module_without_one_of_the_tables_are_listed() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_hook(print)
    del model.__dict__["_state_dict_pre_hooks"]
    assert module(ModuleGraph.from_module(model), "").spec.hooks == ("forward",)


@pytest.mark.parametrize("table", ["_parameters", "_buffers", "_modules"])
def test_a_module_that_was_never_initialised_is_refused_by_its_class(table: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    del model[0].__dict__[table]
    with pytest.raises(InputError, match=f"a Linear that is not initialised: it has no {table}"):
        ModuleGraph.from_module(model)


@pytest.mark.parametrize(
    ("table", "kind"), [("_modules", "module"), ("_parameters", "tensor"), ("_buffers", "tensor")]
)
@pytest.mark.parametrize("siblings", [1, 40])
def test_what_does_not_belong_into_torchs_tables_is_refused_by_name(
    table: str, kind: str, siblings: int
) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(siblings)))
    for layer in model:
        getattr(layer, table)["stray"] = "a text"
    with pytest.raises(InputError, match=rf"'0\.stray' is a str where a {kind} belongs"):
        ModuleGraph.from_module(model)


def test_a_model_whose_attributes_raise_declares_nothing() -> None:
    class Proud(nn.Linear):
        def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
            if name in ("config", "all_tied_weights_keys"):
                raise RuntimeError(f"no {name}")
            return super().__getattr__(name)

    assert ModuleGraph.from_module(Proud(2, 2)).hints == {}


def test_containers_are_told_apart() -> None:
    model = nn.ModuleDict({"l": nn.ModuleList(), "s": nn.Sequential(), "n": nn.ReLU()})
    graph = graph_from_module(model)
    containers = [module(graph, path).spec.container for path in ("", "l", "s", "n")]
    assert containers == ["dict", "list", "sequential", None]


def test_digits_are_names_wherever_they_were_registered() -> None:
    model = nn.Module()
    model.add_module("0", nn.ModuleDict({"7": nn.Linear(2, 2), "1": nn.Linear(3, 3)}))
    graph = graph_from_module(model)
    assert list(module(graph, "0").children) == ["7", "1"]
    assert tensor(graph, "0.1.weight").shape == (3, 3)


def test_names_that_are_also_methods_are_names() -> None:
    model = nn.ModuleDict()
    for name in ("type", "forward"):
        model._modules[name] = nn.Linear(2, 2, bias=False)
    assert parameter_names(graph_from_module(model)) == [["type.weight"], ["forward.weight"]]


def test_twelve_experts_stand_in_the_order_of_their_list() -> None:
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(12))
    children = module(graph_from_module(model), "").children
    assert list(children) == [str(index) for index in range(12)]


@pytest.mark.parametrize("depth", [1_200, 5_000])
def test_deeply_nested_modules_are_imported_and_named(depth: int) -> None:
    model = root = nn.Module()
    for _ in range(depth):
        model.x = nn.Module()
        model = model.x
    model.weight = nn.Parameter(torch.zeros(1))
    graph = graph_from_module(root)
    (node,) = graph.parameters()
    assert len(graph.nodes) == depth + 2
    assert graph.find(graph.path(node.id)) == node.id
    assert graph.paths(node.id) == [f"{'x.' * depth}weight"]


def test_a_module_inside_itself_is_refused_by_name() -> None:
    model = nn.Module()
    model.a = nn.Module()
    model.a.b = nn.Module()
    model.a.b.back = model.a
    with pytest.raises(InputError, match=r"module 'a\.b\.back' is 'a', which contains it"):
        graph_from_module(model)


def test_lazy_parameters_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'1\.weight' is lazy and has no shape yet"):
        graph_from_module(nn.Sequential(nn.ReLU(), nn.LazyLinear(3)))


def test_a_tensor_without_a_fixed_shape_is_refused_by_name() -> None:
    model = nn.Module()
    rows = [torch.zeros(2), torch.zeros(3)]
    model.ragged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with pytest.raises(InputError, match="'ragged' has no fixed shape"):
        graph_from_module(model)


def test_sparse_tensors_have_no_strides() -> None:
    model = nn.Module()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.weight = nn.Parameter(torch.eye(3).to_sparse())
    graph = graph_from_module(model)
    assert tensor(graph, "sparse").spec.strides is None
    assert tensor(graph, "weight").spec.shape == (3, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_inside_a_model_is_refused() -> None:
    model = nn.Sequential(nn.ReLU(), torch.jit.script(nn.Sequential(nn.Linear(2, 2))))
    with pytest.raises(InputError, match="contains, a TorchScript program"):
        graph_from_module(model)


def test_parametrized_weights_are_listed_with_their_module() -> None:
    graph = graph_from_module(nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2))))
    assert module(graph, "0").spec.parametrized == ("weight",)


def test_weights_of_the_older_weight_norm_are_listed_as_well() -> None:
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(2, 2))
    assert module(graph_from_module(layer), "").spec.parametrized == ("weight",)


def test_the_source_is_the_class_unless_it_is_given() -> None:
    assert graph_from_module(Tied()).source == "module:Tied"
    assert graph_from_module(Tied(), source="mine").source == "mine"


def test_importing_reads_no_data() -> None:
    model = bundled.tiny_llama()
    before = {name: value._version for name, value in model.state_dict(keep_vars=True).items()}
    ModuleGraph.from_module(model)
    after = {name: value._version for name, value in model.state_dict(keep_vars=True).items()}
    assert before == after


def test_the_graph_package_loads_without_torch_and_networkx() -> None:
    program = (
        "import sys, hpx.graph, hpx.graph.sources; print({'torch', 'networkx'} & {*sys.modules})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "set()"


def test_a_head_count_of_the_class_and_one_of_numpy_are_integers() -> None:
    numpy = pytest.importorskip("numpy")

    class Counting(nn.Module):
        num_heads = 8
        other = 3

        def __init__(self) -> None:
            super().__init__()
            self.num_kv_heads = numpy.int64(4)
            self.q_proj = nn.Linear(4, 4)
            self.k_proj = nn.Linear(4, 4)

    found = ModuleGraph.from_module(Counting())
    attributes = dict(found.module(found.root).spec.attributes)
    assert attributes == {"num_kv_heads": 4, "num_heads": 8}
    assert {type(value) for value in attributes.values()} == {int}
