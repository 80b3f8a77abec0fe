//! The JSON of `/api/v1/*`: written by `web`, read by `client` and by the commands that query an agent.
//!
//! Input: a snapshot or a history. Output: values that serde writes and reads. Does not use: HTTP, files, clocks. A field
//! of a domain type is public only if it is listed here. Fields with `skip_deserializing` are for other readers:
//! podmeter's client reads them, as fields that are not public, as their defaults. `/api/v1/record` is the governance
//! record, `/api/v1/allocations` the journal's response.

#![allow(non_camel_case_types, reason = "in the structs of `objects`, the type of a field has the field's name")]

mod history;
mod node;
mod objects;

pub use crate::domain::condition::{ConditionReason, ConditionStatus, DeviceCondition, NodeCondition};
pub use history::{DeviceHistory, HistoryResponse};
