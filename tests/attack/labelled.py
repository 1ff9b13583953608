"""Bodies as agents exchange them, each labelled: the secret in it, or that there is none (P-H2).

Made from templates by one seed, so that everybody measures the same set. Names and forms were written down first and
the rules of ``ledger.rules`` improved with them afterwards; some are beyond what rules can see, and count against them.
Every value is made up here, and no text of it is a real token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
import uuid
from typing import NamedTuple

SEED = 20


class Positive(NamedTuple):
    """A body that must not be stored as it is: ``structured``, a member with a telling name, or ``free`` text."""

    kind: str
    body: str
    secret: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class Values:
    """Made-up values of every form that secrets and harmless things have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, alphabet: str, length: int) -> str:
        return "".join(self.random.choices(alphabet, k=length))

    def hex(self, length: int) -> str:
        return self.of("0123456789abcdef", length)

    def letters(self, length: int) -> str:
        return self.of(string.ascii_letters + string.digits, length)

    def base64(self, size: int) -> str:
        return base64.b64encode(self.random.randbytes(size)).decode()

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def word(self) -> str:
        return self.random.choice(WORDS)

    def password(self) -> str:
        """As people choose them."""
        word, other = self.word(), self.word()
        number = self.random.randrange(10, 9999)
        return self.random.choice(
            [
                f"{word.title()}{number}!",
                f"{word}{number}",
                f"{word}-{other}-{number}",
                f"{word.title()}#{other.title()}{number}",
                f"{word.replace('o', '0').replace('e', '3')}{other}",
                f"{word} {other} {self.word()} {number}",
                f"P@{word}{number}$",
                self.letters(self.random.randrange(10, 20)) + self.random.choice("!#%*"),
            ]
        )

    def key(self) -> str:
        """As machines make them."""
        return self.random.choice([self.hex(32), self.hex(64), self.letters(40), self.base64(30), self.letters(24)])


WORDS = _words(
    """
    harbor copper lantern meadow violet thunder basil quartz ribbon saddle timber velvet walnut anchor beacon cactus
    dragon ember falcon garnet hollow island jasper kettle lemon marble nectar orchid pepper quiver rocket summer
    """
)

# --- secrets ----------------------------------------------------------------------------------------------------------

PASSWORD_NAMES = _words(
    """
    password Password passwd user_password userPassword db_password DB_PASSWORD PGPASSWORD MYSQL_PWD
    mysql_root_password admin_pass smtp_pass SMTP_PASSWORD ldap_bind_password keystore_password keyPassword
    oldPassword new_password passphrase ssh_passphrase wifi_password root_pw sudo_password proxy_pass redis_password
    basic_auth_password passcode loginPassword password_confirmation storepass
    """
)
KEY_NAMES = _words(
    """
    api_key apiKey API_KEY apikey x-api-key X-Api-Key access_key secret_access_key AWS_SECRET_ACCESS_KEY secret_key
    SECRET_KEY client_secret clientSecret app_secret webhook_secret consumer_secret private_key privateKey
    signing_key encryption_key master_key account_key shared_access_key service_account_key openai_api_key
    STRIPE_SECRET_KEY hmac_key jwt_secret session_secret cookie_secret totp_secret license_key subscription_key
    DD_API_KEY algolia_api_key
    """
)
TOKEN_NAMES = _words(
    """
    token access_token accessToken refresh_token refreshToken id_token auth_token authToken X-Auth-Token bot_token
    session_token sessionToken security_token bearer_token oauth_token api_token GITHUB_TOKEN NPM_TOKEN sas_token
    csrf_token push_token device_token session_id sessionid jwt credentials vault_token SLACK_BOT_TOKEN
    """
)


def _structured(values: Values) -> list[Positive]:
    """Members with telling names, in the places where members stand."""
    found: list[tuple[str, object, str]] = []
    for name in PASSWORD_NAMES:
        for _ in range(4):
            secret = values.password()
            found.append((name, secret, secret))
    for name in KEY_NAMES:
        for _ in range(3):
            secret = values.key()
            found.append((name, secret, secret))
    for name in TOKEN_NAMES:
        for _ in range(3):
            secret = values.random.choice([values.letters(32), values.hex(40), values.base64(24), values.uuid()])
            found.append((name, secret, secret))
    for _ in range(6):
        number = values.random.randrange(10_000_000, 99_999_999)
        found.append(("password", number, str(number)))
        pin = f"{values.random.randrange(10_000):04}"
        found.append(("pin", pin, pin))
        found.append(("cvv", f"{pin[1:]}", f"{pin[1:]}"))
        code = values.letters(10)
        found.append((values.random.choice(["Authorization", "authorization"]), f"Token {code}", code))
        sid = values.hex(32)
        found.append((values.random.choice(["Cookie", "Set-Cookie"]), f"sid={sid}; Path=/", sid))
        words = " ".join(values.word() for _ in range(12))
        found.append((values.random.choice(["mnemonic", "seed_phrase", "recovery_phrase"]), words, words))
        string_ = f"Server=db1;Database=app;User Id=app;Password={(pw := values.letters(14))};"
        found.append((values.random.choice(["connection_string", "ConnectionString"]), string_, pw))
        codes = [values.letters(8), values.letters(8)]
        found.append(("backup_codes", codes, codes[0]))
    return [Positive("structured", _placed(values, name, value), secret) for name, value, secret in found]


