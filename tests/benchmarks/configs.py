"""Seconds to size 200 configs at five contexts, in a process that has imported nothing for it.

Prints CSV. The limit that the project holds itself to is one second.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECORD = Path(__file__).parents[1] / "data" / "transformers_cache_bytes.json"
CONTEXTS = (1024, 8192, 32768, 131072, 1048576)
SCRIPT = """
import sys, time
started = time.perf_counter()
from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
kvcache(KvcacheSpec(models=tuple(sys.argv[1:]), ctx={contexts}, enc_len=100)).run()
print(time.perf_counter() - started, "torch" in sys.modules or "pandas" in sys.modules)
"""


def main() -> None:
    configs = [entry["config"] for entry in json.loads(RECORD.read_text()).values()]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for index, config in enumerate(itertools.islice(itertools.cycle(configs), 200)):
            paths.append(Path(folder) / f"{index}.json")
            paths[-1].write_text(json.dumps(config))
        command = [sys.executable, "-c", SCRIPT.format(contexts=CONTEXTS), *map(str, paths)]
        runs = [
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            for _ in range(5)
        ]
    seconds = statistics.median(float(run[0]) for run in runs)
    sys.stdout.write("configs,contexts,seconds,imports_torch_or_pandas\n")
    sys.stdout.write(f"200,5,{seconds:.3f},{runs[0][1]}\n")


if __name__ == "__main__":
    main()
