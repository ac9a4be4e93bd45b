"""The kernels that are mutated, and the small arguments that each one is run with.

Invariant: the numbers are small whole ones, so that sums are exact in any order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
LARGEST = 3
Array: TypeAlias = np.ndarray[Any, Any]
Function: TypeAlias = ast.FunctionDef
Geometry: TypeAlias = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Subject:
    """A kernel of a file, and the arrays that it reads and writes; `edits` make its tiles small."""

    file: str
    kernel: str
    arrays: tuple[Geometry, ...]
    outputs: tuple[Geometry, ...]
    edits: tuple[tuple[str, str], ...] = ()
    # Whether the shapes of the outputs do not follow from the inputs'.
    needs_outputs: bool = False
    # The numbers of the last array, where random ones would say nothing.
    last: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The file and the kernel, as the command line writes them."""
        return f"{self.file}:{self.kernel}"

    @cached_property
    def text(self) -> str:
        """The file's text, with small tiles."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        for old, new in self.edits:
            assert old in text, f"{self.file} has no `{old}` any more"
            text = text.replace(old, new)
        return text

    @cached_property
    def lines(self) -> list[range]:
        """The lines of the kernel and of the file's functions that it names, or they do."""
        functions = {f.name: f for f in ast.parse(self.text).body if isinstance(f, Function)}
        chosen, waiting = dict[str, Function](), [self.kernel]
        while waiting:
            name = waiting.pop()
            chosen[name] = functions[name]
            waiting += (_names(functions[name]) & set(functions)) - set(chosen)
        return [range(_first_line(f), (f.end_lineno or f.lineno) + 1) for f in chosen.values()]

    def arguments(self, seed: int) -> list[Any]:
        """Return fresh inputs: arrays, and the numbers of those without a shape."""
        random = np.random.default_rng(seed)
        made = [
            random.integers(-LARGEST, LARGEST, shape, endpoint=True).astype(dtype)
            for dtype, shape in self.arrays
        ]
        if self.last:
            made[-1][...] = self.last
        return [array if array.shape else array.item() for array in made]

    def output_arrays(self) -> list[Array]:
        """Return fresh outputs: what a kernel does not write stays as it is."""
        return [np.full(shape, -1, dtype) for dtype, shape in self.outputs]


def _names(function: Function) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def _first_line(function: Function) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


_MATRICES: tuple[Geometry, ...] = (("f2", (70, 40)), ("f2", (40, 20)))
_PRODUCT: Geometry = ("f4", (70, 20))
_IMAGE: Geometry = ("f4", (20, 40))
_ROWS: Geometry = ("f4", (64, 128))
_TALL: Geometry = ("f4", (128, 32))
_LINE: Geometry = ("f4", (300,))
_TABLE: Geometry = ("f4", (9, 30))
_SMALL_PRODUCT = (("bm=128", "bm=64"), ("bn=128", "bn=16"), ("bk=64", "bk=16"))
_BIAS = tuple((f"    {old},", f"    {new},") for old, new in _SMALL_PRODUCT)
_SMALL_SUM = (("bm=64, bn=128", "bm=8, bn=16"),)
_HALF_ROWS = (("rows=128", "rows=64"),)
_SMALL_BENCH = (("bm=64, bn=64", "bm=8, bn=16"),)
_ADD, _SUM = "examples/tutorial/01_add.py", "examples/tutorial/02_reduction.py"
_DOUBLE = "examples/tutorial/03_double_buffering.py"
_GELU = "examples/matmul_bias_gelu.py"

