"""Times our attention kernels on a GPU beside PyTorch's and, where installed, flash-attn's.

Every row is judged before it is timed. Writes results/attention-CARD-*.csv and .json beside this
file; about four minutes. Run by `make gpu`, after the tests that check every shipped tile.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
IMPLEMENTATIONS = "flash-triton,sdpa-flash,sdpa-cudnn,sdpa-efficient,flash-attn-2,flash-attn-3"
COMMON = ["--impl", IMPLEMENTATIONS, "--against", "sdpa-flash", "--device", "cuda", "--force", "-q"]
# 16k tokens and a width of 2048, as the FlashAttention papers time.
PREFILL = ["--seq-len", "1k,4k,16k", "--tokens", "16k", "--pass", "fwd,bwd", "--budget", "12s"]
DECODE = ["--mode", "decode", "--ctx", "4k,32k,128k", "--batch", "8", "--budget", "8s"]
RUNS = {
    **{
        f"prefill-d{head_dim}-{mask}": [
            *PREFILL, "--heads", str(2048 // head_dim), "--head-dim", str(head_dim), "--mask", mask,
        ]
        for head_dim in (64, 128, 256)
        for mask in ("causal", "full")
    },
    "decode-gqa": [
        *DECODE, "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--l2", "both",
    ],
}  # fmt: skip


def main() -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("error: PyTorch sees no CUDA device\n")
        return 3
    card = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    RESULTS.mkdir(exist_ok=True)
    codes = []
    for name, arguments in RUNS.items():
        stem = RESULTS / f"attention-{card}-{name}"
        files = [word for suffix in (".csv", ".json") for word in ("-o", f"{stem}{suffix}")]
        command = [sys.executable, "-m", "seqdiag", "attn-bench", *arguments, *COMMON, *files]
        codes.append(subprocess.run(command, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
