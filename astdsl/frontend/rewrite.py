"""Rewriting a function: control flow becomes calls of hooks, blocks become nested functions.

Before::

    if n > 0:
        acc += x

After::

    def __then_1__():
        nonlocal acc
        acc += x
    __if__(n > 0, __then_1__)

Invariant: the rewritten function does with Python values what the source does; every name lives in
one cell, which blocks share by `nonlocal`; nodes of the user keep their places. What a statement
means for kernel values is decided by the hook, from the values it gets.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from astdsl.frontend import leaving, scopes
from astdsl.frontend.compiling import undressed
from astdsl.frontend.expressions import ExpressionRewriter, in_pieces
from astdsl.frontend.implicit import ImplicitRewriter
from astdsl.frontend.nodes import (
    Place,
    assign,
    at,
    call,
    clone,
    constant,
    function,
    load,
    moved,
    names_tuple,
    place,
    store,
)
from astdsl.frontend.source_text import FunctionSource
from astdsl.lang.blocks import BlockNames
from astdsl.records import dataclass, field, replace
from astdsl.source import Span

RETURNED, RESULT, ITEM = "__returned__", "__result__", "__item__"
REFUSED: dict[type[ast.stmt], str] = {
    ast.TryStar: "except*",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.AsyncFunctionDef: "async def",
}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten function: its node, and the names of each block by the block's own name.

    `shared` are the names that functions nested in it declare `nonlocal`.
    """

    node: ast.FunctionDef
    blocks: dict[str, BlockNames]
    shared: scopes.Names


def rewrite(source: FunctionSource, *, implicit: bool = False) -> Rewritten:
    """Rewrite a function found in its file, without its decorators, defaults and annotations.

    With `implicit` also what Python calls by itself in classes: operators, properties.
    """
    node = clone(undressed(source.node))
    if isinstance(node, ast.Lambda):
        result = moved(place(node.body), ast.Return(node.body))
        made = function("__lambda__", [], [result])
        made.args = node.args
        node = at(place(node), made)
    assert isinstance(node, ast.FunctionDef), "an `async def` is refused before it is rewritten"
    root = Root(source.file, source.class_name, implicit)
    Scope(root, node).rewrite()
    return Rewritten(node, root.blocks, frozenset(map(root.mangled, root.nonlocals)))


