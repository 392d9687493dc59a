//! What an SST says of itself in the key-values of its Parquet footer.
//!
//! Every key starts with `siltstone.`; numbers are decimal, bytes and hashes lower-case hex:
//! ```text
//! format_version   2
//! table            ULID of the table
//! sst              id of the SST
//! level            0 flushed, 1.. compacted
//! window           the window's times: start ',' end, in the unit of the time column
//! schema_version   of the table's schema
//! applied_seq      range deletes up to this seq hide none of the rows
//! write_mode       upsert | append
//! rows             rows in it
//! keys             different keys in it; as many as rows when none has two versions
//! tombstones       of these, with __op = 1
//! rows_hash        16 digits: wrapping sum over the rows of XXH3-64 of the encoded key, seeded with the seq
//! key_min, key_max encoded keys, both inclusive
//! seq_min, seq_max
//! time_min, time_max   in the unit of the time column; absent without one
//! row_group_keys   the first key of each row group, joined by ','
//! chunk_crcs       8 digits a column chunk: its CRC-32; row group by row group, leaf by leaf
//! filter           offset ',' length ',' CRC-32 of the key filter; absent without one
//! index            the same of the index
//! page_index_crc   8 digits: CRC-32 of Parquet's page index, which is all from the end of the index to the
//!                  footer
//! footer_crc       8 digits: CRC-32 of the footer, from its first byte to the end of the object, with
//!                  these digits as zeros
//! ```
//!
//! The last two are known only when the footer is written, and are filled in afterwards. `footer_crc` is
//! verified on the raw bytes before the footer is parsed. So both are found by their Thrift encoding: the
//! key, a field header, the length 8, the digits.
//!
//! Version 1 had no `keys`, `index` and `page_index_crc`; it was never released, and is refused.

use std::{fmt::Write, ops::Range, str::FromStr};

use parquet::file::metadata::KeyValue;

use crate::{
    error::{Error, Result},
    types::{Key, Seq, SstId, SstMeta, TableId, Window, WriteMode},
};

/// The version this siltstone writes, and the only one it reads.
const FORMAT_VERSION: u32 = 2;

/// Bytes after the metadata: its length and the magic.
pub(super) const TRAILER_BYTES: usize = 8;
const MAGIC: &[u8; 4] = b"PAR1";

const SEAL_KEY: &str = "siltstone.footer_crc";
const PAGE_INDEX_KEY: &str = "siltstone.page_index_crc";
/// Thrift compact: next field, a string, 8 bytes long.
const CRC_HEADER: [u8; 2] = [0x18, 8];
const CRC_EMPTY: &[u8; 8] = b"00000000";

/// The key-values of an SST's footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) table: TableId,
    pub(super) write_mode: WriteMode,
    pub(super) meta: SstMeta,
    pub(super) row_group_keys: Vec<Key>,
    /// One a column chunk: row group by row group, leaf by leaf.
    pub(super) chunk_crcs: Vec<u32>,
    pub(super) filter: Option<Place>,
    pub(super) index: Place,
    /// Of what lies between the index and the footer.
    pub(super) page_index_crc: u32,
    /// Different keys in the SST.
    pub(super) keys: u64,
}

/// Where in the object a block of bytes lies, and its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) range: Range<u64>,
    pub(super) crc: u32,
}

impl Place {
    /// Of `block`, which begins at `start`.
    pub(super) fn of(start: u64, block: &[u8]) -> Self {
        Self {
            range: start..start + block.len() as u64,
            crc: crc32fast::hash(block),
        }
    }

    fn encode(&self) -> String {
        let Range { start, end } = self.range;
        format!("{start},{},{:08x}", end - start, self.crc)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(',');
        let start: u64 = fields.next()?.parse().ok()?;
        let length: u64 = fields.next()?.parse().ok()?;
        let crc = u32::from_str_radix(fields.next()?, 16).ok()?;
        let range = start..start.checked_add(length)?;
        fields.next().is_none().then_some(Self { range, crc })
    }
}

