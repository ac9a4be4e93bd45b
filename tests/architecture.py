"""The house rules that ruff and mypy cannot see, as checks over a source tree.

Every check takes the modules of one tree and returns complaints, each beginning `path:line: `.
None reads anything but its argument, so the tests show each one failing on a planted tree.
"""

import ast
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HARD_LIMIT_LINES = 600
SOFT_LIMIT_LINES = 400
LIMIT_STATEMENTS = 40

# Where the folders at the top are imported from.
MAPPED = {"astdsl": "astdsl", "lowering": "astdsl.lowering", "stdlib": "astdsl.stdlib"}

# The one direction: a room imports rooms of lower levels and itself. "" is astdsl/__init__.py.
LEVELS = (
    ("source", "errors", "records", "store"),
    ("ir",),
    ("passes",),
    ("lang",),
    ("frontend", "lowering", "runtime", "emulator"),
    ("backend", "request"),
    ("compile",),
    ("call", "decorated"),
    ("saved", "lowered"),
    ("on_demand",),
    ("compiled",),
    ("kernel",),
    ("",),
    ("stdlib",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

# Rooms that see less than their level would allow: the emulator is a witness only while it knows
# nothing of our IR, and the back end starts from IR.
SEES = {
    "emulator": {"source", "errors"},
    "lowering": {"source", "errors", "records", "store", "ir", "passes"},
}

# The tables of late imports, and the rooms they may reach besides those of their level.
LATE_TABLES: dict[str, set[str]] = {
    "astdsl.backend": {"lowering"},
    "astdsl.runtime.devices": {"emulator"},
    "astdsl.on_demand": set(),
    "astdsl.emulator.native.host": set(),
    "astdsl.runtime.native": set(),
}

# Registries: filled by decorators at import, then closed; the current trace; the chosen device.
REGISTRIES = {
    "astdsl.emulator.isa.ROWS",
    "astdsl.emulator.native.table.ROWS",
    "astdsl.ir.evaluate.table.EVALUATORS",
    "astdsl.lang.memory.OPENERS",
    "astdsl.lang.values.METHODS",
    "astdsl.lowering.layout.inference._RULES",
    "astdsl.lowering.nvptx.function.STATEMENTS",
    "astdsl.lowering.nvptx.function.TILES",
    "astdsl.lowering.schedule.block._HANDLERS",
}
CONTEXT_VARIABLES = {"astdsl.lang.tracing", "astdsl.runtime.devices", "astdsl.runtime.emulation"}

RICH_ROOM = "astdsl.cli.render"

CONTAINERS = {
    "Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "bytearray",
    "defaultdict", "deque", "dict", "list", "set",
}  # fmt: skip
CHANGERS = {
    "__setitem__", "add", "append", "appendleft", "clear", "difference_update", "discard",
    "extend", "extendleft", "insert", "intersection_update", "pop", "popitem", "popleft", "remove",
    "reverse", "setdefault", "sort", "update",
}  # fmt: skip


@dataclass(frozen=True)
class Module:
    """One parsed file: the name it is imported by, its path below the root, its text and tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    is_package: bool

    def at(self, node: ast.AST | int, message: str) -> str:
        """Write a complaint about one line."""
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path}:{line}: {message}"

    @property
    def room(self) -> str:
        """Name the part of the house: `ir` for astdsl.ir.core, "" for astdsl itself."""
        return room_of(self.name)

    @property
    def lines(self) -> int:
        """Count the lines of the file."""
        return len(self.text.splitlines())


@dataclass(frozen=True)
class Import:
    """One imported module: late inside a function, for types under TYPE_CHECKING."""

    target: str
    node: ast.AST
    is_late: bool
    is_for_types: bool


def read_tree(root: Path) -> list[Module]:
    """Parse every package file below `root`; other folders (tests, examples) are not the house."""
    modules = []
    for folder, package in MAPPED.items():
        for path in sorted((root / folder).rglob("*.py")):
            relative = path.relative_to(root / folder)
            is_package = path.name == "__init__.py"
            parts = relative.parent.parts if is_package else relative.with_suffix("").parts
            text = path.read_text(encoding="utf-8")
            modules.append(
                Module(
                    name=".".join((package, *parts)),
                    path=path.relative_to(root),
                    text=text,
                    tree=ast.parse(text),
                    is_package=is_package,
                )
            )
    return modules


def room_of(name: str) -> str:
    """Name the room of a module: the part after `astdsl.`."""
    return name.partition(".")[2].partition(".")[0]


def imports_of(module: Module, known: set[str]) -> Iterator[Import]:
    """Yield what a module imports, late imports and those under TYPE_CHECKING included.

    `from a import b` is `a.b` if there is such a module, else `a`.
    """
    late = _inside(list(functions_of(module)))
    for_types = _inside(list(_blocks_for_types(module)))
    for node in ast.walk(module.tree):
        for target in _targets(module, node, known):
            yield Import(target, node, is_late=node in late, is_for_types=node in for_types)


def _inside(nodes: Sequence[ast.AST]) -> set[ast.AST]:
    return {inner for node in nodes for inner in ast.walk(node) if inner is not node}


def _blocks_for_types(module: Module) -> Iterator[ast.If]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield node


def _targets(module: Module, node: ast.AST, known: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _absolute(module, node)
        return [
            inner if (inner := f"{base}.{alias.name}") in known else base for alias in node.names
        ]
    if isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
        name = _text_of(node.args[0]) if node.args else None
        return [name or "a name made at run time"]
    return []


def _text_of(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = node.level - 1 if module.is_package else node.level
    return ".".join([*parts[: len(parts) - above], *filter(None, [node.module])])


def _called(node: ast.Call) -> str:
    """Name the called function without what stands before its last dot."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def functions_of(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a module, nested ones too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def check_layers(modules: list[Module]) -> list[str]:
    """Refuse an import that goes up, or from wing to wing."""
    known = {module.name for module in modules}
    complaints = []
    for module in modules:
        if module.room not in LEVEL:
            complaints.append(module.at(1, f"room `{module.room}` has no level in LEVELS"))
            continue
        for found in imports_of(module, known):
            if found.target.partition(".")[0] in {"lowering", "stdlib"}:
                wrong = f"`{found.target}` is imported as `astdsl.{found.target}`"
                complaints.append(module.at(found.node, wrong))
            elif not _is_below(module, found):
                wrong = f"{module.name} imports {found.target}, against the one direction"
                complaints.append(module.at(found.node, wrong))
    return complaints


def _is_below(module: Module, found: Import) -> bool:
    if found.target.partition(".")[0] != "astdsl":
        return True
    here, there = module.room, room_of(found.target)
    if here == there or (found.is_late and there in LATE_TABLES.get(module.name, ())):
        return True
    if here in SEES:
        return there in SEES[here]
    peers = LEVELS[0]  # source and errors are one level without being wings
    return LEVEL.get(there, len(LEVELS)) < LEVEL[here] or (here in peers and there in peers)


def check_late_imports(modules: list[Module]) -> list[str]:
    """Refuse imports inside functions outside the tables."""
    known = {module.name for module in modules}
    return [
        module.at(found.node, f"late import of {found.target}: only {', '.join(LATE_TABLES)}")
        for module in modules
        if module.name not in LATE_TABLES
        for found in imports_of(module, known)
        if found.is_late
    ]


def check_cycles(modules: list[Module]) -> list[str]:
    """Refuse modules that reach themselves by imports, late ones counted.

    Imports under TYPE_CHECKING do not run: two classes of one room may name each other.
    """
    known = {module.name for module in modules}
    graph = {
        module.name: sorted(
            {found.target for found in imports_of(module, known) if not found.is_for_types}
            & known - {module.name}
        )
        for module in modules
    }
    by_name = {module.name: module for module in modules}
    return [
        by_name[cycle[0]].at(1, "import cycle " + " -> ".join(cycle)) for cycle in _cycles(graph)
    ]


def _cycles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Find one cycle for each edge that closes one in a depth-first walk."""
    found, done = [], set[str]()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in graph[name]:
                visit(target, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return found


def check_module_length(modules: list[Module]) -> list[str]:
    """Refuse modules over the hard limit."""
    return [
        module.at(1, f"{module.lines} lines, the limit is {HARD_LIMIT_LINES}")
        for module in modules
        if module.lines > HARD_LIMIT_LINES
    ]


def check_function_length(modules: list[Module]) -> list[str]:
    """Refuse functions over the limit of statements (nested ones count, the docstring does not)."""
    return [
        module.at(function, f"`{function.name}` has {count} statements, the limit is 40")
        for module in modules
        for function in functions_of(module)
        if (count := statements_of(function)) > LIMIT_STATEMENTS
    ]


def statements_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the statements of a body, without its docstring."""
    count = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return count - (ast.get_docstring(function) is not None)


def check_broad_excepts(modules: list[Module]) -> list[str]:
    """Refuse handlers that catch everything, and so guess the cause."""
    return [
        module.at(node, "catches everything: name the exceptions that are meant")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type)
    ]


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(_is_broad(element) for element in caught.elts)
    return caught is None or ast.unparse(caught) in {
        "Exception",
        "BaseException",
        "builtins.Exception",
        "builtins.BaseException",
    }


def check_assert_messages(modules: list[Module]) -> list[str]:
    """Refuse an `assert` that does not say what went wrong, and a bare AssertionError."""
    return [
        module.at(node, "an assertion needs a message")
        for module in modules
        for node in ast.walk(module.tree)
        if _is_silent(node)
    ]


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return node.msg is None
    return (
        isinstance(node, ast.Raise)
        and node.exc is not None
        and (ast.unparse(node.exc) in {"AssertionError", "AssertionError()"})
    )


def check_module_docstrings(modules: list[Module]) -> list[str]:
    """Refuse a module that does not say what it is."""
    return [
        module.at(1, "no module docstring")
        for module in modules
        if not ast.get_docstring(module.tree)
    ]


def check_state(modules: list[Module]) -> list[str]:
    """Refuse state at module level: `global`, empty or changed containers, context variables.

    A table written out and never changed is a constant. REGISTRIES names those that decorators
    fill at import.
    """
    known = {module.name for module in modules}
    return [complaint for module in modules for complaint in _state_of(module, known)]


def _state_of(module: Module, known: set[str]) -> Iterator[str]:
    for name, value in _module_level_values(module):
        if f"{module.name}.{name}" not in REGISTRIES and _is_empty_container(value):
            yield module.at(value, f"`{name}` is empty at module level, so it is state")
        is_context = isinstance(value, ast.Call) and _called(value) == "ContextVar"
        if is_context and module.name not in CONTEXT_VARIABLES:
            yield module.at(value, f"`{name}`: the one ContextVar stands in lang/tracing.py")
    shared = {
        name
        for node in module.tree.body
        if not isinstance(node, ast.Import | ast.FunctionDef | ast.ClassDef)
        for name in _names_of_statement(node) - _modules_of_statement(module, node, known)
        if f"{module.name}.{name}" not in REGISTRIES
    }
    for function in functions_of(module):
        changeable = shared - _local_names(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield module.at(node, f"global {', '.join(node.names)}: pass it, or return it")
            for name in changeable.intersection(_changed_by(node)):
                yield module.at(node, f"`{name}` of the module is changed in a function")


def _modules_of_statement(module: Module, node: ast.stmt, known: set[str]) -> set[str]:
    """Name the modules that `from a import b` binds: `b.add(x)` calls a function of such a one."""
    if not isinstance(node, ast.ImportFrom):
        return set()
    base = _absolute(module, node)
    return {a.asname or a.name for a in node.names if f"{base}.{a.name}" in known}


def _module_level_values(module: Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if value is not None:
            yield from ((t.id, value) for t in targets if isinstance(t, ast.Name))


def _is_empty_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    has_content = value.keywords or (value.args and name not in {"defaultdict", "deque"})
    return name in CONTAINERS and not has_content


def _changed_by(node: ast.AST) -> list[str]:
    """Name what a statement changes in place: `x[k] = v`, `del x[k]`, `x |= y`, `x.append(v)`."""
    places: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        places = [t.value for t in node.targets if isinstance(t, ast.Subscript)]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        places = [node.target.value] if isinstance(node.target, ast.Subscript) else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        places = [node.func.value] if node.func.attr in CHANGERS else []
    return [place.id for place in places if isinstance(place, ast.Name)]


def _names_bound(module: Module) -> set[str]:
    """Name what the module binds at its top level, imports included."""
    found = set[str]()
    for node in module.tree.body:
        found |= _names_of_statement(node)
    return found


def _names_of_statement(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    stored = {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
    imported = {
        name
        for inner in ast.walk(node)
        if inner is not node and isinstance(inner, ast.stmt)
        for name in _names_of_statement(inner)
    }
    return stored | imported


def _local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return arguments | {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def check_public_names(modules: list[Module]) -> list[str]:
    """Refuse an `__all__` that is not written out, or names what the module does not bind."""
    known = {module.name for module in modules}
    return [complaint for module in modules for complaint in _wrong_names_of(module, known)]


def _wrong_names_of(module: Module, known: set[str]) -> Iterator[str]:
    bound = _names_bound(module)
    for value in [value for name, value in _module_level_values(module) if name == "__all__"]:
        names = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        for public in map(_text_of, names):
            if public is None:
                yield module.at(value, "__all__ is a list of names, written out")
            elif public not in bound and f"{module.name}.{public}" not in known:
                yield module.at(value, f"`{public}` is in __all__ and not in the module")


def check_rich(modules: list[Module]) -> list[str]:
    """Refuse colour and tables outside cli/render.py."""
    known = {module.name for module in modules}
    return [
        module.at(found.node, f"rich is imported in {RICH_ROOM} only")
        for module in modules
        if module.name != RICH_ROOM
        for found in imports_of(module, known)
        if found.target.partition(".")[0] == "rich"
    ]


CHECKS: dict[str, Callable[[list[Module]], list[str]]] = {
    "layers": check_layers,
    "late imports": check_late_imports,
    "cycles": check_cycles,
    "module length": check_module_length,
    "function length": check_function_length,
    "broad excepts": check_broad_excepts,
    "assert messages": check_assert_messages,
    "module docstrings": check_module_docstrings,
    "state": check_state,
    "public names": check_public_names,
    "rich": check_rich,
}


def report(modules: list[Module]) -> str:
    """Say how large the house is: functions by their median, modules over the soft limit."""
    sizes = {
        f"{module.name}.{function.name}": statements_of(function)
        for module in modules
        for function in functions_of(module)
    }
    lines = [f"{len(modules)} modules, {sum(m.lines for m in modules)} lines"]
    if sizes:
        largest = max(sizes, key=lambda name: sizes[name])
        median = statistics.median(sizes.values())
        lines.append(f"median function {median:g} statements (goal 5), {len(sizes)} functions")
        lines.append(f"largest function {largest}, {sizes[largest]} statements")
    long = sorted((m.lines, m.path) for m in modules if m.lines > SOFT_LIMIT_LINES)
    lines += [f"{path}: {count} lines, over {SOFT_LIMIT_LINES}" for count, path in reversed(long)]
    return "\n".join(lines)


def main() -> int:
    """Print the report and every complaint about the checkout; return 1 if there is one."""
    modules = read_tree(Path(__file__).resolve().parent.parent)
    complaints = [complaint for check in CHECKS.values() for complaint in check(modules)]
    print(report(modules), *complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
