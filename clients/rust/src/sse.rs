//! Parser for server-sent events, by the algorithm of the HTML standard: takes bytes in chunks of any size
//! and returns events.

use std::time::Duration;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Result of parsing part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event was dispatched.
    Event(Event),
    /// A block with an id and no data. It dispatches no event, but sets the last event id.
    Id(String),
    /// The server changed the reconnection time.
    Retry(Duration),
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Name of the event; `message` if the server gave none.
    pub name: String,
    /// Data of the event, lines joined with LF.
    pub data: String,
    /// Last event id, given with this event or before it; empty if there was none.
    pub last_id: String,
}

/// An event, or a line of one, exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {limit} bytes")]
pub struct TooLarge {
    /// The limit in bytes.
    pub limit: usize,
}

/// Parser of one stream of events. It must not be used after an error.
#[derive(Debug)]
pub struct Parser {
    /// Maximum bytes of an event, name and id included.
    limit: usize,
    /// Matched bytes of a byte order mark; `None` when the beginning of the stream is past.
    bom: Option<usize>,
    /// Line that is not complete yet.
    line: Vec<u8>,
    /// Whether the last byte was a CR. An LF after it belongs to the same line end.
    after_cr: bool,
    name: String,
    data: String,
    /// Whether the block has a `data` field, which may be empty.
    has_data: bool,
    last_id: String,
    /// Whether the block has an `id` field.
    has_id: bool,
}

