//! Content codings: selects the coding of a response and encodes its body.
//!
//! Only responses of known length are encoded, as a whole: live responses are not.

use std::io::Write;

use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tidings_streams::ContentType;

use crate::error::ApiError;

/// Smaller bodies are not compressed: headers and framing would use up the gain.
const BYTES_MIN: usize = 1024;
/// Bodies up to this size are compressed inline, because handing them to another thread would cost more.
const BYTES_INLINE: usize = 8 * 1024;
const GZIP_LEVEL: u32 = 4;
const ZSTD_LEVEL: i32 = 3;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Not encoded.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// The coding for a body of `bytes`, by the request's `Accept-Encoding` and the content type.
    pub fn choose(request: &HeaderMap, content_type: &ContentType, bytes: usize) -> Self {
        if bytes < BYTES_MIN || !request.contains_key(header::ACCEPT_ENCODING) || !varies(content_type) {
            return Self::Identity;
        }
        let lines = request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
        preferred(lines.flat_map(|line| line.split(',')))
    }

    /// The name of the coding in headers; `None` for identity.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// Encodes a body, and sets the headers of its response.
    pub async fn encode(self, body: Bytes, headers: &mut HeaderMap) -> Result<Bytes, ApiError> {
        let Some(name) = self.name() else { return Ok(body) };
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
        let written = if body.len() <= BYTES_INLINE {
            self.write(&body)
        } else {
            let writing = tokio::task::spawn_blocking(move || self.write(&body)).await;
            writing.map_err(ApiError::internal)?
        };
        written.map(Bytes::from).map_err(ApiError::internal)
    }

    fn write(self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Identity => Ok(body.to_vec()),
            Self::Gzip => {
                let mut out =
                    GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::new(GZIP_LEVEL));
                out.write_all(body)?;
                out.finish()
            }
            Self::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL),
        }
    }
}

/// Whether responses of this type may be compressed, and so depend on `Accept-Encoding`: text, and other
/// types that are text. Compressing what is compressed already only costs time.
pub fn varies(content_type: &ContentType) -> bool {
    content_type.is_text() || {
        let essence = content_type.as_str().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        essence.ends_with("+json")
            || essence.ends_with("+xml")
            || ["application/xml", "application/x-ndjson", "application/javascript"].contains(&&*essence)
    }
}

/// The coding with the highest weight, among equal ones the better. A coding that is not listed has the
/// weight of `*`; identity comes last, unless it is listed.
fn preferred<'a>(asked: impl Iterator<Item = &'a str>) -> Coding {
    let (mut gzip, mut zstd, mut identity, mut any) = (None, None, None, None);
    for (name, weight) in asked.filter_map(weighted) {
        match name {
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => {
                gzip = Some(weight);
            }
            name if name.eq_ignore_ascii_case("zstd") => zstd = Some(weight),
            name if name.eq_ignore_ascii_case("identity") => identity = Some(weight),
            "*" => any = Some(weight),
            _ => {}
        }
    }
    let of = |own: Option<u16>| own.or(any).unwrap_or(0);
    let identity = identity.unwrap_or(0);
    let known = [(of(zstd), Coding::Zstd), (of(gzip), Coding::Gzip)];
    let best = known.into_iter().rev().max_by_key(|(weight, _)| *weight);
    match best {
        Some((weight, coding)) if weight > 0 && weight >= identity => coding,
        _ => Coding::Identity,
    }
}

/// Name and weight of a listed coding, in thousandths; `None` if malformed.
fn weighted(text: &str) -> Option<(&str, u16)> {
    let (name, parameters) = text.split_once(';').unwrap_or((text, ""));
    let Some(weight) = parameters
        .split(';')
        .map(str::trim)
        .find_map(|parameter| parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q=")))
    else {
        return Some((name.trim(), 1000));
    };
    let weight: f32 = weight.trim().parse().ok().filter(|weight| (0.0..=1.0).contains(weight))?;
    Some((name.trim(), (weight * 1000.0) as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Coding {
        preferred(text.split(','))
    }

    #[test]
    fn the_highest_weight_wins_and_of_equal_ones_the_better() {
        for (asked, expected) in [
            ("", Coding::Identity),
            ("gzip", Coding::Gzip),
            ("X-GZip", Coding::Gzip),
            ("gzip, deflate, br, zstd", Coding::Zstd),
            ("gzip;q=0.8, zstd;q=0.5", Coding::Gzip),
            ("gzip; q=0.8 ,zstd ; q=0.8", Coding::Zstd),
            ("br", Coding::Identity),
            ("*", Coding::Zstd),
            ("*, zstd;q=0", Coding::Gzip),
            ("*;q=0", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("gzip;q=0.5, identity", Coding::Identity),
            ("gzip, identity", Coding::Gzip),
            ("gzip;q=0.001", Coding::Gzip),
            ("gzip;q=2", Coding::Identity),
            ("gzip;q=NaN, zstd;q=x", Coding::Identity),
        ] {
            assert_eq!(of(asked), expected, "{asked:?}");
        }
    }

    #[test]
    fn only_text_of_some_size_is_coded() {
        let mut asking = HeaderMap::new();
        asking.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let chosen = |content_type: &str, bytes| {
            Coding::choose(&asking, &ContentType::parse(content_type).expect("valid"), bytes)
        };
        for text in
            ["text/plain", "application/json; charset=utf-8", "Application/CloudEvents+JSON", "image/svg+xml"]
        {
            assert_eq!(chosen(text, BYTES_MIN), Coding::Gzip, "{text}");
            assert_eq!(chosen(text, BYTES_MIN - 1), Coding::Identity, "{text}");
        }
        for other in ["application/octet-stream", "image/png", "application/gzip", "video/mp4"] {
            assert_eq!(chosen(other, 1 << 20), Coding::Identity, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_choosing_panic(text in "\\PC{0,60}") {
            let _ = of(&text);
        }

        #[test]
        fn what_was_coded_is_read_back(body in proptest::collection::vec(any::<u8>(), 0..5000)) {
            use std::io::Read;
            let mut plain = Vec::new();
            let gzip = Coding::Gzip.write(&body).expect("written");
            flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut plain).expect("gzip");
            prop_assert_eq!(&plain, &body);
            let zstd = Coding::Zstd.write(&body).expect("written");
            prop_assert_eq!(zstd::bulk::decompress(&zstd, 5000).expect("zstd"), body);
        }
    }
}
