//! What requests for objects must carry, where a test says so: tokens of Google, signatures of Azure.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use url::form_urlencoded;

/// Where an instance gets its token.
const TOKEN_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Headers that a shared key signs, in this order.
const SIGNED: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// What a request must carry to be answered.
#[derive(Debug, Clone, Default)]
pub enum Required {
    /// Nothing.
    #[default]
    Nothing,
    /// The token that the metadata service of a Google instance gives.
    InstanceToken(String),
    /// A token that a service account of Google's has signed, as <https://google.aip.dev/auth/4111> has it.
    ServiceAccount {
        /// Its address.
        email: String,
        /// The public half of its RSA key, as PKCS #1 has it.
        public_key: Vec<u8>,
    },
    /// A signature of the request by the key of an Azure account.
    SharedKey {
        /// Its name.
        account: &'static str,
        /// Its key in base64.
        key: &'static str,
    },
    /// The signature in a shared access signature of Azure's, which is the same for all requests.
    SharedAccess(&'static str),
}

impl Required {
    /// Whether a request carries it.
    pub(super) fn is_met(&self, request: &Request<Incoming>) -> bool {
        let authorization = header(request, "authorization");
        let bearer = authorization.strip_prefix("Bearer ");
        match self {
            Self::Nothing => true,
            Self::InstanceToken(token) => bearer == Some(token.as_str()),
            Self::ServiceAccount { email, public_key } => {
                bearer.is_some_and(|token| is_signed(token, email, public_key))
            }
            Self::SharedKey { account, key } => {
                authorization == format!("SharedKey {account}:{}", signature(request, account, key))
            }
            Self::SharedAccess(signature) => {
                parameters(request).any(|(name, value)| name == "sig" && value == *signature)
            }
        }
    }

    /// What the metadata service of a Google instance answers, if that is asked for a token.
    pub(super) fn token(&self, request: &Request<Incoming>) -> Option<String> {
        let Self::InstanceToken(token) = self else { return None };
        let is_asked = request.uri().path() == TOKEN_PATH && header(request, "metadata-flavor") == "Google";
        let told = json!({ "access_token": token, "expires_in": 3600, "token_type": "Bearer" });
        is_asked.then(|| told.to_string())
    }
}

/// Whether the account has signed the token.
fn is_signed(token: &str, email: &str, public_key: &[u8]) -> bool {
    let Some((message, signature)) = token.rsplit_once('.') else { return false };
    let Some((_, claims)) = message.split_once('.') else { return false };
    let (Ok(claims), Ok(signature)) = (URL_SAFE_NO_PAD.decode(claims), URL_SAFE_NO_PAD.decode(signature))
    else {
        return false;
    };
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public_key);
    key.verify(message.as_bytes(), &signature).is_ok()
        && serde_json::from_slice::<Value>(&claims).is_ok_and(|claims| claims["iss"] == email)
}

/// The signature of a request by an account's key
/// (<https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key>).
fn signature(request: &Request<Incoming>, account: &str, key: &str) -> String {
    let mut lines = vec![request.method().to_string()];
    // No length is signed as one of 0 is.
    let signed = SIGNED.map(|name| Some(header(request, name)).filter(|value| *value != "0"));
    lines.extend(signed.into_iter().map(|value| value.unwrap_or_default().to_owned()));
    let names = request.headers().keys().map(|name| name.as_str()).filter(|name| name.starts_with("x-ms-"));
    let mut own: Vec<_> = names.map(|name| format!("{name}:{}", header(request, name))).collect();
    own.sort();
    let mut query: Vec<_> = parameters(request).map(|(name, value)| format!("{name}:{value}")).collect();
    query.sort();
    lines.extend(own);
    lines.push(format!("/{account}{}", request.uri().path()));
    lines.extend(query);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(key).expect("a key in base64"));
    STANDARD.encode(hmac::sign(&key, lines.join("\n").as_bytes()))
}

fn header<'a>(request: &'a Request<Incoming>, name: &str) -> &'a str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn parameters(request: &Request<Incoming>) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes())
}
