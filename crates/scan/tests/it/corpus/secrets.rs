//! Secrets, made of a public prefix, random characters and the checksum that the issuer
//! documents. No finished one is in the repository.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::Positive;
use super::random::*;

type Make = fn(&mut Random) -> String;

pub fn crc_token(r: &mut Random, prefix: &str) -> String {
    let body = r.text(BASE62, 30);
    format!("{prefix}{body}{}", base62(crc32(body.as_bytes())))
}

/// A token in three parts with dots between, as RFC 7519 has it.
pub fn jwt(r: &mut Random) -> String {
    let header = r.pick(&[
        r#"{"alg":"HS256","typ":"JWT"}"#,
        r#"{"alg":"RS256","typ":"JWT","kid":"k1"}"#,
        r#"{"typ":"JWT","alg":"ES256"}"#,
    ]);
    let body = format!(
        r#"{{"sub":"{}","iat":17{}}}"#,
        r.text(DIGITS, 10),
        r.text(DIGITS, 8)
    );
    let signature: Vec<u8> = (0..32).map(|_| r.below(256) as u8).collect();
    let parts = [header.as_bytes(), body.as_bytes(), &signature].map(|p| URL_SAFE_NO_PAD.encode(p));
    parts.join(".")
}

/// Key material in armour.
pub fn pem(r: &mut Random, label: &str) -> String {
    let lines: Vec<String> = (0..6).map(|_| r.text(BASE64, 64)).collect();
    let dashes = "-----";
    format!(
        "{dashes}BEGIN {label}{dashes}\n{}\n{dashes}END {label}{dashes}",
        lines.join("\n")
    )
}

fn password(r: &mut Random) -> String {
    let word = r.text(LOWER, 6);
    let symbol = r.pick(&["!", "#", "&", "?", "*", "+"]);
    let (upper, digits) = (r.text(UPPER, 2), r.text(DIGITS, 3));
    format!("{upper}{word}{symbol}{digits}")
}

