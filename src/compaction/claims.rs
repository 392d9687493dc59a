//! Inputs reserved for jobs. A claim is a guard: however a job ends, its inputs come free.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use crate::types::SstId;

/// The claimed inputs of one table. Cheap to clone.
#[derive(Clone, Debug, Default)]
#[doc(alias = "lock")]
pub struct Claims {
    claimed: Arc<Mutex<HashSet<SstId>>>,
}

impl Claims {
    /// Whether a job has `sst` as input.
    pub fn is_claimed(&self, sst: SstId) -> bool {
        self.claimed
            .lock()
            .expect("no panic under this lock")
            .contains(&sst)
    }

    /// Number of claimed inputs; zero when nothing runs.
    pub fn len(&self) -> usize {
        self.claimed.lock().expect("no panic under this lock").len()
    }

    /// Whether nothing is claimed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Claims all of `ssts`, or none when one is claimed already.
    pub fn claim(&self, ssts: Vec<SstId>) -> Option<Claim> {
        let mut claimed = self.claimed.lock().expect("no panic under this lock");
        if ssts.iter().any(|sst| claimed.contains(sst)) {
            return None;
        }
        claimed.extend(ssts.iter().copied());
        Some(Claim {
            claims: self.clone(),
            ssts,
        })
    }
}

/// Inputs reserved for one job, until dropped.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    ssts: Vec<SstId>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self
            .claims
            .claimed
            .lock()
            .expect("no panic under this lock");
        for sst in &self.ssts {
            claimed.remove(sst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_all_or_nothing_and_come_free() {
        let [a, b, c] = [1, 2, 3].map(|n| SstId::flushed(n, 0));
        let claims = Claims::default();
        let first = claims.claim(vec![a, b]).unwrap();
        assert!(claims.claim(vec![b, c]).is_none());
        assert!(!claims.is_claimed(c) && claims.is_claimed(b));
        drop(first);
        assert!(claims.is_empty());
        assert!(claims.claim(vec![b, c]).is_some());
    }
}
