"""Anything over Nostr is a job, refused, or passed over; nothing of it is fatal. Deterministic by seed."""

from __future__ import annotations

import pytest

from tests.fuzz import nostr


@pytest.mark.parametrize("seed", range(3))
def test_what_strangers_sign_is_never_fatal(seed: int) -> None:
    nostr.jobs(seed, 400)


@pytest.mark.parametrize("seed", range(2))
def test_what_relays_send_is_never_fatal(seed: int) -> None:
    nostr.frames(seed, 4000)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_let_in_as_an_event_is_what_its_author_signed(seed: int) -> None:
    nostr.bytes_of_events(seed, 1500)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_asked_of_the_wallet_is_never_fatal_and_makes_no_money(seed: int) -> None:
    nostr.wallet_requests(seed, 600)


def test_every_value_in_every_field_of_a_request_to_the_wallet_is_never_fatal() -> None:
    assert nostr.wallet_fields() > 500


@pytest.mark.parametrize("seed", range(2))
def test_no_nutzap_is_fatal_and_none_that_was_changed_pays(seed: int) -> None:
    nostr.nutzap_events(seed, 1000)
