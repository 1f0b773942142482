//! The `Retry-After` header.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{self, HeaderMap};
use tidings_model::Timestamp;

/// Time that a response asks to wait, given in seconds or as a date. `None` if it does not say, or not in a valid form.
pub(crate) fn retry_after(headers: &HeaderMap, now: impl FnOnce() -> Timestamp) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let moment: SystemTime = httpdate::parse_http_date(value).ok()?;
    let moment = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(moment.saturating_sub(now().since(Timestamp::from_millis(0))))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn told(value: &'static str) -> Option<u64> {
        let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_static(value))]);
        // Sun, 06 Nov 1994 08:49:37 GMT.
        retry_after(&headers, || Timestamp::from_millis(784_111_777_000)).map(|time| time.as_secs())
    }

    #[test]
    fn a_wait_is_told_in_seconds_or_as_a_date() {
        assert_eq!(told("0"), Some(0));
        assert_eq!(told(" 120 "), Some(120));
        assert_eq!(told("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(told("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(told("Sun, 06 Nov 1994 08:48:37 GMT"), Some(0));
        assert_eq!(told("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    }

    #[test]
    fn what_is_neither_is_ignored() {
        for value in ["", " ", "-1", "1.5", "+5", "soon", "5 s", "\u{7f}"] {
            if let Ok(value) = HeaderValue::from_str(value) {
                let headers = HeaderMap::from_iter([(header::RETRY_AFTER, value)]);
                assert_eq!(retry_after(&headers, || Timestamp::from_millis(0)), None);
            }
        }
        assert_eq!(retry_after(&HeaderMap::new(), || Timestamp::from_millis(0)), None);
    }
}
