"""Early exits: which statements leave what, and branches arranged so that few need flags.

Before: ``if c: return a`` and then ``b``
After: ``if c: return a`` with ``else: b``

Invariant: the statements run in the same order as in the source; only nesting changes, and the
nodes given are not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TypeAlias

from astdsl.frontend.nodes import Place, assign, at, load, place

Leave: TypeAlias = ast.Return | ast.Break | ast.Continue
LEAVES = (ast.Return, ast.Break, ast.Continue)
LOOPS = (ast.For, ast.While)
BLOCKS = (ast.If, ast.For, ast.While, ast.With)


def leaves(node: ast.stmt) -> Iterator[Leave]:
    """Yield the statements below that leave `node` itself."""
    if isinstance(node, LEAVES):
        yield node
    elif isinstance(node, LOOPS):
        for inner in node.body:
            yield from (found for found in leaves(inner) if isinstance(found, ast.Return))
        yield from leaves_of(node.orelse)
    elif isinstance(node, ast.If):
        yield from leaves_of([*node.body, *node.orelse])
    elif isinstance(node, ast.With):
        yield from leaves_of(node.body)
    elif isinstance(node, ast.Match | ast.Try):
        for body in alternatives(node):
            yield from leaves_of(body)


def alternatives(node: ast.Match | ast.Try) -> list[list[ast.stmt]]:
    """Return the bodies of a statement that stays Python's."""
    if isinstance(node, ast.Match):
        return [case.body for case in node.cases]
    return [node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody]


def leaves_of(body: list[ast.stmt]) -> Iterator[Leave]:
    """Yield the statements that leave a body."""
    for node in body:
        yield from leaves(node)


def returns_from_block(body: list[ast.stmt]) -> bool:
    """Whether a `return` stands in a block that becomes a function of its own."""
    for node in body:
        if isinstance(node, ast.Match | ast.Try):
            if any(map(returns_from_block, alternatives(node))):
                return True
        elif isinstance(node, BLOCKS) and any(isinstance(x, ast.Return) for x in leaves(node)):
            return True
    return False


def always_leaves(body: list[ast.stmt]) -> bool:
    """Whether the end of a body is surely not reached."""
    return any(map(_surely_leaves, body))


def _surely_leaves(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return always_leaves(node.body) and always_leaves(node.orelse)
    if isinstance(node, LOOPS):
        is_endless = (
            isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value
        )
        has_break = any(isinstance(inner, ast.Break) for inner in leaves_of(node.body))
        return not has_break and (bool(is_endless) or always_leaves(node.orelse))
    return isinstance(node, LEAVES)


def arranged(body: list[ast.stmt], subject: Callable[[], str]) -> list[ast.stmt]:
    """Return statements with what follows a leaving branch moved into the other branch.

    A `match` on constants becomes `if`s; `subject` gives a name for what is matched.
    """
    result: list[ast.stmt] = []
    for index, node in enumerate(body):
        if isinstance(node, ast.Match) and _is_constant_match(node):
            first, rest = _as_ifs(node, subject())
            return [*result, first, *arranged([*rest, *body[index + 1 :]], subject)]
        if isinstance(node, LEAVES):
            return [*result, node]
        moved = _with_rest(node, body[index + 1 :])
        if moved is not None:
            return [*result, _inside(moved, subject)]
        result.append(_inside(node, subject))
    return result


def _with_rest(node: ast.stmt, rest: list[ast.stmt]) -> ast.If | None:
    if not isinstance(node, ast.If) or not rest:
        return None
    then_leaves, else_leaves = always_leaves(node.body), always_leaves(node.orelse)
    if then_leaves and not else_leaves:
        made = ast.If(node.test, node.body, [*node.orelse, *rest])
    elif else_leaves and not then_leaves:
        made = ast.If(node.test, [*node.body, *rest], node.orelse)
    else:
        return None
    return ast.copy_location(made, node)


def _inside(node: ast.stmt, subject: Callable[[], str]) -> ast.stmt:
    """Arrange the bodies of a compound statement, in a copy."""
    if isinstance(node, ast.Match):
        cases = [
            ast.match_case(case.pattern, case.guard, arranged(case.body, subject))
            for case in node.cases
        ]
        return ast.copy_location(ast.Match(node.subject, cases), node)
    if isinstance(node, ast.Try):
        handlers = [
            ast.copy_location(ast.ExceptHandler(h.type, h.name, arranged(h.body, subject)), h)
            for h in node.handlers
        ]
        body, orelse, final = (
            arranged(part, subject) for part in (node.body, node.orelse, node.finalbody)
        )
        return ast.copy_location(ast.Try(body, handlers, orelse, final), node)
    if not isinstance(node, BLOCKS):
        return node
    made = type(node)(**{name: getattr(node, name) for name in node._fields})
    made.body = arranged(node.body, subject)
    if not isinstance(made, ast.With):
        made.orelse = arranged(made.orelse, subject)
    return ast.copy_location(made, node)


Constant: TypeAlias = ast.MatchValue | ast.MatchSingleton


def _is_constant_match(node: ast.Match) -> bool:
    return all(_is_constant_pattern(case.pattern) for case in node.cases)


def _is_constant_pattern(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(isinstance(p, Constant) for p in pattern.patterns)
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is None and pattern.name is None
    return isinstance(pattern, Constant)


def _as_ifs(node: ast.Match, subject: str) -> tuple[ast.stmt, list[ast.stmt]]:
    """Return the assignment of the subject, and the chain of `if`s that replaces a `match`."""
    first = at(place(node.subject), assign(subject, node.subject))
    chain: list[ast.stmt] = []
    for case in reversed(node.cases):
        where = place(case.pattern)  # type: ignore[arg-type]
        test = _test(case.pattern, subject, where)
        if case.guard is not None:
            test = case.guard if test is None else ast.BoolOp(ast.And(), [test, case.guard])
        if test is None:
            chain = case.body
        else:
            chain = [at(where, ast.If(at(where, test), case.body, chain))]
    return first, chain


def _test(pattern: ast.pattern, subject: str, where: Place) -> ast.expr | None:
    """Return what a pattern asks of the subject, None of the one that takes anything."""
    if isinstance(pattern, ast.MatchOr):
        tests = [_test(p, subject, where) for p in pattern.patterns]
        return ast.BoolOp(ast.Or(), [t for t in tests if t is not None])
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(load(subject), [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(load(subject), [ast.Is()], [ast.Constant(pattern.value)])
    return None
