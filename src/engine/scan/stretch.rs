//! Cuts the keys that are to be read into stretches: pure, over the spans of the sources.
//!
//! ```text
//! source 0   aaaaaaaaaaaaa       ddddddddd    a run of two SSTs
//! source 1         bbb                  eee   level 0
//!            ┝─────┿━━━┿─────┥   ┝──────┿━━━━┥
//!            one   both one      one     both
//! ```
//! Where one source has keys alone, it can be read as it is; where several have, they must be merged.
//! Neighbouring pieces in which several sources have keys are one stretch: what is merged is not cut without need.
//! Keys that no source has are in no stretch.

use std::collections::BTreeSet;

use crate::types::{Key, KeyRange};

/// The keys of a source: from `min` to `max`, both inclusive.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) min: Key,
    pub(super) max: Key,
}

/// Keys to be read together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stretch {
    pub(super) keys: KeyRange,
    /// Positions of the sources that can have keys inside, ascending.
    pub(super) sources: Vec<usize>,
}

/// The stretches of `spans` inside `keys`, in key order: disjoint, and together all that any of them can hold.
pub(super) fn stretches(spans: &[Span], keys: &KeyRange) -> Vec<Stretch> {
    // Where sources begin and end, in key order.
    let mut bounds: Vec<(Key, usize, bool)> = Vec::with_capacity(2 * spans.len());
    for (source, span) in spans.iter().enumerate() {
        bounds.push((span.min.clone(), source, true));
        bounds.push((span.max.successor(), source, false));
    }
    bounds.sort_unstable();
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut here: BTreeSet<usize> = BTreeSet::new();
    let mut next = bounds.into_iter().peekable();
    while let Some((start, source, begins)) = next.next() {
        match begins {
            true => here.insert(source),
            false => here.remove(&source),
        };
        let Some((end, ..)) = next.peek().filter(|(end, ..)| *end != start) else {
            continue;
        };
        let inside = KeyRange {
            start: Some(start),
            end: Some(end.clone()),
        };
        let inside = inside.and(keys);
        if !here.is_empty() && !inside.is_empty() {
            add(&mut stretches, inside, &here);
        }
    }
    stretches
}

fn add(stretches: &mut Vec<Stretch>, keys: KeyRange, sources: &BTreeSet<usize>) {
    if let Some(last) = stretches.last_mut()
        && last.keys.end == keys.start
        && last.sources.len() > 1
        && sources.len() > 1
    {
        last.keys.end = keys.end;
        // Those that were there are few in most cases; the list stays sorted.
        for source in sources {
            if let Err(at) = last.sources.binary_search(source) {
                last.sources.insert(at, *source);
            }
        }
        return;
    }
    stretches.push(Stretch {
        keys,
        sources: sources.iter().copied().collect(),
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(text: &str) -> Key {
        Key::from(text.as_bytes())
    }

    fn spans(text: &str) -> Vec<Span> {
        let span = |span: &str| {
            let (min, max) = span.split_once('-').unwrap();
            let (min, max) = (key(min), key(max));
            Span { min, max }
        };
        text.split_whitespace().map(span).collect()
    }

    /// Each stretch as its keys and sources; `+` behind a key: all that are greater.
    fn drawn(text: &str, keys: &KeyRange) -> String {
        let bound = |key: &Option<Key>| {
            let text = String::from_utf8(key.as_ref().unwrap().0.to_vec()).unwrap();
            text.replace('\0', "+")
        };
        let stretches = stretches(&spans(text), keys);
        let drawn = stretches.iter().map(|stretch| {
            let sources: String = stretch.sources.iter().map(usize::to_string).collect();
            format!(
                "{}..{}={sources}",
                bound(&stretch.keys.start),
                bound(&stretch.keys.end)
            )
        });
        drawn.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_alone_is_cut_out_and_what_overlaps_stays_together() {
        let all = KeyRange::ALL;
        assert_eq!(drawn("", &all), "");
        assert_eq!(drawn("a-c e-g", &all), "a..c+=0 e..g+=1");
        assert_eq!(drawn("a-m d-f", &all), "a..d=0 d..f+=01 f+..m+=0");
        assert_eq!(drawn("a-c c-e", &all), "a..c=0 c..c+=01 c+..e+=1");
        assert_eq!(drawn("a-f b-d c-h", &all), "a..b=0 b..f+=012 f+..h+=2");
        assert_eq!(drawn("a-a a-a", &all), "a..a+=01");
        let some = KeyRange {
            start: Some(key("c")),
            end: Some(key("e")),
        };
        assert_eq!(drawn("a-m d-f x-z", &some), "c..d=0 d..e=01");
    }

    proptest! {
        #[test]
        fn every_key_of_every_source_is_in_one_stretch(
            spans in proptest::collection::vec((0..30u8, 0..10u8), 0..12),
            start in proptest::option::of(0..40u8),
            end in proptest::option::of(0..40u8),
        ) {
            let spans: Vec<Span> = spans.iter().map(|(min, length)| Span {
                min: Key::from(&[*min][..]),
                max: Key::from(&[min + length][..]),
            }).collect();
            let bound = |key: Option<u8>| key.map(|key| Key::from(&[key][..]));
            let keys = KeyRange { start: bound(start), end: bound(end) };
            let stretches = stretches(&spans, &keys);
            for pair in stretches.windows(2) {
                prop_assert!(pair[0].keys.end <= pair[1].keys.start);
            }
            for key in 0..42u8 {
                let has = |span: &Span| span.min.0[0] <= key && key <= span.max.0[0];
                let wanted: Vec<usize> = (0..spans.len()).filter(|&at| has(&spans[at])).collect();
                let found: Vec<&Stretch> = stretches.iter().filter(|stretch| stretch.keys.contains(&[key])).collect();
                if wanted.is_empty() || !keys.contains(&[key]) {
                    prop_assert!(found.is_empty());
                    continue;
                }
                prop_assert_eq!(found.len(), 1);
                prop_assert!(wanted.iter().all(|source| found[0].sources.contains(source)));
                // A source that is alone is not merged.
                prop_assert!(wanted.len() > 1 || found[0].sources == wanted);
            }
        }
    }
}
