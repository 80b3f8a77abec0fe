#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| podmeter::fuzzing::node_answer(bytes));
