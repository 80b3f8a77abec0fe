//! The documentation shows what `cargo run --example sample_flow` prints.

#[allow(dead_code, reason = "an example's main is not called here")]
#[path = "../../examples/sample_flow.rs"]
mod example;

#[tokio::test(flavor = "multi_thread")]
async fn the_documentation_shows_the_sample_flow_as_it_is() {
    let mut printed = vec![];
    example::flow(&mut printed).await.unwrap();
    let printed = String::from_utf8(printed).unwrap();
    // As in captures/08: a pod that does not fit is refused at admission.
    assert!(printed.contains("UnexpectedAdmissionError"), "{printed}");
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/get-started.md")).unwrap();
    assert!(document.contains(&format!("```text\n{printed}```\n")), "docs/get-started.md does not have:\n{printed}");
}