# The library's, and roles of warpgroups written by hand.
_ATTENTION, _BY_ELEMENT = "stdlib/attention.py", "stdlib/elementwise.py"
_PRODUCTS, _NORMS = "stdlib/matmul.py", "stdlib/normalisation.py"
_KEYS: Geometry = ("f2", (1, 2, 40, 32))
_SUMS: Geometry = ("f4", (1, 2, 40))
_HALF_IMAGE: Geometry = ("f2", (20, 40))
_SMALL_KEYS = (("bq=64,\n    bk=64", "bq=32,\n    bk=16"),)
_SMALL_TILES = (("bm=32, bn=128", "bm=8, bn=16"), ("bm=64, bn=64", "bm=8, bn=16"))
_SMALL_PRODUCTS = (("bm=64, bn=64, bk=64", "bm=64, bn=16, bk=16"), *_SMALL_PRODUCT)
_WHOLE_ROWS = (("bn=1024", "bn=32"),)
_COLUMN, _ROW = (("f4", (shape,)) for shape in (9, 30))
LIBRARY = (
    Subject(_ATTENTION, "attention", (_KEYS, _KEYS, _KEYS), (_KEYS, _SUMS), _SMALL_KEYS),
    Subject(
        _ATTENTION, "attention_backward", (*[_KEYS] * 4, _SUMS, _KEYS), (_KEYS, _KEYS, _KEYS),
        _SMALL_KEYS,
    ),
    Subject(_BY_ELEMENT, "dropout", (_IMAGE, ("i4", ())), (_IMAGE,), _SMALL_TILES),
    Subject(_BY_ELEMENT, "transpose", (_IMAGE,), (("f4", (40, 20)),), _SMALL_TILES),
    Subject(_BY_ELEMENT, "swiglu", (_HALF_IMAGE, _HALF_IMAGE), (_HALF_IMAGE,), _SMALL_TILES),
    Subject(_PRODUCTS, "matmul", _MATRICES, (("f2", (70, 20)),), _SMALL_PRODUCTS),
    Subject(
        _PRODUCTS, "batched_matmul", (("f2", (2, 70, 40)), ("f2", (2, 40, 20))),
        (("f2", (2, 70, 20)),), _SMALL_PRODUCTS,
    ),
    Subject(
        _PRODUCTS, "quantise_rows", (_TABLE,), (("i1", (9, 30)), ("f4", (9,))),
        (("bk=1024", "bk=32"),),
    ),
    Subject(
        _PRODUCTS, "matmul_dequantised", (("f2", (70, 40)), ("i1", (40, 20)), ("f4", (20,))),
        (("f2", (70, 20)),), _SMALL_PRODUCTS,
    ),
    Subject(
        _PRODUCTS, "matvec", (("f4", (70, 40)), ("f4", (40,))), (("f4", (70,)),),
        (("bk=256, parts=1", "bk=16, parts=2"),),
    ),
    Subject(
        _NORMS, "layer_norm", (_TABLE, _ROW, _ROW), (_TABLE, _COLUMN, _COLUMN), _WHOLE_ROWS,
    ),
    Subject(
        _NORMS, "layer_norm_backward", (_TABLE, _ROW, _COLUMN, _COLUMN, _TABLE),
        (_TABLE, _ROW, _ROW), (*_WHOLE_ROWS, ("parts=8", "parts=2")),
    ),
    Subject(_NORMS, "rms_norm", (_TABLE, _ROW), (_TABLE,), _WHOLE_ROWS),
    Subject("stdlib/softmax.py", "softmax", (_TABLE,), (_TABLE,), (("bn=1024", "bn=16"),)),
    Subject(
        "stdlib/softmax.py", "cross_entropy", (_TABLE, ("i4", (9,))), (_COLUMN,),
        (("bn=1024", "bn=16"),),
    ),
)  # fmt: skip
_HANDS = "tests/acceptance/test_warpgroups.py"
_SQUARE: Geometry = ("f2", (64, 64))
_WIDE: Geometry = ("f4", (128, 64))
BY_HAND = (
    Subject(_HANDS, "copied", (_SQUARE,), (_SQUARE,), (("repeats=10", "repeats=1"),)),
    Subject(_HANDS, "added", (_WIDE, _WIDE), (_WIDE,)),
)

