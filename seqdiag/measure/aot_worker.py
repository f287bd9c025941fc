"""The subprocess of `aot`: reads jobs from stdin, a JSON object a line, and answers likewise."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from seqdiag.measure.assembly import hot_loop

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def main() -> None:
    """Answers every job; one that fails is answered with its error."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # compilers print: their lines are no answers
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line))
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            answer = {"error": f"{type(error).__name__}: {first}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    module, _, name = job["kernel"].partition(":")
    kernel = getattr(importlib.import_module(module), name)
    order = list(job["signature"])
    aligned = {(order.index(arg),): [["tt.divisibility", 16]] for arg in job["aligned"]}
    source = ASTSource(kernel, job["signature"], job["constants"], aligned)
    options = {"num_warps": job["num_warps"], "num_stages": job["num_stages"]}
    start = time.perf_counter()
    compiled = triton.compile(source, target=_target(job["target"]), options=options)
    seconds = time.perf_counter() - start
    read = _read_amd if "amdgcn" in compiled.asm else _read_nvidia
    return {
        "triton": triton.__version__,
        "compile_s": seconds,
        "shared_bytes": compiled.metadata.shared,
        **read(compiled, job["num_warps"]),
    }


def _target(name: str) -> GPUTarget:
    if name.startswith("sm_"):
        return GPUTarget("cuda", int(name[3:]), 32)
    return GPUTarget("hip", name, 64)


def _read_nvidia(compiled: Any, num_warps: int) -> dict[str, Any]:
    ptx = compiled.asm["ptx"]
    threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", ptx)
    warps = int(threads[1]) // 32 if threads else num_warps
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        sass = _tool("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+)\s+STACK:(\d+)", usage)
    loop = hot_loop(sass, warps)
    return {
        "registers": int(found[1]) if found else 0,
        "spill_bytes": int(found[2]) if found else 0,
        "warps": warps,
        "loop": dataclasses.asdict(loop) if loop else None,
        "ptxas": _ptxas(compiled.metadata.target.arch),
    }


def _ptxas(arch: int) -> str:
    """Returns the version of the assembler for an architecture."""
    name = "ptxas-blackwell" if arch >= 100 and (_TOOLS / "ptxas-blackwell").exists() else "ptxas"
    chosen = os.environ.get("TRITON_PTXAS_PATH", name)
    found = re.search(r"V([\d.]+)", _tool(chosen, "--version"))
    return found[1] if found else ""


def _read_amd(compiled: Any, num_warps: int) -> dict[str, Any]:
    text = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    loop = hot_loop(text, num_warps)
    return {
        "registers": field("vgpr_count"),
        "spill_bytes": 4 * field("vgpr_spill_count"),
        "warps": num_warps,
        "loop": dataclasses.asdict(loop) if loop else None,
    }


def _tool(name: str, *arguments: str) -> str:
    ran = subprocess.run(
        [str(_TOOLS / name), *arguments], capture_output=True, text=True, check=True
    )
    return ran.stdout


if __name__ == "__main__":
    main()
