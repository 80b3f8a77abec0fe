//! The decisions, and the types that they are about.
//!
//! In and out: values of `model`. Does not contain: clocks, I/O, async, drivers, wire formats. Time is an argument.

pub mod attribution;
pub mod condition;
pub mod health;
pub mod history;
pub mod holders;
pub mod model;
pub mod periods;
pub mod preference;
