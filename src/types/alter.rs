//! Changes of a table's schema: pure, from one version to the next. Columns are known by ids, which never
//! come back, so that what is stored stays readable.

use std::{sync::Arc, time::Duration};

use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use super::{
    MergeOperator, PlannerKind, TableSchema, Windowing,
    schema::{Columns, Parts},
};
use crate::error::{Error, Result};

/// One change of a table's schema or options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alteration {
    /// Adds a nullable column at the end; it is null in all rows written before.
    AddColumn {
        /// Name, type and metadata.
        field: Field,
        /// How its values combine.
        operator: MergeOperator,
    },
    /// Drops a value column and its values.
    DropColumn {
        /// Its name.
        name: String,
    },
    /// Gives a value column a wider type of the same sort: a signed, unsigned or floating-point number with
    /// more bits, or a signed one for an unsigned one with fewer bits.
    WidenColumn {
        /// Its name.
        name: String,
        /// The wider type.
        data_type: DataType,
    },
    /// Gives a column, of the key or not, another name.
    RenameColumn {
        /// Its name so far.
        from: String,
        /// Its name from now on.
        to: String,
    },
    /// Sets or ends the time to live; rows that are past the one before are gone for good.
    SetTtl(Option<Duration>),
    /// Sets windows for what is flushed from now on. SSTs keep theirs, until they are gone: only then can windows
    /// be changed again.
    SetWindow(Windowing),
    /// Sets who chooses what to merge from now on; `None` leaves it to the table's columns.
    SetPlanner(Option<PlannerKind>),
}

impl TableSchema {
    /// The next version of this schema, with all of `changes`, made in order at `now_ms` (milliseconds since the
    /// Unix epoch).
    ///
    /// # Errors
    /// `Invalid`, naming the column: it is not there, its name is taken or reserved, it is part of the key, a
    /// new one is not nullable, or the type is not wider.
    pub fn altered(&self, changes: &[Alteration], now_ms: u64) -> Result<TableSchema> {
        let mut parts = self.to_parts();
        // Rows that have expired are gone, or not yet: a longer life must not show which.
        parts.expiry_floor = self.expiry(now_ms);
        for change in changes {
            parts.alter(change)?;
        }
        parts.version += 1;
        TableSchema::from_parts(parts)
    }
}

impl Parts {
    fn alter(&mut self, change: &Alteration) -> Result<()> {
        match change {
            Alteration::AddColumn { field, operator } => self.add_column(field, *operator),
            Alteration::DropColumn { name } => self.drop_column(name),
            Alteration::WidenColumn { name, data_type } => self.widen_column(name, data_type),
            Alteration::RenameColumn { from, to } => self.rename_column(from, to),
            Alteration::SetTtl(ttl) => {
                self.options.ttl = *ttl;
                Ok(())
            }
            Alteration::SetWindow(window) => {
                self.options.window = *window;
                Ok(())
            }
            Alteration::SetPlanner(planner) => {
                self.options.planner = *planner;
                Ok(())
            }
        }
    }

    fn add_column(&mut self, field: &Field, operator: MergeOperator) -> Result<()> {
        let name = field.name();
        if !field.is_nullable() {
            return Err(Error::invalid(format!(
                "column {name:?} to be added is not nullable, but is null in the rows that are there"
            )));
        }
        self.set_fields(|fields| fields.push(Arc::new(field.clone())));
        self.columns.ids.push(self.columns.next_id);
        self.columns.next_id += 1;
        if operator != MergeOperator::LastValue {
            self.options.operators.insert(name.clone(), operator);
        }
        Ok(())
    }

    fn drop_column(&mut self, name: &str) -> Result<()> {
        let at = self.value_column(name)?;
        self.set_fields(|fields| {
            fields.remove(at);
        });
        self.columns.ids.remove(at);
        self.options.operators.remove(name);
        Ok(())
    }

    fn widen_column(&mut self, name: &str, to: &DataType) -> Result<()> {
        let at = self.value_column(name)?;
        let from = self.columns.schema.field(at).data_type();
        if !is_wider(from, to) {
            return Err(Error::invalid(format!(
                "column {name:?} cannot be widened from {from} to {to}"
            )));
        }
        self.set_fields(|fields| {
            fields[at] = Arc::new(fields[at].as_ref().clone().with_data_type(to.clone()));
        });
        Ok(())
    }

    fn rename_column(&mut self, from: &str, to: &str) -> Result<()> {
        let at = self.column(from)?;
        self.set_fields(|fields| {
            fields[at] = Arc::new(fields[at].as_ref().clone().with_name(to));
        });
        for name in self.key.iter_mut().chain(&mut self.time) {
            if name == from {
                to.clone_into(name);
            }
        }
        if let Some(operator) = self.options.operators.remove(from) {
            self.options.operators.insert(to.to_owned(), operator);
        }
        Ok(())
    }

