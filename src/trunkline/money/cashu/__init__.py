"""Ecash of a mint (Cashu): what is handed over is a proof that the mint signed, and it can be checked without the mint.

Read in this order: ``tokens`` (the text that is handed over), ``curve`` (the arithmetic of blind signatures),
``keysets`` (the mint's public keys), ``locks`` (who can spend a proof, and when), ``checking`` (whether a token pays
what was asked), ``requests`` (asking to be paid), ``swaps`` (new proofs for old ones), ``purse`` (proofs that are
ours), ``mint`` (the words of a mint's HTTP interface, typed), ``spent`` and ``proof`` (what a receipt has of it).
Nothing here does I/O; the NUTs that are cited are the specification's parts.
"""
