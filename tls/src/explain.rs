//! What a failed handshake means, for a person.

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use std::io;

/// The same error, with a text that says what to do where that is known.
pub(crate) fn explained(error: io::Error) -> io::Error {
    let text = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).and_then(text);
    match text {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}

fn text(error: &Error) -> Option<String> {
    let text = match error {
        Error::InvalidCertificate(why) => return certificate(why),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                "it asks for a client certificate: name one, and its key (FOREBAY_CERT and FOREBAY_KEY)"
            }
            AlertDescription::UnknownCA => "it does not know the authority of this side's certificate",
            AlertDescription::CertificateExpired => {
                "this side's certificate has expired, or does not begin yet: renew it"
            }
            AlertDescription::CertificateRevoked => "this side's certificate was revoked",
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => "it refuses this side's certificate",
            AlertDescription::NoApplicationProtocol => {
                "TLS is spoken there, but not gRPC: is the port right?"
            }
            AlertDescription::ProtocolVersion => "it speaks no TLS 1.3",
            _ => return None,
        },
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "no TLS is spoken there: use http:// rather than https:// if that is meant"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

fn certificate(why: &CertificateError) -> Option<String> {
    let text = match why {
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            let names = match names.is_empty() {
                true => "no host name or address".to_owned(),
                false => names.join(", "),
            };
            format!("its certificate is not for {}: it is for {names}", expected.to_str())
        }
        CertificateError::UnknownIssuer => {
            "its certificate is of an authority that is not known here: name the file of the right one (FOREBAY_CA)"
                .to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => {
            format!("its certificate expired {} ago: renew it", span(*not_after, *time))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("its certificate begins in {}: do the clocks agree?", span(*time, *not_before))
        }
        CertificateError::Revoked => "its certificate was revoked".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not for this end of a connection (extended key usage): a node needs one for servers and \
             clients, as `forebay cert node` makes it"
                .to_owned()
        }
        // webpki has no code of rustls for it. `openssl req -x509` makes such.
        CertificateError::Other(other) if other.0.to_string() == "CaUsedAsEndEntity" => {
            "its certificate is that of an authority (CA:TRUE), which nobody can show as its own: have an authority sign \
             one for it, as `forebay cert node` does"
                .to_owned()
        }
        _ => return None,
    };
    Some(text)
}

/// `DnsName("a")` is `a`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
}

fn span(from: UnixTime, to: UnixTime) -> String {
    let seconds = to.as_secs().saturating_sub(from.as_secs());
    match seconds {
        0..=299 => format!("{seconds} s"),
        300..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