def _placed(values: Values, name: str, value: object) -> str:
    """One member among others: at the top, deeper, in a list, as a JSON text in a string, indented."""
    others = {"id": 7, "name": values.word(), "host": f"{values.word()}.example.com"}
    member = {**others, name: value}
    return values.random.choice(
        [
            lambda: json.dumps(member),
            lambda: json.dumps({name: value, **others}),
            lambda: json.dumps({"config": {"db": member}, "dry_run": False}),
            lambda: json.dumps({"items": [others, member]}),
            lambda: json.dumps({"body": json.dumps(member), "status": 200}),
            lambda: json.dumps(member, indent=2),
            lambda: json.dumps({"headers": {name: value}, "method": "GET"}),
        ]
    )()


def _free(values: Values) -> list[Positive]:
    """Secrets in the middle of text: command lines, files, logs, addresses, prose."""
    found: list[tuple[str, str]] = []
    for _ in range(6):
        password = values.letters(values.random.randrange(8, 16)) + str(values.random.randrange(10, 99))
        key, user, host = values.key(), values.word(), f"{values.word()}.example.com"
        long, hexed, upper = values.letters(39) + "7", values.hex(40), values.of(string.ascii_uppercase + "234567", 16)
        github, jwt, pem = "ghp_" + values.letters(36), _jwt(values), _pem(values)
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        telegram = f"{values.random.randrange(10**8, 10**9)}:AA" + values.letters(33)
        azure, slack = values.base64(64), f"T{upper[:8]}/B{upper[8:]}/{long[:24]}"
        found += [
            (f"export DB_PASSWORD={password}", password),
            (f"DB_PASSWORD='{password}' ./deploy.sh --env prod", password),
            (f"DATABASE_URL=postgres://{user}:{password}@{host}:5432/app", password),
            (f"connecting to amqp://{user}:{password}@{host}/vhost", password),
            (f"git clone https://{user}:{github}@git.example.com/{user}/app.git", github),
            (f"curl -u {user}:{password} https://{host}/v1/items", password),
            (f"curl -H 'Authorization: Bearer {long}' https://{host}/", long),
            (f"curl -H 'X-Api-Key: {key}' https://{host}/", key),
            (f"Authorization: Basic {basic}", basic),
            (f"mysql -h {host} -u {user} -p{password} app", password),
            (f"mysql --user={user} --password={password} app", password),
            (f"vault login --token {password}", password),
            (f"sshpass -p {password} ssh {user}@{host}", password),
            (f"machine {host} login {user} password {password}", password),
            (f"{host}:5432:app:{user}:{password}", password),
            (f"[default]\naws_access_key_id = AKIA{upper}", f"AKIA{upper}"),
            (f"[default]\naws_secret_access_key = {long}\nregion = eu-west-1", long),
            (f"db:\n  user: {user}\n  password: {password}\n", password),
            (f"spring.datasource.password={password}", password),
            (f"//registry.example.com/:_authToken={hexed}", hexed),
            (f"<user>{user}</user><password>{password}</password>", password),
            (f"CREATE USER {user} IDENTIFIED BY '{password}'", password),
            (f"{{'user': '{user}', 'password': '{password}'}}", password),
            (f"config = Config(user={user!r}, api_key={key!r})", key),
            (f"the password for {host} is {password}", password),
            (f"password: {password}", password),
            (f"Your one-time login token: {long[:24]}7", long[:24]),
            (f"https://{host}/login?user={user}&password={password}", password),
            (f"https://{host}/cb#access_token={long}&token_type=bearer", long),
            (f"https://{host}/f?X-Amz-Date=20260101T000000Z&X-Amz-Signature={hexed}", hexed),
            (f"DefaultEndpointsProtocol=https;AccountName={user};AccountKey={azure};", azure),
            (f"Set-Cookie: session={hexed}; HttpOnly", hexed),
            (f"session {jwt} accepted", jwt),
            (f"the key:\n{pem}", pem.splitlines()[1]),
            (f"push failed for {github} (403)", github),
            (f"sk_live_{long[:24]} was used", f"sk_live_{long[:24]}"),
            (f"OPENAI_API_KEY=sk-proj-{long}", f"sk-proj-{long}"),
            (f"slack said xoxb-{telegram[:9]}123-{long[:24]}", f"xoxb-{telegram[:9]}123-{long[:24]}"),
            (f"AIza{long[:35]} is over quota", f"AIza{long[:35]}"),
            (f"registry said 401 to npm_{long[:36]}", f"npm_{long[:36]}"),
            (f"glpat-{long[:20]} expired", f"glpat-{long[:20]}"),
            (f"mail sent with SG.{long[:22]}.{hexed}abc", f"SG.{long[:22]}.{hexed}abc"),
            (f"bot{telegram} getUpdates", telegram),
            (f"posting to https://hooks.slack.com/services/{slack}", slack),
            (f"TWILIO_AUTH_TOKEN={hexed[:32]}", hexed[:32]),
        ]  # fmt: skip
    made = []
    for text, secret in found:
        body = json.dumps({"text": text} if values.random.random() < 0.7 else text)
        made.append(Positive("free", body, secret))
    return made


