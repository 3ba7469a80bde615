//! Numbers in the protocol's text form.

/// Parses a decimal number in the only form that the protocol accepts: no spaces, no plus sign, no
/// leading zeros.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a floating-point number; `None` for text that is no number, and for NaN.
pub(crate) fn parse_f64(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.is_empty() || text.starts_with(char::is_whitespace) {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Formats a number in its shortest form that parses to the same number: without an exponent for
/// magnitudes that `%.17g` prints without one.
pub(crate) fn format_f64(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-5..17).contains(&exponent) {
        format!("{number}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        for number in [0, 1, -1, 42, i64::MAX, i64::MIN] {
            assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
        }
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            " 1",
            "1 ",
            "9223372036854775808",
            "1x",
            "99999999999999999999",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn floats_are_short() {
        for (number, text) in [
            (3.0, "3"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (1e16, "10000000000000000"),
            (1e300, "1e+300"),
            (1.5e-9, "1.5e-09"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(format_f64(number), text);
        }
        assert_eq!(parse_f64(b"+inf"), Some(f64::INFINITY));
        assert_eq!(parse_f64(b"nan"), None);
        assert_eq!(parse_f64(b" 1"), None);
    }
}
