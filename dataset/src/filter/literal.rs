//! Values that a filter compares columns with, held exactly.

use arrow::datatypes::i256;
use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime};
use std::fmt;

/// A value, as it is written.
#[derive(Debug, Clone)]
pub(super) enum Literal {
    Number(Number),
    Text(String),
    Bool(bool),
    Date(NaiveDate),
    /// In UTC where the text names an offset.
    Timestamp {
        at: NaiveDateTime,
        zoned: bool,
    },
}

/// `mantissa` times ten to the power of `exponent`. The mantissa has no zeros at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    mantissa: i128,
    exponent: i32,
}

/// A number in units of some column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Units {
    /// The largest integer that is not larger, and whether it is the number itself.
    Floor(i256, bool),
    /// Beyond all values, on the side of the sign.
    Beyond { negative: bool },
}

/// Powers of ten that a number may have; f64 ends before.
const EXPONENT_MAX: u32 = 400;

/// Digits of a number at most.
const DIGITS_MAX: usize = 38;

impl Number {
    /// From digits with maybe a point and an exponent.
    pub(super) fn parse(text: &str, negative: bool) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let (digits, exponent) = lower.split_once('e').unwrap_or((&lower, "0"));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all = format!("{whole}{fraction}");
        let significant = all.trim_start_matches('0').trim_end_matches('0');
        let dropped = (all.len() - all.trim_end_matches('0').len()) as i64;
        if significant.is_empty() {
            return Ok(Self { mantissa: 0, exponent: 0 });
        }
        if significant.len() > DIGITS_MAX {
            return Err(format!("a number of more than {DIGITS_MAX} digits"));
        }
        let exponent = exponent.parse::<i32>().ok();
        let exponent = exponent.map(|e| i64::from(e) - fraction.len() as i64 + dropped);
        let exponent =
            exponent.and_then(|e| i32::try_from(e).ok()).filter(|e| e.unsigned_abs() <= EXPONENT_MAX);
        let exponent = exponent.ok_or_else(|| format!("the number {text} is too large or too small"))?;
        let mantissa: i128 = significant.parse().map_err(|_| format!("`{text}` is no number"))?;
        Ok(Self { mantissa: if negative { -mantissa } else { mantissa }, exponent })
    }

    /// The nearest.
    pub(super) fn float(self) -> f64 {
        format!("{}e{}", self.mantissa, self.exponent).parse().unwrap_or(f64::NAN)
    }

    /// In units of ten to the power of minus `scale`.
    pub(super) fn units(self, scale: i8) -> Units {
        let power = self.exponent + i32::from(scale);
        let (mantissa, negative) = (i256::from_i128(self.mantissa), self.mantissa < 0);
        let ten = |power: i32| i256::from_i128(10).checked_pow(power.unsigned_abs());
        if power >= 0 {
            let units = ten(power).and_then(|ten| mantissa.checked_mul(ten));
            return units.map_or(Units::Beyond { negative }, |units| Units::Floor(units, true));
        }
        match ten(power) {
            Some(ten) => floor(mantissa, ten),
            None => Units::Floor(if negative { i256::MINUS_ONE } else { i256::ZERO }, mantissa == i256::ZERO),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mantissa, exponent } = *self;
        match exponent {
            0..=18 => write!(f, "{mantissa}{}", "0".repeat(exponent as usize)),
            -38..0 => {
                let places = exponent.unsigned_abs() as usize;
                let digits = format!("{:0>1$}", mantissa.unsigned_abs(), places + 1);
                let (whole, fraction) = digits.split_at(digits.len() - places);
                write!(f, "{}{whole}.{fraction}", if mantissa < 0 { "-" } else { "" })
            }
            _ => write!(f, "{mantissa}e{exponent}"),
        }
    }
}

/// A quotient; `by` is positive.
pub(super) fn floor(number: i256, by: i256) -> Units {
    let (quotient, rest) = (number / by, number % by);
    match rest < i256::ZERO {
        true => Units::Floor(quotient - i256::ONE, false),
        false => Units::Floor(quotient, rest == i256::ZERO),
    }
}

/// A day, as in 2024-01-31.
pub(super) fn date(text: &str) -> Result<NaiveDate, String> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().filter(|day| is_common(*day));
    day.ok_or_else(|| format!("'{}' is no date: write it as in '2024-01-31'", cut(text)))
}

/// An instant, as in 2024-01-31 12:30:00.5+01:00; seconds, fraction and offset may be left out, or all of it
/// but the day.
pub(super) fn timestamp(text: &str) -> Result<Literal, String> {
    let spaced = text.replacen('T', " ", 1);
    for format in ["%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z"] {
        let zoned = spaced.strip_suffix(['Z', 'z']).map(|local| format!("{local}+00:00"));
        if let Ok(at) = DateTime::parse_from_str(zoned.as_ref().unwrap_or(&spaced), format)
            && is_common(at.naive_utc().date())
        {
            return Ok(Literal::Timestamp { at: at.naive_utc(), zoned: true });
        }
    }
    let local = ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"];
    let local = local.iter().find_map(|format| NaiveDateTime::parse_from_str(&spaced, format).ok());
    let local = local.or_else(|| date(text).ok()?.and_hms_opt(0, 0, 0));
    match local.filter(|at| is_common(at.date())) {
        Some(at) => Ok(Literal::Timestamp { at, zoned: false }),
        None => Err(format!(
            "'{}' is no timestamp: write it as in '2024-01-31 12:30:00' or '2024-01-31T12:30:00Z'",
            cut(text)
        )),
    }
}

/// Whether it is written with four digits for the year.
fn is_common(day: NaiveDate) -> bool {
    (0..=9999).contains(&day.year())
}

/// Not more of it than an error needs.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}
