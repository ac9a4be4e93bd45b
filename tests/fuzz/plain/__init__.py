"""One more witness: the text of a kernel, run by Python itself on NumPy's arrays.

A pipeline is a `for`; what a name means when it is carried, or assigned in a branch, Python knows.
It shares no code with ours, and has no say (`Unknown`) where it does not know what lies outside.
"""

from __future__ import annotations

import ast
from typing import Any

from tests.fuzz.plain import folds, loops, memory, shapes, threads
from tests.fuzz.plain.numbers import I32, KINDS, Unknown, number
from tests.fuzz.plain.tiles import Tile
from tests.fuzz.program import Argument, Program, one_to_a_byte

__all__ = ["Unknown", "run"]


def run(program: Program, given: list[Any]) -> None:
    """Run a program on arguments, whose arrays it changes; raise Unknown if it does not know."""
    space = {
        **KINDS, **shapes.FUNCTIONS, **folds.REDUCTIONS, **memory.FUNCTIONS,
        **loops.FUNCTIONS, **threads.FUNCTIONS, "parallel": loops.pipeline,
        "cumsum": folds.cumsum, "scan": folds.scan, "reduce": folds.reduce, "dot": folds.dot,
        "min": _of_one_or_two(folds.REDUCTIONS["min"], shapes.minimum),
        "max": _of_one_or_two(folds.REDUCTIONS["max"], shapes.maximum),
        "__steps__": loops.steps,
        "print": lambda *_: None, "partial": lambda *_, **__: None, "planar_snake": None,
    }  # fmt: skip
    tree = ast.fix_missing_locations(_Plain().visit(ast.parse(program.text)))
    exec(compile(tree, "<plain>", "exec"), space)  # noqa: S102  (the text of a generator)
    arguments: list[Tile | memory.Ref] = []
    for value, parameter in zip(given, program.parameters.values(), strict=True):
        if not isinstance(parameter, Argument):
            arguments.append(Tile(number(value, I32), I32))
            continue
        if parameter.initial is not None:
            value[...] = parameter.initial
        held = one_to_a_byte(value) if parameter.layout == "packed" else value
        arguments.append(memory.Ref(held, KINDS[parameter.dtype]))
    # Scratch that nobody wrote is read as zeros; the reference reports it.
    threads.run(int(program.notes.get("warpgroups", 1)), space["k"], arguments)


def _of_one_or_two(along: Any, of_two: Any) -> Any:
    return lambda x, *others, **options: of_two(x, *others) if others else along(x, **options)


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
