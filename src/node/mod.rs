//! What communicates with the node: kubelet, driver, processes, disk.
//!
//! In: sockets, libraries and files of the node. Out: states on watch channels, in types of `domain::model`. Does not
//! use: metrics, HTTP, the agent.

pub mod hardware;
pub mod journal;
pub mod kubelet;
pub mod plugin;
pub mod processes;
pub mod wire;
