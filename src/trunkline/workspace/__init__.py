"""Our own tools: files and a shell below a root folder, in a sandbox.

Plain typed functions and values that know no protocol: a *space* of ``edges/spaces`` is one workspace. What holds and
what does not is written down in ``docs/workspace.md``.
"""