def _jwt(values: Values) -> str:
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": values.word(), "iat": values.random.randrange(10**9)})
    head = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{head}.{values.letters(43)}"


def _pem(values: Values) -> str:
    kind = values.random.choice(["RSA ", "EC ", "", "OPENSSH "])
    lines = "\n".join(values.base64(48) for _ in range(6))
    return f"-----BEGIN {kind}PRIVATE " + f"KEY-----\n{lines}\n-----END {kind}PRIVATE " + "KEY-----"


# --- harmless ---------------------------------------------------------------------------------------------------------


def _look_alikes(values: Values) -> list[object]:
    """Members whose names, or texts whose words, are those of secrets, without one."""
    found: list[object] = []
    for _ in range(20):
        word, other, number = values.word(), values.word(), values.random.randrange(1, 5000)
        found += [
            {"next_page_token": values.base64(24), "items": []},
            {"nextPageToken": values.letters(32)},
            {"continuationToken": values.base64(40)},
            {"pageToken": values.letters(16), "max_results": number},
            {"cursor": values.base64(18), "has_more": True},
            {"usage": {"prompt_tokens": number, "completion_tokens": number * 2, "total_tokens": number * 3}},
            {"max_tokens": number, "token_count": number, "tokens_per_minute": number},
            {"token": word, "lemma": other, "pos": "NOUN"},
            {"tokens": [word, other, values.word()]},
            {"token_type": "bearer", "expires_in": number, "scope": "read write"},
            {"password_policy": "strict", "password_min_length": number % 20, "password_expires": False},
            {"has_password": True, "password": None, "passwordChangedAt": "2026-03-01T10:00:00Z"},
            {"password": "", "token": "", "secret": None},
            {"password": "********", "api_key": "<your api key>", "token": "${GITHUB_TOKEN}"},
            {"password": "{{ vault_db_password }}", "secret": "[redacted]"},
            {"secretName": f"{word}-tls", "secretRef": {"name": f"{word}-env"}},
            {"secretKeyRef": {"name": f"{word}-db", "key": "password"}},
            {"secret_arn": f"arn:aws:secretsmanager:eu-west-1:{values.of('0123456789', 12)}:secret:{word}"},
            {"key": word, "keys": [word, other], "key_id": values.hex(16), "public_key": values.base64(32)},
            {"primary_key": "id", "foreign_key": f"{word}_id", "partition_key": word, "sort_key": other},
            {"api_key_id": values.letters(12), "access_key_id_hint": "…" + values.letters(4)},
            {"cookie_consent": "accepted", "cookies": "essential", "cookie": "accept"},
            {"authorization": "none", "authenticated": True, "auth_method": "oidc"},
            {"type": "object", "properties": {"password": {"type": "string"}, "token": {"type": "string"}}},
            {"type": "object", "required": ["password", "api_key", "secret"]},
            {"name": "password", "in": "body", "description": f"The {word} password of the account"},
            {"passenger": word, "compass": other, "bypass": word, "passage": f"{word} {other}"},
            {"pin": "left", "pinned": True, "spin": number, "opinion": word},
            {"secretary": word, "secret_santa": other, "is_secret": False},
            {"tokenizer": f"{word}-{other}-v{number}", "detokenize": word},
            {"session": word, "sessions": number, "session_count": number},
            {"credential_type": "service", "credentials": "include"},
            {"error": f"invalid password for user {word}", "code": 28000},
            {"error": "token expired", "hint": "log in again"},
            {"text": f"please reset your password at https://{word}.example.com/reset"},
            {"text": f"The secret of {word} is patience. Ask the secretary for a token of {other}."},
            {"text": "Passwords must have 12 characters and one of !#$%."},
            {"text": f"set the environment variable {word.upper()}_TOKEN before you start"},
            {"code": f"password = os.environ['{word.upper()}_PASSWORD']"},
            {"code": f"token = self.{word}.token; return token"},
            {"code": f"def login(user: str, password: str = '') -> {word.title()}: ..."},
            {"code": f"if not check_password(password, user.{word}): raise Denied"},
            {"code": f"const token = await get{word.title()}Token(request);"},
            {"code": f"api_key=settings.{word}_api_key, secret=settings.secret"},
            {"yaml": f"env:\n  - name: DB_PASSWORD\n    valueFrom:\n      secretKeyRef: {{name: {word}}}"},
            {"shell": f'read -s PASSWORD; login --user {word} --password "$PASSWORD"'},
            {"shell": f"usage: {word} --token TOKEN [--secret-file FILE]"},
            {"html": f'<input type="password" name="password" placeholder="{word}">'},
            {"sql": f"{word} has the columns password_hash, token_id and secret_id"},
            {"label": {"username": "Benutzername", "login": "Anmelden"}, "lang": "de"},
            {"password": "Passwort", "username": "Benutzername"},
            {"labels": {"password": "Mot de passe", "token": "Jeton"}},
        ]  # fmt: skip
    return found


