//! The index of an SST: where a key can be inside a row group, and a checksum of every page. With it and
//! Parquet's page index a reader fetches single pages and trusts them.
//!
//! Parquet's column index has bounds of each column alone, which for a composite key `(host, time)` say
//! nothing of the time inside a host. A **mark** is the whole encoded key of a row: of every `page_rows`-th
//! row of a row group, its first one included. The rows from one mark to the next are a *block*. Pages end
//! where blocks do, unless a page is full before.
//!
//! All numbers are little-endian:
//! ```text
//! page_rows    u32    rows in a block; the last of a row group may have fewer
//! groups       u32    row groups
//! columns      u32    leaf columns
//! row group by row group:
//!   marks      u32    number of blocks, then for each
//!     length   u32
//!     key      length bytes
//!   leaf by leaf:
//!     flags    u8     1: it may hold NaN, which Parquet's statistics leave out
//!     dict_crc u32    CRC-32 of the dictionary page with its header: all before the first data page
//!     pages    u32    number of data pages, then for each
//!       crc    u32    CRC-32 of the page with its header
//! ```
//! It lies between the key filter and the page index, where no Parquet reader looks; `siltstone.index` in
//! the footer says where, and its CRC-32.

use bytes::{Buf, BufMut, Bytes};
use parquet::file::metadata::ParquetMetaData;

use crate::{
    error::{Error, Result},
    types::Key,
};

const MAY_HOLD_NAN: u8 = 1;

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) page_rows: u32,
    pub(super) groups: Vec<GroupIndex>,
}

/// Of one row group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupIndex {
    /// The first key of each block.
    pub(super) marks: Vec<Key>,
    /// Leaf by leaf.
    pub(super) chunks: Vec<ChunkIndex>,
}

/// Of one column chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkIndex {
    pub(super) may_hold_nan: bool,
    pub(super) dictionary_crc: u32,
    pub(super) page_crcs: Vec<u32>,
}

impl Index {
    /// In the form that the head of this file draws.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(self.page_rows);
        out.put_u32_le(self.groups.len() as u32);
        let columns = self.groups.first().map_or(0, |group| group.chunks.len());
        out.put_u32_le(columns as u32);
        for group in &self.groups {
            out.put_u32_le(group.marks.len() as u32);
            for key in &group.marks {
                out.put_u32_le(key.0.len() as u32);
                out.put_slice(&key.0);
            }
            for chunk in &group.chunks {
                out.put_u8(if chunk.may_hold_nan { MAY_HOLD_NAN } else { 0 });
                out.put_u32_le(chunk.dictionary_crc);
                out.put_u32_le(chunk.page_crcs.len() as u32);
                for crc in &chunk.page_crcs {
                    out.put_u32_le(*crc);
                }
            }
        }
        out
    }

    /// The index in `bytes`, whose checksum has been verified.
    ///
    /// # Errors
    /// `Corrupt`; the caller adds the name of the object.
    pub(super) fn parse(bytes: Bytes) -> Result<Self> {
        let mut input = Input(bytes);
        let page_rows = input.number()?;
        let (groups, columns) = (input.number()?, input.number()?);
        let groups = (0..groups).map(|_| {
            Ok(GroupIndex {
                marks: input.list(|input| input.key())?,
                chunks: (0..columns).map(|_| input.chunk()).collect::<Result<_>>()?,
            })
        });
        let groups = groups.collect::<Result<Vec<_>>>()?;
        if page_rows == 0 || !input.0.is_empty() {
            return Err(malformed());
        }
        Ok(Self { page_rows, groups })
    }

    /// Checks that the index is one for a file with the metadata `parquet`, page index included, whose row
    /// groups begin with the keys `firsts`: blocks, chunks and pages are as many as there, marks ascend, and
    /// pages fill their chunks.
    ///
    /// # Errors
    /// `Corrupt`; the caller adds the name of the object.
    pub(super) fn check(&self, parquet: &ParquetMetaData, firsts: &[Key]) -> Result<()> {
        let wrong = |group: usize, what: &str| {
            Err(Error::corrupt(format!(
                "its index does not fit row group {group}: {what}"
            )))
        };
        let Some(pages) = parquet.offset_index() else {
            return Err(Error::corrupt("it has no page index"));
        };
        let groups = parquet.row_groups();
        if self.groups.len() != groups.len() || pages.len() != groups.len() {
            return wrong(groups.len(), "there is none");
        }
        for (at, (own, group)) in self.groups.iter().zip(groups).enumerate() {
            let rows = u64::try_from(group.num_rows()).unwrap_or_default();
            let blocks = rows.div_ceil(u64::from(self.page_rows));
            if own.marks.len() as u64 != blocks {
                return wrong(at, "the number of marks");
            }
            if own.marks.first() != firsts.get(at) || !own.marks.is_sorted() {
                return wrong(at, "the order of marks");
            }
            if own.chunks.len() != group.num_columns() || pages[at].len() != group.num_columns() {
                return wrong(at, "the number of columns");
            }
            for ((chunk, pages), own) in group.columns().iter().zip(&pages[at]).zip(&own.chunks) {
                let (start, bytes) = chunk.byte_range();
                let pages = pages.page_locations();
                if pages.len() != own.page_crcs.len()
                    || !pages_fill(pages, start, start.saturating_add(bytes), rows)
                {
                    return wrong(at, &format!("the pages of column {}", chunk.column_path()));
                }
            }
        }
        Ok(())
    }
}

