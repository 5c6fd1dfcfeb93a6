"""``python -m blendserve_core.engine.cpu.native`` builds the native kernels when BlendServe is installed, not at its first job.

A wheel could not bring them: they are compiled where they run. Where they cannot be, that is said, and torch serves.
"""

from __future__ import annotations

import sys

from blendserve_core.engine.cpu.native.library import NativeUnavailableError, build_library, default_cache_folder


def main() -> None:
    try:
        print(f"native CPU kernels: {build_library(default_cache_folder())}")
    except NativeUnavailableError as error:
        print(f"native CPU kernels: none, torch serves, which is several times slower: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
