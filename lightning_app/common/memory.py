"""malloc settings: memory that PyTorch frees on a CPU stays in the process, for the next training step.

By glibc's defaults the free top of the heap goes back to the system after every backward pass, and the next step faults every
page of it in anew: 20,000 to 35,000 pages a step of depth 20 and 128 images, a seventh of an eager step's time.

This file imports no torch: it is called before anything slow is imported.
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
FROM_THE_HEAP = 32 << 20  # bytes at most; larger pieces are mapped one by one. What glibc itself goes up to
KEPT_FREE = 2**31 - 1  # bytes at most, at the top of the heap


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory, 2 GB at most. Returns whether it does.

    False where there is another C library, and where the user's environment says how to allocate (``MALLOC_...``,
    ``GLIBC_TUNABLES``).
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # In this order: who sets the second only, fixes the first at its 128 KB.
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, FROM_THE_HEAP) and mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
    )