SUBJECTS = (
    Subject("examples/matmul.py", "matmul", _MATRICES, (_PRODUCT,), _SMALL_PRODUCT),
    Subject(_GELU, "matmul_bias_gelu", (*_MATRICES, ("f4", (20,))), (("f2", (70, 20)),), _BIAS),
    Subject("examples/prefix_sum.py", "prefix_sum", (_LINE,), (_LINE,), (("b=1024", "b=128"),)),
    Subject("examples/softmax.py", "softmax", (_TABLE,), (_TABLE,), (("bn=1024", "bn=32"),)),
    Subject(_ADD, "add_whole", (_IMAGE, _IMAGE), (_IMAGE,)),
    Subject(_ADD, "add", (_IMAGE, _IMAGE), (_IMAGE,), _SMALL_SUM),
    Subject(_SUM, "sum0", (("f4", (3, 20, 40)),), (_IMAGE,), _SMALL_SUM),
    Subject(_DOUBLE, "copy_tile", (_ROWS,), (_ROWS,)),
    Subject(_DOUBLE, "increment", (("f4", (70, 40)),), (("f4", (70, 40)),), _HALF_ROWS),
    Subject(_DOUBLE, "increment_by_hand", (_TALL,), (_TALL,), _HALF_ROWS),
    Subject("bench/kernels.py", "add", (_IMAGE, _IMAGE), (_IMAGE,), _SMALL_BENCH),
    Subject("bench/kernels.py", "matmul", _MATRICES, (_PRODUCT,), _SMALL_PRODUCT),
    Subject(
        "examples/convolution.py", "convolve", (_TABLE, ("f4", (3, 3))), (("f4", (5, 15)),),
        needs_outputs=True,
    ),
    Subject("examples/embedding.py", "embed", (_TABLE, ("i4", (20,))), (("f4", (20, 30)),)),
    Subject(
        "examples/embedding.py", "embed_backward", (("f4", (20, 30)), ("i4", (20,))), (_TABLE,),
        needs_outputs=True,
    ),
    Subject(
        "examples/histogram.py", "histogram", (("i4", (300,)),), (("i4", (8,)),),
        (("b=512, n=8", "b=64, n=2"),), needs_outputs=True,
    ),
    Subject(
        "examples/split_k.py", "split_k", _MATRICES, (_PRODUCT,),
        (("bk=64, steps=8", "bk=16, steps=2"),),
    ),
    Subject(
        "examples/top_k.py", "top_k", (_TABLE,), (("f4", (9, 3)), ("i4", (9, 3))),
        (("bn=512", "bn=32"),), needs_outputs=True,
    ),
    Subject(
        "bench/kernels.py", "matmul_of_rows", (("f2", (70, 40)), ("f2", (20, 40))), (_PRODUCT,),
        _SMALL_PRODUCT, needs_outputs=True,
    ),
    Subject(
        "bench/kernels.py", "matmul_gelu", (("f2", (70, 40)), ("f2", (20, 40)), ("f4", (20,))),
        (("f2", (70, 20)),), _SMALL_PRODUCT,
    ),
    Subject(
        "bench/kernels.py", "matmul_streamed", _MATRICES, (("f2", (70, 20)),), _SMALL_PRODUCT,
    ),
    Subject("bench/kernels.py", "softmax", (_TABLE,), (_TABLE,), (("bn=1024", "bn=32"),)),
    Subject("bench/kernels.py", "row_sums", (_TABLE,), (_COLUMN,), (("bn=1024", "bn=16"),)),
    Subject(
        "bench/kernels.py", "column_sums", (_TABLE,), (_ROW,), (("bm=64, bn=128", "bm=4, bn=16"),),
    ),
    Subject("examples/transpose.py", "transpose", (_IMAGE,), (("f4", (40, 20)),)),
    Subject(
        "examples/grouped_matmul.py", "grouped_matmul",
        (("f2", (70, 40)), ("f2", (3, 40, 20)), ("i4", (4,))), (("f4", (70, 20)),),
        (("bm=64,\n    bn=64,\n    bk=64", "bm=64,\n    bn=16,\n    bk=16"),), last=(0, 20, 20, 70),
    ),
    *LIBRARY,
    *BY_HAND,
)  # fmt: skip


def kernels_of_the_repository() -> Iterator[str]:
    """Yield each kernel of examples, benchmarks and library, as `file:kernel`."""
    folders = [ROOT / "examples", ROOT / "stdlib"]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    for path in sorted([*files, ROOT / "bench/kernels.py"]):
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(function, Function) and not _is_plain(function, path):
                yield f"{path.relative_to(ROOT).as_posix()}:{function.name}"


def _is_plain(function: Function, path: Path) -> bool:
    """Whether a function is no kernel; those of bench/kernels.py are made kernels by others."""
    return path.parent.name != "bench" and not function.decorator_list
