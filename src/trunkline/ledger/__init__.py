"""The record: entries chained by hash, in SQLite, written by a process of its own. See ARCHITECTURE.md.

To write: ``ledger`` gathers, ``link`` carries, ``writer`` commits, ``store`` is the file, ``heads`` signs
where it ends. To read: ``reader``, ``verify``, ``export``, ``backup``. ``masking`` and ``rules`` keep secrets out.
"""
