from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Callable

import pytest

from tests.unit.ledger.secret_examples import NAMED, OTHERS, RESTS, ordinary_texts
from trunkline.ledger.masking import Masker
from trunkline.ledger.secret_forms import FORMS, ISSUERS_WITHOUT_FORM

MASKER = Masker()
# Each beginning of each form, with what follows the first beginning of that form.
SECRETS = [(form, begin, begin + RESTS[form.begins.split()[0]]) for form in FORMS for begin in form.begins.split()[:12]]

PLACES: dict[str, Callable[[str], str]] = {
    "a field that says nothing": lambda secret: json.dumps({"note": secret}),
    "prose": lambda secret: json.dumps({"text": f"Yesterday bob sent me {secret}, and it still works."}),
    "after a line end": lambda secret: json.dumps({"text": f"first\n{secret}\nlast"}),
    "an address": lambda secret: json.dumps({"see": f"https://example.com/a?q={secret}&page=2"}),
    "JSON in a string": lambda secret: json.dumps({"body": json.dumps({"note": secret, "list": [secret]})}),
    "a list": lambda secret: json.dumps([1, "two", secret]),
}


def is_hidden(text: str, secret: str) -> bool:
    masked = MASKER.mask(text.encode())
    json.loads(masked)
    return secret.encode() not in masked and b"[masked:" in masked


def test_each_form_has_a_made_up_example_and_says_where_it_is_published() -> None:
    assert {form.begins.split()[0] for form in FORMS} == RESTS.keys()
    for form in FORMS:
        assert re.match(r"(gitleaks|trufflehog) [a-z0-9]|https://", form.source), form
    assert len({form.issuer for form in FORMS} | {*ISSUERS_WITHOUT_FORM}) > 90


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_of_a_published_form_is_masked(place: str) -> None:
    assert [begin for _, begin, secret in SECRETS if not is_hidden(PLACES[place](secret), secret)] == []


def is_hidden_encoded(secret: str, lead: str) -> bool:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        code = encode((lead + secret).encode()).decode()
        masked = MASKER.mask(json.dumps({"note": f"see {code} there"}).encode())
        json.loads(masked)
        left = re.sub(rb"\[masked:[a-z-]+\]", b"", masked)
        # Of the secret no more is left than its first characters or its last one.
        most = len('{"note": "see  there"}') + len(encode(lead.encode())) + 4
        if b"[masked:" not in masked or len(left) >= most:
            return False
    return True


@pytest.mark.parametrize("lead", ["", "u", "user:"])
def test_it_is_masked_in_base64_too(lead: str) -> None:
    # Two characters are in every picture.
    long = [(begin, secret) for _, begin, secret in SECRETS if len(begin) >= 3]
    assert len(long) > 150
    assert [begin for begin, secret in long if not is_hidden_encoded(secret, lead)] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OTHERS)
def test_a_secret_with_a_form_but_no_beginning_is_masked(name: str, place: str) -> None:
    assert is_hidden(PLACES[place](OTHERS[name]), OTHERS[name])


@pytest.mark.parametrize(("name", "secret"), NAMED)
def test_a_secret_without_a_form_is_known_by_the_name_beside_it(name: str, secret: str) -> None:
    assert is_hidden(json.dumps({"note": f"here: {name}{secret} and more"}), secret)


def test_an_address_in_which_it_is_quoted_hides_it() -> None:
    for _, _, secret in SECRETS:
        quoted = urllib.parse.quote(secret, safe="")
        if quoted == secret:
            assert is_hidden(json.dumps({"u": f"https://example.com/{quoted}"}), secret)


def test_ordinary_texts_are_left_alone() -> None:
    touched = [
        text[:80] for text in ordinary_texts() if MASKER.mask(data := json.dumps({"x": text}).encode()) is not data
    ]
    assert touched == []


def test_a_part_of_a_longer_word_is_no_secret() -> None:
    for form, begin, secret in SECRETS:
        data = json.dumps({"x": f"word{secret}"}).encode()
        if not form.begins.startswith(("pi_", "sk_ ", "hooks", "discord")) and MASKER.mask(data) is not data:
            # What is masked is then the form of another issuer, inside of it.
            assert any(other != begin and other in secret for _, other, _ in SECRETS), (begin, MASKER.mask(data))
