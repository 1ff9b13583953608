"""``python -m trunkline``: the command line, also where no script was installed."""

from __future__ import annotations

from trunkline.cli.main import main

if __name__ == "__main__":
    main()
