//! What outputs are full of and nobody needs to hide.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::random::*;

type Make = fn(&mut Random) -> String;

const WORDS: &[&str] = &[
    "worker", "queue", "retry", "shard", "build", "cache", "index", "upload", "render", "report",
    "batch", "invoice", "image", "session", "tenant", "window",
];

fn word(r: &mut Random) -> &'static str {
    r.pick(WORDS)
}

/// Digits whose Luhn sum is off.
fn bad_luhn(r: &mut Random, prefix: &str, len: usize) -> String {
    loop {
        let text = format!("{prefix}{}", r.text(DIGITS, len - prefix.len()));
        let sum: u32 = text
            .bytes()
            .rev()
            .enumerate()
            .map(|(i, b)| {
                let d = u32::from(b - b'0');
                if i % 2 == 0 {
                    d
                } else {
                    d * 2 / 10 + d * 2 % 10
                }
            })
            .sum();
        if !sum.is_multiple_of(10) {
            return text;
        }
    }
}

fn wrong_crc(r: &mut Random, prefix: &str) -> String {
    let body = r.text(BASE62, 30);
    format!("{prefix}{body}{}", base62(crc32(body.as_bytes()) ^ 1))
}

const KINDS: &[(&str, Make)] = &[
    // Checksums that fail.
    ("github checksum", |r| {
        let p = r.pick(&["ghp_", "gho_", "ghu_", "ghs_"]);
        format!("saw {} in a fixture", wrong_crc(r, p))
    }),
    ("npm checksum", |r| {
        format!("//registry.corp.net/ {}", wrong_crc(r, "npm_"))
    }),
    ("atlassian checksum", |r| {
        let body = format!("ATATT3xFfGF0{}", r.text(URL64, 171));
        format!("{body}={:08X}", crc32(body.as_bytes()) ^ 7)
    }),
    ("card checksum", |r| {
        format!(r#"{{"card_number":"{}"}}"#, bad_luhn(r, "4", 16))
    }),
    ("iban checksum", |r| {
        let body = r.text(DIGITS, 18);
        let n = 98
            - format!("{body}131400")
                .bytes()
                .fold(0_u64, |n, b| (n * 10 + u64::from(b - b'0')) % 97);
        format!("IBAN DE{:02}{body}", (n + 1) % 97)
    }),
    // What stands for a secret.
    ("placeholder", |r| {
        let v = r.pick(&[
            "changeme",
            "<password>",
            "your_password_here",
            "********",
            "xxxxxxxx",
            "REPLACE_ME",
            "password",
            "null",
            "redacted",
            "example-password",
            "secret",
        ]);
        format!("DB_PASSWORD={v}\n")
    }),
    ("placeholder", |r| {
        let v = r.pick(&[
            "<your-api-key>",
            "YOUR_API_KEY",
            "xxxxxxxxxxxxxxxxxxxxxxxx",
            "insert-your-token-here",
            "TODO",
            "dummy-token-for-tests",
            "...",
        ]);
        format!(r#"{{"api_key":"{v}"}}"#)
    }),
    ("variable", |r| {
        let v = r.pick(&[
            "${DB_PASSWORD}",
            "$DB_PASSWORD",
            "{{ .Values.password }}",
            "%(password)s",
            "process.env.DB_PASSWORD",
            "os.environ['PW']",
            "${{ secrets.TOKEN }}",
            "#{password}",
            "config.db.password",
            "vault:secret/data/db#pw",
            "op://infra/db/password",
            "getPassword()",
        ]);
        format!("password: {v}\n")
    }),
    ("variable", |r| {
        let v = r.pick(&[
            "${API_TOKEN}",
            "$(cat token.txt)",
            "{{api_token}}",
            "ENV['TOKEN']",
            "arn:aws:secretsmanager:eu-1:1:secret:x",
        ]);
        format!("api_token = \"{v}\"\n")
    }),
    ("url placeholder", |r| {
        let v = r.pick(&[
            "password",
            "${PASSWORD}",
            "<password>",
            "****",
            "pass",
            "xxxx",
            "$DB_PASS",
        ]);
        format!("postgres://user:{v}@localhost:5432/{}", word(r))
    }),
    ("documented example", |r| {
        r.pick(&[
            "aws_access_key_id = AKIAIOSFODNN7EXAMPLE",
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_SESSION_TOKEN=AQoDYXdzEXAMPLEtokenEXAMPLEtokenEXAMPLE",
            "stripe.api_key = 'sk_test_xxxxxxxxxxxxxxxxxxxxxxxx'",
            "Authorization: Bearer <token>",
            "Authorization: Bearer YOUR_TOKEN_HERE",
            "Authorization: Bearer $TOKEN",
        ])
        .to_owned()
    }),
    // Numbers and names of things.
    ("uuid", |r| {
        format!(r#"{{"{}_id":"{}"}}"#, word(r), r.uuid())
    }),
    ("uuid", |r| format!("{} {} started\n", word(r), r.uuid())),
    ("uuid under a key", |r| {
        format!(
            r#"{{"request_token_id":"{}","session":"{}"}}"#,
            r.uuid(),
            r.uuid()
        )
    }),
    ("sha256", |r| {
        format!("sha256:{}  {}.tar.gz", r.text(HEX, 64), word(r))
    }),
    ("commit", |r| {
        format!(
            "commit {}\nMerge: {} {}\n",
            r.text(HEX, 40),
            r.text(HEX, 7),
            r.text(HEX, 7)
        )
    }),
    ("md5", |r| {
        format!(
            r#"{{"etag":"\"{}\"","md5":"{}"}}"#,
            r.text(HEX, 32),
            r.text(HEX, 32)
        )
    }),
    ("image digest", |r| {
        format!("image: ghcr.io/corp/{}@sha256:{}", word(r), r.text(HEX, 64))
    }),
    ("password hash name", |r| {
        format!(r#"{{"password_hash":"$2b$12${}"}}"#, r.text(BASE62, 53))
    }),
    ("package-lock", |r| {
        format!(
            "      \"integrity\": \"sha512-{}==\",\n",
            r.text(BASE64, 86)
        )
    }),
    ("yarn.lock", |r| {
        format!(
            "  resolved \"https://registry.corp.net/{}/-/{}-1.2.3.tgz#{}\"\n",
            word(r),
            word(r),
            r.text(HEX, 40)
        )
    }),
    ("cargo.lock", |r| {
        format!(
            "name = \"{}\"\nversion = \"1.0.{}\"\nchecksum = \"{}\"\n",
            word(r),
            r.below(90),
            r.text(HEX, 64)
        )
    }),
    ("go.sum", |r| {
        format!(
            "github.com/corp/{} v1.{}.0 h1:{}=\n",
            word(r),
            r.below(40),
            r.text(BASE64, 43)
        )
    }),
    ("poetry.lock", |r| {
        format!(
            "    {{file = \"{}-1.0-py3-none-any.whl\", hash = \"sha256:{}\"}},\n",
            word(r),
            r.text(HEX, 64)
        )
    }),
    ("ssh public key", |r| {
        format!(
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ{} deploy@build\n",
            r.text(BASE64, 300)
        )
    }),
    ("ssh public key", |r| {
        format!(
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{} ci\n",
            r.text(BASE64, 43)
        )
    }),
    ("public key", |r| super::secrets::pem(r, "PUBLIC KEY")),
    ("certificate", |r| super::secrets::pem(r, "CERTIFICATE")),
    ("publishable key", |r| {
        format!("Stripe('pk_live_{}')", r.text(BASE62, 24))
    }),
    ("publishable key", |r| {
        format!(
            r#"{{"publishableKey":"pk_test_{}","sitekey":"6L{}"}}"#,
            r.text(BASE62, 24),
            r.text(URL64, 38)
        )
    }),
    ("public token", |r| {
        format!(r#"{{"public_key":"{}"}}"#, r.text(BASE64, 44))
    }),
    ("cursor", |r| {
        format!(
            r#"{{"cursor":"{}"}}"#,
            STANDARD.encode(format!("{{\"id\":{},\"o\":2}}", r.text(DIGITS, 7)))
        )
    }),
    ("next page", |r| {
        format!(r#"{{"next_page_token":"{}"}}"#, r.text(URL64, 48))
    }),
    ("next page", |r| {
        format!(r#"{{"nextPageToken":"{}","items":[]}}"#, r.text(BASE62, 40))
    }),
    ("next page", |r| {
        format!("GET /v1/items?page_token={}&limit=50", r.text(BASE62, 32))
    }),
    ("continuation", |r| {
        format!(r#"{{"NextContinuationToken":"{}"}}"#, r.text(BASE64, 60))
    }),
    ("sync token", |r| {
        format!(r#"{{"sync_token":"{}"}}"#, r.text(BASE62, 30))
    }),
    ("names about secrets", |r| {
        let (k, v) = r.pick(&[
            ("secret_name", "prod/db-main-01"),
            ("password_file", "/run/secrets/db_pw1"),
            ("token_type", "bearer_v2_opaque"),
            ("api_key_id", "k8x92hq1m4"),
            ("credentials_file", "/etc/app/cred01.json"),
            ("token_name", "deploy-bot-2026a"),
            ("password_policy", "min12-upper1-digit1"),
            ("key_type", "ssh-ed25519-cert-v01"),
        ]);
        format!(r#"{{"{k}":"{v}"}}"#)
    }),
    ("token counts", |r| {
        format!(
            r#"{{"prompt_tokens":{},"max_tokens":{},"total_tokens":{}}}"#,
            r.below(9000),
            r.below(9000),
            r.below(90000)
        )
    }),
    ("idempotency", |r| {
        format!("Idempotency-Key: {}\n", r.uuid())
    }),
    ("csrf name", |r| {
        format!(
            r#"<input name="csrf_token" value="{}">"#,
            r.text(BASE62, 32)
        )
    }),
    ("primary key", |r| {
        format!(
            r#"{{"primary_key":"{}","sort_key":"{}"}}"#,
            r.text(LOWER_DIGITS, 20),
            r.text(LOWER_DIGITS, 16)
        )
    }),
    ("sentence", |r| {
        r.pick(&[
            "The password must have 12 characters and one digit.",
            "password: required",
            "Invalid token: unexpected end of input",
            "enter your password to continue",
            "token expired, please log in again",
            "secret: not found",
            "the api key is missing",
            "your password was changed",
            "Forgot password? Click here",
            "password authentication failed for user app",
            "Wrong password entered 3 times",
            "bearer of bad news",
            "basic authentication is disabled here",
        ])
        .to_owned()
    }),
    ("code", |r| {
        r.pick(&[
            "const token = await getToken(user.id);",
            "self.password = password",
            "if token == nil { return ErrNoToken }",
            "let secret = load_secret(path)?;",
            "password: String,",
            "token: Option<Token>,",
            "def login(username, password=None):",
            "apiKey: config.apiKey,",
            "private String password;",
            "const { token } = req.headers;",
            "password = input('Password: ')",
            "headers['Authorization'] = 'Bearer ' + token",
            "secret_key: ${{ inputs.key }}",
            "fn is_token(c: char) -> bool { c.is_alphanumeric() }",
            "SELECT password_hash FROM users WHERE id = $1",
            "api_key=os.getenv(\"API_KEY\")",
        ])
        .to_owned()
    }),
    // Addresses of nobody.
    ("reserved domain", |r| {
        let d = r.pick(&[
            "example.com",
            "example.org",
            "example.net",
            "mail.example.com",
            "corp.test",
            "host.invalid",
            "site.example",
            "db.local",
        ]);
        format!("mail {}{}@{d}", word(r), r.below(99))
    }),
    ("git@", |r| {
        format!("git clone git@github.com:corp/{}.git", word(r))
    }),
    ("noreply@", |r| {
        let d = r.pick(&[
            "github.com",
            "corp.io",
            "users.noreply.github.com",
            "linkedin.com",
        ]);
        let l = r.pick(&["noreply", "no-reply", "donotreply"]);
        format!("Author: bot <{l}@{d}>")
    }),
    ("package at version", |r| {
        format!(
            "+ {}@{}.{}.{} added",
            word(r),
            r.below(9),
            r.below(30),
            r.below(9)
        )
    }),
    ("scoped package", |r| {
        format!("import x from '@corp/{}/lib'", word(r))
    }),
    ("retina image", |r| {
        format!("GET /static/{}@2x.png 200", word(r))
    }),
    ("systemd unit", |r| {
        format!("systemctl restart getty@tty{}.service", r.below(9))
    }),
    ("private address", |r| {
        format!(
            "peer 10.{}.{}.{} joined; 192.168.{}.{} left",
            r.below(256),
            r.below(256),
            r.below(256),
            r.below(256),
            r.below(256)
        )
    }),
    ("public address", |r| {
        format!(
            "connection from 8{}.{}.{}.{}:{}",
            r.below(10),
            r.below(256),
            r.below(256),
            r.below(256),
            r.between(1024, 65000)
        )
    }),
    ("mac address", |r| {
        let parts: Vec<String> = (0..6).map(|_| r.text(HEX, 2)).collect();
        format!("ether {}", parts.join(":"))
    }),
    // Numbers of nothing personal.
    ("timestamp", |r| {
        format!(
            "2026-{:02}-{:02}T{:02}:{:02}:{:02}.{}Z level=info msg=done",
            r.between(1, 12),
            r.between(1, 28),
            r.below(24),
            r.below(60),
            r.below(60),
            r.text(DIGITS, 6)
        )
    }),
    ("timestamp", |r| {
        format!(
            "[2026-{:02}-{:02} {:02}:{:02}:{:02},{}] INFO started",
            r.between(1, 12),
            r.between(1, 28),
            r.below(24),
            r.below(60),
            r.below(60),
            r.text(DIGITS, 3)
        )
    }),
    ("epoch", |r| {
        format!(
            r#"{{"created_at":17{},"updated_ns":17{}}}"#,
            r.text(DIGITS, 8),
            r.text(DIGITS, 17)
        )
    }),
    ("order number", |r| {
        format!("order {} shipped", r.text("123456789", 9))
    }),
    ("order number", |r| {
        format!(
            r#"{{"order_no":"{}","sku":"{}"}}"#,
            r.text("123456789", 12),
            r.text(DIGITS, 8)
        )
    }),
    ("snowflake", |r| {
        format!(r#"{{"id":"1{}"}}"#, r.text(DIGITS, 18))
    }),
    ("sixteen digits", |r| {
        format!(r#"{{"trace":{}{}}}"#, r.text("789", 1), r.text(DIGITS, 15))
    }),
    ("sixteen plain digits", |r| {
        format!(
            "object 9{} of bucket {}",
            r.text(DIGITS, 15),
            r.text(DIGITS, 4)
        )
    }),
    ("eleven digits", |r| {
        format!(
            "batch {} done in {} ms",
            r.text("123456789", 11),
            r.below(9999)
        )
    }),
    ("ten digits", |r| {
        format!("offset={} lag={}", r.text("123456789", 10), r.below(999))
    }),
    ("bytes", |r| {
        format!(
            "wrote {} bytes in {}.{}s",
            r.text("123456789", 10),
            r.below(9),
            r.text(DIGITS, 9)
        )
    }),
    ("decimal", |r| {
        format!(
            "loss: 0.{} acc: 0.{}",
            r.text(DIGITS, 16),
            r.text(DIGITS, 16)
        )
    }),
    ("coordinates", |r| {
        format!(
            "{{\"lat\":52.{},\"lon\":13.{}}}",
            r.text(DIGITS, 14),
            r.text(DIGITS, 14)
        )
    }),
    ("version", |r| {
        format!(
            "v{}.{}.{}-rc.{}+build.{}",
            r.below(9),
            r.below(30),
            r.below(90),
            r.below(9),
            r.text(DIGITS, 8)
        )
    }),
    ("matrix", |r| {
        format!(
            "{} {} {} {} {}",
            r.below(9999),
            r.below(9999),
            r.below(9999),
            r.below(9999),
            r.below(9999)
        )
    }),
    ("money", |r| {
        format!(
            "total: $1{},{},{}.00",
            r.text(DIGITS, 1),
            r.text(DIGITS, 3),
            r.text(DIGITS, 3)
        )
    }),
    ("phone time", |r| {
        format!(
            r#"{{"phone_verified_at":17{},"phone_id":{}}}"#,
            r.text(DIGITS, 8),
            r.text("123456789", 10)
        )
    }),
    ("fictional phone", |r| {
        format!(
            "call (415) 555-01{} or 212-555-01{}",
            r.text(DIGITS, 2),
            r.text(DIGITS, 2)
        )
    }),
    ("isbn", |r| {
        format!(
            "ISBN 978-{}-{}-{}-{}",
            r.below(9),
            r.text(DIGITS, 3),
            r.text(DIGITS, 5),
            r.below(9)
        )
    }),
    ("tracking", |r| {
        format!("parcel 1Z{} out for delivery", r.text(UPPER_DIGITS, 16))
    }),
    ("port table", |r| {
        format!(
            "{} {} {} LISTEN",
            r.between(1000, 9999),
            r.between(1000, 9999),
            r.between(100_000, 999_999)
        )
    }),
    ("serial", |r| {
        format!(
            "serial {}-{}-{}",
            r.text(UPPER_DIGITS, 5),
            r.text(UPPER_DIGITS, 5),
            r.text(UPPER_DIGITS, 5)
        )
    }),
    ("hex words", |r| {
        format!(
            "0x{} 0x{} {}",
            r.text(HEX, 8),
            r.text(HEX, 16),
            r.text(HEX, 12)
        )
    }),
    ("colour", |r| {
        format!(
            "fill=\"#{}\" stroke=\"#{}\"",
            r.text(HEX, 6),
            r.text(HEX, 6)
        )
    }),
    ("image data", |r| {
        format!("data:image/png;base64,iVBORw0KGgo{}", r.text(BASE64, 400))
    }),
    ("random base64", |r| {
        format!(r#"{{"thumbnail":"{}"}}"#, r.text(BASE64, 256))
    }),
    ("base64 of words", |r| {
        format!(
            r#"{{"payload":"{}"}}"#,
            STANDARD.encode(format!(
                "the {} of {} is {} rows long",
                word(r),
                word(r),
                r.below(999)
            ))
        )
    }),
    ("percent", |r| {
        format!(
            "GET /search?q={}%20{}%2F{}&page={}",
            word(r),
            word(r),
            word(r),
            r.below(9)
        )
    }),
    ("url", |r| {
        format!(
            "https://{}.corp.io:{}/api/v{}/{}?id={}",
            word(r),
            r.between(1000, 9999),
            r.below(9),
            word(r),
            r.text(HEX, 24)
        )
    }),
    ("url with user", |r| {
        format!("ssh://deploy@{}.corp.io/srv/{}", word(r), word(r))
    }),
    ("signed url id", |r| {
        format!(
            "https://cdn.corp.io/{}/{}.jpg?v={}",
            r.text(HEX, 32),
            word(r),
            r.text(HEX, 8)
        )
    }),
    ("stack trace", |r| {
        format!(
            "    at {}::{} (src/{}.rs:{}:{})\n",
            word(r),
            word(r),
            word(r),
            r.below(900),
            r.below(90)
        )
    }),
    ("access log", |r| {
        format!(
            "10.0.{}.{} - - [12/Mar/2026:10:{:02}:{:02} +0000] \"GET /{} HTTP/1.1\" 200 {}\n",
            r.below(256),
            r.below(256),
            r.below(60),
            r.below(60),
            word(r),
            r.below(99999)
        )
    }),
    ("json log", |r| {
        format!(
            "{{\"ts\":\"2026-03-12T10:00:{:02}Z\",\"level\":\"info\",\"job\":\"{}\",\"ms\":{}}}\n",
            r.below(60),
            r.uuid(),
            r.below(99999)
        )
    }),
    ("kubernetes", |r| {
        format!(
            "pod/{}-{}-{} 1/1 Running 0 3d\n",
            word(r),
            r.text(LOWER_DIGITS, 10),
            r.text(LOWER_DIGITS, 5)
        )
    }),
    ("terraform", |r| {
        format!(
            "aws_instance.{}: Creation complete after {}s [id=i-0{}]",
            word(r),
            r.below(90),
            r.text(HEX, 16)
        )
    }),
    ("csv", |r| {
        format!(
            "{},{},{}.{},{}\n",
            r.below(9999),
            word(r),
            r.below(99),
            r.below(99),
            r.below(999)
        )
    }),
    ("sql", |r| {
        format!(
            "SELECT id, name FROM {} WHERE state = 'open' AND kind = 'x' ORDER BY id LIMIT {}",
            word(r),
            r.below(99)
        )
    }),
    ("markdown", |r| {
        format!(
            "## {}\n\n- [x] {} ({})\n- see `{}.yaml`\n",
            word(r),
            word(r),
            r.below(99),
            word(r)
        )
    }),
    ("redacted", |r| {
        let k = r.pick(&["secret_leak", "pii", "custom", "code_injection"]);
        format!(r#"{{"password":"[REDACTED:{k}]","mail":"[REDACTED:pii]"}}"#)
    }),
    ("prose", |r| {
        r.pick(&[
            "Ignore the previous error, the instructions are in the manual.",
            "We forgot to add the migration; run it again.",
            "You are now connected to database \"shop\".",
            "The union of both sets has 12 elements.",
            "Use `rm -r build` to clean up.",
            "The curl command failed with 404.",
            "drop the ball, pick it up",
            "system prompts are stored per tenant",
            "Please select all rows or 1 column.",
            "She said 'or else' and left.",
        ])
        .to_owned()
    }),
    ("a key that is talked about", |r| {
        format!(
            "Reads `{0}BEGIN PRIVATE KEY{0}` (PKCS#8) of {1}.\nWrites `{0}END PRIVATE KEY{0}`.",
            "-----",
            word(r)
        )
    }),
    ("code about passwords", |r| {
        r.pick(&[
            "bus.password = Some(Secret::new(password));",
            "panic!(\"wrong password: {error:?}\")",
            "pub pw_passwd: *mut c_char,",
            "pub log_passwd: __u32,",
            "fn from(private_key: pkcs8::PrivateKeyInfo<'_>)",
            "const USER_PASSWORD: crate::ObjectIdentifier =",
            "url: postgres://airlock:${POSTGRES_PASSWORD:?set it}@db/airlock",
            "curl -u user:$TOKEN https://api.corp.io",
            "curl -u user:password https://api.corp.io",
            "sshpass -p \"$PASS\" ssh host",
            "password: {password}",
        ])
        .to_owned()
    }),
    ("scripts", |r| {
        r.pick(&[
            "if [ \"$(id -u)\" -eq 0 ]; then echo root; fi",
            "RUN apt-get update && rm -rf /var/lib/apt/lists/*",
            "see `id`, `bash` and `curl` in the manual | more",
            "redis.call('PEXPIRE', KEYS[2], 86400000)",
            "dir=$(cd \"$(dirname \"$0\")\" && pwd)",
            "rm -rf ./target && mkdir -p out",
            "nc -z localhost 5432 || exit 1",
        ])
        .to_owned()
    }),
    ("statements", |r| {
        r.pick(&[
            "DELETE FROM a WHERE id = 'x';\nDELETE FROM b WHERE id = 'x';",
            "SELECT min(a) FROM t WHERE id = ANY($1)\n UNION ALL\n SELECT b FROM u",
            "ALTER TABLE a ADD COLUMN t text COLLATE \"C\";\n\nALTER TABLE b ADD x int;",
            "UPDATE a SET state = 'done'; -- next\nSELECT 1;",
            "-- drop table a is not run here",
            "warn!(\"attempting connection\");\n\n    sleep(duration).await;",
            "datetime!(+999999-12-31 23:59:59.999)",
        ])
        .to_owned()
    }),
    ("uuid of digits", |r| {
        format!(
            "0192{}-0000-7000-8000-{}",
            r.text(DIGITS, 4),
            r.text(DIGITS, 12)
        )
    }),
];

pub fn all(r: &mut Random) -> Vec<String> {
    let mut all = Vec::new();
    for (_, make) in KINDS {
        for _ in 0..24 {
            all.push(make(r));
        }
    }
    all
}
