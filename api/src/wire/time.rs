//! Times in the format of RFC 3339.

use jiff::SignedDuration;
use jiff::civil::DateTime;
use tidings_model::Timestamp;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Parses `2025-11-16T12:00:00[.123](Z|+01:00)`. Times before 1970 become 1970.
pub fn parse(text: &str) -> Option<Timestamp> {
    let shape = |pattern: &str, text: &str| {
        let fits =
            |(p, c): (char, char)| if p == '9' { c.is_ascii_digit() } else { p.eq_ignore_ascii_case(&c) };
        pattern.len() == text.len() && pattern.chars().zip(text.chars()).all(fits)
    };
    if !text.is_ascii() || text.len() < 20 || !shape("9999-99-99T99:99:99", &text[..19]) {
        return None;
    }
    let fraction = match text[19..].strip_prefix('.') {
        Some(rest) => rest.bytes().take_while(u8::is_ascii_digit).count() + 1,
        None => 0,
    };
    let (local, zone) = text.split_at(19 + fraction);
    let offset = match zone {
        "Z" | "z" => 0,
        _ if shape("+99:99", zone) || shape("-99:99", zone) => {
            let (hours, minutes): (i64, i64) = (zone[1..3].parse().ok()?, zone[4..].parse().ok()?);
            if fraction == 1 || hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * 60 * if zone.starts_with('-') { -1 } else { 1 }
        }
        _ => return None,
    };
    let local: DateTime = local.parse().ok()?;
    let since = local.duration_since(EPOCH).checked_sub(SignedDuration::from_secs(offset))?;
    Some(Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(0)))
}

/// Prints a time, up to the end of the year 9999.
pub fn print(at: Timestamp) -> String {
    let since = SignedDuration::from_millis(i64::try_from(at.as_millis()).unwrap_or(i64::MAX));
    format!("{}Z", EPOCH.checked_add(since).unwrap_or(DateTime::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_have_the_shape_of_rfc_3339_and_no_other() {
        let millis = |text| parse(text).map(Timestamp::as_millis);
        assert_eq!(millis("1970-01-01T00:00:01Z"), Some(1_000));
        assert_eq!(millis("2025-11-16T13:00:00.123+01:00"), millis("2025-11-16t12:00:00.123z"));
        assert_eq!(millis("9999-12-31T23:59:59Z"), Some(253_402_300_799_000), "a common way to say never");
        assert_eq!(millis("1960-01-01T00:00:00Z"), Some(0));
        for bad in [
            "",
            "tomorrow",
            "2025-11-16",
            "2025-11-16T12:00:00",
            "20300101T000000Z",
            "2030-01-01T00Z",
            "+002030-01-01T00:00:00Z",
            "2030-01-01T00:00:00+25:59",
            "2030-01-01T00:00:00+00",
            "2030-01-01T00:00:00,5Z",
            "2030-01-01T00:00:00Z[Europe/Berlin]",
            "2030-13-01T00:00:00Z",
            "2030-02-30T00:00:00Z",
            "2030-01-01T00:00:00é",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_was_printed_reads_back(millis in 0..253_402_300_799_999u64) {
            let at = Timestamp::from_millis(millis);
            prop_assert_eq!(parse(&print(at)), Some(at));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }
    }
}
