"""Imports point down only, and start-up stays free of what it does not need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "seqdiag"
COMMON = {"errors", "units", "config", ""}
ALLOWED = {
    "cli": {"cli", "diagnostics", "report"},
    "diagnostics": {"diagnostics", "predict", "measure", "models", "ops", "report"},
    "predict": {"predict"},
    "measure": {"measure", "models", "ops"},
    "models": {"models", "ops"},
    "ops": {"ops"},
    "report": {"report"},
    "__main__": {"cli"},
    "__init__": {"api"},
    "api": {"diagnostics", "report"},
    "testing": {"api"},
}
FORBIDDEN = {
    "predict": {"torch", "triton", "pandas", "typer", "rich", "numpy"},
    "report": {"torch", "triton", "typer"},
    "diagnostics": {"typer", "rich"},
    "models": {"typer", "rich", "pandas"},
    "measure": {"typer", "rich", "pandas"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path, with_types: bool = False) -> set[str]:
    """Returns the modules that a file imports, less those for type checkers only."""
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    if not with_types:
        tree = _WithoutTypes().visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


class _WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        is_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if is_types else node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    own = {name for name in imported(path) if name.split(".")[0] == "seqdiag"}
    layers = {name.split(".")[1] for name in own if "." in name} & set(ALLOWED)
    assert layers <= ALLOWED.get(layer, set())
    # Rows are declared in diagnostics, so its schema and result are all of report that it knows.
    if layer == "diagnostics":
        known = ("seqdiag.report.schema", "seqdiag.report.result")
        assert all(name.startswith(known) for name in own if name.startswith("seqdiag.report"))
    outside = {name.split(".")[0] for name in imported(path)}
    forbidden = set(FORBIDDEN.get(layer, set()))
    assert not outside & forbidden
    if layer == "report" and path.name != "frame.py":
        assert "pandas" not in outside
    assert "click" not in outside


def test_only_the_command_line_and_report_print() -> None:
    for path in FILES:
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["kvcache", "--help"],
        ["recall", "--help"],
        ["gradflow", "--help"],
        ["attn-bench", "--help"],
        ["ssm-bench", "--help"],
        ["kvcache"],
        ["kvcache", "--json"],
        ["kvcache", "llama-3.1-8b", "--per-layer", "--explain", "--csv"],
        ["kvcache", "--list"],
        ["receptive-field", "--help"],
        ["receptive-field", "--predict-only"],
        ["receptive-field", "--kernel", "3", "--strides", "2,2", "--predict-only", "--csv"],
    ],
)
def test_start_up_imports_no_heavy_package(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from seqdiag.cli.app import main\n"
        f"code = main({arguments!r})\n"
        "heavy = {'torch', 'triton', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ran.stderr), ran.stderr
    assert "imported" not in ran.stderr
