//! Formatting and parsing of numbers and option values.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Formats an integer with commas between thousands.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats bytes as MiB with one decimal.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Formats nanoseconds as milliseconds with two decimals.
pub(crate) fn millis(nanos: u64) -> String {
    format!("{:.2} ms", nanos as f64 / 1e6)
}

/// Parses an option value; the error is that of the type. The caller names the option.
pub(crate) fn parse<T>(text: &str) -> Result<T, String>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse().map_err(|error: T::Err| {
        let text = error.to_string();
        let option = text.strip_prefix("invalid option ");
        match option.and_then(|option| option.split_once(": ")) {
            Some((_, reason)) => reason.to_owned(),
            None => text,
        }
    })
}

/// Parses a positive number of seconds, at most a day.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "must be a number of seconds, like 1.5".to_owned())?;
    if seconds > 0.0 && seconds <= 86_400.0 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be more than 0 and at most 86400 seconds".to_owned())
    }
}

/// Parses a ratio from 0.01 to 1000.
pub(crate) fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.01..=1_000.0).contains(&ratio) {
        Ok(ratio)
    } else {
        Err("must be from 0.01 to 1000".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_grouped_by_thousands() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(value), text);
        }
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(parse_seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["0", "-1", "NaN", "inf", "1e9", "ten"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
