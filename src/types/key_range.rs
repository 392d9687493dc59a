//! Half-open ranges of encoded keys.

use std::fmt;

use super::Key;

/// Keys from `start` (inclusive) to `end` (exclusive); `None` is unbounded.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The first key inside, or `None` from the very first.
    pub start: Option<Key>,
    /// The first key outside, or `None` up to the very last.
    pub end: Option<Key>,
}

impl KeyRange {
    /// Every key.
    pub const ALL: KeyRange = KeyRange {
        start: None,
        end: None,
    };

    /// From `start` to `end`, both inside.
    pub fn closed(start: &Key, end: &Key) -> Self {
        Self {
            start: Some(start.clone()),
            end: Some(end.successor()),
        }
    }

    /// Whether `key` lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_ref().is_none_or(|start| key >= &start.0[..])
            && self.end.as_ref().is_none_or(|end| key < &end.0[..])
    }

    /// Whether any key from `min` to `max`, both inclusive, can lie inside.
    pub fn overlaps(&self, min: &Key, max: &Key) -> bool {
        self.start.as_ref().is_none_or(|start| max >= start)
            && self.end.as_ref().is_none_or(|end| min < end)
    }

    /// The keys that lie in both.
    #[must_use]
    pub fn and(&self, other: &KeyRange) -> KeyRange {
        let end = match (&self.end, &other.end) {
            (Some(left), Some(right)) => Some(left.min(right)),
            (left, right) => left.as_ref().or(right.as_ref()),
        };
        KeyRange {
            // None, which is less than every key, is the very first.
            start: self.start.as_ref().max(other.start.as_ref()).cloned(),
            end: end.cloned(),
        }
    }

    /// Whether no key can lie inside.
    pub fn is_empty(&self) -> bool {
        matches!((&self.start, &self.end), (Some(start), Some(end)) if start >= end)
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.start, &self.end) {
            (None, None) => f.write_str("[.., ..)"),
            (Some(start), None) => write!(f, "[{start:?}, ..)"),
            (None, Some(end)) => write!(f, "[.., {end:?})"),
            (Some(start), Some(end)) => write!(f, "[{start:?}, {end:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_half_open() {
        let key = |text: &str| Key::from(text.as_bytes());
        let range = KeyRange {
            start: Some(key("b")),
            end: Some(key("d")),
        };
        assert!(range.contains(b"b") && range.contains(b"c") && !range.contains(b"d"));
        assert!(range.overlaps(&key("a"), &key("b")) && !range.overlaps(&key("d"), &key("e")));
        assert!(KeyRange::closed(&key("b"), &key("b")).contains(b"b"));
        assert!(!KeyRange::closed(&key("b"), &key("b")).contains(b"b\0"));
        let open = KeyRange {
            start: None,
            end: Some(key("c")),
        };
        let both = KeyRange {
            start: Some(key("b")),
            end: Some(key("c")),
        };
        assert_eq!((range.and(&open), open.and(&range)), (both.clone(), both));
        assert_eq!(range.and(&KeyRange::ALL), range);
        assert!(
            KeyRange {
                start: Some(key("d")),
                end: Some(key("b"))
            }
            .is_empty()
        );
    }
}
