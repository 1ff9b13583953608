"""True and false examples for each rule of ``ledger.rules``, and a wide set of ordinary JSON.

A true example is a text and the part of it that must not be seen. Tokens are put together from pieces so that no
scanner of repositories takes them for real ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from typing import Final

A: Final = "aB3dE5gH7jK9mN2pQ4sT6vW8xY1zC0fR"
OURS: Final = "tlk_" + (A + A)[:43]
# Of an edge whose tokens have 32 characters in all.
OURS_SHORT: Final = "tlk_" + A[:28]
ENCODED: Final = [base64.urlsafe_b64encode(before + OURS.encode()).decode() for before in (b"", b"x:", b"u")]
ENCODED_SHORT: Final = [
    base64.urlsafe_b64encode(before + OURS_SHORT.encode()).decode() for before in (b"", b"x:", b"u")
]
PERCENT_SHORT: Final = "".join(f"%{byte:02X}" for byte in OURS_SHORT.encode())
HEX: Final = hashlib.sha256(b"example").hexdigest()
PEM: Final = (
    "-----BEGIN {}PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 3 + "-----END {}PRIVATE KEY-----"
)
JWT: Final = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0." + A
NSEC: Final = "nsec1" + "qpzry9x8gf2tvdw0s3jn54khce6mua7l" * 2

TRUE: Final[dict[str, list[tuple[str, str]]]] = {
    "trunkline-token": [
        (f"started with {OURS} by hand", OURS),
        (f"see https://host/?t={OURS}&x=1", OURS),
        (f"note: {OURS_SHORT}.", OURS_SHORT),
        *[(text, text[6:40]) for text in ENCODED_SHORT],
        (OURS_SHORT.encode().hex(), OURS_SHORT.encode().hex()),
        (PERCENT_SHORT, PERCENT_SHORT),
        (ENCODED[0], ENCODED[0][2:60]),
        (ENCODED[1], ENCODED[1][6:60]),
        (ENCODED[2], ENCODED[2][6:60]),
        (OURS.encode().hex(), OURS.encode().hex()),
        ("".join(f"%{byte:02X}" for byte in OURS.encode()), "".join(f"%{byte:02X}" for byte in OURS.encode())),
    ],
    "aws-key": [
        ("id AKIA" + "IOSFODNN7EXAMPLE", "AKIA" + "IOSFODNN7EXAMPLE"),
        ("temporary: ASIA" + "Y34FZKBOKMUTVV7A.", "ASIA" + "Y34FZKBOKMUTVV7A"),
        ("line one\nAKIA" + "QWERTY1234567890", "AKIA" + "QWERTY1234567890"),
    ],
    "github-token": [
        ("git clone with ghp_" + (A + A)[:36], "ghp_" + (A + A)[:36]),
        ("x-access-token:ghs_" + (A + A)[:36] + "@github.com", "ghs_" + (A + A)[:36]),
        ("fine grained github_pat_" + A + "_" + A, "github_pat_" + A + "_" + A),
    ],
    "gitlab-token": [
        ("glpat-" + A[:20], "glpat-" + A[:20]),
        ("export X=glrt-" + A[:24], "glrt-" + A[:24]),
        ("job gldt-" + A[:20] + " used", "gldt-" + A[:20]),
    ],
    "slack-token": [
        ("xoxb-" + "123456789012-1234567890123-" + A[:24], "xoxb-" + "123456789012-1234567890123-" + A[:24]),
        ("xapp-" + "1-A0B1C2D3E4-1234567890-" + HEX, "xapp-" + "1-A0B1C2D3E4-1234567890-" + HEX),
        ("https://hooks.slack.com/services/T00000000/B00000000/" + A[:24], "T00000000/B00000000/" + A[:24]),
    ],
    "stripe-key": [
        ("sk_live_" + A[:24], "sk_live_" + A[:24]),
        ("charge with rk_test_" + A[:24], "rk_test_" + A[:24]),
        ("webhook whsec_" + A, "whsec_" + A),
    ],
    "openai-key": [
        ("sk-proj-" + A + A, "sk-proj-" + A + A),
        ("legacy sk-" + (A + A)[:48], "sk-" + (A + A)[:48]),
        ("router sk-or-v1-" + HEX, "sk-or-v1-" + HEX),
        ("key\tsk-" + (A + A)[:48], "sk-" + (A + A)[:48]),
    ],
    "anthropic-key": [
        ("sk-ant-api03-" + A + A, "sk-ant-api03-" + A + A),
        ("use sk-ant-admin01-" + A, "sk-ant-admin01-" + A),
        ("sk-ant-oat01-" + A + "-" + A + "AA", "sk-ant-oat01-" + A + "-" + A + "AA"),
    ],
    "google-key": [
        ("maps?x=AIza" + (A + A)[:35], "AIza" + (A + A)[:35]),
        ("oauth ya29." + A + "." + A, "ya29." + A + "." + A),
        ("GOCSPX-" + A[:28], "GOCSPX-" + A[:28]),
    ],
    "vendor-token": [
        ("npm_" + (A + A)[:36], "npm_" + (A + A)[:36]),
        ("upload with pypi-AgE" + A + A, "pypi-AgE" + A + A),
        ("hf_" + "abcdefghijKLMNOPQRSTuvwxyzABCDefgh", "hf_" + "abcdefghijKLMNOPQRSTuvwxyzABCDefgh"),
        ("SG." + A[:22] + "." + (A + A)[:43], "SG." + A[:22] + "." + (A + A)[:43]),
        ("dop_v1_" + HEX, "dop_v1_" + HEX),
        ("shpat_" + HEX[:32], "shpat_" + HEX[:32]),
        ("vault hvs." + A, "hvs." + A),
        ("dckr_pat_" + A[:27], "dckr_pat_" + A[:27]),
        ("gsk_" + (A + A)[:52], "gsk_" + (A + A)[:52]),
        ("xai-" + (A + A + A)[:80], "xai-" + (A + A + A)[:80]),
        ("AGE-SECRET-KEY-1" + (A + A).upper()[:58], "AGE-SECRET-KEY-1" + (A + A).upper()[:58]),
        ("GET /bot123456789:AA" + (A + A)[:33] + "/getMe", "123456789:AA" + (A + A)[:33]),
    ],
    "jwt": [
        (f"session {JWT}", JWT),
        (f"a={JWT}&b=1", JWT),
        ("enc eyJ" + "hbGciOiJkaXIifQ" + f"..{A}.{A}.{A[:22]}", f"..{A}.{A}.{A[:22]}"),
    ],
    "private-key": [
        (PEM.format("RSA ", "RSA "), "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"),
        ("here:\n" + PEM.format("", "") + "\nthanks", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"),
        (PEM.format("OPENSSH ", "OPENSSH ")[:70], "MIIEvQIBADANBgkqhkiG9w0BAQ"),
        (json.dumps({"pem": PEM.format("EC ", "EC ")}), "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"),
    ],
    "auth-header": [
        ("curl -H 'Authorization: Bearer " + A + "'", A),
        ("sent basic " + base64.b64encode(b"bob:hunter2").decode(), base64.b64encode(b"bob:hunter2").decode()),
        ("BEARER%20" + A, A),
    ],
    "url-password": [
        ("postgres://bob:s3cr3tpw@db.example:5432/app", "s3cr3tpw"),
        ("redis://:longredispassword@cache", "longredispassword"),
        ("clone https://oauth2:abcdefgh@git.example/x.git", "abcdefgh"),
    ],
    "signed-url": [
        (f"https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={HEX}", HEX),
        (f"https://x.blob.core.windows.net/c?sv=1&sig={A}%3D", A),
        (f"https://storage.googleapis.com/b/o?X-Goog-Signature={HEX}{HEX}", HEX),
    ],
    "jwk": [
        (json.dumps({"kty": "OKP", "crv": "Ed25519", "d": (A + A)[:43]}), (A + A)[:43]),
        (json.dumps({"kty": "EC", "d": (A + A)[:43], "x": "1"}), (A + A)[:43]),
        (json.dumps({"keys": [{"d": A + A + A, "kty": "RSA"}]}), A + A + A),
    ],
    "nostr-key": [(f"import {NSEC[:63]}", NSEC[:63]), (f"k={NSEC[:63]},", NSEC[:63]), (f"\n{NSEC[:63]}\n", NSEC[:63])],
    "cashu-token": [
        ("cashuA" + A + A, "cashuA" + A + A),
        ("pay cashuB" + A + A + "==", "cashuB" + A + A),
        ("\tcashuA" + A + A + A, "cashuA" + A + A + A),
    ],
    "command-line": [
        ("curl -s -u bob:hunter2x https://host/", "hunter2x"),
        ("curl --user 'bob:hunter2x' https://host/", "hunter2x"),
        ("sshpass -p hunter2x ssh host", "hunter2x"),
        ("mysqldump -h db -u root -phunter2x app", "hunter2x"),
        ("machine host login bob password hunter2x", "hunter2x"),
        ("ALTER USER bob IDENTIFIED BY 'hunter2x'", "hunter2x"),
    ],
    "named": [
        (json.dumps({"password": "hunter2"}), "hunter2"),
        (json.dumps({"admin_pass": "hunter2", "rootPw": "x1y2z3"}), "hunter2"),
        (json.dumps({"recovery_codes": ["ab12-cd34", "ef56-ab78"]}), "ab12-cd34"),
        ("<user>bob</user><password>hunter2</password>", "hunter2"),
        (json.dumps({"db": {"DB_PASSWORD": "p\"a\\s's"}}), 'p\\"a'),
        (json.dumps({"clientSecret": "x" * 2 + "yz"}), "xxyz"),
        (json.dumps({"api-key": "plain words here"}), "plain words here"),
        (json.dumps({"password": 12345678}), "12345678"),
        (json.dumps({"passphrase": ["one two", 'three "four"']}), "one two"),
        (json.dumps({"arguments": json.dumps({"password": 'hun"ter2', "x": 1})}), "hun"),
        (json.dumps({"a": json.dumps({"b": json.dumps({"secret": "deepvalue"})})}), "deepvalue"),
        (json.dumps({"access_token": "abc.def"}), "abc.def"),
        (json.dumps({"token": "9f8e7d6c5b4a39281706"}), "9f8e7d6c5b4a39281706"),
        (json.dumps({"Cookie": "sid=31d4d96e407aad42; theme=dark"}), "31d4d96e407aad42"),
        (json.dumps({"Authorization": "Custom whatever"}), "Custom whatever"),
        ("export DB_PASSWORD=correcthorse", "correcthorse"),
        ("line\npassword=tr0ub4dor\nnext", "tr0ub4dor"),
        ("password: tr0ub4dor&3", "tr0ub4dor"),
        ('api_key = "0123456789abcdef"', "0123456789abcdef"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ("GET /x?access_token=deadbeef01&y=2", "deadbeef01"),
        ("{'user': 'bob', 'password': 'hunter2'}", "hunter2"),
        ("mysql --password s3cretpw -u bob", "s3cretpw"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc123abc123abc123==;", "abc123abc123abc123"),
    ],
}  # fmt: skip

FALSE: Final[dict[str, list[str]]] = {
    "trunkline-token": ["tlk_short", "the prefix tlk_ and words", HEX, "dGxrXw=="],
    "aws-key": ["AKIA is a prefix", "AKIA" + "iosfodnn7example", "XAKIA" + "IOSFODNN7EXAMPLEXX", "MASSACHUSETTSAKIA"],
    "github-token": ["ghp_short", "github_pattern_matching", "ghost_writer_of_the_year_2024"],
    "gitlab-token": ["glpat-short", "glrt-1", "https://gitlab.com/a/b"],
    "slack-token": ["xoxo-hugs-and-kisses", "xoxb-abc", "https://slack.com/services", "xapp-beta"],
    "stripe-key": ["sk_live_", "pk_live_" + A[:24], "task_test_number_one_passed"],
    "openai-key": ["sk-learn", "sk-estimator-html-documentation-link-item", "risk-" + "assessment" * 4, "desk-top"],
    "anthropic-key": ["sk-ant-", "sk-antelope-herd-01", "sk-ant-api"],
    "google-key": ["AIza", "AIzawa-san from Tokyo", "ya29.5 percent", "GOCSPX-"],
    "vendor-token": ["npm_config_registry", "hf_hub_download", "SG.1", "gsk_plc", "npm_lifecycle_event_name_no_token"],
    "command-line": [
        "docker run -u 1000:1000 image",
        "curl -u bob: https://host/",
        "rsync -u bob:backup /tmp",
        "mkdir -p some/deep/folder",
        "mysql -p app",
        "sshpass -p $PASSWORD ssh host",
        "please login with your password manager",
        "the login page asks for a password today",
        "identified by the letters",
    ],
    "jwt": ["eyJ", "eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJIUzI1NiJ9.txt", "keyJourney.first.second"],
    "private-key": [
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "BEGIN PRIVATE KEY",
        "how to make a PRIVATE KEY",
    ],
    "auth-header": [
        "Bearer authentication is required",
        "basic understanding of chemistry",
        "Basic JavaScripting",
        "bearer of good news",
        "the bearer authorization-framework is described",
        "Basic dGVzdHRlc3R0ZXN0",
    ],
    "url-password": [
        "https://example.com:8080/a@b",
        "see http://host:80",
        "mailto:bob@example.com",
        "postgres://bob:${PGPASSWORD}@db/app",
        "https://user:<password>@host/",
        "git@github.com:a/b.git",
    ],
    "signed-url": ["https://x/?sig=short", "the signature=good", "https://x/?signature=none&y=1"],
    "jwk": [json.dumps({"d": "short"}), json.dumps({"kty": "OKP", "x": A + A}), json.dumps({"dd": A + A})],
    "nostr-key": ["npub1" + NSEC[5:63], "nsec1", "nsec1short", "nsec1" + "b" * 58],
    "cashu-token": ["cashuA", "cashew nuts", "cashuAbc is short"],
    "named": [
        json.dumps({"next_page_token": A, "pageToken": A, "continuation_token": A}),
        json.dumps({"max_tokens": 4096, "prompt_tokens": 17, "token_count": 9}),
        json.dumps({"token": "hello", "pos": "NOUN"}),
        json.dumps({"tests_pass": "all of them", "first_pass": "done", "compass": "n0rth-w3st"}),
        "<token>word</token><tokens>a1b2c3</tokens>",
        json.dumps({"progressToken": "abc123abc123abc123"}),
        json.dumps({"secret_name": "db-main", "secretArn": "arn:aws:x", "password_policy": "strict"}),
        json.dumps({"has_password": True, "password": None, "secret": False, "token": ""}),
        json.dumps({"password": "<redacted>", "token": "${GITHUB_TOKEN}", "secret": "****", "api_key": "{{ vault }}"}),
        json.dumps({"password": "[masked:named]"}),
        json.dumps({"type": "object", "properties": {"password": {"type": "string", "description": "Your password"}}}),
        json.dumps({"required": ["password", "token", "api_key"]}),
        json.dumps({"credentials": "include", "cookie": "accept", "authorization": "required"}),
        json.dumps({"pin": 13, "pass": "ok", "bypass": "yes", "mapping": "abc", "spin": "left"}),
        json.dumps({"public_key": A, "primary_key": A, "key": A, "key_id": A, "token_id": "t17", "fingerprint": HEX}),
        "Password: required",
        "The password must be at least 8 characters",
        "forgot your password? token: the value we sent",
        "PWD=/home/bob OLDPWD=/tmp",
        "connect(user=user, password=password)",
        "password = os.environ.get('X')",
        "token = self.session.token",
        "secret: optional",
        "if password == stored: pass",
        "curl --token $TOKEN --password <password>",
        "tests pass: 14, fail: 0",
        "usage: tool --password PASSWORD --token TOKEN",
    ],
}  # fmt: skip


def benign_corpus() -> list[str]:
    """Ordinary JSON: ids, hashes, times, addresses, code, prose in several scripts, schemas, fields of our entries."""
    ids = [str(uuid.UUID(int=n * 0x1234567890ABCDEF1234567890ABCDEF % 2**128)) for n in range(1, 400)]
    hashes = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(400)]
    plain: list[object] = [
        *({"call_id": one, "correlation_id": one, "causation_id": f"chat_session:{one[:8]}"} for one in ids),
        *({"sha256": one, "fingerprint": "sha256:" + one, "input_mac": one, "policy": one[:16]} for one in hashes),
        *({"md5": hashlib.md5(one.encode()).hexdigest(), "etag": f'W/"{one[:32]}"'} for one in ids),  # noqa: S324
        *(
            {"commit": one[:40], "short": one[:7], "digest": "sha512-" + base64.b64encode(one.encode()).decode()}
            for one in hashes
        ),
        *({"image": base64.b64encode(hashlib.sha512(str(n).encode()).digest() * 9).decode()} for n in range(200)),
        *({"npub": "npub1" + one, "token_id": f"t{n}", "approval_id": f"a{n}"} for n, one in enumerate(hashes)),
        *({"at": f"2026-11-{1 + n % 28:02}T{n % 24:02}:00:00.000Z", "n": n, "ratio": n / 7} for n in range(200)),
        *(
            {"url": f"https://example.com:{8000 + n}/v1/items/{n}?page={n}&sort=asc#top", "ip": f"10.0.0.{n}"}
            for n in range(200)
        ),
        *(
            {"path": f"/home/user/project/src/module_{n}.py", "line": n, "text": f"def f_{n}(x: int) -> int:"}
            for n in range(200)
        ),
        *(
            {"mail": f"user{n}@example.com", "phone": f"+49 30 {1000000 + n}", "iban": f"DE89 3704 0044 0532 {n:04} 00"}
            for n in range(200)
        ),
        {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("password", "token", "secret", "api_key")},
        },
        {"text": "Das Passwort ist geheim. 密码是保密的。 Пароль неизвестен. كلمة السر 🗝️"},
        {"html": '<input type="password" name="token" placeholder="Secret">'},
        {"sql": "SELECT id, password_hash FROM users WHERE token_type = 'bearer'"},
        {"markdown": "# Secrets\n\n- keep the *secret* safe\n- never log a `token`\n"},
        {"log": "INFO 2026-11-15 12:00:00 agent com.example.echo admitted with credential t17"},
        {"error": {"code": "auth.failed", "message": "the credential is missing or not valid"}},
        {"kind": "token.issued", "token_id": "t17", "edge": "opensentience", "agent": "com.example.echo"},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, "stop_token": "</s>"},
    ]
    return [json.dumps(value, ensure_ascii=n % 2 == 0) for n, value in enumerate(plain)]
