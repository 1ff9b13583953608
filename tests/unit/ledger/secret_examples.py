"""A made-up secret of each published form (``ledger.secret_forms``), and ordinary texts that only look like one.

What follows the beginning is put together here from letters and digits, by hand from what the issuer publishes and not
from the expression in the table, so that no scanner of repositories takes it for a real one.
"""

from __future__ import annotations

import base64
import hashlib
import random
import uuid
from typing import Final

ALNUM: Final = "aB3dE5gH7jK9mN2pQ4sT6vW8xY1zC0fR" * 8
UPPER: Final = "A1B2C3D4E5F6G7H8J9K0L1M2N3P4Q5R6" * 4
LOWER: Final = "a1b2c3d4e5f6g7h8i9j0k1l2m3n4o5p6" * 4
HEX: Final = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(4))
DIGITS: Final = "1234567890" * 3

# By what a secret begins with: what follows it.
RESTS: Final[dict[str, str]] = {
    "ghp_": ALNUM[:36],
    "github_pat_": ALNUM[:22] + "_" + ALNUM[:59],
    "glpat-": ALNUM[:20],
    "glcbt-": "64_" + ALNUM[:20],
    "GR1348941": ALNUM[:20],
    "ATBB": ALNUM[:20] + "0A1B2C3D",
    "BBDC-": ALNUM[:44],
    "npm_": ALNUM[:36],
    "pypi-AgE": ALNUM[:160],
    "rubygems_": HEX[:48],
    "CLOJARS_": HEX[:60],
    "dckr_pat_": ALNUM[:27],
    "AKCp": ALNUM[:69],
    "bkua_": LOWER[:40],
    "pat.": f"{ALNUM[:22]}.{ALNUM[:24]}.{ALNUM[:20]}",
    "API-": UPPER[:26],
    "sgp_": f"{HEX[:16]}_{HEX[:40]}",
    "ico-": ALNUM[:32],
    "pul-": HEX[:40],
    "pnu_": ALNUM[:36],
    "AKIA": UPPER[:16],
    "ABSK": ALNUM[:120],
    "bedrock-api-key-": ALNUM[:100],
    "LTAI": ALNUM[:20],
    "AIza": ALNUM[:35],
    "ya29.": ALNUM[:120],
    "GOCSPX-": ALNUM[:28],
    "1//0": ALNUM[:60],
    "cfut_": ALNUM[:40] + HEX[:8],
    "v1.0-": f"{HEX[:24]}-{HEX[:146]}",
    "dop_v1_": HEX[:64],
    "fo1_": ALNUM[:43],
    "fm1a_": ALNUM[:180],
    "HRKU-AA": ALNUM[:58],
    "nfp_": ALNUM[:36],
    "tk-us-": ALNUM[:48],
    "tskey-": f"auth-{ALNUM[:16]}-{ALNUM[:32]}",
    "hvs.": ALNUM[:95],
    "dp.pt.": ALNUM[:43],
    "ops_eyJ": ALNUM[:250],
    "A3-": f"{UPPER[:6]}-{UPPER[:6]}-{UPPER[:5]}-{UPPER[:5]}-{UPPER[:5]}-{UPPER[:5]}",
    "pata": f"{ALNUM[:13]}.{HEX[:64]}",
    "dapi": HEX[:32],
    "pscale_tkn_": ALNUM[:43],
    "sbp_": LOWER[:40],
    "sb_secret_": ALNUM[:31],
    "pcsk_": f"{ALNUM[:6]}_{ALNUM[:63]}",
    "CFPAT-": ALNUM[:43],
    "dt0c01.": f"{UPPER[:24]}.{UPPER[:64]}",
    "glsa_": f"{ALNUM[:32]}_{HEX[:8]}",
    "glc_": ALNUM[:120],
    "NRAK-": UPPER[:27],
    "NRII-": ALNUM[:32],
    "NRJS-": HEX[:19],
    "phx_": ALNUM[:43],
    "sntrys_eyJ": f"{ALNUM[:150]}_{ALNUM[:43]}",
    "sntryu_": HEX[:64],
    "1/": f"{DIGITS[:16]}:{LOWER[:32]}",
    "ATATT3": f"xFfGF0{ALNUM[:180]}=1A2B3C4D",
    "figd_": ALNUM[:40],
    "fio-u-": ALNUM[:64],
    "lin_api_": ALNUM[:40],
    "ntn_": f"{DIGITS[:11]}{ALNUM[:35]}",
    "secret_": ALNUM[:43],
    "PMAK-": f"{HEX[:24]}-{HEX[:34]}",
    "rdme_": LOWER[:70],
    "tfp_": ALNUM[:59],
    "sl.": ALNUM[:135],
    "p8e-": ALNUM[:32],
    "xoxb-": f"{DIGITS[:12]}-{DIGITS[:13]}-{ALNUM[:24]}",
    "xapp-": f"1-{UPPER[:11]}-{DIGITS[:13]}-{HEX[:64]}",
    "hooks.slack.com/services/": f"T{UPPER[:8]}/B{UPPER[:8]}/{ALNUM[:24]}",
    "discord.com/api/webhooks/": f"{DIGITS[:18]}/{ALNUM[:68]}",
    "SG.": f"{ALNUM[:22]}.{ALNUM[:43]}",
    "xkeysib-": f"{HEX[:64]}-{ALNUM[:16]}",
    "key-": HEX[:32],
    "SK": HEX[:32],
    "sk_live_": ALNUM[:24],
    "whsec_": ALNUM[:32],
    "pi_": f"{ALNUM[:24]}_secret_{ALNUM[:25]}",
    "sq0atp-": ALNUM[:22],
    "shpat_": HEX[:32],
    "duffel_test_": ALNUM[:43],
    "EZAK": ALNUM[:54],
    "shippo_live_": HEX[:40],
    "sk-ant-": f"api03-{ALNUM[:93]}AA",
    "sk-or-v1-": HEX[:64],
    "sk-lf-": str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
    "lsv2_pt_": f"{HEX[:32]}_{HEX[:10]}",
    "sk_": HEX[:48],
    "gsk_": ALNUM[:52],
    "hf_": "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "pplx-": ALNUM[:48],
    "r8_": ALNUM[:37],
    "xai-": ALNUM[:80],
    "AGE-SECRET-KEY-1": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" + "QPZRY9X8GF2TVDW0S3JN54KHCE",
    "nsec1": "qpzry9x8gf2tvdw0s3jn54khce6mua7l" + "qpzry9x8gf2tvdw0s3jn54khce",
    "cashuA": ALNUM[:120],
}

