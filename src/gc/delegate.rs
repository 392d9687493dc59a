//! Who may delete in the sweeper's stead. The sweeper decides, hands over names, and counts an object as deleted when
//! that is confirmed.

use async_trait::async_trait;

use crate::types::{Deletion, TableId};

/// Somebody who deletes objects that a sweep has decided about.
#[async_trait]
pub trait Delegate: Send + Sync + 'static {
    /// How many objects it takes at once now; 0 for none: the sweeper deletes by itself.
    fn deletes_max(&self) -> usize;

    /// Deletes `names`, objects in the folder of `table`; returns what became of each, in their order. When the
    /// future is dropped, they may be deleted later, or not.
    async fn delete(&self, table: TableId, names: &[String]) -> Vec<Deletion>;
}
