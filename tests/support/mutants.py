"""Change one place of the kernel at a time, and see whether a test notices.

    ./dev test -p tests.support.mutants -p no:randomly -n 0 --mutants 200 tests/queue_app/{core,index,services,sql}

The tests run once, to learn which functions each of them calls. Then one place is changed (a comparison, a condition, a
number, a returned value, a call that is left out) by giving its function other code, and the tests that call the
function run, the narrowest first, until one fails. A place is chosen by a hash of its function's name and text, so a
function has the same places after it has moved.
"""

import ast
import hashlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

#: Folders of the kernel.
KERNEL = ("queue_app/core", "queue_app/index", "queue_app/services", "queue_app/sql")
#: Maximum number of tests for one place, and their time (s).
TESTS, SECONDS = 40, 20.0
#: Maximum number of places in one function.
EACH = 2
#: One of the tools of ``sys.monitoring`` that are free for users.
TOOL = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", type=int, default=0, help="number of places to change")
    parser.addoption("--mutants-report", default="", help="file for the results, as JSON")


# -- places ----------------------------------------------------------------------------------------

FLIPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip


def _of_constant(node: Any) -> ast.AST | None:
    if isinstance(node.value, bool):
        return ast.Constant(not node.value)
    return ast.Constant(node.value + 1) if isinstance(node.value, int) else None


def _of_sum(node: Any) -> ast.AST | None:
    is_text = isinstance(node.left, ast.Constant | ast.JoinedStr)
    flipped = None if is_text else FLIPPED.get(type(node.op))
    return flipped and ast.BinOp(node.left, flipped(), node.right)  # type: ignore[call-arg]


def _of_comparison(node: Any) -> ast.AST | None:
    flipped = FLIPPED.get(type(node.ops[0])) if len(node.ops) == 1 else None
    return flipped and ast.Compare(node.left, [flipped()], node.comparators)  # type: ignore[list-item]


#: {kind of a node: what stands in its place, none if it stays}.
CHANGES: dict[type[ast.AST], Callable[[Any], ast.AST | None]] = {
    ast.Compare: _of_comparison,
    ast.BinOp: _of_sum,
    ast.Constant: _of_constant,
    ast.BoolOp: lambda node: ast.BoolOp(FLIPPED[type(node.op)](), node.values),  # type: ignore[arg-type]
    ast.UnaryOp: lambda node: node.operand if isinstance(node.op, ast.Not) else None,
    ast.Return: lambda node: None if isinstance(node.value, ast.Constant | None) else ast.Return(ast.Constant(None)),
    ast.Expr: lambda node: ast.Pass() if isinstance(node.value, ast.Call) else None,
    ast.If: lambda node: ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse),
}


