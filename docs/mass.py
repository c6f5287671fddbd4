"""Count the concepts of the product, and show what changed since main: ``make mass``.

It refuses nothing. A number that rises is explained in the commit that makes it rise.
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
KEPT: Final = ROOT / "docs" / "mass.json"
_PACKAGES: Final = ("pylog_spark", "storage_core", "jobs")

_FEW_STATEMENTS_LINES: Final = 4
_SMALL_MODULE_LINES: Final = 130
_MOST_ARGUMENTS: Final = 10
_EQUAL_SHARE: Final = 0.6
_FEWEST_FIELDS: Final = 3
_MOST_WORDS: Final = 12
_PARTICIPLES: Final = frozenset(
    ("found", "known", "said", "given", "told", "kept", "left", "chosen", "made", "seen", "taken")
)
# Users meet a schema where a page of the documents or a table of the ledger names its row.
_USER_FACING: Final = ("docs", "pylog_spark/ledger", "pylog_spark/cli")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Module:
    """A file of the product.

    Attributes:
        path: Below the repository, with slashes.
        name: As it is imported.
        text: Its source.
        tree: Its syntax.
    """

    path: str
    name: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its syntax, in no order."""
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]


def read_modules(root: Path = ROOT) -> list[Module]:
    """Return the modules of the product.

    Args:
        root: The repository.
    """
    modules = []
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            text = file.read_text()
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules.append(Module(path=path, name=name, text=text, tree=ast.parse(text)))
    return modules


def _lines(texts: Iterator[str]) -> int:
    return sum(text.count("\n") for text in texts)


def _decorators(node: ast.ClassDef | Function) -> set[str]:
    return {ast.unparse(each).split("(")[0].rsplit(".", 1)[-1] for each in node.decorator_list}


def _dataclasses(modules: list[Module]) -> list[ast.ClassDef]:
    return [
        node for module in modules for node in module.classes if "dataclass" in _decorators(node)
    ]


def _uses(modules: list[Module]) -> Counter[str]:
    """Count how often each name is read: as a name, an attribute, or an imported one."""
    uses: Counter[str] = Counter()
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
            elif isinstance(node, ast.ImportFrom):
                uses.update(alias.name for alias in node.names if alias.asname is None)
    return uses


def _imports(module: Module) -> set[str]:
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _small_modules_of_one_caller(modules: list[Module]) -> list[str]:
    callers: Counter[str] = Counter()
    for module in modules:
        callers.update(_imports(module))
    return [
        module.path
        for module in modules
        if callers[module.name] == 1
        and module.text.count("\n") < _SMALL_MODULE_LINES
        and not module.path.endswith("__init__.py")
    ]


def _small_helpers(modules: list[Module]) -> list[str]:
    """Return private functions of few lines that their own module calls once."""
    helpers = []
    for module in modules:
        uses = _uses([module])
        for node in module.functions:
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if not body or not node.name.startswith("_") or node.name.startswith("__"):
                continue
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
            if lines <= _FEW_STATEMENTS_LINES and uses[node.name] == 1:
                helpers.append(f"{module.path}: {node.name}")
    return helpers


def _unreached(modules: list[Module]) -> list[str]:
    """Return definitions whose name nothing in the product reads, nor a document or a setting."""
    uses = _uses(modules)
    texts = [(ROOT / "pyproject.toml").read_text()]
    texts += [page.read_text() for page in _pages()]
    texts += [file.read_text() for file in (ROOT / "notebooks").rglob("*.py")]
    words = set(re.findall(r"\w+", " ".join(texts)))
    for module in modules:
        # Names that are looked up by their text: entry points, fields of templates.
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.update(re.findall(r"^\w+$", node.value))
    unreached = []
    for module in modules:
        for node in [*module.functions, *module.classes]:
            is_special = node.name.startswith("__") or node.name.startswith("visit_")
            is_override = isinstance(node, Function) and "override" in _decorators(node)
            if not (uses[node.name] or node.name in words or is_special or is_override):
                unreached.append(f"{module.path}: {node.name}")
    return unreached


def _questions_of_roles(modules: list[Module]) -> list[str]:
    """Return the lines outside of ``roots`` that ask which kind of root there is."""
    pattern = re.compile(r"\bRole\.[A-Z]+|(?<!, )\brole\b *(?:is|==|!=|in|not in) |\bis_managed\b")
    return [
        f"{module.path}:{number}"
        for module in modules
        if not module.path.startswith("storage_core/roots/")
        and module.path != "storage_core/catalog/roles.py"
        for number, line in enumerate(module.text.splitlines(), 1)
        if pattern.search(line) and not line.lstrip().startswith("#")
    ]


def _schemas(modules: list[Module]) -> list[str]:
    module = next(module for module in modules if module.path == "pylog_spark/schemas.py")
    return re.findall(r"^([A-Z_]+): Final = schema_of\(", module.text, re.MULTILINE)


def _schemas_unread_by_users(modules: list[Module]) -> list[str]:
    texts = [page.read_text() for page in _pages()]
    texts += [
        file.read_text()
        for folder in _USER_FACING
        for file in (ROOT / folder).rglob("*.py")
        if file != Path(__file__).resolve()
    ]
    words = set(re.findall(r"\w+", " ".join(texts)))
    return [name for name in _schemas(modules) if name not in words]


