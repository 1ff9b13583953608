r"""The forms of secrets that others issue, as they are published: a table, and nothing that acts.

``rules`` makes a masking rule of each line. A line says who issues the secret, the fixed characters it begins with, the
expression for what has to follow, which characters it may go on with, and where its form is published:

- ``gitleaks <rule>``: https://github.com/gitleaks/gitleaks, ``config/gitleaks.toml``
- ``trufflehog <detector>``: https://github.com/trufflesecurity/trufflehog, ``pkg/detectors``
- anything else is the issuer's own page.

``begins`` is plain text where the issuer has a prefix of its own: base64 of it is looked for too. To add a form, add a
line and a made-up example to ``tests/unit/ledger/secret_examples.py``; a test asks for both.

Does not own how a form is looked for (``rules``).
"""

# ruff: noqa: E501  (a table: one form to a line)
from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FORMS", "ISSUERS_WITHOUT_FORM", "SecretForm"]


class SecretForm(NamedTuple):
    """One published form."""

    # Who issues it; several forms of one issuer differ in ``begins``.
    issuer: str
    # What is shown instead: ``[masked:rule]``.
    rule: str
    # Plain text; several if they are separated by blanks.
    begins: str
    # What has to follow, as an expression that both engines read.
    then: str
    # The characters it may go on with, as the inside of a class; empty: it must end there.
    more: str
    source: str


_V: Final = "vendor-token"
_ALNUM: Final = "A-Za-z0-9"
_WORD: Final = "A-Za-z0-9_-"
_HEX: Final = "a-f0-9"
# With the character that follows: "path" and "pattern" are in every line of some code, and each would be looked at.
_PAT: Final = " ".join(f"pat{one}" for one in "abcdefgijklmnopqrsuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")

