"""What an engine keeps for a layout. To add one: a class and a line in `ENGINES`."""

from __future__ import annotations

from seqdiag.predict.kv_cache.engines.base import Allocation, Engine, Settings
from seqdiag.predict.kv_cache.engines.ideal import Ideal
from seqdiag.predict.kv_cache.engines.llama_cpp import LlamaCpp
from seqdiag.predict.kv_cache.engines.sglang import SGLang
from seqdiag.predict.kv_cache.engines.transformers import Transformers
from seqdiag.predict.kv_cache.engines.vllm import Vllm
from seqdiag.predict.kv_cache.engines.whisper_cpp import WhisperCpp

ENGINES: dict[str, type[Engine]] = {
    "ideal": Ideal,
    "transformers": Transformers,
    "vllm": Vllm,
    "llama.cpp": LlamaCpp,
    "sglang": SGLang,
    "whisper.cpp": WhisperCpp,
}

__all__ = ["ENGINES", "Allocation", "Engine", "Ideal", "Settings"]