# Without a fixed beginning, by their form or by the name beside them.
OTHERS: Final[dict[str, str]] = {
    "OpenAI": "sk-" + "proj-" + ALNUM[:74] + "T3BlbkFJ" + ALNUM[:74],
    "Telegram": "1234567890" + ":AA" + ALNUM[:33],
    "Discord": base64.b64encode(b"123456789012345678").decode() + ".GabcdE." + ALNUM[:38],
    "Azure": "aB3" + "8Q~" + ALNUM[:34],
}
NAMED: Final = [
    ("cohere key: ", ALNUM[:40]),
    ("COHERE_KEY=", ALNUM[:40]),
    ("the vercel token is ", ALNUM[:24]),
    ("vercel pat ", ALNUM[:24]),
    ("square: EAAA", ALNUM[:60]),
    ("DefaultEndpointsProtocol=https;AccountName=x;AccountKey=", ALNUM[:86] + "=="),
]


def ordinary_texts() -> list[str]:
    """Hashes, ids, pictures, code and words in which a beginning of a secret may stand."""
    rng = random.Random(7)
    texts = [
        *(hashlib.new(kind, bytes([n])).hexdigest() for kind in ("md5", "sha1", "sha256", "sha512") for n in range(50)),
        *(base64.b64encode(hashlib.sha512(bytes([n])).digest()).decode() for n in range(50)),
        *(str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(100)),
        *("data:image/png;base64," + base64.b64encode(rng.randbytes(48_000)).decode() for _ in range(40)),
        *(base64.b64encode(bytes(n) + rng.randbytes(300) + bytes(3_000)).decode() for n in range(60)),
        *(f"sha512-{base64.b64encode(rng.randbytes(64)).decode()}" for _ in range(50)),
        *(f"commit {rng.randbytes(20).hex()}\nAuthor: bob <bob@example.com>" for _ in range(50)),
        *(f"{begin}" for begin in RESTS),
        *(f"{begin}_example and {begin}..., see {begin}xxxx" for begin in RESTS),
        *(
            f"the {name} service, {name}.com/{rng.randbytes(20).hex()}"
            for name in ("cohere", "vercel", "twilio", "square")
        ),
        *(f'{{"vercel": "{rng.randbytes(20).hex()}"}}' for _ in range(10)),
        "from pathlib import Path; patterns = patch(path); pat.match(line); sat. down; key-value API-first secret_name",
        "npm_config_registry npm_lifecycle_event=test hf_hub_download(repo_id='a/b') sk_learn pi_ratio SKU SKELETON",
        "import_secret_manager; pi_secret_; sl.append(1); r8_uint; xoxo-; SG.1; 1/2 cup, 2/3 of it; v1.0-rc1; A3-paper",
        "glc_context api_org_chart fo1_ test; tk-us-east-1; key-0123; dapi; figd; ops_eyJ; AGE-SECRET-KEY-1",
        "https://example.com/secret_santa/API-REFERENCE-GUIDE-2024-EDITION/pat/path.html?key-id=1",
        "\n".join(f"line {n}: self._path = os.path.join(self.pattern, 'key-{n}')" for n in range(400)),
    ]
    for _ in range(50):
        commit, integrity = rng.randbytes(20).hex(), base64.b64encode(rng.randbytes(64)).decode()
        texts.append(f'"resolved": "x/y-1.2.3.tgz#{commit}", "integrity": "sha512-{integrity}"')
    return texts
