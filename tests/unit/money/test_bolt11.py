"""Invoices: those of the specification, ours, and such that somebody changed."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.money import bech32, bolt11
from trunkline.money.bolt11 import NotAnInvoice
from trunkline.money.rail import MAX_MSATS

SECRET = hashlib.sha256(b"a wallet").digest()
HASH = hashlib.sha256(b"a preimage").hexdigest()
# The node of all examples in BOLT 11.
EXAMPLES_NODE = "03e7156ae33b0a208d0744199163177e909e80176e55d97a2f221ede0f934dd9ad"
COFFEE = (
    "lnbc2500u1pvjluezsp5zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zygspp5qqqsyqcyq5rqwzqfqqqsyqcyq5rqwzqfqqqsyqcy"
    "q5rqwzqfqypqdq5xysxxatsyp3k7enxv4jsxqzpu9qrsgquk0rl77nj30yxdy8j9vdx85fkpmdla2087ne0xh8nhedh8w27kyke0lp53ut353s06fv3q"
    "fegext0eh0ymjpf39tuven09sam30g4vgpfna3rh"
)


def test_an_invoice_of_the_specification_is_read_and_its_signer_found() -> None:
    found = bolt11.read(COFFEE)
    assert (found.currency, found.amount_msats, found.node) == ("bc", 250_000_000, EXAMPLES_NODE)
    assert (found.created_s, found.expiry_s, found.description) == (1_496_314_658, 60, "1 cup coffee")
    assert found.payment_hash == "0001020304050607080900010203040506070809000102030405060708090102"
    assert bolt11.read(COFFEE.upper()) == found


@given(
    st.integers(1, MAX_MSATS),
    st.integers(0, 2**35 - 1),
    st.integers(1, 10**6),
    st.text(max_size=100),
    st.binary(max_size=9),
)
def test_what_is_written_is_read_back_and_signed_by_its_wallet(
    msats: int, created_s: int, expiry_s: int, text: str, preimage: bytes
) -> None:
    payment_hash = hashlib.sha256(preimage).hexdigest()
    written = bolt11.written(SECRET, msats, payment_hash, text, created_s, expiry_s)
    found = bolt11.read(written)
    assert (found.amount_msats, found.created_s, found.expiry_s) == (msats, created_s, expiry_s)
    assert (found.payment_hash, found.description) == (payment_hash, text)
    assert (found.node, found.currency) == (bolt11.node_of(SECRET), "bcrt")
    assert bolt11.written(SECRET, msats, payment_hash, text, created_s, expiry_s) == written


@given(st.data())
def test_one_sign_changed_makes_it_no_invoice(data: st.DataObject) -> None:
    written = bolt11.written(SECRET, 12_345, HASH, "job", 1_700_000_000, 600)
    place = data.draw(st.integers(0, len(written) - 1))
    sign = data.draw(st.sampled_from(bech32.CHARSET).filter(lambda one: one != written[place]))
    with pytest.raises(NotAnInvoice):
        bolt11.read(written[:place] + sign + written[place + 1 :])


def test_an_amount_changed_with_a_new_checksum_is_signed_by_nobody_we_know() -> None:
    name, words = bech32.decoded(bolt11.written(SECRET, 10_000, HASH, "job", 1_700_000_000, 600))
    changed = bech32.encoded(name.replace("100n", "200n"), words)
    with contextlib.suppress(NotAnInvoice):  # no key may fit the signature at all
        assert bolt11.read(changed).node != bolt11.node_of(SECRET)


@given(
    st.text(max_size=300) | st.binary(max_size=300).map(lambda data: bech32.encoded("lnbcrt", bech32.to_words(data)))
)
def test_whatever_a_text_is_it_is_an_invoice_or_refused(text: str) -> None:
    try:
        bolt11.read(text)
    except NotAnInvoice as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["lnbcrt0n", "lnbcrt1x", "lnbcrtn", "lnbcrt11p", "lnxy1n", "lnbcrt" + "9" * 21 + "m"])
def test_an_amount_that_is_no_amount_is_refused(name: str) -> None:
    _, words = bech32.decoded(bolt11.written(SECRET, 10_000, HASH, "job", 1_700_000_000, 600))
    with pytest.raises(NotAnInvoice):
        bolt11.read(bech32.encoded(name, words))


@pytest.mark.parametrize("sign", ["x", "é", "\U0001f600"])
def test_a_description_may_have_as_many_bytes_as_a_field_can_count(sign: str) -> None:
    most = bolt11.MAX_DESCRIPTION_BYTES // len(sign.encode())
    written = bolt11.written(SECRET, 1, HASH, sign * most, 1_700_000_000, 600)
    assert bolt11.read(written).description == sign * most
    with pytest.raises(NotAnInvoice):
        bolt11.written(SECRET, 1, HASH, sign * (most + 1), 1_700_000_000, 600)