@dataclass
class Root:
    """What the scopes of one rewritten function share."""

    file: str
    class_name: str
    implicit: bool = False
    blocks: dict[str, BlockNames] = field(default_factory=dict)
    generated: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    _count: int = 0

    def fresh(self, what: str) -> str:
        """Return a name that the source does not have."""
        self._count += 1
        name = f"__{what}_{self._count}__"
        self.generated.add(name)
        return name

    def expressions(self, receiver: str) -> ExpressionRewriter:
        """Return what rewrites the expressions of a function with this first parameter."""
        if self.implicit:
            return ImplicitRewriter(lambda: self.fresh("v"), receiver, self.mangled)
        return ExpressionRewriter(lambda: self.fresh("v"), receiver)

    def mangled(self, name: str) -> str:
        """Return a name as Python's compiler spells it inside the class."""
        private = name.startswith("__") and not name.endswith("__")
        bare = self.class_name.lstrip("_")
        return f"_{bare}{name}" if private and bare else name


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop being rewritten: the flags that its `break` and `continue` set."""

    broke: str
    continued: str


class Scope:
    """Rewrites one function scope: the function itself, or one nested in it."""

    def __init__(self, root: Root, node: ast.FunctionDef) -> None:
        self.root = root
        self.node = node
        parameters = [*node.args.posonlyargs, *node.args.args]
        receiver = parameters[0].arg if parameters and root.class_name else ""
        self.expressions = root.expressions(receiver)
        self.loops: list[Loop] = []
        self.shared: set[str] = set()
        body = leaving.arranged(node.body, lambda: root.fresh("subject"))
        self.is_flagged = leaving.returns_from_block(body)
        if self.is_flagged and not leaving.always_leaves(body):
            body.append(at(place(body[-1]), ast.Return(constant(None))))
        self.body = body
        self.globals = scopes.declared(body, ast.Global)
        outer = scopes.declared(body, ast.Nonlocal)
        self.liveness = scopes.Liveness(scopes.captured(body) | outer)
        self.liveness.run(body, scopes.NONE)
        self.outer = outer
        root.nonlocals |= outer

    def rewrite(self) -> None:
        """Rewrite the body of the node in place."""
        start = place(self.node.body[0])
        body = self.statements(self.body)
        arguments = self.node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        names = sorted(self.shared - self.outer - self.globals - {a.arg for a in given})
        head: list[ast.stmt] = []
        if outer := sorted(self.outer):
            head.append(ast.Nonlocal(outer))
        if names:
            # Never run: it only tells Python's compiler that the names are this function's.
            targets: list[ast.expr] = [store(name) for name in names]
            head.append(ast.If(constant(False), [ast.Assign(targets, constant(None))], []))
        if self.is_flagged:
            head.append(assign(RETURNED, constant(False)))
            body.append(at(start, ast.Return(load(RESULT))))
        whole = [*(at(start, node) for node in head), *body]
        self.node.body = whole or [at(start, ast.Pass())]

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite a list of statements; what follows a possible exit is guarded by its flags."""
        result: list[ast.stmt] = []
        for index, node in enumerate(body):
            rest = body[index + 1 :]
            # Asked first, as rewriting changes the bodies of statements that stay Python's.
            flags = self.flags(leaving.leaves(node)) if rest else []
            result += self.statement(node)
            if isinstance(node, leaving.LEAVES):
                break
            if flags:
                where = place(rest[0])
                needs = self.needs(rest[-1], rest)
                name, made = self.block("rest", self.statements(rest), where, needs)
                return [*result, made, _statement(where, "__unless__", names_tuple(flags), name)]
        return result

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Rewrite one statement."""
        if type(node) in REFUSED:
            return [self.refusal(node, REFUSED[type(node)])]
        handler = HANDLERS.get(type(node))
        if handler is None:
            return [self.refusal(node, f"{type(node).__name__} statement")]
        return handler(self, node)

    def refusal(self, node: ast.stmt, what: str) -> ast.stmt:
        """Return the statement that refuses `what` when it is reached."""
        self.keep_bound(node)
        return at(place(node), ast.Expr(call("__refuse__", constant(what))))

    def keep_bound(self, node: ast.stmt) -> None:
        """Let names that a dropped statement binds stay names of the function."""
        self.shared |= scopes.bound([node])

    def flags(self, found: Iterable[leaving.Leave]) -> list[str]:
        """Name the flags that leaving statements set, each once."""
        return list(dict.fromkeys(map(self.flag, found)))

    def flag(self, node: ast.stmt) -> str:
        """Name the flag that a leaving statement sets."""
        if isinstance(node, ast.Return):
            return RETURNED
        return self.loops[-1].broke if isinstance(node, ast.Break) else self.loops[-1].continued

    def expression(self, node: ast.expr) -> ast.expr:
        """Rewrite an expression."""
        made: ast.expr = self.expressions.visit(node)
        return made

    def block(
        self,
        what: str,
        body: list[ast.stmt],
        header: Place,
        names: Needs,
        *,
        parameters: tuple[str, ...] = (),
        own: frozenset[str] = frozenset(),
    ) -> tuple[ast.Name, ast.FunctionDef]:
        """Make a function of rewritten statements, and note its names; return its name too.

        `own` are flags that belong to the block. Every other name that it binds is shared.
        """
        name = self.root.fresh(what)
        ours = self.root.generated - self.root.flags
        bound = scopes.bound(body) - ours - own - self.globals
        self.shared |= bound
        flags = bound & {*self.root.flags, RETURNED, RESULT}
        reads = {n for n in scopes.read(body) if not n.startswith("__")}
        spell = self.root.mangled
        self.root.blocks[name] = BlockNames(
            bound=tuple(map(spell, sorted(bound))),
            read=tuple(map(spell, sorted(reads))),
            exposed=frozenset(map(spell, names.exposed | flags)),
            after=frozenset(map(spell, names.after | flags)),
            span=header.span(self.root.file),
            exits=names.exits,
            stops=tuple(flag for flag in names.stops if flag in bound),
            changes=tuple(_changes(body, self.root.file)),
        )
        declared: list[ast.stmt] = [ast.Nonlocal(sorted(bound))] if bound else []
        made = at(header, function(name, list(parameters), [*declared, *body] or [ast.Pass()]))
        return at(header, load(name)), made

    def needs(self, node: ast.stmt, body: list[ast.stmt], *targets: ast.AST | None) -> Needs:
        """Return what the block made of `body`, a part of `node`, needs and leaves."""
        given = [target for target in targets if target is not None]
        exits = tuple(
            (self.flag(found), type(found).__name__.lower(), place(found).span(self.root.file))
            for found in leaving.leaves_of(body)
        )
        return Needs(scopes.exposed(body, given), self.liveness.after[node], exits)


@dataclass(frozen=True, slots=True)
class Needs:
    """Names that a block reads before it binds them, and those read after it; its exits."""

    exposed: scopes.Names
    after: scopes.Names
    exits: tuple[tuple[str, str, Span], ...] = ()
    stops: tuple[str, ...] = ()


def _changes(body: list[ast.stmt], file: str) -> Iterator[tuple[str, Span]]:
    """Yield the texts of objects that rewritten statements may change, and where."""
    for node in ast.walk(ast.Module(body, [])):
        for changed, where in _changed(node):
            text = ast.unparse(changed)
            if "__call__" not in text:
                yield text, place(where).span(file)


def _changed(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a store, a deletion or the call of a method may change, and where."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield node, node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        first = node.args[0]
        if node.func.id == "__deletable__":
            yield first, node
        elif node.func.id == "__call__" and isinstance(first, ast.Attribute | ast.Subscript):
            yield first.value, first


def _statement(where: Place, name: str, *arguments: ast.expr) -> ast.stmt:
    return at(where, ast.Expr(call(name, *arguments)))


def if_(scope: Scope, node: ast.If) -> list[ast.stmt]:
    """`if`: both sides become functions."""
    header = place(node, node.test)
    test = scope.expression(node.test)
    then, made = scope.block(
        "then", scope.statements(node.body), header, scope.needs(node, node.body)
    )
    if not node.orelse:
        return [made, _statement(header, "__if__", test, then)]
    otherwise, other = scope.block(
        "else", scope.statements(node.orelse), header, scope.needs(node, node.orelse)
    )
    return [made, other, _statement(header, "__if__", test, then, otherwise)]


def _target(target: ast.expr) -> ast.stmt:
    return at(place(target), ast.Assign([target], load(ITEM)))


def _loop_body(
    scope: Scope, node: ast.For | ast.While, head: list[ast.stmt], header: Place, needs: Needs
) -> tuple[ast.Name, ast.FunctionDef, list[str]]:
    """Return the body's name and function, and the flags that end the loop."""
    loop = Loop(scope.root.fresh("broke"), scope.root.fresh("continued"))
    scope.root.flags |= {loop.broke, loop.continued}
    scope.loops.append(loop)
    exits = tuple(
        (scope.flag(x), type(x).__name__.lower(), place(x).span(scope.root.file))
        for x in leaving.leaves_of(node.body)
    )
    kinds = {kind for _, kind, _ in exits}
    body = scope.statements(node.body)
    scope.loops.pop()
    if "continue" in kinds:
        head = [*head, at(header, assign(loop.continued, constant(False)))]
    stops = [loop.broke] * ("break" in kinds) + [RETURNED] * ("return" in kinds)
    name, made = scope.block(
        "body",
        [*head, *body],
        header,
        replace(needs, exits=exits, stops=tuple(stops)),
        parameters=(ITEM,) if isinstance(node, ast.For) else (),
        own=frozenset([loop.continued]),
    )
    scope.shared.discard(loop.continued)
    return name, made, stops


