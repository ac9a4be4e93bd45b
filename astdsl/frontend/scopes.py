"""Which names a piece of a function binds, reads, needs from before, and leaves to what follows.

Invariant: answers err on one side only. `bound` may name too many, never too few; a name that is
not in `exposed` is surely assigned before it is read, and one not in `after` is surely not read
again. Paths are those of the rewritten function, where an early exit sets a flag and runs on past
the statements that it skips.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from astdsl.frontend.leaving import LEAVES, leaves
from astdsl.records import dataclass, field

Names = frozenset[str]
NONE: Names = frozenset()
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(nodes: Iterable[ast.AST]) -> Names:
    """Return the names that statements or expressions bind in their own scope.

    Names that nested functions bind by `nonlocal` count.
    """
    return frozenset(name for node in nodes for name in _bound(node))


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    if isinstance(node, SCOPES):
        yield from _bound_by_scope(node)
    elif isinstance(node, COMPREHENSIONS):
        yield from _bound_by_comprehension(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _bound_by_scope(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    for outer in _outside(node):
        yield from _bound(outer)
    yield from _shared_by_scope(node)


def _shared_by_scope(node: ast.AST) -> Names:
    """Return the names of scopes around that a nested scope binds by `nonlocal`."""
    body = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    if not body:
        return NONE
    outer = declared(body, ast.Nonlocal)
    direct = frozenset(
        n.id for n in _own_nodes(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    inner = [s for s in _own_nodes(body) if isinstance(s, SCOPES)]
    through = frozenset(name for scope in inner for name in _shared_by_scope(scope))
    return outer | (through - direct)


def _bound_by_comprehension(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr):
            yield inner.target.id


def _outside(scope: ast.AST) -> list[ast.AST]:
    """Return what a nested scope's header evaluates in the scope around it."""
    if isinstance(scope, ast.ClassDef):
        return [*scope.decorator_list, *scope.bases, *scope.keywords]
    assert isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda), "a scope"
    defaults = [*scope.args.defaults, *(d for d in scope.args.kw_defaults if d is not None)]
    return [*getattr(scope, "decorator_list", []), *defaults]


def read(nodes: Iterable[ast.AST]) -> Names:
    """Return the names that are read anywhere below, nested scopes included."""
    return frozenset(
        inner.id
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    )


def captured(nodes: Iterable[ast.AST]) -> Names:
    """Return the names that nested functions or lazy generators read: they may do so any time."""
    kinds = (*SCOPES, ast.GeneratorExp)
    scopes = [s for node in nodes for s in ast.walk(node) if isinstance(s, kinds)]
    return read(scopes)


def declared(nodes: Iterable[ast.AST], kind: type[ast.Nonlocal] | type[ast.Global]) -> Names:
    """Return the names declared `nonlocal` or `global` in this scope."""
    return frozenset(
        name for node in _own_nodes(nodes) if isinstance(node, kind) for name in node.names
    )


def _own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if not isinstance(node, SCOPES):
            yield from _own_nodes(ast.iter_child_nodes(node))


