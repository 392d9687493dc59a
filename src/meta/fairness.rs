//! Whose turn it is: round robin over owners, one task a turn, so that a database with a thousand tasks
//! does not keep one with a single task waiting. Pure.

use crate::types::OwnerId;

/// Remembers who was served last.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    last: Option<OwnerId>,
}

impl Turn {
    /// `owners`, which come in order of their names, in the order of their turns.
    pub(super) fn order(&self, owners: impl Iterator<Item = OwnerId>) -> Vec<OwnerId> {
        let mut owners: Vec<OwnerId> = owners.collect();
        let served = owners.partition_point(|owner| Some(owner) <= self.last.as_ref());
        owners.rotate_left(served);
        owners
    }

    /// `owner` has been served.
    pub(super) fn served(&mut self, owner: &OwnerId) {
        self.last = Some(owner.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns() {
        let owners = || ["a", "b", "c"].map(OwnerId::from).into_iter();
        let mut turn = Turn::default();
        assert_eq!(turn.order(owners())[0], "a".into());
        turn.served(&"a".into());
        assert_eq!(turn.order(owners()), ["b", "c", "a"].map(OwnerId::from));
        turn.served(&"c".into());
        assert_eq!(turn.order(owners())[0], "a".into());
        turn.served(&"bb".into());
        assert_eq!(turn.order(owners())[0], "c".into(), "the served owner left");
    }
}
