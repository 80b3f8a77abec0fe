//! What several test files need. Each uses a part of it.
#![allow(dead_code, unused_imports, reason = "every test file compiles this for itself and uses what it needs")]

pub mod captures;
pub mod kubelet;