def _kernels(modules: list[Module]) -> list[tuple[str, int]]:
    return [
        (f"{module.path}: {node.name}", len(node.args.args))
        for module in modules
        if module.path.startswith("storage_core/kernels/")
        for node in module.functions
        if _decorators(node) & {"kernel", "njit"}
    ]


def _class_names_with_two_meanings(modules: list[Module]) -> list[str]:
    places = defaultdict(set)
    for module in modules:
        for node in module.classes:
            places[node.name.lstrip("_")].add(module.path)
    return [f"{name}: {len(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1]


def _fields(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    )


def _twin_dataclasses(modules: list[Module]) -> list[str]:
    fields = [(node.name, _fields(node)) for node in _dataclasses(modules)]
    large = [(name, some) for name, some in fields if len(some) >= _FEWEST_FIELDS]
    return [
        f"{one}, {other}"
        for (one, a), (other, b) in combinations(large, 2)
        if len(a & b) / len(a | b) >= _EQUAL_SHARE
    ]


def _participles(modules: list[Module]) -> list[str]:
    """Return arguments, variables and fields that are named by a participle."""
    names = []
    for module in modules:
        for node in module.nodes:
            name = None
            if isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            if name is not None and name.lstrip("_") in _PARTICIPLES:
                names.append(f"{module.path}:{getattr(node, 'lineno', 0)}: {name}")
    return names


def _long_first_lines(modules: list[Module]) -> list[str]:
    long = []
    for module in modules:
        for node in [module.tree, *module.functions, *module.classes]:
            first = (ast.get_docstring(node) or "").split("\n\n")[0].split("\n")[0]
            if len(first.split()) > _MOST_WORDS:
                long.append(f"{module.path}: {first}")
    return long


def _pages() -> list[Path]:
    """Return the pages that are in the repository, also those that are made of the program."""
    return [ROOT / page for page in _git("ls-files", "README.md", "docs/*.md").split()]


def _git(*words: str) -> str:
    """Return what git says; nothing where it fails."""
    done = subprocess.run(  # noqa: S603
        ["git", *words],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


Listing = Callable[[list[Module]], list[str]]
# What can be listed: `make mass LIST="small helpers"` prints each.
LISTINGS: Final[dict[str, Listing]] = {
    "schemas that no user reads": _schemas_unread_by_users,
    "questions of roles outside roots/": _questions_of_roles,
    "kernels of more than 10 arguments": lambda modules: [
        f"{name}: {count}" for name, count in _kernels(modules) if count > _MOST_ARGUMENTS
    ],
    "private helpers of 4 lines used once": _small_helpers,
    "small modules of one caller": _small_modules_of_one_caller,
    "definitions that nothing reaches": _unreached,
    "class names with two meanings": _class_names_with_two_meanings,
    "pairs of dataclasses with equal fields": _twin_dataclasses,
    "names that are participles": _participles,
    "first docstring lines above 12 words": _long_first_lines,
}


def count(modules: list[Module]) -> dict[str, int]:
    """Return each number of the product by its name.

    Args:
        modules: Of ``read_modules``.
    """
    tests = (file.read_text() for file in sorted((ROOT / "tests").rglob("*.py")))
    numbers = {
        "lines": _lines(module.text for module in modules),
        "lines of tests": _lines(tests),
        "words of documents": sum(
            len(text.split())
            for text in (page.read_text() for page in _pages())
            if not text.startswith("<!-- Written by docs/site")
        ),
        "modules": len(modules),
        "classes": sum(len(module.classes) for module in modules),
        "dataclasses": len(_dataclasses(modules)),
        "functions": sum(len(module.functions) for module in modules),
        "schemas": len(_schemas(modules)),
        "files that ask for roles": len(
            {place.rsplit(":", 1)[0] for place in _questions_of_roles(modules)}
        ),
        "most arguments of a kernel": max(count for _, count in _kernels(modules)),
    }
    return numbers | {name: len(listing(modules)) for name, listing in LISTINGS.items()}


def numbers_of_main() -> dict[str, int]:
    """Return the numbers that main keeps; empty where there is no such commit or file."""
    shown = _git("show", "main:docs/mass.json")
    return json.loads(shown) if shown else {}


def main(arguments: list[str]) -> None:
    """Print the numbers and keep them, or print what one of them counts.

    Args:
        arguments: Of the command line: nothing, or the name of a listing.
    """
    modules = read_modules()
    if arguments:
        for line in LISTINGS[" ".join(arguments)](modules):
            sys.stdout.write(f"{line}\n")
        return
    before, now = numbers_of_main(), count(modules)
    width = max(map(len, now))
    sys.stdout.write(f"{'':{width}}  {'main':>9}  {'here':>9}  change\n")
    for name, number in now.items():
        former = before.get(name)
        change = "" if former in (None, number) else f"{number - (former or 0):+,}"
        shown = "-" if former is None else f"{former:,}"
        sys.stdout.write(f"{name:{width}}  {shown:>9}  {number:>9,}  {change}".rstrip() + "\n")
    KEPT.write_text(json.dumps(now, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
