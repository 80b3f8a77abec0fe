//! What several test files need. Each uses a part of it.
#![allow(dead_code, unused_imports, reason = "every test file compiles this for itself and uses what it needs")]
#![allow(clippy::unwrap_used, reason = "a test")]

pub mod captures;
pub mod kubelet;
pub mod lab;
