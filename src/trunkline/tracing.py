"""A process of ours that holds keys and tokens in memory lets nobody look into it.

Owns two settings of the calling process. After them no other process of the same user can trace it, nor read its
memory, environment or descriptors, and it leaves no core file. Its folder in ``/proc`` is root's; what everybody may
read there (``stat``, ``status``, ``cmdline``) stays readable, so that `ps` and `top` work, while a debugger or profiler
needs root. What it starts is not concerned: a program that is executed begins anew. Only the standard library is
imported.
"""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

PR_SET_DUMPABLE: Final = 4


def refuse_tracing() -> None:
    """From now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    # The hard limit stays: whoever debugs an agent may raise it there.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
