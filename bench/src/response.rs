//! Parser for HTTP/1.1 responses that does not keep bodies.

use memchr::memmem;

/// Why a response cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Not HTTP/1.1, or a feature that is not supported here.
    Malformed,
    /// Neither a length nor chunked encoding.
    Endless,
}

/// The parts of a response's head that benchmarks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// HTTP status.
    pub status: u16,
    /// Value of `Stream-Next-Offset`.
    pub next_offset: Option<String>,
    /// Whether `Stream-Up-To-Date` is present.
    pub up_to_date: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParseState {
    Head,
    /// In a body with the given number of bytes left.
    Body(usize),
    ChunkSize,
    /// In a chunk with the given number of bytes left, including its line end.
    Chunk(usize),
    /// After the last chunk.
    Trailer,
    End,
}

/// A response that is being read.
#[derive(Debug)]
pub struct Response {
    /// Head of the response.
    pub head: Head,
    /// Bytes of the body so far.
    pub body_bytes: usize,
    state: ParseState,
    /// Incomplete head or line.
    held: Vec<u8>,
}

impl Default for Response {
    fn default() -> Self {
        Self { head: Head::default(), body_bytes: 0, state: ParseState::Head, held: Vec::new() }
    }
}

impl Response {
    /// Resets the parser for the next response.
    pub fn clear(&mut self) {
        self.body_bytes = 0;
        self.state = ParseState::Head;
        self.held.clear();
    }

    /// Whether the response is complete.
    pub fn is_complete(&self) -> bool {
        self.state == ParseState::End
    }

    /// Parses received bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), ReadError> {
        while !bytes.is_empty() && self.state != ParseState::End {
            bytes = match self.state {
                ParseState::Head => self.feed_head(bytes)?,
                ParseState::Body(left) => {
                    let taken = left.min(bytes.len());
                    self.body_bytes += taken;
                    self.state = if taken == left { ParseState::End } else { ParseState::Body(left - taken) };
                    &bytes[taken..]
                }
                ParseState::Chunk(left) => {
                    let taken = left.min(bytes.len());
                    self.state =
                        if taken == left { ParseState::ChunkSize } else { ParseState::Chunk(left - taken) };
                    &bytes[taken..]
                }
                ParseState::ChunkSize | ParseState::Trailer => self.feed_line(bytes)?,
                ParseState::End => bytes,
            };
        }
        Ok(())
    }

    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ReadError> {
        if self.held.is_empty() {
            if let Some(end) = memmem::find(bytes, b"\r\n\r\n") {
                self.state = self.parse(&bytes[..end])?;
                return Ok(&bytes[end + 4..]);
            }
            self.held.extend_from_slice(bytes);
            return Ok(&[]);
        }
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        let Some(end) = memmem::find(&self.held, b"\r\n\r\n") else { return Ok(&[]) };
        let head = std::mem::take(&mut self.held);
        self.state = self.parse(&head[..end])?;
        Ok(&bytes[end + 4 - before..])
    }

    fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ReadError> {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.held.extend_from_slice(bytes);
            return Ok(&[]);
        };
        self.held.extend_from_slice(&bytes[..end]);
        let line = self.held.trim_ascii_end();
        self.state = match self.state {
            ParseState::Trailer if line.is_empty() => ParseState::End,
            ParseState::Trailer => ParseState::Trailer,
            _ => {
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
                let size =
                    std::str::from_utf8(digits).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
                let size = size.ok_or(ReadError::Malformed)?;
                self.body_bytes += size;
                if size == 0 { ParseState::Trailer } else { ParseState::Chunk(size + 2) }
            }
        };
        self.held.clear();
        Ok(&bytes[end + 1..])
    }

    /// Parses the head, and returns the state that follows it.
    fn parse(&mut self, head: &[u8]) -> Result<ParseState, ReadError> {
        let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        self.head.status = status.and_then(|status| status.parse().ok()).ok_or(ReadError::Malformed)?;
        self.head.next_offset = None;
        self.head.up_to_date = false;
        let (mut length, mut chunked) = (None, false);
        let mut at = 0;
        while let Some(end) = memchr::memchr(b'\n', &head[at..]) {
            at += end + 1;
            let line = &head[at..];
            if let Some(value) = value(line, b"content-length:") {
                length = value.parse().ok();
            } else if let Some(value) = value(line, b"transfer-encoding:") {
                chunked = value.eq_ignore_ascii_case("chunked");
            } else if let Some(value) = value(line, b"stream-next-offset:") {
                self.head.next_offset = Some(value.to_owned());
            } else if value(line, b"stream-up-to-date:").is_some() {
                self.head.up_to_date = true;
            }
        }
        match (self.head.status, chunked, length) {
            (204 | 304, _, _) | (_, false, Some(0)) => Ok(ParseState::End),
            (_, true, _) => Ok(ParseState::ChunkSize),
            (_, false, Some(length)) => Ok(ParseState::Body(length)),
            (_, false, None) => Err(ReadError::Endless),
        }
    }
}

/// Value of the header on a line if it has this name.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a str> {
    if !line.get(..name.len())?.eq_ignore_ascii_case(name) {
        return None;
    }
    let rest = &line[name.len()..];
    let end = memchr::memchr(b'\r', rest).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_steps_of(step: usize, answer: &str) -> Result<Response, ReadError> {
        let mut response = Response::default();
        for part in answer.as_bytes().chunks(step) {
            response.feed(part)?;
        }
        Ok(response)
    }

    #[test]
    fn an_answer_is_understood_wherever_it_is_cut() {
        let long = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nstream-next-offset: 7_1\r\nStream-Up-To-Date: true\r\n\r\nhello";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nA: b\r\n\r\n";
        for step in 1..long.len() {
            let response = read_in_steps_of(step, long).unwrap();
            let head = Head { status: 200, next_offset: Some("7_1".to_owned()), up_to_date: true };
            assert_eq!((response.is_complete(), response.body_bytes, response.head), (true, 5, head));
            let response = read_in_steps_of(step, chunked).unwrap();
            assert_eq!((response.is_complete(), response.body_bytes), (true, 5), "in steps of {step}");
        }
    }

    #[test]
    fn an_answer_that_has_not_come_to_its_end_is_not_complete() {
        assert!(
            !read_in_steps_of(9, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell").unwrap().is_complete()
        );
        assert!(read_in_steps_of(9, "HTTP/1.1 204 No Content\r\n\r\n").unwrap().is_complete());
    }

    #[test]
    fn an_answer_without_an_end_is_refused() {
        assert_eq!(read_in_steps_of(99, "HTTP/1.1 200 OK\r\nA: b\r\n\r\n").unwrap_err(), ReadError::Endless);
        assert_eq!(read_in_steps_of(99, "nonsense\r\n\r\n").unwrap_err(), ReadError::Malformed);
    }
}
