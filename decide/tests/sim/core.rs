//! The cores under test, each behind a wrapper that may do one deliberate thing wrong.

use fairlead_crds::values::Time;
use fairlead_decide::cluster::{self, Decision, Event, Key, Settings, World};
use fairlead_decide::node;
use std::collections::BTreeSet;

use super::faults::{ClusterFault, NodeFault};

/// The operator's core.
#[derive(Clone, Debug)]
pub struct Core {
    pub world: World,
    pub fault: Option<ClusterFault>,
}

impl Core {
    pub fn new(settings: Settings, fault: Option<ClusterFault>) -> Self {
        Self {
            world: World::new(settings),
            fault,
        }
    }

    pub fn absorb(&mut self, event: Event, now: Time) -> BTreeSet<Key> {
        match self.fault {
            None => self.world.absorb(event, now),
            Some(fault) => fault.absorb(&mut self.world, event, now),
        }
    }

    pub fn decide(&self, key: &Key, now: Time) -> Decision {
        match self.fault {
            None => cluster::decide(&self.world, key, now),
            Some(fault) => fault.decide(&self.world, key, now),
        }
    }
}

/// A node agent's core.
#[derive(Clone, Debug)]
pub struct NodeCore {
    pub world: node::World,
    pub fault: Option<NodeFault>,
}

impl NodeCore {
    pub fn new(node: node::Node, fault: Option<NodeFault>) -> Self {
        Self {
            world: node::World::new(node),
            fault,
        }
    }

    pub fn absorb(&mut self, event: node::Event) -> Vec<node::Key> {
        match self.fault {
            None => self.world.absorb(event),
            Some(fault) => fault.absorb(&mut self.world, event),
        }
    }

    pub fn decide(&self, key: &node::Key, now: node::Moment) -> node::Decision {
        match self.fault {
            None => node::decide(&self.world, key, now),
            Some(fault) => fault.decide(&self.world, key, now),
        }
    }
}
