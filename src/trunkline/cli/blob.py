"""``trunkline blob``: an output that was too large to be shown with its call.

The bytes as they are on record: to a file, or to stdout with invisible characters as JSON escapes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, say_json, shared
from trunkline.cli.output_files import refuse_existing, with_force, with_output, write_output
from trunkline.cli.terminal import note, printable

_REFERENCE: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}")


@click.command()
@click.argument("ref")
@with_output
@with_force
@shared
def blob(settings: CommandSettings, ref: str, output: Path | None, force: bool) -> None:
    """Print a large output by its REF, the `$ref` that stands in its place (`sha256:…`).

    \b
    trunkline blob sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae -o report.json
    """
    if not _REFERENCE.fullmatch(ref):
        raise click.BadParameter("expected sha256: and 64 hexadecimal digits, as in `$ref`", param_hint="REF")
    if output is not None:
        refuse_existing(output, force=force)
    data = settings.connect().request("GET", at("blobs", ref))
    if output is None:
        say_json(data)
        return
    size = write_output(output, [data], force=force)
    note(f"{size:,} bytes in {printable(str(output))}")
