//! Text that others sent, made fit for a terminal: indented, bounded, without control characters.

use serde_json::value::RawValue;

/// Spaces of one level of indentation.
const INDENT: usize = 2;

/// The beginning of a body, up to about `most` bytes. JSON is indented; what is not text is only counted.
pub fn body(body: &[u8], most: usize) -> String {
    let Ok(text) = std::str::from_utf8(body) else {
        return format!("({} bytes that are not text)", body.len());
    };
    if serde_json::from_str::<&RawValue>(text).is_ok() {
        return indented(text, most);
    }
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    let (shown, rest) = text.split_at(end.unwrap_or_default());
    with_rest(printable(shown), rest.len())
}

/// Text without characters that control a terminal, except line breaks.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => out.push(char),
            char if char.is_control() => out.extend(char.escape_unicode()),
            char => out.push(char),
        }
    }
    out
}

/// Indents a valid JSON text and keeps everything else as it is written: the order of members, and all digits.
fn indented(json: &str, most: usize) -> String {
    let mut out = String::with_capacity(json.len().min(most));
    let (mut depth, mut in_string, mut is_escaped) = (0usize, false, false);
    let new_line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', (depth * INDENT).min(most)));
    };
    let mut chars = json.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        if out.len() >= most {
            return with_rest(out, json.len() - at);
        }
        if in_string {
            in_string = is_escaped || char != '"';
            is_escaped = !is_escaped && char == '\\';
            match char.is_control() {
                true => out.extend(char.escape_unicode()),
                false => out.push(char),
            }
            continue;
        }
        match char {
            ' ' | '\t' | '\r' | '\n' => {}
            '{' | '[' => {
                out.push(char);
                while chars.next_if(|(_, next)| next.is_ascii_whitespace()).is_some() {}
                match chars.next_if(|(_, next)| matches!(next, '}' | ']')) {
                    Some((_, close)) => out.push(close),
                    None => {
                        depth += 1;
                        new_line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(char);
            }
            ',' => {
                out.push(char);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => {
                in_string = char == '"';
                out.push(char);
            }
        }
    }
    out
}

fn with_rest(mut out: String, rest: usize) -> String {
    if rest > 0 {
        out.push_str(&format!("\n… ({rest} more bytes)"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn json_is_indented_and_otherwise_as_it_was_sent() {
        let sent = r#"{"z":1.10,"a":[ ],"b":{"c":[true,"x, {\"y\"}: ]\\"]},"big":12345678901234567890123}"#;
        let shown = body(sent.as_bytes(), 10_000);
        let expected = "{\n  \"z\": 1.10,\n  \"a\": [],\n  \"b\": {\n    \"c\": [\n      true,\n      \
                        \"x, {\\\"y\\\"}: ]\\\\\"\n    ]\n  },\n  \"big\": 12345678901234567890123\n}";
        assert_eq!(shown, expected);
        let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        assert_eq!(parsed(&shown), parsed(sent));
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let long = format!("[{}1]", "1,".repeat(100_000));
        for text in [deep, long, "x".repeat(100_000), "\u{e9}".repeat(50_000)] {
            let shown = body(text.as_bytes(), 1000);
            assert!((900..4000).contains(&shown.len()), "{}", shown.len());
            assert!(shown.ends_with(" more bytes)"), "{shown}");
        }
        assert_eq!(body(b"", 9), "");
        assert_eq!(body(&[0xff, 0xfe, 0], 9), "(3 bytes that are not text)");
    }

    #[test]
    fn nothing_that_was_sent_controls_the_terminal() {
        for sent in ["\u{1b}[2J", "\"\u{7f}\u{9b}1m\"", "{\"\u{9b}\":\"\u{85}\"}", "a\r\u{8}b", "\u{0}"] {
            let shown = body(sent.as_bytes(), 1000);
            assert!(shown.chars().all(|char| !char.is_control() || char == '\n'), "{shown:?}");
        }
        assert_eq!(printable("a\r\nb\u{1b}"), "a\\u{d}\nb\\u{1b}");
    }
}
