//! The example's head shows what `cargo run --example sample_flow` prints.

#[allow(dead_code, reason = "an example's main is not called here")]
#[path = "../../examples/sample_flow.rs"]
mod example;

#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_the_example_shows_what_it_prints() {
    let mut printed = vec![];
    example::flow(&mut printed).await.unwrap();
    let printed = String::from_utf8(printed).unwrap();
    // As in captures/08: a pod that does not fit is refused at admission.
    assert!(printed.contains("UnexpectedAdmissionError"), "{printed}");
    let shown: String = printed.lines().map(|line| format!("//! {line}\n")).collect();
    let head = include_str!("../../examples/sample_flow.rs");
    assert!(
        head.contains(&format!("//! ```text\n{shown}//! ```\n")),
        "examples/sample_flow.rs does not have:\n{shown}"
    );
}
