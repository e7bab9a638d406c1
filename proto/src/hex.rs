//! Bytes as hexadecimal digits.

/// Two digits for each byte, in lower case.
pub fn encode(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes of digits in either case; none where the text is anything else.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|c| c.to_digit(16)).collect::<Option<Vec<u32>>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| (16 * high + low) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        let text = encode(&all);
        assert!(text.starts_with("000102") && text.ends_with("fdfeff"), "{text}");
        assert_eq!(decode(&text).unwrap(), all);
        assert_eq!(decode(&text.to_uppercase()).unwrap(), all);
        assert!(encode(&[]).is_empty() && decode("") == Some(Vec::new()));
        for wrong in ["0", "000", "0g", "+f", "-1", " 0", "0x", "é0", "\u{661}0"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
