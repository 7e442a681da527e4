//! Whom to trust at the other end of `rediss`, and who we are.
//!
//! What must stay true: an authority that is given is the only one that is trusted, and
//! no error repeats what is in a key file.

use std::path::Path;

use fred::rustls::pki_types::pem::PemObject;
use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use fred::rustls::{ClientConfig, RootCertStore};
use fred::types::config::TlsConfig;

use crate::config::GuardConfig;
use crate::link::GuardError;

/// `None`: the machine's authorities, and no certificate of our own.
pub(crate) fn build_tls_config(config: &GuardConfig) -> Result<Option<TlsConfig>, GuardError> {
    if config.tls_ca.is_none() && config.tls_cert.is_none() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    match &config.tls_ca {
        Some(path) => {
            for certificate in read_certificates("tls_ca", path)? {
                roots
                    .add(certificate)
                    .map_err(|e| tls_file_error("tls_ca", path, &e))?;
            }
        }
        None => {
            let found = fred::rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => {
            let chain = read_certificates("tls_cert", cert)?;
            let private = PrivateKeyDer::from_pem_file(key)
                .map_err(|e| tls_file_error("tls_key", key, &e))?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|e| tls_file_error("tls_cert", cert, &e))?
        }
        (Some(_) | None, None) | (None, Some(_)) => builder.with_no_client_auth(),
    };
    Ok(Some(fred::types::config::TlsConnector::from(tls).into()))
}

fn read_certificates(
    setting: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, GuardError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|e| tls_file_error(setting, path, &e))?
        .collect();
    let found = found.map_err(|e| tls_file_error(setting, path, &e))?;
    if found.is_empty() {
        return Err(tls_file_error(
            setting,
            path,
            &"there is no certificate in it",
        ));
    }
    Ok(found)
}

fn tls_file_error(setting: &str, path: &Path, what: &dyn std::fmt::Display) -> GuardError {
    GuardError::Config(format!("{setting} {}: {what}", path.display()))
}
