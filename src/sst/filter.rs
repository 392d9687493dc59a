//! Answers whether an SST can hold a key, without reading its rows.
//!
//! Parquet's own Bloom filters are by column. Of a key `(host, time)` they can say that the host occurs,
//! and that the time occurs; in a metrics file both do for nearly every key, together or not. This filter
//! is over whole encoded keys, each once, whatever its versions.
//!
//! It is a split block Bloom filter, as Parquet's: each key sets one bit in each of the eight words of one
//! block, so that a look-up touches one cache line. The hash is XXH3-64 of the encoded key: its upper half
//! chooses the block, its lower half, times eight odd constants, the bits.
//! ```text
//! block 0      8 words of 32 bits, little-endian
//! block 1      …
//! ```
//! It lies between the last row group and the page index, where no Parquet reader looks;
//! `siltstone.filter` in the footer says where, and its CRC-32.

use bytes::Bytes;

use crate::types::{Seq, row_hash};

const BLOCK_BYTES: usize = 32;
/// The constants of Parquet's filter.
const SALTS: [u32; 8] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// The keys of one SST, about. See the head of this file.
#[derive(Clone, Debug)]
pub struct KeyFilter {
    blocks: Bytes,
}

impl KeyFilter {
    /// A filter in the form that [`build`] gave it, or `None` when it is not one.
    pub(super) fn parse(blocks: Bytes) -> Option<Self> {
        let whole = !blocks.is_empty() && blocks.len().is_multiple_of(BLOCK_BYTES);
        whole.then_some(Self { blocks })
    }

    /// False when no row has this encoded key; true when one may have, or for about one in a hundred
    /// others.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        let hash = hash_key(key);
        let start = block_of(hash, self.blocks.len() / BLOCK_BYTES) * BLOCK_BYTES;
        let words = self.blocks[start..start + BLOCK_BYTES].chunks_exact(4);
        words.zip(masks(hash)).all(|(word, mask)| {
            let word = u32::from_le_bytes(word.try_into().expect("chunks of 4"));
            word & mask != 0
        })
    }

    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        self.blocks.len()
    }
}

/// The hash by which a key enters the filter.
pub(super) fn hash_key(key: &[u8]) -> u64 {
    row_hash(key, Seq(0))
}

/// A filter over keys with these hashes.
pub(super) fn build(hashes: &[u64], bits_per_key: usize) -> Vec<u8> {
    let bits = hashes.len().saturating_mul(bits_per_key);
    let blocks = bits.div_ceil(8 * BLOCK_BYTES).max(1);
    let mut filter = vec![0; blocks * BLOCK_BYTES];
    for &hash in hashes {
        let start = block_of(hash, blocks) * BLOCK_BYTES;
        let words = filter[start..start + BLOCK_BYTES].chunks_exact_mut(4);
        for (word, mask) in words.zip(masks(hash)) {
            for (byte, bits) in word.iter_mut().zip(mask.to_le_bytes()) {
                *byte |= bits;
            }
        }
    }
    filter
}

fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

fn masks(hash: u64) -> impl Iterator<Item = u32> {
    let low = hash as u32;
    SALTS
        .iter()
        .map(move |salt| 1 << (low.wrapping_mul(*salt) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_and_few_others() {
        let key = |n: u32| n.to_be_bytes();
        for keys in [1, 7, 10_000] {
            let hashes: Vec<u64> = (0..keys).map(|n| hash_key(&key(n))).collect();
            let filter = KeyFilter::parse(build(&hashes, 10).into()).unwrap();
            assert!((0..keys).all(|n| filter.may_contain(&key(n))));
            let wrong = (0..10_000).filter(|n| filter.may_contain(&key(1 << 31 | n)));
            let wrong = wrong.count();
            assert!(wrong < 250, "{wrong} of 10,000 with {keys} keys");
        }
        assert!(KeyFilter::parse(Bytes::from_static(&[0; 31])).is_none());
        assert!(KeyFilter::parse(Bytes::new()).is_none());
    }
}