/// Whether `pages` lie one after the other, up to the end of the chunk from `start` to `end`, and their rows
/// ascend below `rows`.
fn pages_fill(
    pages: &[parquet::file::page_index::offset_index::PageLocation],
    start: u64,
    end: u64,
    rows: u64,
) -> bool {
    let Some(first) = pages.first() else {
        return false;
    };
    let (mut at, mut row) = (first.offset, -1);
    for page in pages {
        let in_order =
            page.offset == at && page.compressed_page_size > 0 && page.first_row_index > row;
        let Some(next) = at.checked_add(i64::from(page.compressed_page_size)) else {
            return false;
        };
        if !in_order {
            return false;
        }
        (at, row) = (next, page.first_row_index);
    }
    first.first_row_index == 0
        && u64::try_from(first.offset).is_ok_and(|first| first >= start)
        && u64::try_from(at) == Ok(end)
        && u64::try_from(row).is_ok_and(|row| row < rows)
}

struct Input(Bytes);

impl Input {
    fn take(&mut self, bytes: usize) -> Result<Bytes> {
        if bytes > self.0.len() {
            return Err(malformed());
        }
        Ok(self.0.split_to(bytes))
    }

    fn number(&mut self) -> Result<u32> {
        Ok(self.take(4)?.get_u32_le())
    }

    fn key(&mut self) -> Result<Key> {
        let length = self.number()? as usize;
        Ok(Key(self.take(length)?))
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| item(self)).collect()
    }

    fn chunk(&mut self) -> Result<ChunkIndex> {
        Ok(ChunkIndex {
            may_hold_nan: self.take(1)?.get_u8() & MAY_HOLD_NAN != 0,
            dictionary_crc: self.number()?,
            page_crcs: self.list(Self::number)?,
        })
    }
}

fn malformed() -> Error {
    Error::corrupt("its index is not one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let key = |text: &str| Key::from(text.as_bytes());
        let chunk = |may_hold_nan, page_crcs: &[u32]| ChunkIndex {
            may_hold_nan,
            dictionary_crc: 0xdead_beef,
            page_crcs: page_crcs.into(),
        };
        Index {
            page_rows: 8_192,
            groups: vec![
                GroupIndex {
                    marks: vec![key("a"), key(""), key("carp")],
                    chunks: vec![chunk(true, &[1, 2]), chunk(false, &[])],
                },
                GroupIndex {
                    marks: vec![key("d")],
                    chunks: vec![chunk(false, &[3]), chunk(true, &[u32::MAX])],
                },
            ],
        }
    }

    #[test]
    fn an_index_comes_back() {
        let bytes = Bytes::from(index().encode());
        assert_eq!(Index::parse(bytes.clone()).unwrap(), index());
        // Keys share the memory of the block.
        for end in 0..bytes.len() {
            assert!(Index::parse(bytes.slice(..end)).is_err(), "cut at {end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Index::parse(longer.into()).is_err());
    }
}
