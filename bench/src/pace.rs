//! How fast messages are published.

/// Pace of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Closed loop with this many messages in flight.
    Window(u32),
    /// Fixed rate of messages per second.
    Rate(u32),
}

impl Pace {
    /// Name in reports.
    pub fn name(self) -> String {
        match self {
            Self::Window(window) => format!("window {window}"),
            Self::Rate(rate) => format!("{rate}/s"),
        }
    }

    /// Whether it is a closed loop with several messages in flight.
    pub fn is_many(self) -> bool {
        matches!(self, Self::Window(window) if window > 1)
    }

    /// Arguments of `liveload`.
    pub fn arguments(self) -> Vec<String> {
        match self {
            Self::Window(window) => vec!["--window".to_owned(), window.to_string()],
            Self::Rate(rate) => vec!["--rate".to_owned(), rate.to_string()],
        }
    }
}