impl Footer {
    /// The key-values; two are empty until [`fill_page_index_crc`] and [`seal`] fill them in.
    pub(super) fn encode(&self) -> Vec<KeyValue> {
        let meta = &self.meta;
        let mut pairs = Vec::new();
        let mut put = |key: &str, value: String| {
            pairs.push(KeyValue::new(format!("siltstone.{key}"), value));
        };
        put("format_version", FORMAT_VERSION.to_string());
        put("table", self.table.to_string());
        put("sst", meta.id.to_string());
        put("level", meta.level.to_string());
        let window = meta.window.times();
        put("window", format!("{},{}", window.start, window.end));
        put("schema_version", meta.schema_version.to_string());
        put("applied_seq", meta.applied_seq.to_string());
        put("write_mode", self.write_mode.to_string());
        put("rows", meta.rows.to_string());
        put("keys", self.keys.to_string());
        put("tombstones", meta.tombstones.to_string());
        put("rows_hash", format!("{:016x}", meta.rows_hash));
        put("key_min", hex(&meta.key_min.0));
        put("key_max", hex(&meta.key_max.0));
        put("seq_min", meta.seq_min.to_string());
        put("seq_max", meta.seq_max.to_string());
        if let Some((min, max)) = meta.times {
            put("time_min", min.to_string());
            put("time_max", max.to_string());
        }
        let keys: Vec<String> = self.row_group_keys.iter().map(|key| hex(&key.0)).collect();
        put("row_group_keys", keys.join(","));
        let crcs = self.chunk_crcs.iter();
        put(
            "chunk_crcs",
            crcs.fold(String::new(), |mut text, crc| {
                write!(text, "{crc:08x}").expect("a string takes everything");
                text
            }),
        );
        if let Some(filter) = &self.filter {
            put("filter", filter.encode());
        }
        put("index", self.index.encode());
        let empty = || String::from_utf8_lossy(CRC_EMPTY).into_owned();
        pairs.push(KeyValue::new(PAGE_INDEX_KEY.into(), empty()));
        pairs.push(KeyValue::new(SEAL_KEY.into(), empty()));
        pairs
    }

    /// The footer in `pairs` of an object of `bytes` bytes.
    ///
    /// # Errors
    /// `Corrupt`; the caller adds the name of the object.
    pub(super) fn parse(pairs: &[KeyValue], bytes: u64) -> Result<Self> {
        let pairs = Pairs(pairs);
        let version: u32 = pairs.parse("format_version")?;
        if version != FORMAT_VERSION {
            return Err(Error::corrupt(format!(
                "format version {version}; this siltstone reads version {FORMAT_VERSION}"
            )));
        }
        let times = match pairs.find("time_min") {
            Some(_) => Some((pairs.parse("time_min")?, pairs.parse("time_max")?)),
            None => None,
        };
        let write_mode = match pairs.require("write_mode")? {
            "upsert" => WriteMode::Upsert,
            "append" => WriteMode::Append,
            _ => return Err(pairs.bad("write_mode")),
        };
        let meta = SstMeta {
            id: pairs.parse::<SstId>("sst")?,
            level: pairs.parse("level")?,
            window: pairs.window()?,
            bytes,
            rows: pairs.parse("rows")?,
            tombstones: pairs.parse("tombstones")?,
            key_min: pairs.key("key_min", pairs.require("key_min")?)?,
            key_max: pairs.key("key_max", pairs.require("key_max")?)?,
            seq_min: Seq(pairs.parse("seq_min")?),
            seq_max: Seq(pairs.parse("seq_max")?),
            times,
            schema_version: pairs.parse("schema_version")?,
            applied_seq: Seq(pairs.parse("applied_seq")?),
            rows_hash: u64::from_str_radix(pairs.require("rows_hash")?, 16)
                .map_err(|_| pairs.bad("rows_hash"))?,
            home: None,
        };
        let keys = pairs.require("row_group_keys")?.split(',');
        let row_group_keys = keys.map(|key| pairs.key("row_group_keys", key));
        let crcs = pairs.require("chunk_crcs")?.as_bytes().chunks(8);
        let page_index_crc = parse_crc(pairs.require("page_index_crc")?.as_bytes());
        let filter = pairs.find("filter");
        Ok(Self {
            filter: filter.map(|_| pairs.place("filter")).transpose()?,
            index: pairs.place("index")?,
            page_index_crc: page_index_crc.ok_or_else(|| pairs.bad("page_index_crc"))?,
            keys: pairs.parse("keys")?,
            table: pairs.parse("table")?,
            write_mode,
            meta,
            row_group_keys: row_group_keys.collect::<Result<_>>()?,
            chunk_crcs: crcs
                .map(|digits| parse_crc(digits).ok_or_else(|| pairs.bad("chunk_crcs")))
                .collect::<Result<_>>()?,
        })
    }
}

struct Pairs<'a>(&'a [KeyValue]);

