use super::*;
use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

/// An authority that signs tokens, and a verifier that has its keys.
struct Issuer {
    key: EncodingKey,
    public_der: Vec<u8>,
    verifier: JwtVerifier,
    _folder: tempfile::TempDir,
}

async fn issuer() -> Issuer {
    let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let encoded: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let public = pair.public_key();
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let set = json!({"keys": [
        {"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256",
         "n": part(public.modulus().big_endian_without_leading_zero()),
         "e": part(public.exponent().big_endian_without_leading_zero())},
        {"kty": "oct", "kid": "k2", "k": part(b"shared")},
        {"kty": "something new", "kid": "k3"},
    ]});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks");
    std::fs::write(&path, set.to_string()).unwrap();
    let settings = JwtSettings {
        jwks: Some(path.to_str().unwrap().to_owned()),
        issuer: "https://issuer".into(),
        audience: "forebay".into(),
        leeway_s: 5,
        ..JwtSettings::default()
    };
    let verifier = JwtVerifier::new(&settings).unwrap().unwrap();
    verifier.look().await.unwrap();
    Issuer {
        key: EncodingKey::from_rsa_der(&rsa_private_key(encoded.as_ref())),
        public_der: public.as_ref().to_vec(),
        verifier,
        _folder: folder,
    }
}

/// The key inside its PKCS #8 wrapping: what the last OCTET STRING holds.
fn rsa_private_key(pkcs8: &[u8]) -> Vec<u8> {
    let at = pkcs8.windows(4).rposition(|w| w[0] == 0x04 && w[1] == 0x82).expect("an octet string");
    let at = pkcs8.windows(4).position(|w| w[0] == 0x04 && w[1] == 0x82).unwrap_or(at);
    pkcs8[at + 4..].to_vec()
}

fn claims() -> Value {
    let now = get_current_timestamp();
    json!({"iss": "https://issuer", "aud": "forebay", "sub": "job", "exp": now + 100, "nbf": now - 100})
}

fn header(kid: &str) -> Header {
    Header { kid: Some(kid.into()), ..Header::new(Algorithm::RS256) }
}

#[tokio::test]
async fn good_tokens_are_good_and_others_are_not() {
    let issuer = issuer().await;
    let now = get_current_timestamp();
    let signed = |header: &Header, change: &dyn Fn(&mut Value)| {
        let mut claims = claims();
        change(&mut claims);
        encode(header, &claims, &issuer.key).unwrap()
    };
    let verify = |token: &str| issuer.verifier.verify(token);
    let good = signed(&header("k1"), &|_| ());
    let Ok(Credential::Claims { claims: said, until }) = verify(&good) else { panic!("it is good") };
    assert_eq!(said["sub"], "job");
    let left = until.duration_since(Instant::now()).as_secs();
    assert!((90..=106).contains(&left), "{left}");
    let in_list = signed(&header("k1"), &|c| c["aud"] = json!(["other", "forebay"]));
    assert!(verify(&in_list).is_ok());
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Value));
    let changes: [Change<'_>; 8] = [
        ("is for another audience", &|c| c["aud"] = json!("other")),
        ("lacks exp, aud or iss", &|c| drop(c.as_object_mut().unwrap().remove("aud"))),
        ("is of another issuer", &|c| c["iss"] = json!("https://evil")),
        ("lacks exp, aud or iss", &|c| drop(c.as_object_mut().unwrap().remove("iss"))),
        ("has expired", &|c| c["exp"] = json!(now - 60)),
        ("lacks exp, aud or iss", &|c| drop(c.as_object_mut().unwrap().remove("exp"))),
        ("is not good yet", &|c| c["nbf"] = json!(now + 600)),
        ("has more than 12 KiB", &|c| c["x"] = json!("x".repeat(1 << 20))),
    ];
    for (why, change) in changes {
        let said = verify(&signed(&header("k1"), change)).unwrap_err();
        assert!(said.ends_with(why), "{said}, not {why}");
    }
    for kid in ["k2", "k3", "../../etc/passwd", "", "k1\0"] {
        let said = verify(&signed(&header(kid), &|_| ())).unwrap_err();
        assert!(said.contains("names no key"), "kid {kid:?}: {said}");
    }
    let (head, rest) = good.split_once('.').unwrap();
    let (body, _) = rest.split_once('.').unwrap();
    let other = json!({"iss": "https://issuer", "aud": "forebay", "sub": "root", "exp": now + 100});
    let other = URL_SAFE_NO_PAD.encode(other.to_string());
    let none = URL_SAFE_NO_PAD.encode(json!({"alg": "none", "typ": "JWT"}).to_string());
    for (what, token) in [
        ("another body", format!("{head}.{other}.{}", rest.split_once('.').unwrap().1)),
        ("no signature", format!("{head}.{body}.")),
        ("alg none", format!("{none}.{body}.")),
        ("nonsense", "a.b.c".into()),
        ("empty", String::new()),
    ] {
        assert!(verify(&token).is_err(), "{what}");
    }
}

#[tokio::test]
async fn a_public_key_is_no_shared_secret() {
    let issuer = issuer().await;
    let kid = Some("k1".to_owned());
    for secret in [issuer.public_der.clone(), b"shared".to_vec()] {
        let header = Header { kid: kid.clone(), ..Header::new(Algorithm::HS256) };
        let token = encode(&header, &claims(), &EncodingKey::from_secret(&secret)).unwrap();
        assert!(issuer.verifier.verify(&token).is_err());
    }
    let settings = |name: &str| JwtSettings {
        jwks: Some("k".into()),
        algorithms: vec![name.into()],
        ..JwtSettings::default()
    };
    for name in ["HS256", "none", "RS1"] {
        assert!(JwtVerifier::new(&settings(name)).unwrap_err().message.contains(name));
    }
    for url in ["http://issuer.example.org/keys", "ftp://x/y"] {
        let settings = JwtSettings { jwks: Some(url.into()), ..JwtSettings::default() };
        assert!(JwtVerifier::new(&settings).unwrap_err().message.contains(url));
    }
}
