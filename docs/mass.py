"""Compare the size of each house with its budget in ``pyproject.toml``: ``make mass``.

A change that needs more than a budget raises the number in the same commit, and says what it
bought. A budget that is far above what is there is lowered.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PACKAGES: Final = ("jobs", "pylog_spark", "storage_core")
# A package of either is a room; loose modules beside them are doors that anyone may open.
_TOPS: Final = frozenset(PurePosixPath(top) for top in _PACKAGES)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A file of the product."""

    path: str  # below the repository, with slashes
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        """As it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> PurePosixPath:
        """The folder that it lies in."""
        return PurePosixPath(self.path).parent

    @cached_property
    def imported(self) -> list[tuple[str, str]]:
        """What it imports, anywhere in it: a module, and a name of that; empty for none."""
        pairs = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                pairs += [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                pairs += [(node.module, alias.name) for alias in node.names]
        return pairs

    def code_lines(self) -> int:
        """Count its lines without blank ones, comments, docstrings and imports."""
        lines = {
            line
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline)
            if token.type not in _LAYOUT
            for line in range(token.start[0], token.end[0] + 1)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) or (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            ):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
        return len(lines)

    def fields(self) -> Iterator[str]:
        """Yield the name of each field of each class."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        yield each.target.id


_LAYOUT: Final = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)


def read_modules(root: Path = ROOT) -> list[Module]:
    """Return the modules of the product below a repository."""
    return [
        Module(path=file.relative_to(root).as_posix(), text=file.read_text())
        for package in _PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    ]


def imports(modules: list[Module]) -> dict[str, set[str]]:
    """Return by the name of each module those of the product that it imports, anywhere in it."""
    names = {module.name for module in modules}
    return {
        module.name: {
            inner if (inner := f"{package}.{name}") in names else package
            for package, name in module.imported
        }
        & names - {module.name}
        for module in modules
    }


def house_of(module: Module, houses: Mapping[str, list[str]]) -> str:
    """Return the house with the longest path that is the module's, or a folder above it."""
    path = PurePosixPath(module.path)
    above = {path.as_posix(), *(parent.as_posix() for parent in path.parents)}
    return max(
        (len(place), house)
        for house, places in houses.items()
        for place in places
        if place in above
    )[1]


def crossings(modules: list[Module], houses: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the imports from one house into another: by ``engine to upkeep``, a line each."""
    house = {module.name: house_of(module, houses) for module in modules}
    lines = defaultdict(list)
    for one, others in imports(modules).items():
        for other in sorted(others):
            lines[f"{house[one]} to {house[other]}"].append(f"{one} imports {other}")
    return lines


def circles_of_files(modules: list[Module]) -> list[str]:
    """Return circles of modules that import each other, none with a module of another one."""
    graph = imports(modules)
    circles = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1][1:]
            circles.append(" and ".join(sorted(circle)))
            graph = {
                one: others - set(circle) for one, others in graph.items() if one not in circle
            }
        else:
            return circles


def circles_of_packages(modules: list[Module]) -> list[str]:
    """Return pairs of packages that import each other, of which neither lies in the other."""
    package = {module.name: module.package for module in modules}
    pairs = {
        (package[one], package[other])
        for one, others in imports(modules).items()
        for other in others
    }
    return [
        f"{one} and {other}"
        for one, other in sorted(pairs)
        if one < other
        and (other, one) in pairs
        and not {one, other} & _TOPS
        and one not in other.parents
    ]


def count(modules: list[Module], houses: Mapping[str, list[str]]) -> dict[str, int]:
    """Return each number that has a budget."""
    code = dict.fromkeys(houses, 0)
    fields: dict[str, int] = defaultdict(int)
    for module in modules:
        code[house_of(module, houses)] += module.code_lines()
        for field in module.fields():
            fields[field] += 1
    crossed = crossings(modules, houses)
    tests = (file.read_text() for file in sorted((ROOT / "tests").rglob("*.py")))
    numbers = {
        "lines": sum(module.text.count("\n") for module in modules),
        "lines of tests": sum(text.count("\n") for text in tests),
        "modules": len(modules),
        "circles of files": len(circles_of_files(modules)),
        "circles of packages": len(circles_of_packages(modules)),
    }
    numbers |= {f"code of {house}": lines for house, lines in code.items()}
    numbers |= {f"imports from {between}": len(crossed[between]) for between in _FORBIDDEN}
    return numbers | {f"classes with {name}": fields[name] for name in _CARRIED}


# A house knows those below it alone.
_FORBIDDEN: Final = ("engine to upkeep", "engine to cluster", "upkeep to cluster")
# A value that many classes carry changes its box at many doors.
_CARRIED: Final = (
    "log_start_offset",
    "log_end_offset",
    "high_watermark",
    "recovery_point",
    "topic_id",
    "leader_epoch",
    "start_offset",
    "end_offset",
    "now_ms",
)


def main() -> int:
    """Print each number beside its budget; return 1 where one is above it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mass"]
    modules = read_modules()
    budgets = settings["budgets"]
    numbers = count(modules, settings["houses"])
    if unknown := sorted(budgets.keys() - numbers.keys()):
        sys.exit(f"budgets of what nothing counts: {', '.join(unknown)}")
    width = max(map(len, numbers))
    sys.stdout.write(f"{'':{width}}  {'budget':>8}  {'here':>8}\n")
    for name, number in numbers.items():
        over = "  above its budget" if number > budgets[name] else ""
        sys.stdout.write(f"{name:{width}}  {budgets[name]:>8,}  {number:>8,}{over}\n")
    crossed = crossings(modules, settings["houses"])
    for line in (
        *circles_of_files(modules),
        *circles_of_packages(modules),
        *(line for between in _FORBIDDEN for line in crossed[between]),
    ):
        sys.stdout.write(f"{line}\n")
    return int(any(number > budgets[name] for name, number in numbers.items()))


if __name__ == "__main__":
    sys.exit(main())
