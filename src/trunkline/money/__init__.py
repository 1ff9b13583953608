"""Money for jobs: quotes, the wallet's fold, budgets, proofs of payment and receipts.

Pure, and of no protocol: whoever pays, asks a person or tells a relay is an edge. Every amount is a whole number of
thousandths of a satoshi (msats).
"""