impl Parser {
    /// A parser that refuses events larger than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            bom: Some(0),
            line: Vec::new(),
            after_cr: false,
            name: String::new(),
            data: String::new(),
            has_data: false,
            last_id: String::new(),
            has_id: false,
        }
    }

    /// Consumes input until an item is complete or the input is used up.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Item>, TooLarge> {
        while let Some(&first) = input.first() {
            if let Some(matched) = self.bom {
                if first == BOM[matched] {
                    *input = &input[1..];
                    self.bom = (matched + 1 < BOM.len()).then_some(matched + 1);
                } else {
                    // Not a byte order mark, so the bytes matched so far are the beginning of a line.
                    self.line.extend_from_slice(&BOM[..matched]);
                    self.bom = None;
                }
                continue;
            }
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                *input = &input[1..];
                continue;
            }
            let Some(end) = input.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
                self.hold(input)?;
                *input = &[];
                break;
            };
            self.hold(&input[..end])?;
            self.after_cr = input[end] == b'\r';
            *input = &input[end + 1..];
            let item = self.end_of_line();
            if item.is_some() {
                return Ok(item);
            }
        }
        Ok(None)
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        let held = self.line.len() + self.name.len() + self.data.len() + self.last_id.len();
        if held + bytes.len() > self.limit {
            return Err(TooLarge { limit: self.limit });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_of_line(&mut self) -> Option<Item> {
        let bytes = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&bytes);
        let item = if line.is_empty() { self.end_of_block() } else { self.field(&line) };
        // Reuse the buffer for the next line.
        self.line = bytes;
        self.line.clear();
        item
    }

    fn field(&mut self, line: &str) -> Option<Item> {
        // A comment is a field with an empty name; fields with unknown names are ignored.
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            "id" if !value.contains('\0') => {
                value.clone_into(&mut self.last_id);
                self.has_id = true;
            }
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                // A number with too many digits is as good as infinite.
                return Some(Item::Retry(Duration::from_millis(value.parse().unwrap_or(u64::MAX))));
            }
            _ => {}
        }
        None
    }

    fn end_of_block(&mut self) -> Option<Item> {
        let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
        let has_id = std::mem::take(&mut self.has_id);
        if !std::mem::take(&mut self.has_data) {
            return has_id.then(|| Item::Id(self.last_id.clone()));
        }
        let name = if name.is_empty() { "message".to_owned() } else { name };
        Some(Item::Event(Event { name, data, last_id: self.last_id.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 4096;

    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Item>, TooLarge> {
        let (mut parser, mut items) = (Parser::new(LIMIT), Vec::new());
        for mut piece in pieces {
            while let Some(item) = parser.feed(&mut piece)? {
                items.push(item);
            }
            assert!(piece.is_empty(), "all of the input is taken");
        }
        Ok(items)
    }

    fn whole(text: &str) -> Vec<Item> {
        parse([text.as_bytes()]).expect("small events")
    }

    fn event(name: &str, data: &str, last_id: &str) -> Item {
        Item::Event(Event { name: name.to_owned(), data: data.to_owned(), last_id: last_id.to_owned() })
    }

    #[test]
    fn the_examples_of_the_standard_are_read_as_it_says() {
        let stocks = "data: YHOO\ndata: +2\ndata: 10\n\n";
        assert_eq!(whole(stocks), [event("message", "YHOO\n+2\n10", "")]);
        let four =
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n";
        assert_eq!(
            whole(four),
            [event("message", "first event", "1"), event("message", "second event", "")],
            "a block that does not end is no event"
        );
        assert_eq!(
            whole("data\n\ndata\ndata\n\ndata:"),
            [event("message", "", ""), event("message", "\n", "")]
        );
        assert_eq!(
            whole("data:test\n\ndata: test\n\n"),
            [event("message", "test", ""), event("message", "test", "")]
        );
    }

    #[test]
    fn lines_end_in_lf_cr_or_both() {
        for end in ["\n", "\r", "\r\n"] {
            let text = "event: a|data: 1|id: x||data: 2||".replace('|', end);
            assert_eq!(whole(&text), [event("a", "1", "x"), event("message", "2", "x")], "{end:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_passed_over_once() {
        assert_eq!(whole("\u{feff}data: 1\n\n"), [event("message", "1", "")]);
        assert_eq!(whole("\u{feff}\u{feff}data: 1\n\n"), [], "a second one is part of a name");
        // U+FEFE begins with the same two bytes.
        assert_eq!(whole("\u{fefe}data: 1\n\ndata: 2\n\n"), [event("message", "2", "")]);
    }

    #[test]
    fn an_id_without_data_moves_the_position_and_dispatches_nothing() {
        assert_eq!(whole("id: 7\n\ndata: 1\n\n"), [Item::Id("7".to_owned()), event("message", "1", "7")]);
        assert_eq!(whole("id: 1\0\ndata: 1\n\n"), [event("message", "1", "")], "an id with NUL is none");
    }

    #[test]
    fn only_digits_set_the_wait() {
        assert_eq!(whole("retry: 250\n"), [Item::Retry(Duration::from_millis(250))]);
        assert_eq!(whole("retry: 1.5\nretry: -1\nretry:\nretry: 1e3\n"), []);
        assert_eq!(whole("retry: 99999999999999999999\n"), [Item::Retry(Duration::from_millis(u64::MAX))]);
    }

    #[test]
    fn what_is_no_utf8_is_replaced() {
        assert_eq!(parse([&b"data: \xff\n\n"[..]]).unwrap(), [event("message", "\u{fffd}", "")]);
    }

    #[test]
    fn an_event_that_is_too_large_is_refused_however_it_grows() {
        let refused = Err(TooLarge { limit: LIMIT });
        let line = "x".repeat(LIMIT + 1);
        assert_eq!(parse(line.as_bytes().chunks(7)), refused);
        let lines = "data: 12345\n".repeat(LIMIT / 6 + 1);
        assert_eq!(parse(lines.as_bytes().chunks(64)), refused);
        let fits = format!("data: {}\n\n", "x".repeat(LIMIT - 6)).repeat(3);
        assert_eq!(parse([fits.as_bytes()]).map(|items| items.len()), Ok(3), "each has the limit to itself");
    }

    /// The standard's algorithm, taken literally: the whole text is available and is split into lines first.
    fn by_the_standard(bytes: &[u8]) -> Vec<Item> {
        let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n");
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let (mut items, mut name, mut data, mut last_id) = (Vec::new(), "", String::new(), "");
        let mut has_id = false;
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in complete.split('\n').take_while(|_| text.contains('\n')) {
            if line.is_empty() {
                if data.pop().is_none() {
                    items.extend(has_id.then(|| Item::Id(last_id.to_owned())));
                } else {
                    items.push(event(if name.is_empty() { "message" } else { name }, &data, last_id));
                }
                (name, data, has_id) = ("", String::new(), false);
                continue;
            }
            let (field, value) = match line.find(':') {
                Some(0) => continue,
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, ""),
            };
            let value = if let Some(rest) = value.strip_prefix(' ') { rest } else { value };
            if field == "event" {
                name = value;
            } else if field == "data" {
                data += value;
                data += "\n";
            } else if field == "id" && !value.contains('\0') {
                (last_id, has_id) = (value, true);
            } else if field == "retry"
                && let Ok(millis) = value.parse()
                && !value.starts_with('+')
            {
                items.push(Item::Retry(Duration::from_millis(millis)));
            }
        }
        items
    }

    /// Texts with many of the tokens that the algorithm looks at.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just("data".to_owned()),
            Just("event".to_owned()),
            Just("id".to_owned()),
            Just("retry".to_owned()),
            Just(":".to_owned()),
            Just(" ".to_owned()),
            Just("\n".to_owned()),
            Just("\n\n".to_owned()),
            Just("\r".to_owned()),
            Just("\r\n".to_owned()),
            Just("\0".to_owned()),
            Just("\u{feff}".to_owned()),
            Just("250".to_owned()),
            Just("é🦀".to_owned()),
            "[a-z]{1,3}",
        ];
        let bytes = prop_oneof![
            20 => word.prop_map(String::into_bytes),
            1 => proptest::collection::vec(any::<u8>(), 1..3)
        ];
        proptest::collection::vec(bytes, 0..60).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn what_comes_out_is_what_the_standard_says(stream in streams()) {
            prop_assert_eq!(parse([&stream[..]]).expect("small"), by_the_standard(&stream));
        }

        #[test]
        fn pieces_make_no_difference(stream in streams(), cuts in proptest::collection::vec(any::<u16>(), 0..20)) {
            let mut cuts: Vec<usize> =
                cuts.into_iter().map(|cut| usize::from(cut) % (stream.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts {
                pieces.push(&stream[from..cut]);
                from = cut;
            }
            pieces.push(&stream[from..]);
            prop_assert_eq!(parse(pieces), parse([&stream[..]]));
        }

        #[test]
        fn no_input_makes_it_keep_more_than_its_limit(stream in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = Parser::new(16);
            let mut input = &stream[..];
            while let Ok(Some(_)) = parser.feed(&mut input) {}
            let kept = parser.line.len() + parser.name.len() + parser.data.len() + parser.last_id.len();
            // A byte that is not UTF-8 is replaced by three, and an id is kept after its event was returned.
            prop_assert!(kept <= 16 * 4);
        }
    }
}
