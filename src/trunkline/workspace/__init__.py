"""Our own tools: files and a shell below a root folder, in a sandbox.

Plain typed functions and values that know no protocol: a *space* of ``edges/spaces`` is one workspace. What holds and
what does not is written down in ``docs/workspace.md``.

Whatever the operating system refuses while a tool works leaves this package as a ``WorkspaceError``: of the kind
``execution`` if it is about the caller's own path, else ``system``.
"""