def _ordinary(values: Values) -> list[object]:
    """What else agents send each other."""
    found: list[object] = []
    for number in range(72):
        word, other = values.word(), values.word()
        found += [
            {"call_id": values.uuid(), "correlation_id": values.uuid(), "n": number},
            {"sha256": values.hex(64), "etag": f'W/"{values.hex(32)}"', "commit": values.hex(40)},
            {"digest": f"sha512-{values.base64(64)}", "integrity": f"sha384-{values.base64(48)}"},
            {"image": "data:image/png;base64," + values.base64(300)},
            {"url": f"https://{word}.example.com:8443/{other}/{number}?page={number}&sort=asc#top"},
            {"path": f"/home/{word}/src/{other}_{number}.py", "line": number, "column": number % 80},
            {"email": f"{word}.{other}@example.com", "phone": f"+49 30 {values.of('0123456789', 7)}"},
            {"ssh": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{values.letters(43)} {word}@{other}"},
            {"cert": f"-----BEGIN CERTIFICATE-----\n{values.base64(60)}\n-----END CERTIFICATE-----"},
            {"tool_id": f"com.example.{word}/{other}", "fingerprint": values.hex(64), "status": "succeeded"},
            {"text": f"{word.title()} {other} {values.word()}: {values.word()} {number}, {values.word()}."},
            {"log": f"2026-11-15 12:00:{number % 60:02} INFO {word} admitted, run {values.uuid()}"},
            {"version": f"1.{number}.0", "build": values.hex(7), "tags": [word, other]},
            {"lat": values.random.uniform(-90, 90), "lon": values.random.uniform(-180, 180), "zip": f"{number:05}"},
            {"arn": f"arn:aws:s3:::{word}-{other}", "region": "eu-west-1", "account": values.of("0123456789", 12)},
            {"iban": f"DE{values.of('0123456789', 20)}", "isbn": f"978-3-{values.of('0123456789', 8)}-0"},
            {"diff": f"-    {word} = {number}\n+    {word} = {number + 1}\n"},
            {"mac": ":".join(values.hex(2) for _ in range(6)), "ip": f"10.0.{number}.{number}", "ipv6": "fe80::1"},
        ]  # fmt: skip
    return found


def positives() -> list[Positive]:
    """All bodies with a secret."""
    values = Values(SEED)
    return _structured(values) + _free(values)


def negatives() -> list[str]:
    """All bodies without one, no two alike."""
    values = Values(SEED + 1)
    return list(
        dict.fromkeys(json.dumps(value, ensure_ascii=False) for value in _look_alikes(values) + _ordinary(values))
    )


def digest() -> str:
    """The set's own hash, so that a measurement says what it measured."""
    text = json.dumps([positives(), negatives()])
    return hashlib.sha256(text.encode()).hexdigest()
