//! Which queue pairs listen to a multicast group.

use super::QpCore;
use ferroce_os::lock::RwLock;
use ferroce_proto::Gid;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Groups {
    members: RwLock<HashMap<Gid, Vec<Arc<QpCore>>>>,
}

impl Groups {
    pub(super) fn join(&self, qp: &Arc<QpCore>, group: Gid) {
        self.members.write().entry(group).or_default().push(qp.clone());
    }

    pub(super) fn leave(&self, qp: &Arc<QpCore>, group: Gid) {
        let mut members = self.members.write();
        if let Some(list) = members.get_mut(&group) {
            if let Some(at) = list.iter().position(|m| Arc::ptr_eq(m, qp)) {
                list.swap_remove(at);
            }
            if list.is_empty() {
                members.remove(&group);
            }
        }
    }

    /// Each listener once, however often it joined.
    pub(super) fn listeners(&self, group: Gid) -> Vec<Arc<QpCore>> {
        let mut list = self.members.read().get(&group).cloned().unwrap_or_default();
        list.sort_by_key(|qp| qp.qpn);
        list.dedup_by_key(|qp| qp.qpn);
        list
    }
}
