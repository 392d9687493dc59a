//! Sizes and durations as people write them: `"64MiB"`, `"30s"`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

/// A number of bytes; written `"64MiB"`, `"512KiB"`, `"1GB"` or as a plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `count` mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The number as a `usize`.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bytesize::ByteSize(self.0).display().iec().fmt(f)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Text::deserialize(deserializer)? {
            Text::Number(number) => Ok(Self(number)),
            Text::Text(text) => match text.parse::<bytesize::ByteSize>() {
                Ok(size) => Ok(Self(size.0)),
                Err(_) => Err(D::Error::custom(format!(
                    "{text:?} is not a size such as \"64MiB\""
                ))),
            },
        }
    }
}

/// A duration in whole milliseconds; written `"30s"`, `"250ms"`, `"1h 30m"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// `count` seconds.
    pub const fn secs(count: u64) -> Self {
        Self(count * 1_000)
    }

    /// As a [`Duration`].
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.duration()).fmt(f)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match humantime::parse_duration(&text) {
            Ok(duration) => Ok(Self(
                u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            )),
            Err(_) => Err(D::Error::custom(format!(
                "{text:?} is not a duration such as \"30s\""
            ))),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Number(u64),
    Text(String),
}