    fn column(&self, name: &str) -> Result<usize> {
        let Columns { schema, .. } = &self.columns;
        let at = schema.index_of(name);
        at.map_err(|_| Error::invalid(format!("there is no column {name:?}")))
    }

    fn value_column(&self, name: &str) -> Result<usize> {
        let at = self.column(name)?;
        if self.key.iter().any(|key| key == name) {
            return Err(Error::invalid(format!(
                "column {name:?} is part of the primary key"
            )));
        }
        Ok(at)
    }

    fn set_fields(&mut self, change: impl FnOnce(&mut Vec<FieldRef>)) {
        let schema = &self.columns.schema;
        let mut fields = schema.fields().to_vec();
        change(&mut fields);
        let metadata = schema.metadata().clone();
        self.columns.schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    }
}

/// Whether every value of `from` is a value of `to`, which is another type of the same sort.
fn is_wider(from: &DataType, to: &DataType) -> bool {
    use DataType::{Float16, Float32, Float64};
    let bits = |data_type: &DataType| data_type.primitive_width().unwrap_or(0);
    let grows = bits(from) < bits(to);
    match (from, to) {
        (Float16 | Float32, Float32 | Float64) => grows,
        (from, to) if from.is_unsigned_integer() => to.is_integer() && grows,
        (from, to) if from.is_signed_integer() => to.is_signed_integer() && grows,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TableOptions;

    fn schema() -> TableSchema {
        let columns = Schema::new(vec![
            Field::new("k", DataType::Int64, false),
            Field::new("v", DataType::Int32, true),
            Field::new("w", DataType::UInt8, true),
        ]);
        let options = TableOptions {
            operators: [("v".to_owned(), MergeOperator::Sum)].into(),
            ..TableOptions::default()
        };
        TableSchema::new(Arc::new(columns), &["k"], None, options).unwrap()
    }

    fn rename(from: &str, to: &str) -> Alteration {
        let (from, to) = (from.to_owned(), to.to_owned());
        Alteration::RenameColumn { from, to }
    }

    fn widen(name: &str, data_type: DataType) -> Alteration {
        let name = name.to_owned();
        Alteration::WidenColumn { name, data_type }
    }

    fn drop_column(name: &str) -> Alteration {
        let name = name.to_owned();
        Alteration::DropColumn { name }
    }

    fn add(name: &str, nullable: bool) -> Alteration {
        Alteration::AddColumn {
            field: Field::new(name, DataType::Utf8, nullable),
            operator: MergeOperator::BytesAppend,
        }
    }

    #[test]
    fn ids_stay_with_their_columns_and_never_come_back() {
        let altered = schema()
            .altered(
                &[
                    rename("v", "w2"),
                    drop_column("w"),
                    add("w", true),
                    rename("k", "key"),
                ],
                0,
            )
            .unwrap();
        assert_eq!(altered.version(), 2);
        assert_eq!(altered.key_names(), ["key"]);
        assert_eq!(altered.column_ids(), [1, 2, 4]);
        assert_eq!(
            altered.operators(),
            [
                MergeOperator::LastValue,
                MergeOperator::Sum,
                MergeOperator::BytesAppend
            ]
        );
        let again = altered.altered(&[drop_column("w"), add("w", true)], 0);
        assert_eq!(again.unwrap().column_ids(), [1, 2, 5]);
    }

    #[test]
    fn a_change_that_cannot_be_made_names_the_column() {
        for (change, words) in [
            (rename("x", "y"), "\"x\""),
            (rename("v", "w"), "\"w\" is used twice"),
            (rename("v", "__seq"), "reserved"),
            (drop_column("k"), "\"k\" is part of the primary key"),
            (widen("k", DataType::Int64), "primary key"),
            (widen("v", DataType::Int16), "from Int32 to Int16"),
            (widen("v", DataType::Float64), "from Int32 to Float64"),
            (widen("v", DataType::UInt64), "from Int32 to UInt64"),
            (add("z", false), "not nullable"),
            (
                Alteration::SetTtl(Some(Duration::from_secs(1))),
                "time column",
            ),
        ] {
            let error = schema()
                .altered(std::slice::from_ref(&change), 0)
                .unwrap_err();
            assert!(error.to_string().contains(words), "{change:?}: {error}");
        }
        assert!(schema().altered(&[widen("w", DataType::Int16)], 0).is_ok());
        assert!(schema().altered(&[widen("v", DataType::Int64)], 0).is_ok());
    }
}
