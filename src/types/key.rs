//! Keys in the order-preserving row encoding of `arrow-row`: comparing bytes compares keys, for every
//! type the encoding supports; nulls sort first.

use std::{fmt, sync::Arc};

use arrow::{
    array::{ArrayRef, RecordBatch},
    datatypes::FieldRef,
    row::{RowConverter, Rows, SortField},
};
use bytes::Bytes;

use crate::error::{Error, Result};

/// One primary key, encoded so that byte order is key order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(pub Bytes);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl Key {
    /// The least key that is greater than this one.
    pub fn successor(&self) -> Key {
        let mut bytes = Vec::with_capacity(self.0.len() + 1);
        bytes.extend_from_slice(&self.0);
        bytes.push(0);
        Key(bytes.into())
    }
}

/// Turns key columns into [`Rows`] and back. Cheap to clone; the encoding depends on the column types
/// alone, so rows of different encoders for the same types compare.
#[derive(Clone)]
pub struct KeyEncoder {
    converter: Arc<RowConverter>,
    columns: Arc<[usize]>,
}

impl fmt::Debug for KeyEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyEncoder({:?})", self.columns)
    }
}

impl KeyEncoder {
    /// An encoder for the key columns `fields`, found at positions `columns` of a batch.
    ///
    /// # Errors
    /// `Invalid` when a type cannot be ordered; the message names the column and the type.
    pub fn new(fields: &[FieldRef], columns: &[usize]) -> Result<Self> {
        for field in fields {
            let sort = SortField::new(field.data_type().clone());
            if !RowConverter::supports_fields(&[sort]) {
                let (name, data_type) = (field.name(), field.data_type());
                return Err(Error::invalid(format!(
                    "key column {name:?} has type {data_type}, which cannot be ordered"
                )));
            }
        }
        let sort_fields = fields
            .iter()
            .map(|field| SortField::new(field.data_type().clone()))
            .collect();
        Ok(Self {
            converter: Arc::new(RowConverter::new(sort_fields)?),
            columns: columns.into(),
        })
    }

    /// The same encoder for batches in which the key columns stand at `columns`.
    pub fn at(&self, columns: &[usize]) -> Self {
        Self {
            converter: self.converter.clone(),
            columns: columns.into(),
        }
    }

    /// The keys of `batch`, one a row.
    pub fn encode(&self, batch: &RecordBatch) -> Result<Rows> {
        let columns: Vec<ArrayRef> = self
            .columns
            .iter()
            .map(|&column| batch.column(column).clone())
            .collect();
        Ok(self.converter.convert_columns(&columns)?)
    }

    /// The keys whose columns are `columns`, in key order of columns.
    pub(super) fn encode_columns(&self, columns: &[ArrayRef]) -> Result<Vec<Key>> {
        let rows = self.converter.convert_columns(columns)?;
        Ok(rows.iter().map(|row| Key::from(row.data())).collect())
    }

    /// The key columns of `keys`, in key order of columns.
    ///
    /// # Errors
    /// `Corrupt` when the bytes are not keys of this encoder's types.
    pub fn decode(&self, keys: &[Key]) -> Result<Vec<ArrayRef>> {
        let parser = self.converter.parser();
        self.converter
            .convert_rows(keys.iter().map(|key| parser.parse(&key.0)))
            .map_err(|error| Error::corrupt("key does not decode").with_source(error))
    }
}
