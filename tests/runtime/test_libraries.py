"""Arrays of PyTorch, CuPy and JAX: by stand-ins, and by the libraries where they are installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from astdsl import In, Out, cdiv, f32, kernel, pipeline, tile
from astdsl.errors import BadArgument, UnsupportedFeature
from astdsl.ir.dtypes import bf16, u8
from astdsl.runtime import libraries
from astdsl.runtime.arrays import ArrayView, Where
from astdsl.runtime.libraries import allocate, fill, stream_of, view_of
from astdsl.source import NOWHERE

X = Where("x", NOWHERE)


class Dtype:
    """A dtype of PyTorch, which prints with its module's name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """What the runtime asks of a tensor of PyTorch."""

    requires_grad = False
    layout = "torch.strided"
    negated = False

    def __init__(self, array: np.ndarray[Any, Any], dtype: str, place: str, index: int = 0) -> None:
        self.array = array
        self.shape = list(array.shape)
        self.dtype = Dtype(dtype)
        self.device = SimpleNamespace(type=place, index=index)

    def is_neg(self) -> bool:
        return self.negated

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def new_empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return (shape, dtype, self.device)


def tensor(name: str = "float32", place: str = "cpu", index: int = 0) -> Any:
    return Tensor(np.zeros((4, 6), np.float32)[:, ::2], name, place, index)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the stand-in pass for PyTorch, and return its module."""
    module: Any = ModuleType("torch")
    module.bfloat16 = "bfloat16"
    stream = SimpleNamespace(cuda_stream=77)
    module.cuda = SimpleNamespace(current_stream=lambda device: stream)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(Tensor, "__module__", "torch")
    return module


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(("place", "device"), [("cpu", None), ("cuda", 1)])
def test_a_tensor_is_described_where_it_is(place: str, device: int | None) -> None:
    given = tensor("float32", place, 1)
    seen = view_of(given, X)
    assert (seen.address, seen.shape, seen.strides) == (given.data_ptr(), (4, 3), (6, 2))
    assert (seen.dtype, seen.device, seen.library) == (f32, device, "torch")


@pytest.mark.usefixtures("torch")
def test_four_bit_floats_of_pytorch_are_bytes_of_two() -> None:
    given = Tensor(np.zeros((4, 6), np.uint8), "float4_e2m1fn_x2", "cuda")
    seen = view_of(given, X)
    assert (seen.dtype, seen.shape, seen.strides) == (u8, (4, 6), (6, 1))


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(("dtype", "place"), [("complex64", "cpu"), ("float32", "meta")])
def test_a_tensor_that_no_kernel_takes_is_refused(dtype: str, place: str) -> None:
    with pytest.raises(BadArgument, match=rf"a tensor of torch\.{dtype} on"):
        view_of(tensor(dtype, place), X)


@pytest.mark.usefixtures("torch")
def test_a_tensor_that_requires_a_gradient_is_refused() -> None:
    given = tensor()
    given.requires_grad = True
    with pytest.raises(BadArgument, match="requires a gradient"):
        view_of(given, X)


@pytest.mark.usefixtures("torch")
def test_a_tensor_whose_memory_is_not_its_numbers_is_refused() -> None:
    sparse, negated, traced = tensor(), tensor(), tensor()
    sparse.layout, negated.negated = "torch.sparse_coo", True
    traced.data_ptr = Mock(side_effect=RuntimeError)
    for given, said in (
        (sparse, "a sparse_coo tensor of"),
        (negated, "stand negated in memory"),
        (traced, "a Tensor without memory of its own"),
    ):
        with pytest.raises(BadArgument, match=said):
            view_of(given, X)


@pytest.mark.usefixtures("torch")
def test_an_omitted_output_is_a_tensor_beside_the_first() -> None:
    given = tensor("float32", "cuda", 1)
    assert allocate(given, (2, 5), bf16, X) == ((2, 5), "bfloat16", given.device)


@pytest.mark.usefixtures("torch")
def test_a_launch_is_on_the_current_stream_of_the_tensors() -> None:
    of_torch = SimpleNamespace(library="torch", device=1)
    of_numpy = SimpleNamespace(library="numpy", device=None)
    assert stream_of([of_numpy, of_torch])() == 77
    assert stream_of([of_numpy])() == libraries.LEGACY_STREAM


def test_an_array_on_a_gpu_is_filled_by_its_library() -> None:
    filled: list[float] = []
    owner = SimpleNamespace(fill=filled.append)
    fill(ArrayView(0, (4,), (1,), f32, True, owner, "cupy", 0), 1.5, X)
    assert filled == [1.5]
    with pytest.raises(UnsupportedFeature, match="have no `fill`"):
        fill(ArrayView(0, (4,), (1,), f32, True, object(), "other", 0), 1.5, X)


@kernel
def add(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"]):
    with pipeline(cdiv(x.shape[0], 16)) as i:
        o[tile(i, 16)] = x[tile(i, 16)] + y[tile(i, 16)]


@kernel
def negated(x: In["N"], o: Out["N"]):
    o[...] = -x[...]


DEVICES = ["emulator", "reference"]


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_of_jax_are_read_and_made(device: str) -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed: pip install jax")
    x = jnp.arange(32 * 64, dtype=jnp.float32).reshape(32, 64)
    found = add.on(device)(x, x)
    assert isinstance(found, type(x))
    assert bool((found == 2 * x).all())
    narrow = jnp.arange(8).astype(jnp.bfloat16)
    assert bool((negated.on(device)(narrow) == -narrow).all())


def test_an_array_of_jax_is_not_written() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed: pip install jax")
    x = jnp.zeros((32, 64), jnp.float32)
    with pytest.raises(BadArgument, match="read-only"):
        add(x, x, jnp.zeros((32, 64), jnp.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_are_read_written_and_made(device: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    x = torch.arange(32 * 64, dtype=torch.float32).reshape(64, 32).T
    o = torch.empty(32, 64)
    assert add.on(device)(x, x, o) is o
    assert torch.equal(o, 2 * x)
    found = add.on(device)(x, x)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, 2 * x)
    narrow = torch.arange(8).to(torch.bfloat16)
    assert torch.equal(negated.on(device)(narrow), -narrow)


def test_tensors_that_pytorch_makes_are_refused_where_their_memory_is_not_their_numbers() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    x, complex_ = torch.ones(32, 64), torch.ones(32, 64, dtype=torch.complex64)
    with pytest.raises(BadArgument, match="stand negated"):
        add.on("reference")(x, complex_.conj().imag)
    assert torch.equal(add.on("reference")(x, complex_.conj().imag.resolve_neg()), x)
    with pytest.raises(BadArgument, match="sparse_coo tensor"):
        add.on("reference")(x, x.to_sparse())
    with pytest.raises(BadArgument, match="without memory of its own"):
        torch.func.vmap(lambda row: add.on("reference")(x, row))(torch.ones(2, 32, 64))
