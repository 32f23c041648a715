//! Fresh certificates for each test.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Certificate authority for tests.
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificate of the authority in PEM.
    pub pem: String,
}

/// Certificate and key in PEM.
pub struct IssuedCertificate {
    pub cert: String,
    pub key: String,
}

impl TestAuthority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Each authority of a test needs its own name: only signatures would distinguish authorities with equal names.
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// Issues a certificate for a name or IP address.
    pub fn issue(&self, name: &str) -> IssuedCertificate {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        IssuedCertificate {
            cert: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}
