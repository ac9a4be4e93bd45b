"""PTX in a kernel, for what the language has no name for.

Invariant: operands are checked before the text goes anywhere: a wrong one would be taken for
another register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from astdsl.errors import ShapeMismatch, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType, bf16, boolean, f16, f32, f64, i16, i32, i64, u16, u32, u64
from astdsl.lang.elementwise import broadcast_shape, joint_edges, placed, sources
from astdsl.lang.ragged import lost
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Literal, Operand, Tile, as_operand, require_dtype

# The register classes of PTX, and the dtypes that stand in each; the first is that of a number.
CLASSES: dict[str, tuple[DType, ...]] = {
    "r": (i32, u32), "l": (i64, u64), "f": (f32,), "d": (f64,), "h": (i16, u16, f16, bf16),
    "b": (boolean,),
}  # fmt: skip
MEMORY = "~{memory}"
_PLACE = re.compile(r"\$(\d*)")


def inline_ptx(
    text: object,
    constraints: object,
    args: object = (),
    results: object = (),
    *,
    meaning: Callable[..., Any] | None = None,
) -> Any:
    """Run PTX for each element of `args`, which broadcast: `inline_ptx(text, "=f,f", [x], f32)`.

    `$0`, `$1`, ... in the text are the results, then the operands, all named; `{ .reg ... }` has
    registers of its own. `constraints` are their classes, results with `=`: r (32-bit integers), l
    (64-bit ones), f (f32), d (f64), h (16 bits), b (bool). `results` is a dtype, or several: return
    a tile of each, None for none. Every thread runs the text for each element that it holds, also
    for copies and padding, and it is never left out, moved or merged. It must not wait for other
    threads or move between warps' branches. `meaning(*args)` says what the results are, for the
    device `reference`, which runs no PTX. Errors: TypeMismatch, ShapeMismatch; UnsupportedFeature
    on `reference` without `meaning`.
    """
    given, dtypes = _operands(args), _dtypes(results)
    classes = _classes(constraints, len(dtypes), len(given))
    written = _text(text, len(classes))
    own, theirs = classes[: len(dtypes)], classes[len(dtypes) :]
    for number, (each, dtype) in enumerate(zip(own, dtypes, strict=True)):
        _require_class(number, each, dtype, None)
    shape = broadcast_shape("`inline_ptx`", *given)
    wanted = [
        _dtype(number, *pair)
        for number, pair in enumerate(zip(theirs, given, strict=True), len(dtypes))
    ]
    xs = tuple(placed(x, dtype, shape) for x, dtype in zip(given, wanted, strict=True))
    meant = () if meaning is None else _meant(meaning, xs, shape, dtypes)
    fields = {"xs": xs, "meaning": meant, "text": written, "shape": shape, "dtypes": dtypes}
    made = emit(ops.InlinePtx, **fields).results
    edges = joint_edges(lost, shape, *given)
    tiles = tuple(Tile(value, edges=edges) for value in made)
    return (tiles[0] if isinstance(results, DType) else tiles) if tiles else None


def _operands(args: object) -> list[Operand]:
    given = list(args) if isinstance(args, tuple | list) else [args]
    if not given:
        raise fault(
            TypeMismatch,
            "`inline_ptx` takes an operand or more: the text is run for each element",
            help="pass a number for a text that needs none, and name it: `mov.b32 $0, $1;`",
        )
    return [as_operand(x, "`args` of `inline_ptx`") for x in given]


def _dtypes(results: object) -> tuple[DType, ...]:
    given = results if isinstance(results, tuple | list) else (results,)
    return tuple(require_dtype(x, "`results` of `inline_ptx`") for x in given)


def _classes(constraints: object, results: int, operands: int) -> list[str]:
    """Return the class of each result, then of each operand."""
    given = [x.strip() for x in constraints.split(",")] if isinstance(constraints, str) else []
    found = [x for x in given if x != MEMORY]
    letters = [x.removeprefix("=") for x in found]
    marked = [x.startswith("=") for x in found]
    if marked != [True] * results + [False] * operands or not set(letters) <= set(CLASSES):
        example = ",".join(["=r"] * results + ["r"] * operands)
        raise fault(
            TypeMismatch,
            f"`constraints` of `inline_ptx` are {in_words(results, 'result')} and "
            f"{in_words(operands, 'operand')}, like "
            f'"{example}", got {constraints!r}',
            help=f"classes are {' '.join(CLASSES)}; memory is taken to change anyway",
        )
    return letters


def _text(text: object, count: int) -> str:
    """Return the text, which names each of `count` operands and nothing else by `$`."""
    if not isinstance(text, str):
        raise fault(
            TypeMismatch,
            f"`text` of `inline_ptx` is a string, got {text!r}",
            help='`"ex2.approx.f32 $0, $1;"`',
        )
    named = {int(n) if n else -1 for n in _PLACE.findall(text)}
    if named != set(range(count)):
        wrong = sorted(named ^ set(range(count)))
        raise fault(
            TypeMismatch,
            f"the text of `inline_ptx` names the operands `$0` to `${count - 1}`, each once or "
            f"more, and {', '.join(f'`${n}`' if n >= 0 else '`$`' for n in wrong)} "
            f"{'are' if len(wrong) > 1 else 'is'} not so",
            help="results come first, then `args`; `$` stands for nothing else",
        )
    return text


def _require_class(number: int, letter: str, dtype: DType, x: Tile | None) -> None:
    if dtype in CLASSES[letter]:
        return
    fits = [name for name, dtypes in CLASSES.items() if dtype in dtypes]
    raise fault(
        TypeMismatch,
        f"`${number}` of `inline_ptx` is {dtype}, and `{letter}` is the class of "
        f"{' '.join(map(str, CLASSES[letter]))}",
        *(sources(x) if x is not None else ()),
        help=f"its class is `{fits[0]}`" if fits else "convert it: `.astype(i32)`",
    )


def _dtype(number: int, letter: str, x: Operand) -> DType:
    """Return what an operand is passed as; numbers follow the class."""
    if isinstance(x, Literal) or x.weak:
        return CLASSES[letter][0]
    _require_class(number, letter, x.dtype, x)
    return x.dtype


def _meant(
    meaning: Callable[..., Any],
    xs: Sequence[Value],
    shape: tuple[int, ...],
    dtypes: Sequence[DType],
) -> tuple[Value, ...]:
    said = meaning(*map(Tile, xs))
    given = list(said) if isinstance(said, tuple | list) else [said] * (said is not None)
    found = [as_operand(x, "`meaning` of `inline_ptx`") for x in given]
    if len(found) != len(dtypes):
        raise fault(
            ShapeMismatch,
            f"`meaning` of `inline_ptx` gives {in_words(len(found), 'value')} for "
            f"{in_words(len(dtypes), 'result')}",
            help="return one value for each result, several as a tuple",
        )
    for x, dtype in zip(found, dtypes, strict=True):
        if isinstance(x, Tile) and not x.weak and (x.dtype is not dtype or x.shape != shape):
            raise fault(
                TypeMismatch,
                f"`meaning` of `inline_ptx` gives {x} for a result {dtype}{list(shape)}",
                *sources(x),
                help=f"convert it: `.astype({dtype})`",
            )
    return tuple(placed(x, dtype, shape) for x, dtype in zip(found, dtypes, strict=True))