def _around_loop(
    scope: Scope,
    node: ast.For | ast.While,
    header: Place,
    stops: list[str],
    loop: list[ast.stmt],
) -> list[ast.stmt]:
    """Put the flag of `break` before a loop, and `else` behind it."""
    before = [at(header, assign(f, constant(False))) for f in stops if f != RETURNED]
    scope.shared |= {flag for flag in stops if flag != RETURNED}
    if not node.orelse:
        return [*before, *loop]
    orelse = scope.statements(node.orelse)
    if not stops:
        return [*before, *loop, *orelse]
    where = place(node.orelse[0])
    name, made = scope.block("else", orelse, where, scope.needs(node, node.orelse))
    return [*before, *loop, made, _statement(where, "__unless__", names_tuple(stops), name)]


def for_(scope: Scope, node: ast.For) -> list[ast.stmt]:
    """`for`: the body becomes a function of the item."""
    header = place(node, node.iter)
    needs = _loop_needs(scope, node, scopes.exposed(node.body, [node.target]))
    items = scope.expression(node.iter)
    name, made, stops = _loop_body(
        scope, node, [_target(scope.expression(node.target))], header, needs
    )
    return _around_loop(
        scope, node, header, stops, [made, _statement(header, "__for__", items, name)]
    )


def while_(scope: Scope, node: ast.While) -> list[ast.stmt]:
    """`while`: test and body become functions."""
    header = place(node, node.test)
    needs = _loop_needs(scope, node, scopes.exposed(node.body) | scopes.read([node.test]))
    result = at(place(node.test), ast.Return(scope.expressions.condition(node.test)))
    test, made_test = scope.block("test", [result], header, needs)
    name, made, stops = _loop_body(scope, node, [], header, needs)
    run = _statement(header, "__while__", test, name)
    return _around_loop(scope, node, header, stops, [made_test, made, run])


