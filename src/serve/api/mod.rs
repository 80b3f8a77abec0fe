//! The JSON of `/api/v1/*`: written by `web`, read by `client` and by the commands that query an agent.
//!
//! Input: a snapshot or a history. Output: values that serde writes and reads. Does not use: HTTP, files, clocks. A type of
//! `model` that serializes as the API shows it is used directly. Fields with `skip_deserializing` are for other
//! readers: podmeter's client reads them as their defaults. `/api/v1/record` is the governance record,
//! `/api/v1/allocations` the journal's response.

mod history;
mod node;

pub use crate::domain::condition::{ConditionReason, ConditionStatus, DeviceCondition, NodeCondition};
pub use history::{DeviceHistory, HistoryResponse};
pub use node::NodeResponse;
