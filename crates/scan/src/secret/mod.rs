//! Secrets: tokens with a format of their own, and values whose name says what they are.

mod business;
mod cloud;
mod code;
mod credentials;
mod named;
mod names;
mod private_key;
mod services;
mod values;

pub(crate) use credentials::{authorization, discord, dsn, is_own_password, url};
pub(crate) use named::{of_name, of_value};
pub(crate) use names::{NameClass, secret_name};
pub(crate) use private_key::private_key;
pub(crate) use values::is_placeholder_token;

use crate::detector::{Check, Spec};
use crate::report::{Kind, Severity};

pub(crate) const NAMED_PASSWORD: &str = "named_password";
pub(crate) const NAMED_KEY: &str = "named_key";
pub(crate) const AWS_SECRET: &str = "aws_secret_access_key";
pub(crate) const URL_PASSWORD: &str = "url_password";
pub(crate) const AUTHORIZATION: &str = "authorization_header";
pub(crate) const PRIVATE_KEY: &str = "private_key";
pub(crate) const DISCORD: &str = "discord_bot_token";

const GENERIC: &[Spec] = &[
    Spec::token(
        "jwt",
        &["eyJ"],
        r"eyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,6000}\.[A-Za-z0-9_-]{10,1000}",
    )
    .checked(Check::Jwt)
    .rated(Severity::High, 90)
    .ranked(1),
    Spec::token(
        "putty_private_key",
        &["PuTTY-User-Key-File-"],
        r"PuTTY-User-Key-File-[0-9]: (?s-u:.{40,6000}?)Private-MAC: [0-9a-f]{40,64}",
    ),
    Spec::token(
        "command_password",
        &["curl ", "wget ", "sshpass ", "machine "],
        r#"(?x)
          (?: curl \x20 [^\n]{0,200}? (?: -u | --user ) [=\x20] ["']? [^\s:"'$]{1,64} :
            | wget \x20 [^\n]{0,200}? --password=
            | sshpass \x20+ -p \x20*
            | machine \s+ \S{1,200} \s+ login \s+ \S{1,200} \s+ password \s+ )
          ["']? ( [^\s"'$<{*]{4,128} )"#,
    )
    .checked(Check::Password)
    .rated(Severity::High, 85)
    .ranked(3),
    Spec::code(PRIVATE_KEY, Kind::SecretLeak)
        .rated(Severity::Critical, 98)
        .ranked(1),
    Spec::code(AWS_SECRET, Kind::SecretLeak)
        .rated(Severity::Critical, 90)
        .ranked(2),
    Spec::code(URL_PASSWORD, Kind::SecretLeak)
        .rated(Severity::High, 85)
        .ranked(4),
    Spec::code(AUTHORIZATION, Kind::SecretLeak)
        .rated(Severity::High, 85)
        .ranked(4),
    Spec::code(NAMED_PASSWORD, Kind::SecretLeak)
        .rated(Severity::High, 75)
        .ranked(5),
    Spec::code(NAMED_KEY, Kind::SecretLeak)
        .rated(Severity::High, 70)
        .ranked(6),
];

pub(crate) fn specs() -> impl Iterator<Item = &'static Spec> {
    [
        cloud::TOKENS,
        code::TOKENS,
        services::TOKENS,
        business::TOKENS,
        GENERIC,
    ]
    .into_iter()
    .flatten()
}

/// Words in the names of values that are secrets.
pub(crate) const NAME_WORDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "_pass",
    "-pass",
    "pass=",
    "pass:",
    "passwort",
    "kennwort",
    "contraseña",
    "contrasena",
    "mot_de_passe",
    "motdepasse",
    "senha",
    "wachtwoord",
    "hasło",
    "lösenord",
    "parola",
    "密码",
    "סיסמה",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "api key",
    "accesskey",
    "access_key",
    "access-key",
    "access key",
    "authkey",
    "auth_key",
    "auth-key",
    "privatekey",
    "private_key",
    "private-key",
    "accountkey",
    "account_key",
    "sharedkey",
    "shared_key",
    "masterkey",
    "master_key",
    "encryptionkey",
    "encryption_key",
    "signingkey",
    "signing_key",
    "servicekey",
    "service_key",
    "service_role_key",
    "credential",
    "app_key",
    "appkey",
    "consumer_key",
    "consumerkey",
    "license_key",
    "licensekey",
    "deploy_key",
    "webhook_key",
    "integration_key",
    "write_key",
    "admin_key",
    "ssh_key",
];

pub(crate) const PRIVATE_KEY_WORDS: &[&str] = &["-----BEGIN "];
pub(crate) const SCHEME_WORDS: &[&str] = &["authorization", "bearer ", "basic "];
