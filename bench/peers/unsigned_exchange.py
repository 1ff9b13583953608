"""An exchange that signs nothing it says over OSSA: what remains of one if signatures are taken away.

Started as ``trunkline up`` is, with ``require_signature = false`` in its configuration. There is no such setting, since
nobody should want it: the function that signs is replaced before the exchange starts.
"""

from __future__ import annotations

from trunkline.cli.main import main
from trunkline.edges.ossa import messages, signing
from trunkline.edges.ossa.messages import Message


def _unsigned(message: Message, key: signing.Key) -> bytes:  # noqa: ARG001
    return messages.encode(message)


if __name__ == "__main__":
    signing.sign = _unsigned
    main()
