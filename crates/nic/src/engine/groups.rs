//! Which queue pairs are attached to a multicast group.

use super::QpCore;
use ferroce_os::lock::RwLock;
use ferroce_proto::Gid;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Groups {
    by_group: RwLock<HashMap<Gid, Vec<Arc<QpCore>>>>,
}

impl Groups {
    pub(super) fn join(&self, qp: &Arc<QpCore>, group: Gid) {
        self.by_group.write().entry(group).or_default().push(qp.clone());
    }

    pub(super) fn leave(&self, qp: &Arc<QpCore>, group: Gid) {
        let mut by_group = self.by_group.write();
        if let Some(list) = by_group.get_mut(&group) {
            if let Some(at) = list.iter().position(|m| Arc::ptr_eq(m, qp)) {
                list.swap_remove(at);
            }
            if list.is_empty() {
                by_group.remove(&group);
            }
        }
    }

    /// The members, each once, however often it joined.
    pub(super) fn members(&self, group: Gid) -> Vec<Arc<QpCore>> {
        let mut list = self.by_group.read().get(&group).cloned().unwrap_or_default();
        list.sort_by_key(|qp| qp.qpn);
        list.dedup_by_key(|qp| qp.qpn);
        list
    }
}
