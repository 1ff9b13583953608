"""Quotes: prices, states, and one key for one wish."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.requirement import requirement
from trunkline.jobs.schemas import EMBEDDING, RERANK, SANDBOX
from trunkline.money import quotes
from trunkline.money.quotes import BadStep, KeyTaken, NoRoom, Prices, Quoted, Quotes, QuoteState
from trunkline.money.rail import MAX_MSATS, Due, Quote


def quote(key: str = "k", job_hash: str = "h", name: str = "q", expires_ms: int = 1000) -> Quote:
    return Quote(name, key, job_hash, "lightning", Due(1, "npub", "BTC_LN", ""), expires_ms)


@requirement("OA-112")
def test_prices_are_exact_and_rounded_up_to_a_whole_msat() -> None:
    prices = Prices(10, 30, 100)
    assert quotes.price(prices, EMBEDDING, 1, Fraction(0)) == 1
    assert quotes.price(prices, EMBEDDING, 100, Fraction(0)) == 1
    assert quotes.price(prices, EMBEDDING, 101, Fraction(0)) == 2
    assert quotes.price(prices, RERANK, 101, Fraction(0)) == 5
    assert quotes.price(prices, SANDBOX, 10**6, Fraction(90, 60)) == 150
    assert quotes.price(Prices(0.1, 0, 0), EMBEDDING, 10_000, Fraction(0)) == 2  # 0.1 is a little more than a tenth
    assert quotes.price(Prices(0, 0, 0), RERANK, 10**9, Fraction(10**9)) == 0
    assert quotes.price(Prices(1e308, 1e308, 1e308), RERANK, 10**9, Fraction(0)) == MAX_MSATS
    assert quotes.price_of(prices, SANDBOX, {"sandbox": {"resources": {"timeout_secs": 61}}}) == 102
    assert quotes.price_of(prices, SANDBOX, {}) == 100


@pytest.mark.parametrize("before", list(QuoteState))
def test_a_quote_goes_only_along_its_arrows(before: QuoteState) -> None:
    allowed = {
        QuoteState.CREATED: {QuoteState.UNPAID, QuoteState.EXPIRED},
        QuoteState.UNPAID: {QuoteState.PENDING, QuoteState.EXPIRED},
        QuoteState.PENDING: {QuoteState.PAID, QuoteState.FAILED},
    }.get(before, set())
    for after in QuoteState:
        one = Quoted(quote(), "r", before)
        if after in allowed:
            one.become(after)
            assert one.state is after
        else:
            with pytest.raises(BadStep):
                one.become(after)


@requirement("OA-078")
def test_one_key_of_one_buyer_is_one_quote_while_it_is_open() -> None:
    book = Quotes()
    made = book.add("anna", "r1", quote())
    assert book.known("anna", "k", "h", 0) is made
    assert book.known("bert", "k", "h", 0) is None
    with pytest.raises(KeyTaken, match="another job"):
        book.known("anna", "k", "other", 0)
    made.become(QuoteState.UNPAID)
    made.become(QuoteState.PENDING)
    with pytest.raises(KeyTaken, match="was paid as r1"):
        book.known("anna", "k", "h", 10**9)  # money is held: time does not end it
    made.become(QuoteState.PAID)
    with pytest.raises(KeyTaken, match="r1"):
        book.known("anna", "k", "h", 0)


def test_a_job_without_a_key_can_be_bought_twice_and_an_expired_quote_is_none() -> None:
    book = Quotes()
    made = book.add("anna", "r1", quote(key="h"))
    assert book.known("anna", "h", "h", 999) is made
    assert book.known("anna", "h", "h", 1000) is None
    # Whoever waits for it is told so where quotes are ended, and nowhere else.
    assert book.expire(1000) == [made]
    assert made.state is QuoteState.EXPIRED
    again = book.add("anna", "r2", quote(key="h", name="q2"))
    for state in (QuoteState.UNPAID, QuoteState.PENDING, QuoteState.PAID):
        again.become(state)
    assert book.known("anna", "h", "h", 0) is None


@pytest.mark.slow
def test_however_many_ask_the_book_stays_within_its_bounds_and_no_open_quote_is_forgotten() -> None:
    book = Quotes()
    kept = book.add("anna", "r", quote(name="open"))
    for number in range(quotes.MAX_QUOTES + 50):
        made = book.add("bert", f"r{number}", quote(key=f"k{number}", name=f"q{number}"))
        for state in (QuoteState.UNPAID, QuoteState.PENDING, QuoteState.PAID) if number == 0 else (QuoteState.EXPIRED,):
            made.become(state)
    assert len(book) == quotes.MAX_QUOTES
    assert book.known("anna", "k", "h", 0) is kept
    assert book.of("q0") is not None  # it was paid
    assert book.of("q1") is None
    assert book.of(f"q{quotes.MAX_QUOTES + 49}") is not None


def test_one_buyer_has_a_share_of_the_open_quotes_and_when_all_are_open_the_new_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Quotes()
    for number in range(quotes.MAX_OPEN_OF_BUYER):
        book.add("anna", f"r{number}", quote(key=f"k{number}", name=f"q{number}"))
    with pytest.raises(NoRoom, match="of yours"):
        book.add("anna", "r", quote(key="k", name="more"))
    monkeypatch.setattr(quotes, "MAX_QUOTES", quotes.MAX_OPEN_OF_BUYER + 1)
    book.add("bert", "r", quote(name="b1"))
    with pytest.raises(NoRoom, match="try again later"):
        book.add("bert", "r", quote(key="k2", name="b2"))
    assert len(book.expire(1000)) == quotes.MAX_OPEN_OF_BUYER + 1
    book.add("bert", "r", quote(key="k2", name="b2"))
