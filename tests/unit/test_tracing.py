from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import ctypes, json, os, resource, subprocess, sys
from trunkline.tracing import refuse_tracing
refuse_tracing()
look = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
started = int(subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, check=True).stdout)
print(json.dumps([ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0], started]))
"""


def test_a_process_that_refuses_tracing_leaves_no_core_and_what_it_starts_is_not_concerned() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=20)
    dumpable, core_bytes, of_its_child = json.loads(ran.stdout)
    assert (dumpable, core_bytes, of_its_child) == (0, 0, 1)
