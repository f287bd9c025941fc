"""A file of a model on the Hugging Face Hub, through its own package and cache."""

from __future__ import annotations

import os
from pathlib import Path

from seqdiag.errors import UnavailableError, UsageError


def fetch(option: str, repository: str, name: str) -> Path:
    """Returns the path of a small file such as config.json, downloaded unless it is in the cache.

    Raises `UnavailableError` without the package or the network and for a gated repository,
    `UsageError` where the Hub has no such model or file.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
        from huggingface_hub.utils import logging
    except ImportError:
        raise UnavailableError(
            f"{option}: no such file or folder: {repository}; as a model of the Hub it needs "
            "huggingface_hub, which is not installed",
            hint="pip install 'seqdiag[hub]', or download its config.json and give the path",
        ) from None
    logging.set_verbosity_error()  # each of its retries would be a warning
    try:
        return Path(hf_hub_download(repository, name))
    except GatedRepoError:
        raise UnavailableError(
            f"{option}: {repository} is gated on the Hub",
            hint="accept its licence there and run: hf auth login",
        ) from None
    except RepositoryNotFoundError:
        raise UsageError(
            f"{option}: no such file or folder, and no public model of the Hub: {repository}"
        ) from None
    except LocalEntryNotFoundError:  # an EntryNotFoundError too
        raise UnavailableError(
            f"{option}: the Hub cannot be reached, and {repository} is not in its cache",
            hint="download its config.json where there is a network and give the path",
        ) from None
    except EntryNotFoundError:
        raise UsageError(f"{option}: {repository} has no {name} on the Hub") from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnavailableError(f"{option}: {repository}: {reason:.200}") from None
