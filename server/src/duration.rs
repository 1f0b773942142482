//! Durations as people write them.

use std::time::Duration;

/// A whole number and its unit: `90s`, `30m`, `1h`, `7d`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "a duration is a whole number and its unit, such as 90s, 30m, 1h or 7d".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let digits = text.strip_suffix(unit).unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604_800), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "90",
            "-1s",
            "+1s",
            "1.5h",
            "1 h",
            "1w",
            "h1",
            "99999999999999999999s",
            "9999999999999999999d",
            "1ü",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