def _loop_needs(scope: Scope, node: ast.For | ast.While, exposed: scopes.Names) -> Needs:
    after = scope.liveness.after[node] | scopes.exposed(node.orelse)
    return Needs(exposed, after)


def with_(scope: Scope, node: ast.With) -> list[ast.stmt]:
    """`with`: one block for each item, the first outermost."""
    body = scope.statements(node.body)
    needs = scope.needs(node, node.body)
    for item in reversed(node.items):
        target = item.optional_vars
        header = place(node, target or item.context_expr)
        head = [] if target is None else [_target(scope.expression(target))]
        if target is not None:
            needs = replace(needs, exposed=needs.exposed - scopes.bound([target]))
        name, made = scope.block("with", [*head, *body], header, needs, parameters=(ITEM,))
        needs = replace(needs, exposed=needs.exposed | scopes.read([item.context_expr]))
        context = scope.expression(item.context_expr)
        body = [made, _statement(header, "__with__", context, name)]
    return body


def match(scope: Scope, node: ast.Match) -> list[ast.stmt]:
    """`match` on structure stays Python's; its subject's structure must be known."""
    subject = scope.expression(node.subject)
    node.subject = at(place(subject), call("__matched__", subject))
    for case in node.cases:
        case.guard = case.guard and scope.expression(case.guard)
        case.body = scope.statements(case.body)
    return [node]


def delete(scope: Scope, node: ast.Delete) -> list[ast.stmt]:
    """`del` of names and of what Python's containers and objects hold."""
    made: ast.Delete = scope.expressions.visit(node)
    for target in made.targets:
        if isinstance(target, ast.Attribute | ast.Subscript):
            target.value = at(place(node), call("__deletable__", target.value))
    return [made]


def try_(scope: Scope, node: ast.Try) -> list[ast.stmt]:
    """`try` stays Python's: what it guards makes no kernel values, and our reports pass it."""
    for found in leaving.leaves_of(node.finalbody):
        return [scope.refusal(node, f"{type(found).__name__.lower()} in finally")]
    where = place(node)
    guard = ast.With([ast.withitem(call("__guarded__"))], scope.statements(node.body))
    passing = ast.ExceptHandler(call("__passing__"), None, [ast.Raise()])
    for handler in node.handlers:
        handler.type = handler.type and scope.expression(handler.type)
        handler.body = scope.statements(handler.body)
    made = ast.Try(
        [at(where, guard)],
        [at(where, passing), *node.handlers],
        scope.statements(node.orelse),
        scope.statements(node.finalbody),
    )
    return [at(where, made)]


