//! What every effect on the node needs, shared and unchanging.

use crate::link::Link;
use crate::spool::Spool;
use fairlead_decide::node::{AttemptKey, Node};
use fairlead_supervisor::cgroup::Group;
use fairlead_supervisor::wire::Request;

/// The node as its effects see it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) link: Link,
    pub(crate) spool: Spool,
    /// Most bytes of one output that are kept.
    pub(crate) store_max_bytes: u64,
    /// Open files a tool may have; 0 = as many as the supervisor.
    pub(crate) open_files: u32,
}

impl Host {
    /// The group of an attempt; `None` with process groups.
    pub(crate) fn group(&self, key: &AttemptKey) -> Option<Group> {
        let payload = self.link.payload.as_ref()?;
        Some(Group::at(payload.join(format!("tx-{key}"))))
    }

    /// The group of an attempt that was started in that epoch of the supervisor; `None` with process groups.
    pub(crate) fn group_of(&self, key: &AttemptKey, epoch: u32) -> Option<Group> {
        let root = self.link.payload.as_ref()?.parent()?;
        Some(Group::at(root.join(format!("payload-{epoch}/tx-{key}"))))
    }

    /// Sends the supervisor a request about one attempt.
    ///
    /// # Errors
    /// One sentence with the act, when it could not be sent.
    pub(crate) fn tell(&self, what: &str, request: &Request) -> Result<(), String> {
        self.link
            .send(request)
            .map_err(|error| format!("send {what} to the supervisor: {error}"))
    }
}