impl<'a> Pairs<'a> {
    fn find(&self, key: &str) -> Option<&'a str> {
        let named = |pair: &&KeyValue| pair.key.strip_prefix("siltstone.") == Some(key);
        self.0.iter().find(named)?.value.as_deref()
    }

    fn require(&self, key: &str) -> Result<&'a str> {
        self.find(key)
            .ok_or_else(|| Error::corrupt(format!("its footer has no siltstone.{key}")))
    }

    fn parse<T: FromStr>(&self, key: &str) -> Result<T> {
        self.require(key)?.parse().map_err(|_| self.bad(key))
    }

    fn key(&self, key: &str, text: &str) -> Result<Key> {
        unhex(text)
            .map(|bytes| Key(bytes.into()))
            .ok_or_else(|| self.bad(key))
    }

    fn place(&self, key: &str) -> Result<Place> {
        Place::parse(self.require(key)?).ok_or_else(|| self.bad(key))
    }

    fn window(&self) -> Result<Window> {
        let bounds = self.require("window")?.split_once(',');
        let bounds = bounds.and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
        let (start, end) = bounds.ok_or_else(|| self.bad("window"))?;
        Ok(Window::new(start, end))
    }

    fn bad(&self, key: &str) -> Error {
        let value: String = self
            .find(key)
            .unwrap_or_default()
            .chars()
            .take(64)
            .collect();
        Error::corrupt(format!("its footer has siltstone.{key} = {value:?}"))
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

/// Where the footer starts, counted back from the end of the object, as its last bytes `trailer` say.
///
/// # Errors
/// `Corrupt` when they are not the end of a Parquet file.
pub(super) fn footer_bytes(trailer: &[u8]) -> Result<usize> {
    let Some(trailer) = trailer.last_chunk::<TRAILER_BYTES>() else {
        let bytes = trailer.len();
        return Err(Error::corrupt(format!(
            "{bytes} bytes are too few for an sst"
        )));
    };
    let (length, magic) = trailer.split_at(4);
    if magic != MAGIC {
        return Err(Error::corrupt("does not end with PAR1"));
    }
    let length = u32::from_le_bytes(length.try_into().expect("4 bytes"));
    Ok(length as usize + TRAILER_BYTES)
}

/// Writes the checksum of the page index into the footer: `tail` is the two, and ends the object.
pub(super) fn fill_page_index_crc(tail: &mut [u8]) -> Result<()> {
    let (page_index, footer) = split_footer(tail)?;
    let crc = crc32fast::hash(page_index);
    fill(footer, PAGE_INDEX_KEY, crc)
}

/// Writes the checksum of the footer into `tail`, which ends with it. Nothing may change afterwards.
pub(super) fn seal(tail: &mut [u8]) -> Result<()> {
    let (_, footer) = split_footer(tail)?;
    let crc = crc32fast::hash(footer);
    fill(footer, SEAL_KEY, crc)
}

fn split_footer(tail: &mut [u8]) -> Result<(&mut [u8], &mut [u8])> {
    let start = footer_bytes(tail)
        .ok()
        .and_then(|bytes| tail.len().checked_sub(bytes))
        .ok_or_else(|| Error::internal("the parquet writer left no footer"))?;
    Ok(tail.split_at_mut(start))
}

fn fill(footer: &mut [u8], key: &str, crc: u32) -> Result<()> {
    let at = find_crc(footer, key)
        .ok_or_else(|| Error::internal(format!("the footer has no {key} to fill in")))?;
    let digits = format!("{crc:08x}");
    footer[at..at + digits.len()].copy_from_slice(digits.as_bytes());
    Ok(())
}

/// Verifies the checksum of `footer`, which reaches to the end of the object.
///
/// # Errors
/// `Corrupt` when there is none, or it does not match.
pub(super) fn check_seal(footer: &[u8]) -> Result<()> {
    let at = find_crc(footer, SEAL_KEY).ok_or_else(|| {
        Error::corrupt("its footer has no checksum: it is not an sst of siltstone")
    })?;
    let (before, rest) = footer.split_at(at);
    let (digits, after) = rest.split_at(CRC_EMPTY.len());
    let mut crc = crc32fast::Hasher::new();
    crc.update(before);
    crc.update(CRC_EMPTY);
    crc.update(after);
    if format!("{:08x}", crc.finalize()).as_bytes() != digits {
        return Err(Error::corrupt("checksum of its footer does not match"));
    }
    Ok(())
}

/// Position of the digits of the checksum called `key`, unless there is no such place or more than one.
fn find_crc(footer: &[u8], key: &str) -> Option<usize> {
    let mark = [key.as_bytes(), &CRC_HEADER].concat();
    let mut places = footer.windows(mark.len()).enumerate();
    let mut next = || places.find(|(_, bytes)| *bytes == mark);
    let at = next()?.0 + mark.len();
    (next().is_none() && at + CRC_EMPTY.len() <= footer.len()).then_some(at)
}

fn parse_crc(digits: &[u8]) -> Option<u32> {
    let digits = str::from_utf8(digits).ok().filter(|text| text.len() == 8);
    u32::from_str_radix(digits?, 16).ok()
}