def return_(scope: Scope, node: ast.Return) -> list[ast.stmt]:
    """`return`: from inside a block by a flag."""
    value = scope.expression(node.value) if node.value is not None else None
    if not scope.is_flagged:
        return [ast.copy_location(ast.Return(value), node)]
    where = place(node)
    result = at(where, assign(RESULT, value or constant(None)))
    return [result, at(where, assign(RETURNED, constant(True)))]


def leave(scope: Scope, node: ast.Break | ast.Continue) -> list[ast.stmt]:
    """`break` and `continue`: by a flag."""
    return [at(place(node), assign(scope.flag(node), constant(True)))]


def assert_(scope: Scope, node: ast.Assert) -> list[ast.stmt]:
    """`assert`: the hook decides when it is checked."""
    test = scope.expression(node.test)
    arguments = [test]
    if node.msg is not None:
        message = ast.Lambda(function("", [], []).args, in_pieces(scope.expression(node.msg)))
        arguments.append(message)
    return [_statement(place(node), "__assert__", *arguments)]


def raise_(scope: Scope, node: ast.Raise) -> list[ast.stmt]:
    """`raise`: refused where only the running kernel knows whether it is reached."""
    made: ast.Raise = scope.expressions.visit(node)
    reached = _statement(place(node), "__raised__")
    return [reached, made]


def function_(scope: Scope, node: ast.FunctionDef) -> list[ast.stmt]:
    """Nested functions: each is a scope of its own."""
    arguments = node.args
    arguments.defaults = [scope.expression(d) for d in arguments.defaults]
    arguments.kw_defaults = [d and scope.expression(d) for d in arguments.kw_defaults]
    Scope(scope.root, node).rewrite()
    return [node]


def as_it_is(scope: Scope, node: ast.stmt) -> list[ast.stmt]:
    """Statements that Python alone gives a meaning to."""
    del scope
    return [node]


def expressions_only(scope: Scope, node: ast.stmt) -> list[ast.stmt]:
    """Statements of which only the expressions are rewritten."""
    made: ast.stmt = scope.expressions.visit(node)
    return [made]


def nonlocal_(scope: Scope, node: ast.Nonlocal) -> list[ast.stmt]:
    """`nonlocal`: declared once, at the head of the function."""
    del scope, node
    return []


def global_(scope: Scope, node: ast.Global) -> list[ast.stmt]:
    """`global`: refused where the function writes one of the names."""
    if scopes.bound(scope.body) & set(node.names):
        return [scope.refusal(node, "global")]
    return []


def assign_(scope: Scope, node: ast.Assign) -> list[ast.stmt]:
    """`x = v`; the span of a store to memory is the whole statement."""
    made: ast.Assign = scope.expressions.visit(node)
    for target in made.targets:
        if isinstance(target, ast.Subscript):
            moved(place(node), target)
    return [made]


def annotated(scope: Scope, node: ast.AnnAssign) -> list[ast.stmt]:
    """`x: T = v` without the annotation, which a shared name cannot have."""
    if node.value is None:
        scope.keep_bound(node)
        return []
    return assign_(scope, at(place(node), ast.Assign([node.target], node.value)))


Handler = Callable[..., list[ast.stmt]]
# `type X = ...`, from Python 3.12 on.
TYPE_ALIAS = {kind: as_it_is for kind in ast.stmt.__subclasses__() if kind.__name__ == "TypeAlias"}
HANDLERS: dict[type[ast.stmt], Handler] = {
    **TYPE_ALIAS,
    ast.AnnAssign: annotated,
    ast.Assert: assert_,
    ast.Assign: assign_,
    ast.AugAssign: expressions_only,
    ast.Break: leave,
    ast.ClassDef: as_it_is,
    ast.Continue: leave,
    ast.Delete: delete,
    ast.Expr: expressions_only,
    ast.For: for_,
    ast.FunctionDef: function_,
    ast.Global: global_,
    ast.If: if_,
    ast.Import: as_it_is,
    ast.ImportFrom: as_it_is,
    ast.Match: match,
    ast.Nonlocal: nonlocal_,
    ast.Pass: as_it_is,
    ast.Raise: raise_,
    ast.Return: return_,
    ast.Try: try_,
    ast.While: while_,
    ast.With: with_,
}
