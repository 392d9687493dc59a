//! Chains: SSTs that are disjoint by key, to be read one after the other as one source of a merge.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use crate::types::{Key, SstMeta};

/// `ssts` in as few chains as can be, each sorted and disjoint by key, whatever windows and levels they are
/// of. Where time leads the key, a whole table makes few chains.
pub(super) fn chains(ssts: &[Arc<SstMeta>]) -> Vec<Vec<Arc<SstMeta>>> {
    let mut ssts = ssts.to_vec();
    ssts.sort_by(|left, right| left.key_min.cmp(&right.key_min));
    let mut chains: Vec<Vec<Arc<SstMeta>>> = Vec::new();
    // The chain that ends first is the one to go on with, if any is.
    let mut ends: BinaryHeap<Reverse<(Key, usize)>> = BinaryHeap::new();
    for sst in ssts {
        let free = ends.peek().filter(|Reverse((end, _))| *end < sst.key_min);
        let chain = match free {
            Some(_) => ends.pop().map_or(0, |Reverse((_, chain))| chain),
            None => {
                chains.push(Vec::new());
                chains.len() - 1
            }
        };
        ends.push(Reverse((sst.key_max.clone(), chain)));
        chains[chain].push(sst);
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SstId;

    #[test]
    fn disjoint_ssts_are_chained_and_overlapping_ones_are_not() {
        let sst = |keys: &str| {
            let id = SstId::flushed(1, 0);
            Arc::new(SstMeta::sample(id, keys))
        };
        let show = |ssts: &[&str]| -> Vec<String> {
            let chains = chains(&ssts.iter().map(|keys| sst(keys)).collect::<Vec<_>>());
            let text = |key: &Key| String::from_utf8(key.0.to_vec()).unwrap();
            let chain = |ssts: Vec<Arc<SstMeta>>| {
                let keys = ssts
                    .iter()
                    .map(|sst| format!("{}-{}", text(&sst.key_min), text(&sst.key_max)));
                keys.collect::<Vec<_>>().join(" ")
            };
            chains.into_iter().map(chain).collect()
        };
        assert_eq!(show(&["e-f", "a-b", "c-d"]), ["a-b c-d e-f"]);
        assert_eq!(show(&["a-c", "c-d", "d-e"]), ["a-c d-e", "c-d"]);
        assert_eq!(
            show(&["a-z", "b-c", "d-e", "d-f"]),
            ["a-z", "b-c d-e", "d-f"]
        );
        assert!(show(&[]).is_empty());
    }
}