def changes(function: ast.FunctionDef) -> list[tuple[ast.AST, ast.AST]]:
    """Return the nodes of a function's body that can be changed, each with what stands there instead."""
    nodes = [node for statement in function.body for node in ast.walk(statement) if type(node) in CHANGES]
    return [(node, new) for node in nodes if (new := CHANGES[type(node)](node)) is not None]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def functions_in(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a module and of its classes, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_in(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node


class Place(NamedTuple):
    """The ``number``-th change of a function."""

    path: Path
    qualname: str
    number: int

    def changed(self) -> tuple[CodeType | None, str]:
        """Return the function's code with the change, and in words where it is."""
        tree = ast.parse(self.path.read_text())
        node, new = changes(dict(functions_in(tree))[self.qualname])[self.number]
        tree = ast.fix_missing_locations(_Replace(node, deepcopy(new)).visit(tree))
        where = f"{self.path}:{getattr(node, 'lineno', 0)} {self.qualname} {type(node).__name__}"
        return _code_in(compile(tree, self.path, "exec"), self.qualname), where


def _code_in(code: CodeType, qualname: str) -> CodeType | None:
    for each in code.co_consts:
        is_code = isinstance(each, CodeType)
        if is_code and (found := each if each.co_qualname == qualname else _code_in(each, qualname)):
            return found
    return None


def places(paths: list[Path]) -> list[Place]:
    """Return places of all functions, at most ``EACH`` of one, in an order that looks random and is always the same."""
    found = []
    for path in paths:
        for qualname, function in functions_in(ast.parse(path.read_text())):
            text = ast.unparse(function)
            names = [f"{qualname}\n{text}\n{number}" for number in range(len(changes(function)))]
            ranks = [(hashlib.sha256(name.encode()).hexdigest(), number) for number, name in enumerate(names)]
            found += [(rank, Place(path, qualname, number)) for rank, number in sorted(ranks)[:EACH]]
    return [place for _, place in sorted(found)]


def functions_by_code() -> dict[CodeType, FunctionType]:
    """Return the functions of the imported modules and their classes, also those that decorators wrap."""
    found: dict[CodeType, FunctionType] = {}
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("queue_app")]
    values = [value for module in modules for value in list(vars(module).values())]
    seen: set[int] = set()
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            found[value.__code__] = value
        elif isinstance(value, type) and value.__module__.startswith("queue_app"):
            values += vars(value).values()
        elif isinstance(value, property | cached_property | staticmethod | classmethod):
            values += [getattr(value, name, None) for name in ("fget", "func", "__func__")]
        values.append(getattr(value, "__wrapped__", None))
    return found


# -- runs ------------------------------------------------------------------------------------------


class Runner:
    """Runs the tests of a session again and again, and knows which functions of the kernel each of them calls."""

    def __init__(self, session: pytest.Session, paths: list[Path]) -> None:
        self.session = session
        self.codes: dict[tuple[str, str], CodeType] = {}
        self._names = {str(path) for path in paths}
        self._calls: defaultdict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        self._called: set[tuple[str, str]] = set()

    def learn(self) -> int:
        """Run all tests once; return how many fail."""
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(TOOL, "mutants")
        sys.monitoring.register_callback(TOOL, events.PY_START, self._note)
        sys.monitoring.set_events(TOOL, events.PY_START)
        failing = 0
        for number in range(len(self.session.items)):
            self._called.clear()
            began = time.monotonic()
            if not self._passes(number, number + 1):
                failing += 1
                continue
            breadth = len(self._called) + 10 * (time.monotonic() - began)
            for key in self._called:
                self._calls[key].append((breadth, number))
        sys.monitoring.set_events(TOOL, 0)
        return failing

    def _note(self, code: CodeType, _offset: int) -> Any:
        if code.co_filename not in self._names:
            return sys.monitoring.DISABLE
        key = (code.co_filename, code.co_qualname)
        self._called.add(key)
        self.codes[key] = code
        return None

    def verdict(self, place: Place, function: FunctionType, changed: CodeType) -> str:
        """Return whether a test fails with the change; "unclear" if it also fails without it afterwards."""
        numbers = [number for _, number in sorted(self._calls[str(place.path), place.qualname])][:TESTS]
        original, until, caught = function.__code__, time.monotonic() + SECONDS, None
        function.__code__ = changed
        for number, following in zip(numbers, [*numbers[1:], 0], strict=True):
            if time.monotonic() < until and not self._passes(number, following):
                caught = number
                break
        function.__code__ = original
        if caught is None:
            return "SURVIVED"
        return "caught" if self._passes(caught, 0) else "unclear"

    def _passes(self, number: int, following: int) -> bool:
        items = self.session.items
        item = items[number]
        self.session._setupstate.teardown_exact(item)
        item._initrequest()  # type: ignore[attr-defined]
        # Never the same item: it would stay set up.
        other = items[following] if following < len(items) and following != number else items[number - 1]
        return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=other))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    wanted, report = session.config.getoption("--mutants"), session.config.getoption("--mutants-report")
    if not wanted:
        return None
    paths = [path for folder in KERNEL for path in sorted((session.config.rootpath / folder).rglob("*.py"))]
    runner = Runner(session, paths)
    print(f"\n{runner.learn()} of {len(session.items)} tests fail without a change", flush=True)
    functions, results = functions_by_code(), dict[str, str]()
    for place in places(paths):
        if len(results) >= wanted:
            break
        original, (changed, where) = runner.codes.get((str(place.path), place.qualname)), place.changed()
        if original in functions and changed is not None and changed.co_freevars == original.co_freevars:
            results[where] = runner.verdict(place, functions[original], changed)
            print(f"{results[where]:9}{where}", flush=True)
    print(dict(Counter(results.values())), flush=True)
    if report:
        Path(report).write_text(json.dumps(results, indent=1))
    return True