# fmt: off
FORMS: Final = (
    # --- code, packages, delivery ---
    SecretForm("GitHub", "github-token", "ghp_ gho_ ghs_ ghu_ ghr_", "[A-Za-z0-9]{36}", _ALNUM, "gitleaks github-pat"),
    SecretForm("GitHub", "github-token", "github_pat_", "[A-Za-z0-9_]{22}", "A-Za-z0-9_", "gitleaks github-fine-grained-pat"),
    SecretForm("GitLab", "gitlab-token", "glpat- gldt- glrt- glptt- glft- glsoat- glagent- glimt- gloas- glffct-", "[A-Za-z0-9_-]{20}", "A-Za-z0-9_.-", "gitleaks gitlab-pat and others"),
    SecretForm("GitLab", "gitlab-token", "glcbt-", "[A-Za-z0-9]{1,5}_[A-Za-z0-9_-]{20}", _WORD, "gitleaks gitlab-cicd-job-token"),
    SecretForm("GitLab", "gitlab-token", "GR1348941", "[A-Za-z0-9_-]{20}", _WORD, "gitleaks gitlab-rrt"),
    SecretForm("Bitbucket", _V, "ATBB", "[A-Za-z0-9_]{20}[A-F0-9]{8}", "", "trufflehog bitbucketapppassword"),
    SecretForm("Bitbucket", _V, "BBDC-", "[A-Za-z0-9+/@_-]{40}", "A-Za-z0-9+/@_-", "trufflehog bitbucketdatacenter"),
    SecretForm("npm", _V, "npm_", "[A-Za-z0-9]{36}", "", "gitleaks npm-access-token"),
    SecretForm("PyPI", _V, "pypi-AgE", "[A-Za-z0-9_-]{40}", _WORD, "gitleaks pypi-upload-token"),
    SecretForm("RubyGems", _V, "rubygems_", "[a-f0-9]{48}", "", "gitleaks rubygems-api-token"),
    SecretForm("Clojars", _V, "CLOJARS_", "[A-Za-z0-9]{60}", "", "gitleaks clojars-api-token"),
    SecretForm("Docker", _V, "dckr_pat_ dckr_oat_", "[A-Za-z0-9_-]{27}", _WORD, "trufflehog dockerhub/v2"),
    SecretForm("Artifactory", _V, "AKCp", "[A-Za-z0-9]{69}", "", "gitleaks artifactory-api-key"),
    SecretForm("Buildkite", _V, "bkua_", "[a-z0-9]{40}", "", "trufflehog buildkite/v2"),
    SecretForm("Harness", _V, "pat. sat.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}", "", "gitleaks harness-api-key"),
    SecretForm("Octopus Deploy", _V, "API-", "[A-Z0-9]{26}", "", "gitleaks octopus-deploy-api-key"),
    SecretForm("Sourcegraph", _V, "sgp_", "(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}", "", "gitleaks sourcegraph-access-token"),
    SecretForm("Infracost", _V, "ico-", "[A-Za-z0-9]{32}", "", "gitleaks infracost-api-token"),
    SecretForm("Pulumi", _V, "pul-", "[a-f0-9]{40}", "", "gitleaks pulumi-api-token"),
    SecretForm("Prefect", _V, "pnu_", "[A-Za-z0-9]{36}", "", "gitleaks prefect-api-token"),
    # --- clouds and places to run ---
    SecretForm("AWS", "aws-key", "AKIA ASIA ABIA ACCA", "[A-Z0-9]{16}", "", "gitleaks aws-access-token"),
    SecretForm("AWS Bedrock", "aws-key", "ABSK", "[A-Za-z0-9+/]{109}", "A-Za-z0-9+/=", "gitleaks aws-amazon-bedrock-api-key-long-lived"),
    SecretForm("AWS Bedrock", "aws-key", "bedrock-api-key-", "[A-Za-z0-9+/]{28}", "A-Za-z0-9+/=", "gitleaks aws-amazon-bedrock-api-key-short-lived"),
    SecretForm("Alibaba", _V, "LTAI", "[A-Za-z0-9]{20}", "", "gitleaks alibaba-access-key-id"),
    SecretForm("Google", "google-key", "AIza", "[A-Za-z0-9_-]{35}", "", "gitleaks gcp-api-key"),
    SecretForm("Google", "google-key", "ya29.", "[A-Za-z0-9_-]{20}", "A-Za-z0-9_.-", "https://developers.google.com/identity/protocols/oauth2"),
    SecretForm("Google", "google-key", "GOCSPX-", "[A-Za-z0-9_-]{20}", _WORD, "https://developers.google.com/identity/protocols/oauth2"),
    SecretForm("Google", "google-key", "1//0", "[A-Za-z0-9_-]{35}", _WORD, "https://developers.google.com/identity/protocols/oauth2"),
    SecretForm("Cloudflare", _V, "cfut_ cfat_ cfk_", "[A-Za-z0-9]{40}[a-f0-9]{8}", "", "trufflehog cloudflareapitoken/v2"),
    SecretForm("Cloudflare", _V, "v1.0-", "[a-f0-9]{24}-[a-f0-9]{146}", "", "gitleaks cloudflare-origin-ca-key"),
    SecretForm("DigitalOcean", _V, "dop_v1_ doo_v1_ dor_v1_", "[a-f0-9]{64}", "", "gitleaks digitalocean-pat"),
    SecretForm("Fly", _V, "fo1_", "[A-Za-z0-9_-]{43}", "", "gitleaks flyio-access-token"),
    SecretForm("Fly", _V, "fm1a_ fm1r_ fm2_", "[A-Za-z0-9+/]{100}", "A-Za-z0-9+/=,_-", "gitleaks flyio-access-token"),
    SecretForm("Heroku", _V, "HRKU-AA", "[A-Za-z0-9_-]{58}", "", "gitleaks heroku-api-key-v2"),
    SecretForm("Netlify", _V, "nfp_ nfo_ nfc_ nfu_ nfb_", "[A-Za-z0-9_]{36}", "", "trufflehog netlify/v2"),
    SecretForm("Scalingo", _V, "tk-us-", "[A-Za-z0-9_-]{48}", "", "gitleaks scalingo-api-token"),
    SecretForm("Tailscale", _V, "tskey-", "[a-z]{3,12}-[A-Za-z0-9_]{8,32}-[A-Za-z0-9_]{16}", "A-Za-z0-9_", "trufflehog tailscale"),
    SecretForm("HashiCorp Vault", _V, "hvs. hvb.", "[A-Za-z0-9_-]{24}", _WORD, "gitleaks vault-service-token"),
    SecretForm("Doppler", _V, "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", r"(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40}", _ALNUM, "gitleaks doppler-api-token"),
    SecretForm("1Password", _V, "ops_eyJ", "[A-Za-z0-9+/]{200}", "A-Za-z0-9+/=", "gitleaks 1password-service-account-token"),
    SecretForm("1Password", _V, "A3-", "[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}", "", "gitleaks 1password-secret-key"),
    # --- data ---
    SecretForm("Airtable", _V, _PAT, r"[A-Za-z0-9]{13}\.[a-f0-9]{64}", "", "gitleaks airtable-personnal-access-token"),
    SecretForm("Databricks", _V, "dapi", "[a-f0-9]{32}(?:-[0-9])?", "", "gitleaks databricks-api-token"),
    SecretForm("PlanetScale", _V, "pscale_tkn_ pscale_oauth_ pscale_pw_", "[A-Za-z0-9_=.-]{32}", "A-Za-z0-9_=.-", "gitleaks planetscale-api-token"),
    SecretForm("Supabase", _V, "sbp_", "[a-z0-9]{40}", "", "trufflehog supabasetoken"),
    SecretForm("Supabase", _V, "sb_secret_", "[A-Za-z0-9_-]{22}", _WORD, "https://supabase.com/docs/guides/api/api-keys"),
    SecretForm("Pinecone", _V, "pcsk_", "[A-Za-z0-9]{5,6}_[A-Za-z0-9]{63}", "", "trufflehog pinecone"),
    SecretForm("Contentful", _V, "CFPAT-", "[A-Za-z0-9_-]{43}", "", "trufflehog contentfulpersonalaccesstoken"),
    # --- watching ---
    SecretForm("Dynatrace", _V, "dt0c01.", r"[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}", "", "gitleaks dynatrace-api-token"),
    SecretForm("Grafana", _V, "glsa_", "[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}", "", "gitleaks grafana-service-account-token"),
    SecretForm("Grafana", _V, "glc_", "[A-Za-z0-9+/]{32}", "A-Za-z0-9+/=", "gitleaks grafana-cloud-api-token"),
    SecretForm("New Relic", _V, "NRAK-", "[A-Z0-9]{27}", "", "gitleaks new-relic-user-api-key"),
    SecretForm("New Relic", _V, "NRII-", "[A-Za-z0-9-]{32}", "", "gitleaks new-relic-insert-key"),
    SecretForm("New Relic", _V, "NRJS-", "[a-f0-9]{19}", "", "gitleaks new-relic-browser-api-token"),
    SecretForm("PostHog", _V, "phx_", "[A-Za-z0-9_]{43}", "A-Za-z0-9_", "trufflehog posthog"),
    SecretForm("Sentry", _V, "sntrys_eyJ", "[A-Za-z0-9+/]{40}", "A-Za-z0-9=_+/", "gitleaks sentry-org-token"),
    SecretForm("Sentry", _V, "sntryu_", "[a-f0-9]{64}", "", "gitleaks sentry-user-token"),
    # --- offices ---
    SecretForm("Asana", _V, "1/ 2/", "[0-9]{16,19}(?:/[0-9]{16,19})?:[A-Za-z0-9]{32}", _ALNUM, "trufflehog asanapersonalaccesstoken"),
    SecretForm("Atlassian", _V, "ATATT3 ATCTT3", "[A-Za-z0-9+/=_-]{50}", "A-Za-z0-9+/=_-", "trufflehog jiratoken/v2, atlassian/v2"),
    SecretForm("Figma", _V, "figd_ figp_ figu_ figo_ figur_ figuh_ figor_ figoh_", "[A-Za-z0-9_=-]{40}", "A-Za-z0-9_=-", "trufflehog figmapersonalaccesstoken/v2, v3"),
    SecretForm("Frame.io", _V, "fio-u-", "[A-Za-z0-9_=-]{64}", "", "gitleaks frameio-api-token"),
    SecretForm("Linear", _V, "lin_api_ lin_oauth_", "[A-Za-z0-9]{40}", _ALNUM, "gitleaks linear-api-key"),
    SecretForm("Notion", _V, "ntn_", "[0-9]{11}[A-Za-z0-9]{35}", "", "gitleaks notion-api-token"),
    SecretForm("Notion", _V, "secret_", "[A-Za-z0-9]{43}", "", "trufflehog notion"),
    SecretForm("Postman", _V, "PMAK-", "[a-f0-9]{24}-[a-f0-9]{34}", "", "gitleaks postman-api-token"),
    SecretForm("Readme", _V, "rdme_", "[a-z0-9]{70}", "", "gitleaks readme-api-token"),
    SecretForm("Typeform", _V, "tfp_", "[A-Za-z0-9_.=-]{59}", "", "gitleaks typeform-api-token"),
    SecretForm("Dropbox", _V, "sl. sl.u.", "[A-Za-z0-9_-]{130}", _WORD, "trufflehog dropbox"),
    SecretForm("Adobe", _V, "p8e-", "[A-Za-z0-9]{32}", "", "gitleaks adobe-client-secret"),
    # --- talking ---
    SecretForm("Slack", "slack-token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxo- xoxc- xoxd- xoxe- xoxe.xoxb- xoxe.xoxp-", "[A-Za-z0-9-]{0,40}[0-9]{4}[A-Za-z0-9-]{6}", "A-Za-z0-9-", "gitleaks slack-bot-token and others"),
    SecretForm("Slack", "slack-token", "xapp-", "[0-9]-[A-Z0-9]{6}", "A-Za-z0-9-", "gitleaks slack-app-token"),
    SecretForm("Slack", "slack-token", "hooks.slack.com/services/ hooks.slack.com/workflows/ hooks.slack.com/triggers/", "[A-Za-z0-9/]{20}", "A-Za-z0-9+/", "gitleaks slack-webhook-url"),
    SecretForm("Discord", _V, "discord.com/api/webhooks/ discordapp.com/api/webhooks/", "[0-9]{17,20}/[A-Za-z0-9_-]{60}", _WORD, "https://discord.com/developers/docs/resources/webhook"),
    SecretForm("SendGrid", _V, "SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{40}", _WORD, "gitleaks sendgrid-api-token"),
    SecretForm("Brevo", _V, "xkeysib-", "[a-f0-9]{64}-[A-Za-z0-9]{16}", "", "gitleaks sendinblue-api-token"),
    SecretForm("Mailgun", _V, "key-", "[a-f0-9]{32}", "", "gitleaks mailgun-private-api-token"),
    SecretForm("Twilio", _V, "SK", "[a-f0-9]{32}", "", "gitleaks twilio-api-key"),
    # --- paying, shipping ---
    SecretForm("Stripe", "stripe-key", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_", "[A-Za-z0-9]{16}", _ALNUM, "gitleaks stripe-access-token"),
    SecretForm("Stripe", "stripe-key", "whsec_", "[A-Za-z0-9+/]{24}", "A-Za-z0-9+/=", "https://docs.stripe.com/webhooks"),
    SecretForm("Stripe", "stripe-key", "pi_", "[A-Za-z0-9]{24}_secret_[A-Za-z0-9]{25}", "", "trufflehog stripepaymentintent"),
    SecretForm("Square", _V, "sq0atp- sq0csp- sq0idp-", "[A-Za-z0-9_-]{22}", _WORD, "gitleaks square-access-token"),
    SecretForm("Shopify", _V, "shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32}", "", "gitleaks shopify-access-token"),
    SecretForm("Duffel", _V, "duffel_test_ duffel_live_", "[A-Za-z0-9_=-]{43}", "", "gitleaks duffel-api-token"),
    SecretForm("EasyPost", _V, "EZAK EZTK", "[A-Za-z0-9]{54}", "", "gitleaks easypost-api-token"),
    SecretForm("Shippo", _V, "shippo_live_ shippo_test_", "[a-fA-F0-9]{40}", "", "gitleaks shippo-api-token"),
    # --- models ---
    SecretForm("Anthropic", "anthropic-key", "sk-ant-", "[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{20}", _WORD, "gitleaks anthropic-api-key"),
    SecretForm("OpenRouter", "openai-key", "sk-or-v1-", "[a-f0-9]{32}", _HEX, "trufflehog openrouter"),
    SecretForm("Langfuse", _V, "sk-lf-", "[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}", "", "trufflehog langfuse"),
    SecretForm("LangSmith", _V, "lsv2_pt_ lsv2_sk_", "[a-f0-9]{32}_[a-f0-9]{10}", "", "trufflehog langsmith"),
    SecretForm("ElevenLabs", _V, "sk_", "[a-f0-9]{48}", "", "trufflehog elevenlabs/v2"),
    SecretForm("Groq", _V, "gsk_", "[A-Za-z0-9]{40}", _ALNUM, "trufflehog groq"),
    SecretForm("Hugging Face", _V, "hf_ api_org_", "[A-Za-z0-9]{34}", "", "gitleaks huggingface-access-token"),
    SecretForm("Perplexity", _V, "pplx-", "[A-Za-z0-9]{48}", _ALNUM, "gitleaks perplexity-api-key"),
    SecretForm("Replicate", _V, "r8_", "[A-Za-z0-9_-]{37}", "", "trufflehog replicate"),
    SecretForm("xAI", _V, "xai-", "[A-Za-z0-9]{60}", "A-Za-z0-9_", "trufflehog xai"),
    # --- keys ---
    SecretForm("age", _V, "AGE-SECRET-KEY-1", "[A-Z0-9]{58}", "", "gitleaks age-secret-key"),
    SecretForm("Nostr", "nostr-key", "nsec1", "[02-9ac-hj-np-z]{58}", "", "https://github.com/nostr-protocol/nips/blob/master/19.md"),
    SecretForm("Cashu", "cashu-token", "cashuA cashuB", "[A-Za-z0-9_-]{40}", "A-Za-z0-9_=-", "https://github.com/cashubtc/nuts/blob/main/00.md"),
)
# fmt: on

# Their keys have no form of their own: letters and digits, told only by the name beside them. All are published by
# gitleaks (`cohere-api-token` and so on) and trufflehog (`vercel`, `twilio`, `mailgun`, …) in the same way.
ISSUERS_WITHOUT_FORM: Final = (
    "algolia", "asana", "cloudflare", "cohere", "confluent", "datadog", "deepgram", "deepseek", "discord", "dropbox",
    "facebook", "fastly", "heroku", "launchdarkly", "mailgun", "mistral", "netlify", "okta", "plaid", "rapidapi", "square", "twilio", "vercel",
    "wandb", "zendesk",
)  # fmt: skip
