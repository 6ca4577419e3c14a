use super::*;

/// A certificate of its own authority, and its key, in PEM.
fn pair() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["croupier.example".to_owned()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn make(texts: &[&str]) -> Result<ServerTls, Vec<String>> {
    let names = ["cert", "key", "ca"].into_iter();
    let files = names.zip(texts).map(|(name, text)| File { path: name.into(), bytes: text.as_bytes().to_vec() });
    ServerTls::make(&files.collect::<Vec<_>>())
}

#[test]
fn certificate_key_and_authority_make_a_server() {
    let ((cert, key), (ca, _)) = (pair(), pair());
    let made = make(&[&cert, &key]).expect("they fit");
    assert_eq!(made.config.alpn_protocols, [H2]);
    // The end of validity that rcgen uses by default.
    assert_eq!(made.validity.ends, 67_090_118_400);
    make(&[&cert, &key, &ca]).expect("they fit");
    make(&[&format!("{cert}{ca}"), &key]).expect("a chain");
}

#[test]
fn every_mistake_is_told_with_its_file() {
    let ((cert, key), (other, other_key)) = (pair(), pair());
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (texts, expected) in [
        (vec![cert.as_str(), &other_key], vec!["--tls-cert and --tls-key: cert and key: "]),
        (vec!["", ""], vec!["cert: has no PEM certificate", "key: has no PEM private key"]),
        (vec![&key, &cert], vec!["cert: has no PEM certificate", "key: has no PEM private key"]),
        (vec![empty, &key], vec!["cert: has an entry that is not an X.509"]),
        (vec!["-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n", &key], vec!["cert: is not PEM"]),
        (
            vec!["-----BEGIN CERTIFICATE-----\nAAAA\n", &key],
            vec!["cert: is not PEM: the line -----END CERTIFICATE----- is missing"],
        ),
        (
            vec![&cert, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"],
            vec!["key: has a broken or unsupported"],
        ),
        (vec![&cert, &key, ""], vec!["ca: has no PEM certificate"]),
        (vec![&cert, &key, empty], vec!["ca: is not a certificate authority"]),
        (vec!["", &key, "x"], vec!["--tls-cert: cert: ", "--tls-client-ca: ca: "]),
        (vec![&other], vec!["belong together"]),
    ] {
        let problems = make(&texts).expect_err("mistakes");
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, part) in problems.iter().zip(expected) {
            assert!(problem.contains(part), "{problem:?} has no {part:?}");
        }
        assert!(!problems.concat().contains("-----BEGIN"), "what is in a key is not repeated: {problems:?}");
    }
}

#[test]
fn the_files_go_together() {
    let path = |name: &str| Some(PathBuf::from(name));
    let files = Files { cert: path("c"), key: path("k"), client_ca: path("a") };
    assert_eq!(files.paths(), Some(vec!["c".into(), "k".into(), "a".into()]));
    assert_eq!(Files { client_ca: None, ..files.clone() }.paths(), Some(vec!["c".into(), "k".into()]));
    assert_eq!(Files { key: None, ..files }.paths(), None);
    assert_eq!(Files::default().paths(), None);
}
