//! RESP3, the format in which Redis writes values.

use tidings_model::limits;

/// Bytes of a line: a number, a short text or an error.
const LINE_BYTES: usize = 64 * 1024;
/// Bytes of a text with a length.
const TEXT_BYTES: usize = limits::BUS_MESSAGE_BYTES + limits::BUS_CHANNEL_BYTES;
/// Values in a list.
const LIST_VALUES: usize = 4096;
/// Lists within lists, and attributes before a value.
const DEPTH: usize = 8;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A text.
    Text(&'a [u8]),
    /// An error.
    Error(&'a [u8]),
    /// A list that was not asked for.
    Push(Vec<Value<'a>>),
    /// A list, or a map or set as a list.
    List(Vec<Value<'a>>),
    /// A number, a truth value or nothing, as it is written.
    Other(&'a [u8]),
}

/// Reads a value and its number of bytes. `None` if it is not complete.
pub(crate) fn read(input: &[u8]) -> Result<Option<(Value<'_>, usize)>, String> {
    let mut reader = Reader { input, at: 0 };
    Ok(reader.value(DEPTH)?.map(|value| (value, reader.at)))
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Option<Value<'a>>, String> {
        let Some(line) = self.line()? else { return Ok(None) };
        let Some((&kind, rest)) = line.split_first() else {
            return Err("Redis has sent an empty line".to_owned());
        };
        Ok(match kind {
            b'+' => Some(Value::Text(rest)),
            b'-' => Some(Value::Error(rest)),
            b':' | b'#' | b',' | b'(' | b'_' => Some(Value::Other(rest)),
            b'$' | b'=' | b'!' => match length(rest, TEXT_BYTES)? {
                None => Some(Value::Other(b"")),
                Some(bytes) => self.text(bytes)?.map(|text| match kind {
                    b'!' => Value::Error(text),
                    _ => Value::Text(text),
                }),
            },
            b'*' | b'~' | b'>' => match length(rest, LIST_VALUES)? {
                None => Some(Value::Other(b"")),
                Some(values) => self.list(values, depth)?.map(|values| match kind {
                    b'>' => Value::Push(values),
                    _ => Value::List(values),
                }),
            },
            b'%' | b'|' => {
                let pairs = length(rest, LIST_VALUES / 2)?.unwrap_or_default();
                let Some(values) = self.list(2 * pairs, depth)? else { return Ok(None) };
                // Attributes come before the value that they are about, and mean nothing to us.
                if kind == b'|' { self.value(depth - 1)? } else { Some(Value::List(values)) }
            }
            _ => return Err("Redis has sent what is not RESP3".to_owned()),
        })
    }

    fn list(&mut self, values: usize, depth: usize) -> Result<Option<Vec<Value<'a>>>, String> {
        if depth == 0 {
            return Err(format!("Redis has sent lists within lists, {DEPTH} deep"));
        }
        let mut list = Vec::new();
        for _ in 0..values {
            let Some(value) = self.value(depth - 1)? else { return Ok(None) };
            list.push(value);
        }
        Ok(Some(list))
    }

    fn text(&mut self, bytes: usize) -> Result<Option<&'a [u8]>, String> {
        let rest = &self.input[self.at..];
        let (Some(text), Some(end)) = (rest.get(..bytes), rest.get(bytes..bytes + 2)) else {
            return Ok(None);
        };
        if end != b"\r\n" {
            return Err("Redis has sent a text of another length than it said".to_owned());
        }
        self.at += bytes + 2;
        Ok(Some(text))
    }

    /// The line that begins here, without its end.
    fn line(&mut self) -> Result<Option<&'a [u8]>, String> {
        let rest = &self.input[self.at..];
        match rest.iter().take(LINE_BYTES).position(|&byte| byte == b'\n') {
            Some(end) if end > 0 && rest[end - 1] == b'\r' => {
                self.at += end + 1;
                Ok(Some(&rest[..end - 1]))
            }
            Some(_) => Err("Redis has sent a line with another end".to_owned()),
            None if rest.len() >= LINE_BYTES => Err("Redis has sent a line that is too long".to_owned()),
            None => Ok(None),
        }
    }
}

/// A length; `None` if there is no value.
fn length(text: &[u8], max: usize) -> Result<Option<usize>, String> {
    if text == b"-1" {
        return Ok(None);
    }
    let length = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let length: usize = length.ok_or("Redis has sent a length that is not a number")?;
    if length > max { Err(format!("Redis has sent more than {max} at once")) } else { Ok(Some(length)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Value<'_> {
        let (value, bytes) = read(text.as_bytes()).expect("it is RESP3").expect("it is complete");
        assert_eq!(bytes, text.len());
        value
    }

    #[test]
    fn all_kinds_of_values_are_read() {
        assert_eq!(whole("+OK\r\n"), Value::Text(b"OK"));
        assert_eq!(whole("-ERR no\r\n"), Value::Error(b"ERR no"));
        assert_eq!(whole("!6\r\nERR no\r\n"), Value::Error(b"ERR no"));
        assert_eq!(whole(":12\r\n"), Value::Other(b"12"));
        assert_eq!(whole("_\r\n"), Value::Other(b""));
        assert_eq!(whole("$-1\r\n"), Value::Other(b""));
        assert_eq!(whole("$4\r\na\r\nb\r\n"), Value::Text(b"a\r\nb"));
        assert_eq!(whole("=3\r\ntxt\r\n"), Value::Text(b"txt"));
        assert_eq!(whole("*-1\r\n"), Value::Other(b""));
        assert_eq!(whole("~1\r\n#t\r\n"), Value::List(vec![Value::Other(b"t")]));
        assert_eq!(whole(">1\r\n+x\r\n"), Value::Push(vec![Value::Text(b"x")]));
        assert_eq!(whole("%1\r\n+a\r\n*1\r\n,1.5\r\n"), {
            Value::List(vec![Value::Text(b"a"), Value::List(vec![Value::Other(b"1.5")])])
        });
        assert_eq!(whole("|1\r\n+a\r\n+b\r\n:3\r\n"), Value::Other(b"3"));
    }

    #[test]
    fn what_is_not_complete_is_waited_for() {
        let text = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\nx\r\n\r\n";
        for bytes in 0..text.len() {
            assert_eq!(read(&text[..bytes]), Ok(None), "{bytes}");
        }
    }

    #[test]
    fn what_is_wrong_or_too_much_is_refused() {
        let deep = "*1\r\n".repeat(9);
        let attributes = "|1\r\n+a\r\n+b\r\n".repeat(100_000);
        let long = format!("+{}", "x".repeat(LINE_BYTES));
        for text in [
            "\r\n",
            "x\r\n",
            "+a\n",
            "$x\r\n",
            "$-2\r\n",
            "$1\r\nab\r\n",
            "*99999\r\n",
            "$99999999999\r\n",
            &deep,
            &attributes,
            &long,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:.20}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(text in "[-+:$*%>|~!\r\n0-9a-z]{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = read(text.as_bytes());
            let _ = read(&bytes);
        }
    }
}
