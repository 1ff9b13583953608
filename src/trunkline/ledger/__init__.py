"""The record: entries chained by hash, in SQLite, written by a process of its own. See ARCHITECTURE.md.

To write: ``ledger`` gathers, ``link`` carries, ``writer`` commits, ``store`` is the file. To read: ``reader``,
``verify``, ``export``. ``masking`` and ``rules`` keep secrets out.
"""
