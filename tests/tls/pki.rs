//! Authorities and certificates made for a test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::path::{Path, PathBuf};

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server on the loopback interface.
    pub(crate) fn server(&self) -> Pair {
        self.sign(&["localhost", "127.0.0.1"], |_| ())
    }

    /// A certificate for a worker.
    pub(crate) fn client(&self) -> Pair {
        self.sign(&["worker.example"], |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth])
    }

    /// A certificate for either, with changed parameters.
    pub(crate) fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.0).expect("a certificate");
        Pair { cert: cert.pem(), key: key.serialize_pem() }
    }
}

/// A folder of secrets as the kubelet mounts one: files are links through `..data`, which is moved to a new folder on each change.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
    versions: std::cell::Cell<u32>,
}

impl Mounted {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let mounted = Self { dir: tempfile::tempdir().expect("a folder"), versions: std::cell::Cell::new(0) };
        mounted.replace(files);
        for (name, _) in files {
            std::os::unix::fs::symlink(Path::new("..data").join(name), mounted.path(name)).expect("a link");
        }
        mounted
    }

    /// Replaces all files at once.
    pub(crate) fn replace(&self, files: &[(&str, &str)]) {
        let version = self.versions.get() + 1;
        self.versions.set(version);
        let folder = self.path(&format!("..version{version}"));
        std::fs::create_dir(&folder).expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
        let link = self.path("..data_tmp");
        std::os::unix::fs::symlink(&folder, &link).expect("a link");
        std::fs::rename(&link, self.path("..data")).expect("moved");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}
