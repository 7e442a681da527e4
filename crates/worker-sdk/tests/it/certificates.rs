//! An authority of a test's own, and certificates it signed, as PEM files.

use std::path::PathBuf;

use airlock_testkit::TestDir;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
    /// The authority's own certificate.
    pub ca: PathBuf,
}

/// A certificate and its key.
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(dir: &TestDir, name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let folder = dir.create_folder(name)?;
        let ca = folder.join("ca.pem");
        std::fs::write(&ca, params.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, folder, ca })
    }

    /// A certificate for this machine, good for servers and for clients.
    pub fn sign(&self, name: &str) -> anyhow::Result<Identity> {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let made = Identity {
            cert: self.folder.join(format!("{name}.pem")),
            key: self.folder.join(format!("{name}.key")),
        };
        std::fs::write(&made.cert, params.signed_by(&key, &self.issuer)?.pem())?;
        std::fs::write(&made.key, key.serialize_pem())?;
        Ok(made)
    }
}