@dataclass
class Liveness:
    """Names that may be read after each statement of one function.

    `after` maps a statement to the names read later, before they are assigned again; `always` are
    names that closures read.
    """

    always: Names
    after: dict[ast.stmt, Names] = field(default_factory=dict)

    def run(self, body: list[ast.stmt], after: Names) -> Names:
        """Return the names that `body` needs from before, if `after` are needed behind it."""
        live = after
        for statement in reversed(body):
            if isinstance(statement, LEAVES):
                live = after  # what stands behind is dropped
            elif any(leaves(statement)):
                live |= after  # what stands behind may be skipped
            self.after[statement] = self.after.get(statement, NONE) | live | self.always
            handler = TRANSFER.get(type(statement), Liveness.simple)
            live = handler(self, statement, live)
        return live

    def simple(self, node: ast.stmt, after: Names) -> Names:
        """Statements without a body."""
        return (after - _surely_assigned(node)) | read([node]) | _augmented(node)

    def leave(self, node: ast.stmt, after: Names) -> Names:
        """`return`, `break`, `continue`: they set a flag, and what follows is skipped."""
        return read([node]) | after

    def raise_(self, node: ast.stmt, after: Names) -> Names:
        """`raise`: nothing behind is reached."""
        del after
        return read([node])

    def if_(self, node: ast.If, after: Names) -> Names:
        """`if`: either way."""
        return read([node.test]) | self.run(node.body, after) | self.run(node.orelse, after)

    def for_(self, node: ast.For, after: Names) -> Names:
        """`for`: the body any number of times, then `else`, unless a `break` skips it."""
        behind = after | self.run(node.orelse, after)
        return read([node.iter]) | self._loop(node.body, behind, bound([node.target]))

    def while_(self, node: ast.While, after: Names) -> Names:
        """`while`: the test before every step."""
        behind = after | self.run(node.orelse, after) | read([node.test])
        return self._loop(node.body, behind, NONE)

    def with_(self, node: ast.With, after: Names) -> Names:
        """`with`: it may be a pipeline, so the body may run any number of times."""
        targets = bound([item.optional_vars for item in node.items if item.optional_vars])
        head = self._loop(node.body, after, targets)
        return read([item.context_expr for item in node.items]) | head

    def _loop(self, body: list[ast.stmt], behind: Names, targets: Names) -> Names:
        """Return the names needed at the head of a loop, before its `targets` are assigned."""
        head, before = behind, None
        while head != before:
            before = head
            head = behind | (self.run(body, head) - targets)
        return head

    def match(self, node: ast.Match, after: Names) -> Names:
        """`match`: one case, or none."""
        live = after | read([node.subject])
        for case in node.cases:
            inner = self.run(case.body, after) | (read([case.guard]) if case.guard else NONE)
            live |= (inner - bound([case.pattern])) | read([case.pattern])
        return live

    def try_(self, node: ast.Try, after: Names) -> Names:
        """`try`: any statement of the body may be the last one, before a handler."""
        final = self.run(node.finalbody, after)
        handled = final
        for handler in node.handlers:
            inner = self.run(handler.body, final) - ({handler.name} if handler.name else NONE)
            handled |= inner | (read([handler.type]) if handler.type else NONE)
        always, self.always = self.always, self.always | handled
        body = self.run(node.body, self.run(node.orelse, final))
        self.always = always
        return body | handled

    def anything(self, node: ast.stmt, after: Names) -> Names:
        """Statements that are refused when they are reached: all their names count."""
        return after | read([node])


def _surely_assigned(node: ast.stmt) -> Names:
    """Return the names that a simple statement assigns whenever it runs."""
    if isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom):
        return bound([node]) - _bound_by_others(node)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    return frozenset(
        inner.id
        for target in targets
        for inner in ast.walk(target)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    )


def _bound_by_others(node: ast.stmt) -> Names:
    return bound([node]) - {node.name} if isinstance(node, ast.FunctionDef) else NONE


def _augmented(node: ast.stmt) -> Names:
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return frozenset([node.target.id])
    return NONE


Handler = Callable[..., Names]
TRANSFER: dict[type[ast.stmt], Handler] = {
    ast.Return: Liveness.leave,
    ast.Raise: Liveness.raise_,
    ast.Break: Liveness.leave,
    ast.Continue: Liveness.leave,
    ast.If: Liveness.if_,
    ast.For: Liveness.for_,
    ast.While: Liveness.while_,
    ast.With: Liveness.with_,
    ast.Match: Liveness.match,
    ast.Try: Liveness.try_,
    ast.TryStar: Liveness.anything,
    ast.AsyncFor: Liveness.anything,
    ast.AsyncWith: Liveness.anything,
    ast.ClassDef: Liveness.anything,
}


def exposed(body: list[ast.stmt], before: Iterable[ast.AST] = ()) -> Names:
    """Return the names that `body` may read before it assigns them; `before` runs first."""
    needed = Liveness(NONE).run(body, NONE)
    return (needed - bound(before)) | read(before)
