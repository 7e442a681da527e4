//! Tokens of chats, payments, mail and office tools.

use crate::detector::Spec;
use crate::report::Severity;

pub(super) const TOKENS: &[Spec] = &[
    Spec::token(
        "slack_bot_token",
        &["xoxb-"],
        r"xoxb-[0-9]{9,14}-(?:[0-9]{9,14}-)?[A-Za-z0-9-]{18,64}",
    ),
    Spec::token(
        "slack_user_token",
        &["xoxp-", "xoxe-", "xoxa-", "xoxr-", "xoxs-", "xoxo-"],
        r"xox[pears]-(?:[0-9]{1,14}-){0,3}[A-Za-z0-9-]{24,200}",
    ),
    Spec::token(
        "slack_config_token",
        &["xoxe."],
        r"xoxe\.(?:xox[bp]-)?[0-9]-[A-Za-z0-9]{100,200}",
    ),
    Spec::token(
        "slack_app_token",
        &["xapp-"],
        r"xapp-[0-9]-[A-Z0-9]{8,14}-[0-9]{10,14}-[a-z0-9]{32,70}",
    ),
    Spec::token(
        "slack_webhook",
        &["hooks.slack.com/"],
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/]{40,90})",
    ),
    Spec::token(
        "discord_webhook",
        &["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"],
        r"discord(?:app)?\.com/api/webhooks/([0-9]{17,20}/[A-Za-z0-9_-]{60,80})",
    ),
    Spec::code("discord_bot_token", crate::report::Kind::SecretLeak).rated(Severity::Critical, 90),
    Spec::token(
        "teams_webhook",
        &[".webhook.office.com/"],
        r"\.webhook\.office\.com/webhookb2/([0-9a-f-]{36}@[0-9a-f-]{36}/IncomingWebhook/[0-9a-f]{32}/[0-9a-f-]{36})",
    ),
    Spec::token(
        "telegram_bot_token",
        &[":AA"],
        r"[0-9]{8,10}:AA[A-Za-z0-9_-]{32,33}",
    )
    .back(10),
    Spec::token("twilio_api_key", &["SK"], r"SK[0-9a-f]{32}"),
    Spec::token(
        "stripe_secret_key",
        &[
            "sk_live_", "sk_test_", "sk_prod_", "rk_live_", "rk_test_", "rk_prod_",
        ],
        r"[sr]k_(?:live|test|prod)_[A-Za-z0-9]{10,120}",
    ),
    Spec::token(
        "webhook_signing_secret",
        &["whsec_"],
        r"whsec_[A-Za-z0-9+/]{24,90}={0,2}",
    ),
    Spec::token(
        "square_access_token",
        &["sq0atp-", "EAAA"],
        r"(?:sq0atp-[A-Za-z0-9_-]{22}|EAAA[A-Za-z0-9_-]{60})",
    ),
    Spec::token("square_secret", &["sq0csp-"], r"sq0csp-[A-Za-z0-9_-]{43}"),
    Spec::token(
        "braintree_access_token",
        &["access_token$"],
        r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}",
    ),
    Spec::token(
        "shopify_token",
        &["shpat_", "shpca_", "shppa_", "shpss_"],
        r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    ),
    Spec::token(
        "flutterwave_secret",
        &["FLWSECK"],
        r"FLWSECK(?:_TEST)?-[A-Za-z0-9]{12,40}(?:-X)?",
    ),
    Spec::token(
        "plaid_access_token",
        &[
            "access-sandbox-",
            "access-production-",
            "access-development-",
        ],
        r"access-(?:sandbox|production|development)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    Spec::token("gocardless_token", &["live_"], r"live_[A-Za-z0-9_=-]{40}"),
    Spec::token("mollie_api_key", &["live_"], r"live_[A-Za-z0-9]{30}"),
    Spec::token(
        "lob_api_key",
        &["live_", "test_"],
        r"(?:live|test)_[a-f0-9]{35}",
    ),
    Spec::token("easypost_key", &["EZAK", "EZTK"], r"EZ[AT]K[A-Za-z0-9]{54}"),
    Spec::token(
        "duffel_token",
        &["duffel_"],
        r"duffel_(?:test|live)_[A-Za-z0-9_=-]{43}",
    ),
    Spec::token(
        "shippo_token",
        &["shippo_"],
        r"shippo_(?:live|test)_[a-f0-9]{40}",
    ),
    Spec::token(
        "paddle_api_key",
        &["pdl_"],
        r"pdl_(?:live|sdbx)_apikey_[a-z0-9]{26}_[A-Za-z0-9]{22}_[A-Za-z0-9]{3}",
    ),
    Spec::token(
        "sendgrid_api_key",
        &["SG."],
        r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    ),
    Spec::token("mailgun_api_key", &["key-"], r"key-[a-f0-9]{32}"),
    Spec::token("mailchimp_api_key", &["-us"], r"[a-f0-9]{32}-us[0-9]{1,2}").back(32),
    Spec::token(
        "brevo_api_key",
        &["xkeysib-", "xsmtpsib-"],
        r"x(?:keysib|smtpsib)-[a-f0-9]{64}-[A-Za-z0-9]{16}",
    ),
    Spec::token(
        "resend_api_key",
        &["re_"],
        r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}",
    ),
    Spec::token("mailersend_token", &["mlsn."], r"mlsn\.[a-f0-9]{64}"),
    Spec::token("klaviyo_private_key", &["pk_"], r"pk_[a-f0-9]{34}"),
    Spec::token("clickup_token", &["pk_"], r"pk_[0-9]{6,10}_[A-Z0-9]{32}"),
    Spec::token(
        "notion_token",
        &["ntn_", "secret_"],
        r"(?:ntn_[A-Za-z0-9]{40,50}|secret_[A-Za-z0-9]{43})",
    ),
    Spec::token(
        "airtable_token",
        &["pat"],
        r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",
    ),
    Spec::token(
        "linear_token",
        &["lin_api_", "lin_oauth_"],
        r"lin_(?:api_[A-Za-z0-9]{40}|oauth_[A-Za-z0-9]{40,64})",
    ),
    Spec::token(
        "figma_token",
        &["figd_", "figu_", "figo_"],
        r"fig[duo]_[A-Za-z0-9_-]{36,50}",
    ),
    Spec::token(
        "dropbox_token",
        &["sl."],
        r"sl\.(?:u\.)?[A-Za-z0-9_-]{100,1500}",
    ),
    Spec::token("typeform_token", &["tfp_"], r"tfp_[A-Za-z0-9_.=-]{44,59}"),
    Spec::token("contentful_token", &["CFPAT-"], r"CFPAT-[A-Za-z0-9_-]{43}"),
    Spec::token(
        "hubspot_token",
        &["pat-na", "pat-eu", "pat-ap"],
        r"pat-(?:na|eu|ap)[0-9]-[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    ),
    Spec::token("frameio_token", &["fio-u-"], r"fio-u-[A-Za-z0-9_=-]{64}"),
    Spec::token("adobe_client_secret", &["p8e-"], r"p8e-[A-Za-z0-9_-]{32}"),
    Spec::token("okta_token", &["SSWS "], r"SSWS (00[A-Za-z0-9_-]{39,40})"),
    Spec::token(
        "salesforce_token",
        &["00D"],
        r"00D[A-Za-z0-9]{12,15}![A-Za-z0-9._]{80,120}",
    ),
    Spec::token("facebook_token", &["EAA"], r"EAA[A-Za-z0-9]{90,300}"),
    Spec::token(
        "twitter_bearer_token",
        &["AAAAAAAAAAAAAAAAAAAAA"],
        r"A{20,24}[A-Za-z0-9%]{50,120}",
    ),
];
