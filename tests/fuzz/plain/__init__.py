"""One more witness: the text of a kernel, run by Python itself on NumPy's arrays.

A pipeline is a `for`; what a name means when it is carried, or assigned in a branch, Python knows.
It shares no code with ours, and has no say (`Unknown`) where it does not know what lies outside.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tests.fuzz.plain import folds, memory, shapes
from tests.fuzz.plain.numbers import I32, KINDS, Unknown, number
from tests.fuzz.plain.tiles import STEPS, Tile
from tests.fuzz.program import Argument, Program

__all__ = ["Unknown", "run"]

NUMBER = itertools.count()


def run(program: Program, given: list[Any]) -> None:
    """Run a program on arguments, whose arrays it changes; raise Unknown if it does not know."""
    space = {
        **KINDS, **shapes.FUNCTIONS, **folds.REDUCTIONS, **memory.FUNCTIONS,
        "cumsum": folds.cumsum, "scan": folds.scan, "reduce": folds.reduce, "dot": folds.dot,
        "min": _of_one_or_two(folds.REDUCTIONS["min"], shapes.minimum),
        "max": _of_one_or_two(folds.REDUCTIONS["max"], shapes.maximum),
        "pipeline": _pipeline, "unroll": list, "__steps__": _steps,
        "print": lambda *_: None, "partial": lambda *_, **__: None, "planar_snake": None,
    }  # fmt: skip
    tree = ast.fix_missing_locations(_Plain().visit(ast.parse(program.text)))
    exec(compile(tree, "<plain>", "exec"), space)  # noqa: S102  (the text of a generator)
    STEPS.clear()
    arguments: list[Tile | memory.Ref] = []
    for value, parameter in zip(given, program.parameters.values(), strict=True):
        if not isinstance(parameter, Argument):
            arguments.append(Tile(number(value, I32), I32))
            continue
        if parameter.initial is not None:
            value[...] = parameter.initial
        arguments.append(memory.Ref(value, KINDS[parameter.dtype]))
    # Scratch that nobody wrote is read as zeros; the reference reports it.
    with np.errstate(all="ignore"):
        space["k"](*arguments)


def _of_one_or_two(along: Any, of_two: Any) -> Any:
    return lambda x, *others, **options: of_two(x, *others) if others else along(x, **options)


def _steps(items: Iterable[Any]) -> Iterator[Any]:
    """Yield items, each as a step with a number of its own."""
    for item in items:
        STEPS.append(next(NUMBER))
        yield item
        STEPS.pop()


def _pipeline(*axes: Any, **options: Any) -> Iterator[Any]:
    counts = [a if isinstance(a, range) else range(int(a)) for a in axes]
    for at in itertools.product(*counts):
        yield at[0] if len(at) == 1 else at


class _Plain(ast.NodeTransformer):
    """Makes pipelines loops, and leaves out what only a kernel has."""

    def visit_With(self, node: ast.With) -> ast.For:
        self.generic_visit(node)
        (item,) = node.items
        assert item.optional_vars is not None, "a pipeline has an index"
        return self._loop(item.optional_vars, item.context_expr, node.body)

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        made = self._loop(node.target, node.iter, node.body)
        made.orelse = node.orelse
        return made

    def _loop(self, target: ast.expr, items: ast.expr, body: list[ast.stmt]) -> ast.For:
        steps = ast.Call(ast.Name("__steps__", ast.Load()), [items], [])
        return ast.For(target=target, iter=steps, body=body, orelse=[])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.decorator_list = []
        for argument in node.args.args:
            argument.annotation = None
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None
