//! Formatting of results.

use crate::{Channel, Measured};

/// Prints one row of a report: a measured value beside its goal.
pub fn report(what: &str, measured: &str, goal: &str, met: bool) {
    println!("| {what} | {measured} | {goal} | {} |", if met { "met" } else { "missed" });
}

/// A number with thousands separators: 100,000.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Ratio of `ours` to `theirs`; empty if one of them is missing.
pub fn ratio(ours: Option<f64>, theirs: Option<f64>) -> String {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}x", ours / theirs),
        _ => String::new(),
    }
}

/// Figure of a channel's row, if it was measured.
pub fn figure<T>(
    rows: &[(Channel, Measured<T>)],
    wanted: Channel,
    of: impl Fn(&T) -> Option<f64>,
) -> Option<f64> {
    let (_, row) = rows.iter().find(|(channel, _)| *channel == wanted)?;
    row.as_ref().ok().and_then(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_stand_in_groups_of_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
