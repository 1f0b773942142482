//! Durations as people write them.

use std::time::Duration;

/// A whole number and its unit: `250ms`, `90s`, `30m`, `1h`, `7d`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "a duration is a whole number and its unit, such as 250ms, 90s, 30m, 1h or 7d".to_owned();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604_800), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for text in [
            "",
            "s",
            "90",
            "-1s",
            "+1s",
            "1.5h",
            "1 h",
            "1w",
            "1M",
            "1sm",
            "h1",
            "99999999999999999999s",
            "9999999999999999999d",
            "1ü",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
