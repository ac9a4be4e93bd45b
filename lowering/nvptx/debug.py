"""Line information: LLVM debug metadata that becomes ``.file`` and ``.loc`` in the PTX.

Invariant: ``emissionKind: DebugDirectivesOnly``; the other kinds make ptxas refuse -O3
or silently stop optimising.  Each (file, line, column) of a kernel has one node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

_ESCAPED = re.compile(rb'[^ -~]|["\\]')


def quoted(text: str) -> str:
    """Quote `text` for LLVM assembly, its bytes outside printable ASCII in hexadecimal."""
    escaped = _ESCAPED.sub(lambda found: b"\\%02X" % ord(found[0]), text.encode())
    return f'"{escaped.decode()}"'


class LineTable:
    """The debug nodes of one kernel, made as they are needed."""

    def __init__(self, add_node: Callable[[str], str], function: str, file: str, line: int):
        self._add_node = add_node
        self._files: dict[str, str] = {}
        self._scopes: dict[str, str] = {}
        self._locations: dict[tuple[str, int, int], str] = {}
        unit = add_node(
            f"distinct !DICompileUnit(language: DW_LANG_Python, file: {self._file(file)}, "
            'producer: "astdsl", isOptimized: true, runtimeVersion: 0, '
            "emissionKind: DebugDirectivesOnly)"
        )
        signature = add_node(f"!DISubroutineType(types: {add_node('!{}')})")
        self.unit = unit
        self.subprogram = add_node(
            f"distinct !DISubprogram(name: {quoted(function)}, scope: {self._file(file)}, "
            f"file: {self._file(file)}, line: {line}, type: {signature}, scopeLine: {line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {unit})"
        )
        self._scopes[file] = self.subprogram

    def location(self, file: str, line: int, column: int) -> str:
        """Give the node of one place in a source file; lines and columns count from 1."""
        key = (file, line, column)
        found = self._locations.get(key)
        if found is None:
            scope = self._scopes.get(file) or self._scope_of(file)
            found = self._add_node(f"!DILocation(line: {line}, column: {column}, scope: {scope})")
            self._locations[key] = found
        return found

    def _scope_of(self, file: str) -> str:
        node = self._add_node(
            f"!DILexicalBlockFile(scope: {self.subprogram}, file: {self._file(file)}, "
            "discriminator: 0)"
        )
        self._scopes[file] = node
        return node

    def _file(self, file: str) -> str:
        if file not in self._files:
            directory, name = os.path.split(file)
            self._files[file] = self._add_node(
                f"!DIFile(filename: {quoted(name)}, directory: {quoted(directory)})"
            )
        return self._files[file]