/// Tokens that anybody recognises by their form.
const TOKENS: &[(&str, Make)] = &[
    ("aws access key", |r| format!("AKIA{}", r.text(BASE32, 16))),
    ("aws temporary key", |r| {
        format!("ASIA{}", r.text(BASE32, 16))
    }),
    ("google api key", |r| format!("AIza{}", r.text(URL64, 35))),
    ("google access token", |r| {
        format!("ya29.{}", r.text(URL64, 120))
    }),
    ("google client secret", |r| {
        format!("GOCSPX-{}", r.text(URL64, 28))
    }),
    ("azure client secret", |r| {
        format!("{}8Q~{}", r.text(BASE62, 3), r.text(BASE62, 34))
    }),
    ("digitalocean", |r| format!("dop_v1_{}", r.text(HEX, 64))),
    ("alibaba", |r| format!("LTAI5t{}", r.text(BASE62, 18))),
    ("github personal", |r| crc_token(r, "ghp_")),
    ("github oauth", |r| crc_token(r, "gho_")),
    ("github user", |r| crc_token(r, "ghu_")),
    ("github server", |r| crc_token(r, "ghs_")),
    ("github fine-grained", |r| {
        format!("github_pat_{}_{}", r.text(BASE62, 22), r.text(BASE62, 59))
    }),
    ("gitlab personal", |r| {
        format!("glpat-{}", r.text(URL64, 20))
    }),
    ("gitlab trigger", |r| format!("glptt-{}", r.text(HEX, 40))),
    ("gitlab runner", |r| {
        format!("GR1348941{}", r.text(URL64, 20))
    }),
    ("npm", |r| crc_token(r, "npm_")),
    ("pypi", |r| {
        format!("pypi-AgEIcHlwaS5vcmc{}", r.text(URL64, 120))
    }),
    ("rubygems", |r| format!("rubygems_{}", r.text(HEX, 48))),
    ("crates.io", |r| format!("cio{}", r.text(BASE62, 32))),
    ("docker hub", |r| format!("dckr_pat_{}", r.text(URL64, 27))),
    ("artifactory", |r| format!("AKCp{}", r.text(BASE62, 69))),
    ("slack bot", |r| {
        format!(
            "xoxb-{}-{}-{}",
            r.text("123456789", 12),
            r.text("123456789", 13),
            r.text(BASE62, 24)
        )
    }),
    ("slack user", |r| {
        let ids = [12, 12, 13].map(|n| r.text("123456789", n));
        format!("xoxp-{}-{}", ids.join("-"), r.text(HEX, 32))
    }),
    ("slack app", |r| {
        format!(
            "xapp-1-A{}-{}-{}",
            r.text(UPPER_DIGITS, 10),
            r.text("123456789", 13),
            r.text(HEX, 64)
        )
    }),
    ("slack webhook", |r| {
        format!(
            "https://hooks.slack.com/services/T{}/B{}/{}",
            r.text(UPPER_DIGITS, 8),
            r.text(UPPER_DIGITS, 10),
            r.text(BASE62, 24)
        )
    }),
    ("discord webhook", |r| {
        format!(
            "https://discord.com/api/webhooks/{}/{}",
            r.text("123456789", 18),
            r.text(URL64, 68)
        )
    }),
    ("discord bot", |r| {
        let id = r.text("123456789", 18);
        format!(
            "{}.{}.{}",
            STANDARD_NO_PAD.encode(id),
            r.text(BASE62, 6),
            r.text(BASE62, 38)
        )
    }),
    ("telegram", |r| {
        format!("{}:AA{}", r.text("123456789", 10), r.text(URL64, 33))
    }),
    ("twilio", |r| format!("SK{}", r.text(HEX, 32))),
    ("sendgrid", |r| {
        format!("SG.{}.{}", r.text(URL64, 22), r.text(URL64, 43))
    }),
    ("mailgun", |r| format!("key-{}", r.text(HEX, 32))),
    ("mailchimp", |r| {
        format!("{}-us{}", r.text(HEX, 32), r.between(1, 21))
    }),
    ("stripe live", |r| format!("sk_live_{}", r.text(BASE62, 24))),
    ("stripe long", |r| {
        format!("sk_live_51{}", r.text(BASE62, 97))
    }),
    ("stripe restricted", |r| {
        format!("rk_live_{}", r.text(BASE62, 24))
    }),
    ("square", |r| format!("sq0atp-{}", r.text(URL64, 22))),
    ("shopify", |r| format!("shpat_{}", r.text(HEX, 32))),
    ("braintree", |r| {
        format!(
            "access_token$production${}${}",
            r.text(LOWER_DIGITS, 16),
            r.text(HEX, 32)
        )
    }),
    ("openai project", |r| {
        format!("sk-proj-{}T3BlbkFJ{}", r.text(URL64, 74), r.text(URL64, 74))
    }),
    ("openai", |r| {
        format!("sk-{}T3BlbkFJ{}", r.text(BASE62, 20), r.text(BASE62, 20))
    }),
    ("anthropic", |r| {
        format!("sk-ant-api03-{}AA", r.text(URL64, 93))
    }),
    ("hugging face", |r| {
        format!("hf_{}", r.text(&format!("{UPPER}{LOWER}"), 34))
    }),
    ("replicate", |r| format!("r8_{}", r.text(BASE62, 37))),
    ("groq", |r| format!("gsk_{}", r.text(BASE62, 52))),
    ("perplexity", |r| format!("pplx-{}", r.text(BASE62, 48))),
    ("openrouter", |r| format!("sk-or-v1-{}", r.text(HEX, 64))),
    ("new relic", |r| {
        format!("NRAK-{}", r.text(UPPER_DIGITS, 27))
    }),
    ("grafana service account", |r| {
        format!("glsa_{}_{}", r.text(BASE62, 32), r.text(HEX, 8))
    }),
    ("grafana cloud", |r| {
        format!(
            "glc_{}",
            STANDARD.encode(format!(
                r#"{{"o":"{}","n":"x","k":"{}"}}"#,
                r.text(DIGITS, 6),
                r.text(BASE62, 24)
            ))
        )
    }),
    ("sentry user", |r| format!("sntryu_{}", r.text(HEX, 64))),
    ("dynatrace", |r| {
        format!("dt0c01.{}.{}", r.text(BASE32, 24), r.text(BASE32, 64))
    }),
    ("vault", |r| format!("hvs.{}", r.text(URL64, 92))),
    ("terraform cloud", |r| {
        format!("{}.atlasv1.{}", r.text(BASE62, 14), r.text(BASE62, 67))
    }),
    ("pulumi", |r| format!("pul-{}", r.text(HEX, 40))),
    ("doppler", |r| format!("dp.pt.{}", r.text(BASE62, 43))),
    ("databricks", |r| format!("dapi{}", r.text(HEX, 32))),
    ("planetscale", |r| {
        format!("pscale_tkn_{}", r.text(URL64, 43))
    }),
    ("supabase", |r| format!("sbp_{}", r.text(HEX, 40))),
    ("cloudflare origin ca", |r| {
        format!("v1.0-{}-{}", r.text(HEX, 24), r.text(HEX, 146))
    }),
    ("linear", |r| format!("lin_api_{}", r.text(BASE62, 40))),
    ("notion", |r| format!("ntn_{}", r.text(BASE62, 46))),
    ("airtable", |r| {
        format!("pat{}.{}", r.text(BASE62, 14), r.text(HEX, 64))
    }),
    ("figma", |r| format!("figd_{}", r.text(URL64, 40))),
    ("atlassian", |r| {
        let body = format!("ATATT3xFfGF0{}", r.text(URL64, 171));
        format!("{body}={:08X}", crc32(body.as_bytes()))
    }),
    ("bitbucket", |r| {
        let rest = format!("xFfGN0{}", r.text(URL64, 171));
        format!("ATCTT3{rest}={:08X}", crc32(rest.as_bytes()))
    }),
    ("heroku", |r| format!("HRKU-AA{}", r.text(URL64, 58))),
    ("postman", |r| {
        format!("PMAK-{}-{}", r.text(HEX, 24), r.text(HEX, 34))
    }),
    ("hubspot", |r| format!("pat-na1-{}", r.uuid())),
    ("netlify", |r| format!("nfp_{}", r.text(BASE62, 36))),
    ("age", |r| {
        format!(
            "AGE-SECRET-KEY-1{}",
            r.text("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)
        )
    }),
    ("tailscale", |r| {
        format!(
            "tskey-auth-k{}CNTRL-{}",
            r.text(BASE62, 11),
            r.text(BASE62, 32)
        )
    }),
    ("circleci", |r| {
        format!("CCIPAT_{}_{}", r.text(BASE62, 22), r.text(HEX, 40))
    }),
    ("launchdarkly", |r| format!("sdk-{}", r.uuid())),
    ("okta", |r| format!("SSWS 00{}", r.text(URL64, 40))),
    ("contentful", |r| format!("CFPAT-{}", r.text(URL64, 43))),
    ("duffel", |r| format!("duffel_live_{}", r.text(URL64, 43))),
    ("easypost", |r| format!("EZAK{}", r.text(BASE62, 54))),
    ("shippo", |r| format!("shippo_live_{}", r.text(HEX, 40))),
    ("typeform", |r| format!("tfp_{}", r.text(BASE62, 44))),
    ("sonarqube", |r| format!("squ_{}", r.text(HEX, 40))),
    ("buildkite", |r| format!("bkua_{}", r.text(HEX, 40))),
    ("aiven", |r| format!("AVNS_{}", r.text(URL64, 19))),
    ("jwt", jwt),
    ("rsa private key", |r| pem(r, "RSA PRIVATE KEY")),
    ("openssh private key", |r| pem(r, "OPENSSH PRIVATE KEY")),
    ("pkcs8 private key", |r| pem(r, "PRIVATE KEY")),
    ("ec private key", |r| pem(r, "EC PRIVATE KEY")),
    ("pgp private key", |r| pem(r, "PGP PRIVATE KEY BLOCK")),
];

/// Where a token stands: `{}` is the token.
const CARRIERS: &[&str] = &[
    "{}",
    "2026-03-04T05:06:07Z INFO deploy: using {} for the upload\n",
    r#"{"result":{"items":[1,2,{"note":"{}"}]}}"#,
    "export CONFIG_VALUE=\"{}\"\n",
    "settings:\n  region: eu-1\n  value: {}\n",
    "the answer is `{}`, see above",
    "[{\"a\":\"x\"},\n{\"a\":\"{}\"}]\n",
];

/// Secrets that their surroundings give away: the text, with the secret in `«»`.
const SURROUNDED: &[(&str, Make)] = &[
    ("aws secret key", |r| {
        format!("aws_secret_access_key = «{}»\n", r.text(BASE64, 40))
    }),
    ("aws secret key", |r| {
        format!(r#"{{"SecretAccessKey":"«{}»"}}"#, r.text(BASE62, 40))
    }),
    ("azure storage", |r| {
        format!(
            "DefaultEndpointsProtocol=https;AccountName=store1;AccountKey=«{}==»;EndpointSuffix=core.windows.net",
            r.text(BASE64, 86)
        )
    }),
    ("database url", |r| {
        format!(
            "DATABASE_URL=postgres://app:«{}»@db.prod.internal:5432/app",
            r.text(BASE62, 16)
        )
    }),
    ("database url", |r| {
        format!(
            "connecting to mysql://root:«{}»@10.0.0.3/shop failed",
            r.text(LOWER_DIGITS, 12)
        )
    }),
    ("database url", |r| {
        format!(
            r#"{{"dsn":"mongodb+srv://svc:«{}»@cluster0.abcde.mongodb.net/prod"}}"#,
            r.text(BASE62, 20)
        )
    }),
    ("database url", |r| {
        format!("redis://:«{}»@cache:6379/0", r.text(BASE62, 18))
    }),
    ("database url", |r| {
        format!(
            "amqp://worker:«{}»@mq.corp.net:5672/vhost",
            r.text(BASE62, 14)
        )
    }),
    ("go dsn", |r| {
        format!("dsn: svc:«{}»@tcp(db:3306)/orders", r.text(BASE62, 14))
    }),
    ("https url", |r| {
        format!(
            "git clone https://ci:«{}»@git.corp.net/team/repo.git",
            r.text(BASE62, 20)
        )
    }),
    ("bearer", |r| {
        format!("Authorization: Bearer «{}»\n", r.text(BASE62, 40))
    }),
    ("bearer", |r| {
        format!(
            r#"{{"headers":{{"authorization":"Bearer «{}»"}}}}"#,
            r.text(URL64, 43)
        )
    }),
    ("bearer", |r| {
        format!(
            "curl -H 'Authorization: Bearer «{}»' https://api.corp.net/v1",
            r.text(BASE62, 32)
        )
    }),
    ("basic", |r| {
        let pair = format!("admin:{}", r.text(BASE62, 12));
        format!("authorization: Basic «{}»\n", STANDARD.encode(pair))
    }),
    ("password in env", |r| {
        format!("DB_PASSWORD=«{}»\n", password(r))
    }),
    ("password in env", |r| {
        format!("export PGPASSWORD='«{}»'\n", password(r))
    }),
    ("password in json", |r| {
        format!(r#"{{"user":"app","password":"«{}»"}}"#, password(r))
    }),
    ("password in json", |r| {
        format!(
            r#"{{"db":{{"dbPassword":"«{}»","port":5432}}}}"#,
            password(r)
        )
    }),
    ("password in yaml", |r| {
        format!("smtp:\n  host: mail\n  password: «{}»\n", password(r))
    }),
    ("password in yaml", |r| {
        format!("spring.datasource.password=«{}»\n", password(r))
    }),
    ("password in words", |r| {
        format!("the root password is «{}» from today", password(r))
    }),
    ("password in german", |r| {
        format!("Passwort: «{}»\n", password(r))
    }),
    ("password in xml", |r| {
        format!("<password>«{}»</password>", password(r))
    }),
    ("password flag", |r| {
        format!("mysql --user=app --password=«{}» shop", password(r))
    }),
    ("curl user", |r| {
        format!(
            "curl -s -u deploy:«{}» https://api.corp.net/",
            r.text(BASE62, 14)
        )
    }),
    ("netrc", |r| {
        format!(
            "machine git.corp.net login ci password «{}»\n",
            r.text(BASE62, 20)
        )
    }),
    ("sshpass", |r| {
        format!("sshpass -p «{}» ssh root@10.0.0.2", r.text(BASE62, 12))
    }),
    ("api key", |r| {
        format!("api_key = \"«{}»\"\n", r.text(HEX, 32))
    }),
    ("api key", |r| {
        format!(r#"{{"apiKey":"«{}»"}}"#, r.text(BASE62, 32))
    }),
    ("api key", |r| {
        format!("X-Api-Key: «{}»\n", r.text(BASE62, 40))
    }),
    ("api key", |r| {
        format!(
            "GET https://api.corp.net/v1/items?api_key=«{}»&limit=5",
            r.text(HEX, 40)
        )
    }),
    ("client secret", |r| {
        format!(
            r#"{{"client_id":"web","client_secret":"«{}»"}}"#,
            r.text(URL64, 40)
        )
    }),
    ("client secret", |r| {
        format!("CLIENT_SECRET=«{}»\n", r.text(BASE62, 32))
    }),
    ("access token", |r| {
        format!(
            r#"{{"access_token":"«{}»","token_type":"bearer","expires_in":3600}}"#,
            r.text(URL64, 43)
        )
    }),
    ("refresh token", |r| {
        format!(r#"{{"refresh_token":"«{}»"}}"#, r.text(BASE62, 48))
    }),
    ("secret key", |r| {
        format!("SECRET_KEY=«{}»\n", r.text(BASE62, 50))
    }),
    ("signing key", |r| {
        format!("signing_key: «{}»\n", r.text(HEX, 64))
    }),
    ("sibling name", |r| {
        format!(
            r#"{{"env":[{{"name":"DB_PASSWORD","value":"«{}»"}}]}}"#,
            password(r)
        )
    }),
    ("sibling name after", |r| {
        format!(
            r#"[{{"value":"«{}»","name":"API_TOKEN"}}]"#,
            r.text(BASE62, 32)
        )
    }),
    ("list of passwords", |r| {
        format!(r#"{{"passwords":["«{}»"]}}"#, password(r))
    }),
    ("heroku key", |r| format!("HEROKU_API_KEY=«{}»\n", r.uuid())),
];

/// A token in another encoding: the text and the run that must be found.
fn encoded(r: &mut Random, i: usize) -> (&'static str, String) {
    let token = crc_token(r, "ghp_");
    match i % 5 {
        0 => (
            "base64",
            format!(
                r#"{{"blob":"«{}»"}}"#,
                STANDARD.encode(format!("token {token} of the bot"))
            ),
        ),
        1 => (
            "base64",
            format!(
                "data: «{}»\n",
                URL_SAFE_NO_PAD.encode(format!("{{\"t\":\"{token}\"}}"))
            ),
        ),
        2 => (
            "percent",
            format!(
                "GET /cb?state=«{}»&x=1",
                format!("a {token}/b")
                    .replace(' ', "%20")
                    .replace('/', "%2F")
                    .replace("ghp_", "%67hp%5F")
            ),
        ),
        3 => {
            let inner = format!(
                "{{\"deep\":{{\"t\":\"\\u0067{}\"}}}}",
                token.get(1..).unwrap()
            );
            let inner = inner.replace('\\', "\\\\").replace('"', "\\\"");
            ("json in json", format!(r#"{{"body":"«{inner}»"}}"#))
        }
        _ => (
            "escapes",
            format!(r#"{{"t":"«\u0067{}»"}}"#, token.get(1..).unwrap()),
        ),
    }
}

pub fn positives(r: &mut Random) -> Vec<Positive> {
    let mut all = Vec::new();
    for (kind, make) in TOKENS {
        for carrier in CARRIERS {
            let token = make(r);
            // In JSON, line breaks of a key are escapes.
            let written = if carrier.contains("\":\"{}") {
                token.replace('\n', "\\n")
            } else {
                token
            };
            let (before, after) = carrier.split_once("{}").unwrap();
            all.push(Positive::new(kind, &format!("{before}«{written}»{after}")));
        }
    }
    for (kind, make) in SURROUNDED {
        for _ in 0..4 {
            all.push(Positive::new(kind, &make(r)));
        }
    }
    for i in 0..25 {
        let (kind, text) = encoded(r, i);
        all.push(Positive::new(kind, &text));
    }
    all
}
